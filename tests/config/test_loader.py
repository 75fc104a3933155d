"""The settings file is strict: what it says is understood in full, or refused with everything that is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import tomlkit
from cli.server_process import HouseProcess
from cli.server_process import environment as house_environment
from config.data_directory import Home
from hypothesis import given
from hypothesis import strategies as st

from retinue.config import (
    InvalidSettings,
    SecretReference,
    Settings,
    examine_configuration,
    load_configuration,
    load_settings,
)
from retinue.config.errors import FAULTS_KEPT_MAX, FAULTS_SHOWN_MAX
from retinue.config.settings import ListenSettings, LogLevel, SlotSettings
from retinue.config.toml_source import FILE_BYTES_MAX
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.testing.wait_conditions import WAIT_LIMIT_S

EVERYTHING = """
config_version = 2
[house]
store = "postgresql://retinue@db.example/house"
zone = "Europe/Berlin"
drain_s = 3
default_agent = "ada"
public_url = "https://house.example/r"
allowed_hosts = ["house.example", "::1"]
trusted_proxies = ["10.0.0.0/8", "127.0.0.1"]
permission_policy = { "agent.set" = "boss", session.list = "restricted" }
listen = { enabled = true, host = "0.0.0.0", port = 80 }
limits = { body_bytes_max = 2048, lockout_s = 5.5 }
[house.logs]
level = "debug"
file = false
[house.retention]
news_days = 7
[house.mirror]
enabled = true
folder = "files"
[house.slots]
main = 1
"""


def test_a_house_without_a_file_has_defaults_for_everything(home: Home) -> None:
    settings = home.load().settings
    assert settings == Settings(home=home.folder, store=home.folder / "house.db", zone=ZoneInfo("UTC"))
    assert (settings.listen.enabled, settings.listen.host, settings.listen.port) == (True, "127.0.0.1", 7717)
    assert settings.slots == SlotSettings(main=4, subagent=8, background=4, schedule=2)
    assert load_settings(home.environment) == settings


def test_every_setting_can_be_said(home: Home) -> None:
    settings = home.load(EVERYTHING).settings
    assert settings.store == "postgresql://retinue@db.example/house"
    assert settings.zone == ZoneInfo("Europe/Berlin")
    assert settings.drain_s == 3.0 and isinstance(settings.drain_s, float)
    assert settings.allowed_hosts == ("house.example", "::1")
    assert settings.listen == ListenSettings(host="0.0.0.0", port=80)
    assert settings.limits.body_bytes_max == 2048 and settings.limits.lockout_s == 5.5
    assert settings.logs.level is LogLevel.DEBUG and not settings.logs.file
    assert settings.retention.news_days == 7 and settings.retention.done_days is None
    assert settings.mirror.folder == home.folder / "files"
    assert settings.slots.main == 1 and settings.slots.subagent == 8


def test_an_operation_in_the_policy_may_be_written_with_or_without_quotes(home: Home) -> None:
    policy = home.load(EVERYTHING).settings.permission_policy
    assert policy == {"agent.set": PermissionLevel.BOSS, "session.list": PermissionLevel.RESTRICTED}


def test_the_environment_wins_over_the_file(home: Home) -> None:
    settings = home.load(EVERYTHING, RETINUE_ZONE="Asia/Tokyo", RETINUE_STORE="postgresql://x/y").settings
    assert settings.zone == ZoneInfo("Asia/Tokyo")
    assert settings.store == "postgresql://x/y"


@pytest.mark.spec("A1")
def test_the_file_is_in_the_home_or_where_a_variable_says_and_variables_are_filled_in(home: Home) -> None:
    home.write("[house]\ndrain_s = 1")
    other = home.write('[house]\ndrain_s = 2\nallowed_hosts = ["${NAME}.example"]', name="elsewhere/other.toml")
    assert home.load().settings.drain_s == 1
    settings = home.load(RETINUE_CONFIG=str(other), NAME="house").settings
    assert (settings.drain_s, settings.allowed_hosts) == (2, ("house.example",))


def test_a_file_that_was_asked_for_must_be_there(home: Home) -> None:
    with pytest.raises(InvalidSettings, match=r"RETINUE_CONFIG names .*no\.toml, which does not exist"):
        home.load(RETINUE_CONFIG=str(home.folder / "no.toml"))


@pytest.mark.parametrize("variable", ["RETINUE_HOME", "RETINUE_CONFIG"])
def test_a_place_must_not_depend_on_where_the_house_was_started(home: Home, variable: str) -> None:
    with pytest.raises(Invalid, match="absolute"):
        load_configuration(home.environment | {variable: "here"})


def test_a_wrong_variable_is_told_like_a_wrong_setting(home: Home) -> None:
    faults = home.faults("", RETINUE_STORE="mysql://u:hunter2@h/n", RETINUE_ZONE="Europe/Nowhere")
    assert set(faults) == {"RETINUE_STORE", "RETINUE_ZONE"}
    assert "hunter2" not in str(faults)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("[house.listen]\nprot = 1", "house.listen.prot", "did you mean `port`?"),
        ("[huose]\n", "huose", "did you mean `house`?"),
        ('zone = "UTC"', "zone", "house.zone"),
        ('[house]\nhome = "/x"', "house.home", "RETINUE_HOME"),
        ("version = 2", "version", "config_version"),
        ("house = 3", "house", "must be a table"),
        ("[house]\nlisten = true", "house.listen", "must be a table, not true"),
        ('[house.listen]\nport = "80"', "house.listen.port", "must be a whole number, not '80'"),
        ("[house.listen]\nport = 80.0", "house.listen.port", "must be a whole number, not 80.0"),
        ("[house.listen]\nport = true", "house.listen.port", "must be a whole number, not true"),
        ("[house.listen]\nport = 65536", "house.listen.port", "from 0 to 65535, not 65536"),
        ("[house.listen]\nenabled = 1", "house.listen.enabled", "must be true or false, not 1"),
        ("[house]\ndrain_s = nan", "house.drain_s", "must be from 0 to 3600, not nan"),
        ("[house]\ndrain_s = inf", "house.drain_s", "must be from 0 to 3600, not inf"),
        ("[house]\ndrain_s = 1979-05-27", "house.drain_s", "must be a number, not 1979-05-27"),
        ("[house]\nallowed_hosts = 'x'", "house.allowed_hosts", "must be a list, not 'x'"),
        ("[house]\nallowed_hosts = ['a', 'b:80']", "house.allowed_hosts[1]", "without scheme, port or path"),
        ("[house]\nallowed_hosts = ['a', 3]", "house.allowed_hosts[1]", "must be a text in quotes, not 3"),
        ("[house]\ntrusted_proxies = ['10.0.0.1/8']", "house.trusted_proxies[0]", "must be an IP address or a network"),
        ("[house]\npublic_url = 'house.example'", "house.public_url", "https://house.example"),
        (
            "[house]\npublic_url = 'https://a@b.example'",
            "house.public_url",
            "must not contain a user name or a password",
        ),
        ("[house]\nzone = 'Europe/Berln'", "house.zone", "Europe/Berlin"),
        ("[house]\nstore = 'mysql://x'", "house.store", "must be a PostgreSQL URL"),
        ("[house]\ndefault_agent = 'a b'", "house.default_agent", "cannot be the name of an agent"),
        ("[house.logs]\nlevel = 'trace'", "house.logs.level", "it must be one of debug, info, warning, error"),
        (
            "[house.permission_policy]\n'agent.set' = 'bos'",
            'house.permission_policy."agent.set"',
            "did you mean `boss`",
        ),
        ("[house.permission_policy]\n'A b' = 'boss'", 'house.permission_policy."A b"', "not the name of an operation"),
        ("[house.limits]\nbody_bytes_max = 0", "house.limits.body_bytes_max", "must be from 1024"),
        ("[house.mirror]\nfolder = ''", "house.mirror.folder", "must be the name of a folder"),
        ('[house]\ndefault_agent = "a\\u0000"', "house.default_agent", "NUL"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_path(home: Home, text: str, path: str, says: str) -> None:
    fault = home.fault(text)
    assert fault.path == path
    assert fault.sentence.startswith(path)
    assert fault.because and fault.try_this
    assert says in f"{fault.sentence} {fault.because} {fault.try_this}"
    assert fault.position.file == home.file
    assert fault.position.line == text.count("\n", 0, text.rstrip("\n").rfind("\n") + 1) + 1


@pytest.mark.spec("H68")
@pytest.mark.parametrize("version", ["1", "3", "'2'", "true", "2.5"])
def test_another_version_of_the_file_is_refused_with_a_reason(home: Home, version: str) -> None:
    fault = home.fault(f"config_version = {version}")
    assert fault.path == "config_version"
    assert "config_version 2 only" in fault.because


@pytest.mark.spec("H68")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('boss-token = "hunter2"', "boss-token"),
        ('[agents.ada]\ntoken = "hunter2"', "agents.ada.token"),
        ('[agents.ada]\nexternal = { secret = "hunter2" }', "agents.ada.external.secret"),
        ('[bindings.b]\nagent = "a"\nconnector = "c"\nadapter-token = "${T}"', "bindings.b.adapter-token"),
        ("[house]\napi_key = 12345", "house.api_key"),
        (
            '[mcp.k]\nurl = "https://k.example/"\nheaders = { Authorization = "Bearer hunter2" }',
            "mcp.k.headers.Authorization",
        ),
        ('[mcp.k]\nheaders = { Authorization = { value = "Bearer hunter2" } }', "mcp.k.headers.Authorization"),
        ('[mcp.k]\nheaders = { X-House = "a ${T}" }', "mcp.k.headers.X-House"),
        ('[mcp.k]\nenv = { WEATHER_TOKEN = "hunter2" }', "mcp.k.env.WEATHER_TOKEN"),
        ('[house]\npassword = { env = "not a name" }', "house.password"),
        ('[house]\nstore = "postgresql://u:hunter2@h/n"', "house.store"),
        ('[house]\nstore = "postgresql://u@h/n?password=hunter2"', "house.store"),
    ],
)
def test_a_secret_in_plain_text_is_refused_and_not_repeated(home: Home, text: str, path: str) -> None:
    home.write(text)
    with pytest.raises(InvalidSettings) as refused:
        home.load(T="hunter2")
    told = [
        fault for fault in refused.value.faults if "secret" in fault.sentence or "password in plain" in fault.sentence
    ]
    assert [fault.path for fault in told] == [path]
    assert "backed up" in told[0].because and told[0].try_this
    assert "hunter2" not in str(refused.value)


def test_what_people_name_token_or_secret_is_a_name_and_no_secret(home: Home) -> None:
    home.write("""
        [agents.token]
        [mcp.secret]
        command = ["/bin/true"]
        headers = { X-Region = "north", X-House = { value = "ours" } }
        [plugins.password]
        [skills.entries.api-key]
        [skills.agents.token]
        [sandbox.secrets.token]
        secret = { env = "T" }
        variable = "GH_TOKEN"
        [[origin.source]]
        tools = "vault_*"
        trust = "private"
        fields = { token = "id:token" }
    """)
    found = home.load(T="hunter2").settings
    assert found.origin.source[0].fields == {"token": "id:token"}
    assert found.sandbox.secrets["token"].secret == SecretReference(env="T")
    assert {*found.mcp, *found.plugins, *found.skills.entries} == {"secret", "password", "api-key"}
    assert {name: each.read({}) for name, each in found.mcp["secret"].headers.items()} == {
        "X-Region": "north",
        "X-House": "ours",
    }


@pytest.mark.spec("H68")
def test_a_key_that_has_no_place_here_is_refused_with_the_reason(home: Home) -> None:
    assert "in its agent directory" in home.fault("[memory]").because


def test_a_password_may_come_from_the_environment_and_is_not_shown(home: Home) -> None:
    text = '[house]\nstore = "postgresql://u:${PW}@h/n"'
    settings = home.load(text, PW="hunter2").settings
    assert settings.store == "postgresql://u:hunter2@h/n"
    assert "hunter2" not in repr(settings)


def test_an_error_shows_a_filled_text_as_it_was_written(home: Home) -> None:
    fault = home.fault('[house]\npublic_url = "ftp://${PW}"', PW="hunter2")
    assert "ftp://${PW}" in fault.sentence and "hunter2" not in str(fault)


def test_all_faults_of_a_file_are_told_together_from_top_to_bottom(home: Home) -> None:
    home.write("[house]\ndrain_s = 'x'\n[house.listen]\nprot = 1\nport = -1\n[agents.a]\nrunner = 'x'")
    with pytest.raises(InvalidSettings) as refused:
        home.load()
    assert [fault.path for fault in refused.value.faults] == [
        "house.drain_s",
        "house.listen.prot",
        "house.listen.port",
        "agents.a.runner",
    ]
    told = str(refused.value)
    assert told.startswith("the settings have 4 errors [config.invalid]")
    assert f"house.listen.prot is not a setting ({home.file}, line 4)" in told
    assert [entry["line"] for entry in refused.value.as_json()] == [2, 4, 5, 7]


def test_a_file_full_of_faults_is_told_up_to_a_bound(home: Home) -> None:
    home.write("[house]\n" + "".join(f"x{number} = 1\n" for number in range(5_000)))
    with pytest.raises(InvalidSettings) as refused:
        home.load()
    assert len(refused.value.faults) == FAULTS_KEPT_MAX
    assert str(refused.value).count("\n  - ") == FAULTS_SHOWN_MAX + 1
    assert "200 or more errors" in str(refused.value)


def test_what_is_not_toml_is_told_with_its_line(home: Home) -> None:
    fault = home.fault("[house]\nzone = UTC\n")
    assert fault.sentence == "invalid TOML"
    assert fault.position.line == 2


@pytest.mark.parametrize("text", ["a = " + "[" * 5_000, "[house]\na = " + "[" * 200 + "]" * 200])
def test_a_file_nested_out_of_all_reason_is_refused(home: Home, text: str) -> None:
    assert home.faults(text)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(home: Home) -> None:
    home.file.write_bytes(b"a = '\xff'")
    with pytest.raises(InvalidSettings, match="not UTF-8"):
        home.load()
    home.file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidSettings, match="more than 1,048,576 bytes"):
        home.load()
    home.file.unlink()
    home.file.mkdir()
    with pytest.raises(InvalidSettings, match="Is a directory"):
        home.load()


PROXIED = 'public_url = "https://house.example"\ntrusted_proxies = ["10.0.0.1"]\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "house.example"])
@pytest.mark.parametrize(
    "settings",
    ["", 'public_url = "https://house.example"', PROXIED.replace("https", "http"), 'trusted_proxies = ["10.0.0.1"]'],
)
def test_the_door_does_not_open_to_the_network_without_tls_before_it(home: Home, host: str, settings: str) -> None:
    fault = home.fault(f'[house]\n{settings}\n[house.listen]\nhost = "{host}"')
    assert fault.path == "house.listen.host"
    assert "unencrypted" in fault.because


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_alone_needs_no_proxy(home: Home, host: str) -> None:
    assert home.load(f'[house.listen]\nhost = "{host}"').settings.listen.host == host


def test_behind_a_proxy_that_is_known_and_speaks_tls_the_door_may_open(home: Home) -> None:
    assert home.load(f'[house]\n{PROXIED}[house.listen]\nhost = "::"').settings.listen.host == "::"


def test_a_closed_door_may_have_any_address(home: Home) -> None:
    assert not home.load('[house.listen]\nenabled = false\nhost = "0.0.0.0"').settings.listen.enabled


def test_a_broken_file_can_still_be_examined_for_what_is_sound_in_it(home: Home) -> None:
    home.write("[house]\ndrain_s = 7\nzone = 'Nowhere'\n[house.listen]\nport = 8000\nprot = 1\n[agents.ada]\n")
    examined = examine_configuration(home.environment)
    assert [fault.path for fault in examined.faults] == ["house.zone", "house.listen.prot"]
    assert examined.configuration.settings.drain_s == 7
    assert examined.configuration.settings.listen.port == 8000
    assert examined.configuration.settings.zone == ZoneInfo("UTC")
    assert [each.name for each in examined.configuration.declarations.agents] == ["ada"]


def test_a_house_does_not_open_with_an_unknown_key_and_says_where_it_is(home: Home) -> None:
    home.write("[house.listen]\nprot = 1\n")
    environment = {**os.environ, **home.environment}
    opened = subprocess.run(
        [sys.executable, "-m", "retinue.app.server"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert opened.returncode == 1
    assert f"house.listen.prot is not a setting ({home.file}, line 2) [config.invalid]" in opened.stderr
    assert not Path(home.folder, "house.db").exists()


WORDS = st.sampled_from(
    re.findall(
        r"\w+",
        """house listen port host agents ada templates t extends clear tools allow queue people role bindings agent
        connector schedules kind every_s token secret external url runner permission_policy store zone include
        config_version mirror folder env file limits lockout_s origin source argument act measure trust fields
        patterns standing says words speakers""",
    )
)
VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.dates(),
    st.sampled_from(
        [
            "t",
            "ada",
            "external",
            "cron",
            "every",
            "${A}",
            "$${",
            "${",
            "https://x",
            "tools.allow",
            "boss",
            "::",
            "owner",
        ]
    ),
)
TREES = st.dictionaries(
    WORDS,
    st.recursive(
        VALUES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
        max_leaves=15,
    ),
    max_size=6,
)


@given(tree=TREES)
def test_whatever_a_file_says_it_is_taken_or_refused_but_never_trips_the_reader(tree: dict[str, Any]) -> None:
    try:
        text = tomlkit.dumps(tree)
        tomllib.loads(text)
    except ValueError:  # The library writes a few things that are not TOML.
        return
    examined = examine_configuration({"RETINUE_HOME": "/nowhere/at/all", "A": "a"}, text=text)
    assert examined.configuration.settings.home == Path("/nowhere/at/all")
    for fault in examined.faults:
        assert fault.sentence and fault.because and fault.try_this and fault.position.file, fault
    str(InvalidSettings(examined.faults)) if examined.faults else repr(examined)


@pytest.mark.spec("C1")
def test_an_unknown_key_keeps_the_house_closed_while_one_can_still_look_into_it(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.kill()
    file = house.home / "retinue.toml"
    file.write_text("[house.listen]\nprot = 1\n")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=house_environment(house.home),
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
            check=False,
        )

    opened = run("retinue.app.server")
    assert opened.returncode == 1
    assert f"house.listen.prot is not a setting ({file}, line 2)" in opened.stderr
    looked = run("retinue.cli.main", "ledger")
    assert looked.returncode == 0, looked.stderr
    assert "ledger holds" in looked.stdout
