"""Reads the environment and the settings files, and returns the settings or all errors in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct

from retinue.config import validators
from retinue.config.declarations import RUNNERS, Declarations, choose_default_agent, parse_declarations
from retinue.config.errors import (
    EnvironmentPathInvalid,
    FaultCollector,
    InvalidSettings,
    KeyPath,
    SettingFault,
    SettingPosition,
)
from retinue.config.models_parser import parse_top_level_sections
from retinue.config.renamed_settings import RenamedSetting
from retinue.config.setting_metadata import SettingEffect
from retinue.config.settings import TOP_LEVEL_SECTIONS, Settings
from retinue.config.settings_diff import SettingChange, diff_configurations
from retinue.config.table_parser import expect_table, parse_table, report_unknown_key, setting_rule
from retinue.config.toml_source import (
    FILE_BYTES_MAX,
    FILES_MAX,
    ExpandedText,
    FileAccess,
    SettingsReader,
    Table,
    read_error_reason,
)
from retinue.domain.errors import Invalid
from retinue.domain.structs import replace
from retinue.domain.times import load_zone

FILE_NAME = "retinue.toml"
BACKUP_SUFFIX = ".before-rename"  # ends the name of the backup of a settings file whose settings were renamed
SECTIONS = (
    "config_version",
    "include",
    "server",
    *TOP_LEVEL_SECTIONS,
    "agents",
    "templates",
    "people",
    "bindings",
    "schedules",
)
# Keys of similar servers and older versions, and what replaces them.
_MOVED_KEYS = {
    "version": "the version of the file format is set with `config_version`",
    "memory": "each agent has its own memory, in its agent directory",
    "profiles": "there are no profiles; use templates",
    "home": "the data directory contains this file, so its path is set with the environment variable RETINUE_HOME",
}
_TOP_LEVEL_REASON = "it is a top-level section, not a part of [server]"

T = TypeVar("T")


class Configuration(Struct, frozen=True, kw_only=True):
    """The settings and declarations from the environment and the settings files.

    `hash` is the hash of the main file's text. A request to change the file must pass this hash. `renamed` lists the
    files that still contain old names of settings.
    """

    settings: Settings
    declarations: Declarations
    file: Path
    files: tuple[Path, ...]
    hash: str
    renamed: Mapping[Path, tuple[RenamedSetting, ...]] = {}

    @property
    def default_agent(self) -> str | None:
        """The agent that gets messages for which no agent is given.

        It is the configured agent, otherwise `main`, otherwise the first declared agent.
        """
        return choose_default_agent(self.settings.default_agent, [agent.name for agent in self.declarations.agents])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedSettings:
    """All errors in the settings, and the settings with defaults in place of invalid values.

    `tree` is the merged content of the files. A string that contained a variable is an `ExpandedText`. `positions`
    contains the file and line of each key.
    """

    configuration: Configuration
    faults: tuple[SettingFault, ...]
    tree: Table = field(default_factory=dict[str, object], repr=False)
    has_conflicts: bool = False  # whether a file has a setting under its old and its new name
    positions: Mapping[KeyPath, SettingPosition] = field(default_factory=dict[KeyPath, SettingPosition], repr=False)


class ReloadResult(Struct, frozen=True, kw_only=True):
    """The result of a reload: the settings to use now, and the changes that wait for a restart.

    In `settings`, a setting that needs a restart still has its old value. `pending_restart` lists these changes.
    """

    configuration: Configuration
    changes: tuple[SettingChange, ...]

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    @property
    def pending_restart(self) -> tuple[SettingChange, ...]:
        return tuple(change for change in self.changes if change.effect is SettingEffect.RESTART)


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings from the environment and the settings file, if there is one.

    The environment overrides the file.
    """
    return load_configuration(environment).settings


def load_configuration(
    environment: Mapping[str, str],
    *,
    text: str | None = None,
    runners: frozenset[str] = RUNNERS,
    accept_old_names: bool = False,
) -> Configuration:
    """Return the configuration, or raise `InvalidSettings` with all errors.

    If `text` is given, it is used instead of the text of the main file. With `accept_old_names`, settings may have old
    names. `Configuration.renamed` lists these settings.
    """
    examined = examine_configuration(environment, text=text, runners=runners, accept_old_names=accept_old_names)
    if examined.faults:
        raise InvalidSettings(examined.faults)
    return examined.configuration


def examine_configuration(
    environment: Mapping[str, str],
    *,
    text: str | None = None,
    runners: frozenset[str] = RUNNERS,
    accept_old_names: bool = False,
) -> ExaminedSettings:
    """Return the configuration and all errors in it. Unlike `load_configuration`, this raises no error.

    It is for commands that inspect an instance with invalid settings.
    """
    home = find_data_directory(environment)
    file = find_settings_file(environment, home)
    faults = FaultCollector()
    source = SettingsReader(
        FileAccess(read=read_settings_text, glob=_matching_files),
        environment,
        faults,
        accept_old_names=accept_old_names,
    )
    content = _read_main_file(file, environment, faults) if text is None else text
    tree = {} if content is None else source.read(file, content)
    for key in tree:
        if key not in SECTIONS:
            _report_unknown_section(key, faults)
    settings = _parse_settings(home, tree, environment, faults)
    configuration = Configuration(
        settings=settings,
        declarations=parse_declarations(tree, faults, runners=runners, allow_unknown=bool(settings.plugins)),
        file=file,
        files=tuple(dict.fromkeys(source.files)),
        hash=hash_settings_text(content or ""),
        renamed=dict(source.renamed),
    )
    return ExaminedSettings(
        configuration=configuration,
        faults=faults.in_file_order(),
        tree=tree,
        positions=faults.positions,
        has_conflicts=source.has_conflicts,
    )


def reload_configuration(current: Configuration, environment: Mapping[str, str]) -> ReloadResult:
    """Read the settings again. Raises `InvalidSettings` if they are invalid.

    A setting that needs a restart keeps its old value, and every reload reports the change as pending until the
    restart.

    Old names of settings are refused, because a reload must not rewrite a file that a person is editing. They are
    accepted only if the server could not rewrite the file when it started.
    """
    found = load_configuration(environment, accept_old_names=bool(current.renamed))
    settings = _keep_until_restart(current.settings, found.settings)
    return ReloadResult(
        configuration=replace(found, settings=settings),
        changes=tuple(
            diff_configurations((current.settings, current.declarations), (found.settings, found.declarations))
        ),
    )


def hash_settings_text(text: str) -> str:
    """Return the hash of a settings file's text.

    A request to change the file must contain this hash. It is refused if the file has a different text by then.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def find_data_directory(environment: Mapping[str, str]) -> Path:
    named = environment.get("RETINUE_HOME")
    home = Path(named).expanduser() if named else Path("~/.retinue").expanduser()
    if not home.is_absolute():
        raise EnvironmentPathInvalid("RETINUE_HOME", str(named), example="~/.retinue")
    return home


def find_settings_file(environment: Mapping[str, str], data_directory: Path) -> Path:
    """Return the path of the settings file: RETINUE_CONFIG if set, otherwise `retinue.toml` in the data directory.

    A file named by RETINUE_CONFIG must exist; `retinue.toml` need not.
    """
    named = environment.get("RETINUE_CONFIG")
    file = Path(named).expanduser() if named else data_directory / FILE_NAME
    if not file.is_absolute():
        raise EnvironmentPathInvalid("RETINUE_CONFIG", str(named), example="~/retinue.toml")
    return file


def read_settings_text(file: Path) -> str:
    """Return the exact text of a settings file. Raises `ValueError` if the file is too large."""
    with file.open("rb") as opened:
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX:,} bytes")
    return content.decode()


def _read_main_file(file: Path, environment: Mapping[str, str], faults: FaultCollector) -> str | None:
    try:
        return read_settings_text(file)
    except FileNotFoundError:
        if environment.get("RETINUE_CONFIG"):
            faults.add_at(
                SettingPosition(),
                f"RETINUE_CONFIG names {file}, which does not exist",
                path="RETINUE_CONFIG",
                because="a settings file that this variable names must exist",
                try_this="correct RETINUE_CONFIG, or unset it",
            )
    except (OSError, ValueError) as error:
        faults.add_at(
            SettingPosition(file),
            "the settings file cannot be read",
            because=read_error_reason(error),
            try_this=f"make {file} a UTF-8 text file that the server can read",
        )
    return None


def _matching_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted by name."""
    anchored = Path(pattern).expanduser()
    start, rest = (
        (Path(anchored.anchor), str(anchored.relative_to(anchored.anchor))) if anchored.anchor else (folder, pattern)
    )
    found: list[Path] = []
    for file in start.glob(rest):
        if file.is_file() and not _is_excluded(file):
            found.append(file)
        if len(found) > FILES_MAX:
            break
    return sorted(found)


def _is_excluded(file: Path) -> bool:
    """Whether a file is skipped even if it matches an include pattern: a backup or a hidden file.

    A process that is killed while it writes a settings file can leave a hidden file behind.
    """
    return file.name.endswith(BACKUP_SUFFIX) or file.name.startswith(".")


def _report_unknown_section(key: str, faults: FaultCollector) -> None:
    if hint := _MOVED_KEYS.get(key):
        faults.add((key,), "is not a setting", because=hint, try_this="remove it")
    elif key in {each.name for each in fields(Settings)}:
        faults.add(
            (key,), "is not a setting", because="settings of the server belong in [server]", try_this=f"server.{key}"
        )
    else:
        report_unknown_key(key, (), SECTIONS, faults)


def _parse_settings(
    data_directory: Path, tree: Table, environment: Mapping[str, str], faults: FaultCollector
) -> Settings:
    path = ("server",)
    server = dict(expect_table(tree.get("server", {}), path, faults))
    if "home" in server:
        del server["home"]
        faults.add((*path, "home"), "is not a setting", because=_MOVED_KEYS["home"], try_this="remove it")
    for section in TOP_LEVEL_SECTIONS:
        if section in server:
            del server[section]
            faults.add(
                (*path, section), "is not a setting", because=_TOP_LEVEL_REASON, try_this=f"write it as [{section}]"
            )
    _check_password(server.get("store"), faults)
    found: dict[str, Any] = {"store": data_directory / "retinue.db", "zone": load_zone("UTC")}
    found |= parse_table(Settings, server, path, faults)
    found |= parse_top_level_sections(tree, faults)
    found |= _environment_overrides(environment, faults)
    mirror = found.get("mirror")
    if mirror is not None and mirror.folder is not None:
        found["mirror"] = replace(mirror, folder=data_directory / mirror.folder)
    defaults = found.get("defaults")
    if defaults is not None and defaults.workspace is not None:
        found["defaults"] = replace(defaults, workspace=data_directory / defaults.workspace)
    settings = Settings(home=data_directory, **found)
    _check_exposure(settings, faults)
    return settings


def _check_password(store: object, faults: FaultCollector) -> None:
    written = store.original if isinstance(store, ExpandedText) else store
    password = validators.find_password(written) if isinstance(written, str) else ""
    if password and "${" not in password:
        faults.add(
            ("server", "store"),
            "contains a password in plain text",
            because="this file is read, copied and backed up",
            try_this="write postgresql://USER:${VARIABLE}@HOST/NAME, or use ~/.pgpass",
        )


def _environment_overrides(environment: Mapping[str, str], faults: FaultCollector) -> dict[str, Any]:
    """Return the values of RETINUE_STORE and RETINUE_ZONE.

    These variables override the settings file, so that a single command can use another store.
    """
    found: dict[str, Any] = {}
    if store := environment.get("RETINUE_STORE"):
        if validators.check_store(store):
            faults.add_at(
                SettingPosition(),
                "RETINUE_STORE is not a valid database URL",
                path="RETINUE_STORE",
                because="it must be a PostgreSQL URL (postgresql://USER@HOST/NAME); if unset, the database is a file",
                try_this="unset RETINUE_STORE",
            )
        else:
            found["store"] = store
    if name := environment.get("RETINUE_ZONE"):
        try:
            found["zone"] = load_zone(name)
        except Invalid as error:
            faults.add_at(
                SettingPosition(),
                f"RETINUE_ZONE: {error.sentence}",
                path="RETINUE_ZONE",
                because=error.because,
                try_this=error.try_this,
            )
    return found


def _check_exposure(settings: Settings, faults: FaultCollector) -> None:
    """Report an error if other machines can reach the TCP port and no proxy with TLS is configured."""
    if not settings.listen.enabled or validators.is_loopback(settings.listen.host):
        return
    missing = [
        name
        for name, there in (
            ("an https `server.public_url`", validators.is_https(settings.public_url)),
            ("`server.trusted_proxies`", bool(settings.trusted_proxies)),
        )
        if not there
    ]
    if missing:
        faults.add(
            ("server", "listen", "host"),
            f"is {settings.listen.host!r}, which other machines can reach",
            because=f"tokens would be sent unencrypted; set {' and '.join(missing)} first",
            try_this='set host = "127.0.0.1", and use a reverse proxy with TLS',
        )


def _keep_until_restart(old: T, new: T) -> T:
    """Return the new settings, with the old value of each setting that needs a restart."""
    kept: dict[str, Any] = {}
    for each in fields(cast(Any, new)):
        before, after = getattr(old, each.name), getattr(new, each.name)
        if is_dataclass(after):
            kept[each.name] = _keep_until_restart(before, after)
        else:
            kept[each.name] = before if setting_rule(each).effect is SettingEffect.RESTART else after
    return cast(T, replace(cast(Any, new), **kept))
