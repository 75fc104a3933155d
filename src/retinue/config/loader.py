"""Reads the environment and the settings files, and returns the settings or everything that is wrong with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct

from retinue.config import validators
from retinue.config.declarations import RUNNERS, Staff, default_agent, read_staff
from retinue.config.errors import BadConfig, Fault, Faults, KeyPath, Place
from retinue.config.models_parser import read_minds
from retinue.config.setting_metadata import Effect
from retinue.config.settings import OWN_SECTIONS, Settings
from retinue.config.settings_diff import Change, diff
from retinue.config.table_parser import rule_of, table_at, unknown_key, values
from retinue.config.toml_source import FILE_BYTES_MAX, FILES_MAX, Disk, Filled, Source, Table, reason
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace
from retinue.domain.times import zone

FILE_NAME = "retinue.toml"
SECTIONS = (
    "config_version",
    "include",
    "house",
    *OWN_SECTIONS,
    "agents",
    "templates",
    "people",
    "bindings",
    "schedules",
)
# Keys of similar servers and older versions, and what replaces them.
_MOVED = {
    "version": "the version of the file is `config_version`",
    "memory": "memory is each agent's own, in its home",
    "profiles": "there are no profiles; use templates",
    "home": "the home is where this file is found, so it is set by RETINUE_HOME",
}
_BESIDE = "it is a section of its own, beside [house]"

T = TypeVar("T")


class Configuration(Struct, frozen=True, kw_only=True):
    """Everything the environment and the files define. `hash` is the hash of the main file's text,
    for a later patch."""

    settings: Settings
    staff: Staff
    file: Path
    files: tuple[Path, ...]
    hash: str

    @property
    def default_agent(self) -> str | None:
        """The agent that answers if none is named: the configured one, otherwise `main`, otherwise
        the first declared."""
        return default_agent(self.settings.default_agent, [agent.name for agent in self.staff.agents])


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The usable settings, with defaults in place of invalid values, and all errors. For diagnosis.

    `tree` is the content of the files, with texts before and after variable expansion; `positions`
    is where each key is.
    """

    configuration: Configuration
    faults: tuple[Fault, ...]
    tree: Table = field(default_factory=dict[str, object], repr=False)
    places: Mapping[KeyPath, Place] = field(default_factory=dict[KeyPath, Place], repr=False)


class Reloaded(Struct, frozen=True, kw_only=True):
    """The result of a reload. `settings` can be used at once; values that need a restart keep their
    old value.

    The changes that need a restart are in `pending_restart`.
    """

    configuration: Configuration
    changes: tuple[Change, ...]

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def waiting(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.effect is Effect.RESTART)


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings from the settings file, if there is one, and the environment, which wins."""
    return load(environment).settings


def load(
    environment: Mapping[str, str], *, text: str | None = None, runners: frozenset[str] = RUNNERS
) -> Configuration:
    """Return the configuration, or raise InvalidSettings with all errors. `text` replaces the text
    of the main file."""
    examined = examine(environment, text=text, runners=runners)
    if examined.faults:
        raise BadConfig(examined.faults)
    return examined.configuration


def examine(environment: Mapping[str, str], *, text: str | None = None, runners: frozenset[str] = RUNNERS) -> Examined:
    """Like `load_configuration`, but never raises for errors in a file: for commands that inspect a broken instance."""
    home = home_from(environment)
    file = file_from(environment, home)
    faults = Faults()
    source = Source(Disk(read=read_text, fitting=_fitting), environment, faults)
    content = _content(file, environment, faults) if text is None else text
    tree = {} if content is None else source.tree(file, content)
    for key in tree:
        if key not in SECTIONS:
            _unknown_section(key, faults)
    settings = _settings(home, tree, environment, faults)
    configuration = Configuration(
        settings=settings,
        staff=read_staff(tree, faults, runners=runners, guests=bool(settings.plugins)),
        file=file,
        files=tuple(dict.fromkeys(source.files)),
        hash=text_hash(content or ""),
    )
    return Examined(configuration=configuration, faults=faults.in_order(), tree=tree, places=faults.places)


def reload(current: Configuration, environment: Mapping[str, str]) -> Reloaded:
    """Read the settings again. Raises InvalidSettings, and changes nothing, if they are invalid.

    A value that needs a restart keeps its old value and is reported as pending at every reload
    until the restart.
    """
    found = load(environment)
    settings = _kept_where_restart(current.settings, found.settings)
    return Reloaded(
        configuration=replace(found, settings=settings),
        changes=tuple(diff((current.settings, current.staff), (found.settings, found.staff))),
    )


def text_hash(text: str) -> str:
    """Return the hash of a settings text. A patch made for one text is never applied to another."""
    return hashlib.sha256(text.encode()).hexdigest()


def home_from(environment: Mapping[str, str]) -> Path:
    named = environment.get("RETINUE_HOME")
    home = Path(named).expanduser() if named else Path("~/.retinue").expanduser()
    if not home.is_absolute():
        raise Invalid(
            f"RETINUE_HOME is '{named}'",
            because="it must be an absolute path, or one from ~",
            try_this="RETINUE_HOME=~/.retinue",
            code="config.invalid",
        )
    return home


def file_from(environment: Mapping[str, str], home: Path) -> Path:
    """Return the settings file: RETINUE_CONFIG, or `retinue.toml` in the data directory. It must
    exist only if named."""
    named = environment.get("RETINUE_CONFIG")
    file = Path(named).expanduser() if named else home / FILE_NAME
    if not file.is_absolute():
        raise Invalid(
            f"RETINUE_CONFIG is '{named}'",
            because="it must be an absolute path, or one from ~, as the house may be started from anywhere",
            try_this="RETINUE_CONFIG=~/retinue.toml",
            code="config.invalid",
        )
    return file


def read_text(file: Path) -> str:
    """Return the exact text of a settings file. Raises ValueError if it is too large."""
    with file.open("rb") as opened:
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX:,} bytes")
    return content.decode()


def _content(file: Path, environment: Mapping[str, str], faults: Faults) -> str | None:
    try:
        return read_text(file)
    except FileNotFoundError:
        if environment.get("RETINUE_CONFIG"):
            faults.add_at(
                Place(),
                f"RETINUE_CONFIG names {file}, which is not there",
                path="RETINUE_CONFIG",
                because="a settings file that was asked for is not passed over",
                try_this="correct RETINUE_CONFIG, or unset it",
            )
    except (OSError, ValueError) as error:
        faults.add_at(
            Place(file),
            "the settings file cannot be read",
            because=reason(error),
            try_this=f"make {file} a text file that the house may read",
        )
    return None


def _fitting(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted by name."""
    anchored = Path(pattern).expanduser()
    start, rest = (
        (Path(anchored.anchor), str(anchored.relative_to(anchored.anchor))) if anchored.anchor else (folder, pattern)
    )
    found: list[Path] = []
    for file in start.glob(rest):
        if file.is_file():
            found.append(file)
        if len(found) > FILES_MAX:
            break
    return sorted(found)


def _unknown_section(key: str, faults: Faults) -> None:
    if hint := _MOVED.get(key):
        faults.add((key,), "is not a setting", because=hint, try_this="take it out")
    elif key in {each.name for each in fields(Settings)}:
        faults.add(
            (key,), "is not a setting", because="settings of the house stand in [house]", try_this=f"house.{key}"
        )
    else:
        unknown_key(key, (), SECTIONS, faults)


def _settings(home: Path, tree: Table, environment: Mapping[str, str], faults: Faults) -> Settings:
    path = ("house",)
    house = dict(table_at(tree.get("house", {}), path, faults))
    if "home" in house:
        del house["home"]
        faults.add((*path, "home"), "is not a setting", because=_MOVED["home"], try_this="take it out")
    for section in OWN_SECTIONS:
        if section in house:
            del house[section]
            faults.add((*path, section), "is not a setting", because=_BESIDE, try_this=f"write it as [{section}]")
    _check_password(house.get("store"), faults)
    found: dict[str, Any] = {"store": home / "house.db", "zone": zone("UTC")}
    found |= values(Settings, house, path, faults)
    found |= read_minds(tree, faults)
    found |= _from_variables(environment, faults)
    mirror = found.get("mirror")
    if mirror is not None and mirror.folder is not None:
        found["mirror"] = replace(mirror, folder=home / mirror.folder)
    defaults = found.get("defaults")
    if defaults is not None and defaults.workspace is not None:
        found["defaults"] = replace(defaults, workspace=home / defaults.workspace)
    settings = Settings(home=home, **found)
    _check_exposure(settings, faults)
    return settings


def _check_password(store: object, faults: Faults) -> None:
    written = store.written if isinstance(store, Filled) else store
    password = validators.password_in(written) if isinstance(written, str) else ""
    if password and "${" not in password:
        faults.add(
            ("house", "store"),
            "holds a password in plain text",
            because="this file is read, copied and backed up",
            try_this="postgresql://USER:${VARIABLE}@HOST/NAME, or leave it to ~/.pgpass",
        )


def _from_variables(environment: Mapping[str, str], faults: Faults) -> dict[str, Any]:
    """Return the values of RETINUE_STORE and RETINUE_ZONE. They win over the file, so one command
    can use another store."""
    found: dict[str, Any] = {}
    if store := environment.get("RETINUE_STORE"):
        if validators.store(store):
            faults.add_at(
                Place(),
                "RETINUE_STORE is not an address we know",
                path="RETINUE_STORE",
                because="it names a PostgreSQL database (postgresql://USER@HOST/NAME); without it the store is a file",
                try_this="unset RETINUE_STORE",
            )
        else:
            found["store"] = store
    if name := environment.get("RETINUE_ZONE"):
        try:
            found["zone"] = zone(name)
        except Invalid as error:
            faults.add_at(
                Place(),
                f"RETINUE_ZONE: {error.sentence}",
                path="RETINUE_ZONE",
                because=error.because,
                try_this=error.try_this,
            )
    return found


def _check_exposure(settings: Settings, faults: Faults) -> None:
    """Check that TCP is open beyond this machine only behind a trusted proxy with TLS."""
    if not settings.listen.enabled or validators.is_loopback(settings.listen.host):
        return
    missing = [
        name
        for name, there in (
            ("an https `house.public_url`", validators.is_https(settings.public_url)),
            ("`house.trusted_proxies`", bool(settings.trusted_proxies)),
        )
        if not there
    ]
    if missing:
        faults.add(
            ("house", "listen", "host"),
            f"is {settings.listen.host!r}, which others than this machine can reach",
            because=f"tokens would cross the network in the clear; {' and '.join(missing)} must be set first",
            try_this='host = "127.0.0.1", and put a proxy that speaks TLS before the house',
        )


def _kept_where_restart(old: T, new: T) -> T:
    """Return the new settings, with old values for fields that need a restart."""
    kept: dict[str, Any] = {}
    for each in fields(cast(Any, new)):
        before, after = getattr(old, each.name), getattr(new, each.name)
        if is_dataclass(after):
            kept[each.name] = _kept_where_restart(before, after)
        else:
            kept[each.name] = before if rule_of(each).effect is Effect.RESTART else after
    return cast(T, replace(cast(Any, new), **kept))
