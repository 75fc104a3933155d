"""Settings files of an earlier version: found, explained and rewritten."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import (
    InvalidSettings,
    examine_configuration,
    hash_settings_text,
    load_configuration,
    reload_configuration,
)
from retinue.config.errors import SettingRenamed
from retinue.config.file_writer import patch_settings_file
from retinue.config.renamed_settings import find_new_name, find_platforms, rename_settings
from retinue.config.settings_docs import render_settings_page
from retinue.config.settings_loader import BACKUP_SUFFIX
from retinue.config.settings_upgrade import rename_text, upgrade_settings_files
from retinue.domain.renamed_names import SETTING_VALUES, SETTINGS

PREVIOUS = (Path(__file__).parent / "previous_settings.toml").read_text(encoding="utf-8")
OLD = """\
# My server.
[house]  # the section
  zone = "Europe/Berlin" # where I live

# Kept for a month.
[house.retention]
news_days = 30
"""
NEW = OLD.replace("house", "server").replace("news_days", "events_days")
LINE_OF_KEY = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def rewritten(text: str) -> str:
    new = rename_text(text, find_platforms(tomllib.loads(text)))
    assert new is not None
    return new


def status(path: Path) -> tuple[int, ...]:
    """Everything about a file that a write would change. Its access time is left out: reading changes it."""
    found = path.stat()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from leaves(inner, (*path, key))
        case list() if value and all(isinstance(item, dict) for item in value):
            for item in value:
                yield from leaves(item, path)
        case _:
            yield ".".join(path), value


# --- the table ---


@pytest.mark.parametrize(("old", "new"), SETTINGS.items())
def test_a_renamed_setting_keeps_its_depth_and_changes_its_name(old: str, new: str) -> None:
    assert old != new and len(old.split(".")) == len(new.split("."))


def test_no_old_name_of_a_renamed_setting_is_a_current_setting() -> None:
    today = set(LINE_OF_KEY.findall(render_settings_page()))
    for old, new in SETTINGS.items():
        parents, name = new.rpartition(".")[0], old.rpartition(".")[2]
        path = re.sub(r"\*(\(\w+\))?", "NAME", f"{parents}.{name}" if parents else name)
        if "(" not in new:  # another platform may have this setting
            assert path not in today and f"{path}." not in "".join(f"{each}\n" for each in today), path


def test_the_settings_file_of_the_previous_version_has_every_renamed_setting_and_value() -> None:
    tree = tomllib.loads(PREVIOUS)
    renamed = rename_settings(tree, find_platforms(tree)).renamed
    shapes = [re.compile(re.sub(r"\\\*(\\\(\w+\\\))?", "[^.]+", re.escape(old))) for old in SETTINGS]
    found = ["".join(each.old.split('"')) for each in renamed if each.value is None]
    for shape in shapes:
        assert any(shape.fullmatch(each) for each in found), shape.pattern
    values = {(each.old.rpartition(' = "')[2].rstrip('"'), each.value) for each in renamed if each.value is not None}
    assert values >= {(old, new) for _, old, new in SETTING_VALUES}


# --- rewriting ---


def test_the_settings_file_of_the_previous_version_is_rewritten_with_the_same_meaning(home: SettingsDirectory) -> None:
    new = rewritten(PREVIOUS)
    assert home.load(new, A_SECRET="s", ADA_KEY="k").settings.zone.key == "Europe/Berlin"
    before, after = [value for _, value in leaves(tomllib.loads(PREVIOUS))], list(leaves(tomllib.loads(new)))
    now = {old: value for _, old, value in SETTING_VALUES}
    cleared = {
        "colour": "color",
        "delegation.circles": "delegation.allow_cycles",
        "heartbeat.place": "heartbeat.session",
    }
    for old, (path, value) in zip(before, after, strict=True):
        if path.endswith(("quirks", "explanations", "trusted", "clear")) and isinstance(old, list):
            assert value == [(cleared if path.endswith("clear") else now).get(item, item) for item in old]
        else:
            assert value == old, path
    examined = examine_configuration({**home.environment, "A_SECRET": "s", "ADA_KEY": "k"}, text=PREVIOUS)
    read = load_configuration({**home.environment, "A_SECRET": "s", "ADA_KEY": "k"}, text=new)
    assert examined.configuration.settings == read.settings, "a file with old names is read with the same values"
    assert examined.configuration.declarations == read.declarations


def test_the_rewritten_settings_file_of_the_previous_version_has_every_current_setting() -> None:
    """Every current setting is in the rewritten file of the previous version, so no rename is missing."""
    placeholder = re.compile(r"NAME|\"PROVIDER/MODEL\"")
    paths = {path for path, _ in leaves(tomllib.loads(rewritten(PREVIOUS)))}
    settings = [key for key in LINE_OF_KEY.findall(render_settings_page()) if "." in key and not key.startswith("[")]
    missing: list[str] = []
    for key in settings:
        shape = re.compile(placeholder.sub("@", re.escape(key).replace('\\"', '"')).replace("@", ".+") + r"(\..+)?")
        agent = re.compile(r"agents\.ada\." + re.escape(key) + r"(\..+)?")
        if not any(shape.fullmatch(path) or agent.fullmatch(path) for path in paths):
            missing.append(key)
    assert missing == []


def test_only_renamed_settings_and_values_change_in_a_rewritten_settings_file() -> None:
    new = rewritten(PREVIOUS)
    old_lines, new_lines = PREVIOUS.splitlines(), new.splitlines()
    assert len(old_lines) == len(new_lines)
    for old, now in zip(old_lines, new_lines, strict=True):
        assert old.partition("#")[2] == now.partition("#")[2], "comments stay"
        assert len(old) - len(old.lstrip()) == len(now) - len(now.lstrip())
    assert rewritten(OLD) == NEW
    assert rewritten(NEW) == NEW and rewritten(new) == new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('house.zone = "UTC"\nhouse.drain_s = 1\n', 'server.zone = "UTC"\nserver.drain_s = 1\n'),
        ('"house" . retention.news_days = 1', "server . retention.events_days = 1"),
        ("house = { retention = { news_days = 1 } } # x", "server = { retention = { events_days = 1 } } # x"),
        ("[ house . retention ]\nnews_days=1\r\n", "[ server . retention ]\nevents_days=1\r\n"),
        ("[house]\r\nzone = 'UTC'\r\n# colour\r\n", "[server]\r\nzone = 'UTC'\r\n# colour\r\n"),
        ('[agents.house]\ninstructions = """\n[house]\ncolour = 1"""\n', None),
        (
            "[agents.colour]\ncolour = 'red'\nclear = [ 'colour' ]",
            "[agents.colour]\ncolor = 'red'\nclear = [ \"color\" ]",
        ),
        (
            "[connectors.a]\nkind = 'irc'\nrooms = ['#x']\n[connectors.b]\nkind = 'loft'\nrooms = 3",
            "[connectors.a]\nplatform = 'irc'\nchannels = ['#x']\n[connectors.b]\nplatform = 'loft'\nrooms = 3",
        ),
        (
            "[[origin.source]]\ntools='x'\nown='s'\n[[origin.source]]\nclosed=true",
            "[[provenance.source]]\ntools='x'\nowner_field='s'\n[[provenance.source]]\ntyped_only=true",
        ),
        ("[plugins.house]\nsettings = { colour = 'house', house = 1 }", None),
    ],
)
def test_renamed_settings_are_rewritten_in_every_form_of_toml(old: str, new: str | None) -> None:
    assert rewritten(old) == (old if new is None else new)


# --- at the start of the server ---


def test_settings_files_with_renamed_settings_are_rewritten_once_with_a_backup_and_keep_their_mode(
    home: SettingsDirectory,
) -> None:
    home.write('include = ["conf.d/*", "people.toml"]\n' + OLD)
    home.file.chmod(0o640)
    included = home.write("[agents.ada]\ncolour = 'teal'\n", name="conf.d/ada.toml")
    current = home.write("[people.noor]\nrole = 'member'\n", name="people.toml")
    before = status(current)

    done = upgrade_settings_files(home.environment)

    assert home.file.read_text() == 'include = ["conf.d/*", "people.toml"]\n' + NEW
    assert included.read_text() == "[agents.ada]\ncolor = 'teal'\n"
    assert (home.folder / f"retinue.toml{BACKUP_SUFFIX}").read_text().endswith(OLD)
    assert home.file.stat().st_mode & 0o777 == 0o640
    assert (home.folder / f"retinue.toml{BACKUP_SUFFIX}").stat().st_mode & 0o777 == 0o640
    assert status(current) == before
    assert [(each.old, each.new) for each in done[0].renamed] == [
        ("house", "server"),
        ("house.retention.news_days", "server.retention.events_days"),
    ]
    assert not any(each.problem for each in done) and "house -> server" in "\n".join(done[0].format_lines())
    assert load_configuration(home.environment).declarations.agents[0].color == "teal"

    states = {each: status(each) for each in home.folder.rglob("*")}
    assert upgrade_settings_files(home.environment) == ()
    assert {each: status(each) for each in home.folder.rglob("*")} == states


def test_rewriting_a_settings_file_never_overwrites_an_existing_backup(home: SettingsDirectory) -> None:
    backup = home.write("# the first one\n", name=f"retinue.toml{BACKUP_SUFFIX}")
    home.write(OLD)
    upgrade_settings_files(home.environment)
    assert (home.file.read_text(), backup.read_text()) == (NEW, "# the first one\n")


def test_a_connector_platform_in_another_settings_file_decides_which_keys_are_renamed(home: SettingsDirectory) -> None:
    home.write('include = ["irc.toml"]\n[connectors.club]\nrooms = ["#x"]\n')
    home.write('[connectors.club]\nkind = "irc"\nhost = "irc.example.org"\n', name="irc.toml")
    upgrade_settings_files(home.environment)
    assert 'channels = ["#x"]' in home.file.read_text()
    [connector] = load_configuration(home.environment).settings.connectors.values()
    assert connector.platform_settings.channels == ("#x",)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("[house]\nzone = 'UTC'\n[server]\ndrain_s = 1\n", "house", "server"),
        ("[server.retention]\nnews_days = 1\nevents_days = 2\n", "server.retention.news_days", "events_days"),
        ("[agents.ada]\ncolour = 'red'\ncolor = 'blue'\n", "agents.ada.colour", "agents.ada.color"),
    ],
)
def test_a_renamed_setting_under_both_its_names_is_refused_and_no_file_changes(
    home: SettingsDirectory, text: str, old: str, new: str
) -> None:
    other = home.write("[agents.bo]\ncolour = 'red'\n", name="other.toml")
    text = f"include = ['other.toml']\n{text}"
    home.write(text)
    with pytest.raises(InvalidSettings) as refused:
        upgrade_settings_files(home.environment)
    assert f"`{old}` and `" in str(refused.value) and new in str(refused.value)
    assert (home.file.read_text(), other.read_text()) == (text, "[agents.bo]\ncolour = 'red'\n")
    assert not list(home.folder.glob(f"*{BACKUP_SUFFIX}"))
    with pytest.raises(InvalidSettings, match="are both set"):
        load_configuration(home.environment, accept_old_names=True)


def test_a_settings_file_with_old_names_that_cannot_be_rewritten_is_read_with_the_new_names(
    home: SettingsDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    home.write(OLD)
    monkeypatch.setattr("retinue.config.file_writer.tempfile.mkstemp", refuse)
    [done] = upgrade_settings_files(home.environment)
    assert done.problem == "Read-only file system" and "cannot be rewritten" in done.format_lines()[0]
    assert home.file.read_text() == OLD
    running = load_configuration(home.environment, accept_old_names=True)
    assert running.settings.retention.events_days == 30 and running.renamed
    home.write(OLD.replace("30", "7"))
    assert reload_configuration(running, home.environment).settings.retention.events_days == 7


def upgrade_until_killed(environment: Mapping[str, str], steps: int) -> bool:
    """Upgrade in a process that is killed after a number of system calls. Returns whether it ended first."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = [steps]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kw: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **kw)

        return step

    for name in ("open", "fsync", "fchmod", "rename", "unlink", "close", "mkdir", "stat"):
        setattr(os, name, counted(getattr(os, name)))
    upgrade_settings_files(environment)
    os._exit(0)


def test_a_kill_while_settings_files_are_rewritten_leaves_each_whole_and_the_next_start_continues(
    home: SettingsDirectory,
) -> None:
    inner = "[agents.ada]\ncolour = 'teal'\n"
    outcomes: set[tuple[bool, bool]] = set()
    for step in range(200):
        shutil.rmtree(home.folder)
        home.write('include = ["conf.d/*"]\n' + OLD)
        home.write(inner, name="conf.d/ada.toml")
        is_done = upgrade_until_killed(home.environment, step)
        main, included = home.file.read_text(), (home.folder / "conf.d" / "ada.toml").read_text()
        assert main in ('include = ["conf.d/*"]\n' + OLD, 'include = ["conf.d/*"]\n' + NEW)
        assert included in (inner, inner.replace("colour", "color"))
        for backup in home.folder.rglob(f"[!.]*{BACKUP_SUFFIX}"):
            assert backup.read_text() in ('include = ["conf.d/*"]\n' + OLD, inner), "a backup is complete"
        if "[server]" in main:
            assert (home.folder / f"retinue.toml{BACKUP_SUFFIX}").exists(), "a file is replaced after its backup"
        outcomes.add(("[server]" in main, "color" in included))
        upgrade_settings_files(home.environment)
        assert load_configuration(home.environment).settings.retention.events_days == 30
        if is_done:
            break
    else:
        pytest.fail("the upgrade never ended")
    assert outcomes == {(False, False), (True, False), (True, True)}


# --- the error for an old name ---


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("[house]\nzone = 'UTC'\n", "house.zone", "server.zone"),
        ("house.zone = 'UTC'\n", "house.zone", "server.zone"),
        ("[house]\nzone = 'UTC'\ndrain_s = 1\n", "house", "server"),
        ("[server.retention]\nnews_days = 3\n", "server.retention.news_days", "server.retention.events_days"),
        ("[agents.ada]\ncolour = 'red'\n", "agents.ada.colour", "agents.ada.color"),
        ("[templates.t.heartbeat]\nplace = 'own'\n", "templates.t.heartbeat.place", "templates.t.heartbeat.session"),
        ("[connectors.x]\nplatform = 'irc'\nrooms = []\n", "connectors.x.rooms", "connectors.x.channels"),
        ("[skills]\ntrusted = ['house']\n", 'skills.trusted = "house"', 'skills.trusted = "instance"'),
    ],
)
def test_an_old_setting_name_is_refused_with_its_new_name_and_its_line(
    home: SettingsDirectory, text: str, old: str, new: str
) -> None:
    main = home.write("\n\ninclude = ['inner.toml']\n")
    inner = home.write(text, name="inner.toml")
    for file, content in ((inner, main.read_text()), (home.file, text)):
        home.write(content)
        with pytest.raises(InvalidSettings) as refused:
            load_configuration(home.environment)
        [fault] = [each for each in refused.value.faults if "is now" in each.sentence]
        assert fault.sentence == f"`{old}` is now `{new}`" and fault.code == "config.renamed"
        assert fault.position.file == file and fault.position.line
        assert "retinue doctor --fix" in fault.try_this
        home.write("", name="inner.toml") if file == inner else None
        inner.write_text("")


def test_an_old_setting_name_in_a_patch_is_refused_and_the_file_stays_unchanged(home: SettingsDirectory) -> None:
    before = home.load("[server]\ndrain_s = 1\n")
    for changes in ({"house": {"zone": "UTC"}}, {"house": {"zone": "UTC", "drain_s": None}}):
        with pytest.raises(SettingRenamed, match=r"`house\.zone` is now `server\.zone`"):
            patch_settings_file(home.environment, changes, expected_hash=before.hash)
    assert home.file.read_text() == "[server]\ndrain_s = 1\n"


def test_an_old_setting_name_beside_the_new_name_can_be_removed_with_a_patch(home: SettingsDirectory) -> None:
    text = "[server]\ndrain_s = 1\n[house]\ndrain_s = 2\n"
    home.write(text)
    patch_settings_file(home.environment, {"house": None}, expected_hash=hash_settings_text(text))
    assert home.file.read_text() == "[server]\ndrain_s = 1\n"


def test_the_new_name_of_a_renamed_setting_is_found_without_a_settings_file() -> None:
    assert find_new_name(("connectors", "club"), "rooms") == "channels"
    assert find_new_name(("connectors", "club"), "nick") is None
    assert find_new_name(("agents", "ada", "delegation"), "circles") == "allow_cycles"
    assert find_new_name((), "house") == "server"


def test_errors_in_a_settings_file_with_old_names_have_their_lines(home: SettingsDirectory) -> None:
    faults = home.faults("[house.listen]\nport = 1\n\nprot = 3\n")
    assert faults["server.listen.prot"].position.line == 4
    assert json.dumps(sorted(faults)) == '["house.listen", "server.listen.prot"]'
