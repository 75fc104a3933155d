"""The settings file is strict: it is understood completely, or refused with every fault."""

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
from cli.server_process import ServerProcess
from cli.server_process import environment as server_environment
from config.data_directory import SettingsDirectory
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

ALL_SETTINGS = """
config_version = 2
[server]
store = "postgresql://retinue@db.example/retinue"
zone = "Europe/Berlin"
drain_s = 3
default_agent = "ada"
public_url = "https://server.example/r"
allowed_hosts = ["server.example", "::1"]
trusted_proxies = ["10.0.0.0/8", "127.0.0.1"]
permission_policy = { "agent.set" = "boss", session.list = "restricted" }
listen = { enabled = true, host = "0.0.0.0", port = 80 }
limits = { body_bytes_max = 2048, lockout_s = 5.5 }
[server.logs]
level = "debug"
file = false
[server.retention]
events_days = 7
[server.mirror]
enabled = true
folder = "files"
[server.slots]
main = 1
"""


def test_without_a_settings_file_every_setting_has_its_default(home: SettingsDirectory) -> None:
    settings = home.load().settings
    assert settings == Settings(home=home.folder, store=home.folder / "retinue.db", zone=ZoneInfo("UTC"))
    assert (settings.listen.enabled, settings.listen.host, settings.listen.port) == (True, "127.0.0.1", 7717)
    assert settings.slots == SlotSettings(main=4, subagent=8, background=4, schedule=2)
    assert load_settings(home.environment) == settings


def test_every_server_setting_is_read_from_the_file(home: SettingsDirectory) -> None:
    settings = home.load(ALL_SETTINGS).settings
    assert settings.store == "postgresql://retinue@db.example/retinue"
    assert settings.zone == ZoneInfo("Europe/Berlin")
    assert settings.drain_s == 3.0 and isinstance(settings.drain_s, float)
    assert settings.allowed_hosts == ("server.example", "::1")
    assert settings.listen == ListenSettings(host="0.0.0.0", port=80)
    assert settings.limits.body_bytes_max == 2048 and settings.limits.lockout_s == 5.5
    assert settings.logs.level is LogLevel.DEBUG and not settings.logs.file
    assert settings.retention.events_days == 7 and settings.retention.done_days is None
    assert settings.mirror.folder == home.folder / "files"
    assert settings.slots.main == 1 and settings.slots.subagent == 8


def test_an_operation_in_the_permission_policy_setting_can_be_written_with_or_without_quotes(
    home: SettingsDirectory,
) -> None:
    policy = home.load(ALL_SETTINGS).settings.permission_policy
    assert policy == {"agent.set": PermissionLevel.BOSS, "session.list": PermissionLevel.RESTRICTED}


def test_environment_variables_override_the_settings_file(home: SettingsDirectory) -> None:
    settings = home.load(ALL_SETTINGS, RETINUE_ZONE="Asia/Tokyo", RETINUE_STORE="postgresql://x/y").settings
    assert settings.zone == ZoneInfo("Asia/Tokyo")
    assert settings.store == "postgresql://x/y"


@pytest.mark.spec("A1")
def test_the_settings_file_is_in_the_data_directory_or_named_by_retinue_config(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 1")
    other = home.write('[server]\ndrain_s = 2\nallowed_hosts = ["${NAME}.example"]', name="elsewhere/other.toml")
    assert home.load().settings.drain_s == 1
    settings = home.load(RETINUE_CONFIG=str(other), NAME="server").settings
    assert (settings.drain_s, settings.allowed_hosts) == (2, ("server.example",))


def test_a_missing_settings_file_named_by_retinue_config_is_refused(home: SettingsDirectory) -> None:
    with pytest.raises(InvalidSettings, match=r"RETINUE_CONFIG names .*no\.toml, which does not exist"):
        home.load(RETINUE_CONFIG=str(home.folder / "no.toml"))


@pytest.mark.parametrize("variable", ["RETINUE_HOME", "RETINUE_CONFIG"])
def test_retinue_home_and_retinue_config_must_be_absolute_paths(home: SettingsDirectory, variable: str) -> None:
    with pytest.raises(Invalid, match="absolute"):
        load_configuration(home.environment | {variable: "here"})


def test_invalid_environment_variables_are_reported_like_settings(home: SettingsDirectory) -> None:
    faults = home.faults("", RETINUE_STORE="mysql://u:hunter2@h/n", RETINUE_ZONE="Europe/Nowhere")
    assert set(faults) == {"RETINUE_STORE", "RETINUE_ZONE"}
    assert "hunter2" not in str(faults)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("[server.listen]\nprot = 1", "server.listen.prot", "did you mean `port`?"),
        ("[servre]\n", "servre", "did you mean `server`?"),
        ('zone = "UTC"', "zone", "server.zone"),
        ('[server]\nhome = "/x"', "server.home", "RETINUE_HOME"),
        ("version = 2", "version", "config_version"),
        ("server = 3", "server", "must be a table"),
        ("[server]\nlisten = true", "server.listen", "must be a table, not true"),
        ('[server.listen]\nport = "80"', "server.listen.port", "must be a whole number, not '80'"),
        ("[server.listen]\nport = 80.0", "server.listen.port", "must be a whole number, not 80.0"),
        ("[server.listen]\nport = true", "server.listen.port", "must be a whole number, not true"),
        ("[server.listen]\nport = 65536", "server.listen.port", "from 0 to 65535, not 65536"),
        ("[server.listen]\nenabled = 1", "server.listen.enabled", "must be true or false, not 1"),
        ("[server]\ndrain_s = nan", "server.drain_s", "must be from 0 to 3600, not nan"),
        ("[server]\ndrain_s = inf", "server.drain_s", "must be from 0 to 3600, not inf"),
        ("[server]\ndrain_s = 1979-05-27", "server.drain_s", "must be a number, not 1979-05-27"),
        ("[server]\nallowed_hosts = 'x'", "server.allowed_hosts", "must be a list, not 'x'"),
        ("[server]\nallowed_hosts = ['a', 'b:80']", "server.allowed_hosts[1]", "without scheme, port or path"),
        ("[server]\nallowed_hosts = ['a', 3]", "server.allowed_hosts[1]", "must be a string in quotes, not 3"),
        (
            "[server]\ntrusted_proxies = ['10.0.0.1/8']",
            "server.trusted_proxies[0]",
            "must be an IP address or a network",
        ),
        ("[server]\npublic_url = 'agents.test'", "server.public_url", "https://agents.example"),
        (
            "[server]\npublic_url = 'https://a@b.example'",
            "server.public_url",
            "must not contain a user name or a password",
        ),
        ("[server]\nzone = 'Europe/Berln'", "server.zone", "Europe/Berlin"),
        ("[server]\nstore = 'mysql://x'", "server.store", "must be a PostgreSQL URL"),
        ("[server]\ndefault_agent = 'a b'", "server.default_agent", "cannot be the name of an agent"),
        ("[server.logs]\nlevel = 'trace'", "server.logs.level", "it must be one of debug, info, warning, error"),
        (
            "[server.permission_policy]\n'agent.set' = 'bos'",
            'server.permission_policy."agent.set"',
            "did you mean `boss`",
        ),
        (
            "[server.permission_policy]\n'A b' = 'boss'",
            'server.permission_policy."A b"',
            "not the name of an operation",
        ),
        ("[server.limits]\nbody_bytes_max = 0", "server.limits.body_bytes_max", "must be from 1024"),
        ("[server.mirror]\nfolder = ''", "server.mirror.folder", "must be the name of a folder"),
        ('[server]\ndefault_agent = "a\\u0000"', "server.default_agent", "NUL"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_path(home: SettingsDirectory, text: str, path: str, says: str) -> None:
    fault = home.fault(text)
    assert fault.path == path
    assert fault.sentence.startswith(path)
    assert fault.because and fault.try_this
    assert says in f"{fault.sentence} {fault.because} {fault.try_this}"
    assert fault.position.file == home.file
    assert fault.position.line == text.count("\n", 0, text.rstrip("\n").rfind("\n") + 1) + 1


@pytest.mark.spec("H68")
@pytest.mark.parametrize("version", ["1", "3", "'2'", "true", "2.5"])
def test_a_settings_file_with_an_unsupported_config_version_is_refused_with_the_reason(
    home: SettingsDirectory, version: str
) -> None:
    fault = home.fault(f"config_version = {version}")
    assert fault.path == "config_version"
    assert "only config_version 2" in fault.because


@pytest.mark.spec("H68")
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('boss-token = "hunter2"', "boss-token"),
        ('[agents.ada]\ntoken = "hunter2"', "agents.ada.token"),
        ('[agents.ada]\nexternal = { secret = "hunter2" }', "agents.ada.external.secret"),
        ('[bindings.b]\nagent = "a"\nconnector = "c"\nadapter-token = "${T}"', "bindings.b.adapter-token"),
        ("[server]\napi_key = 12345", "server.api_key"),
        (
            '[mcp.k]\nurl = "https://k.example/"\nheaders = { Authorization = "Bearer hunter2" }',
            "mcp.k.headers.Authorization",
        ),
        ('[mcp.k]\nheaders = { Authorization = { value = "Bearer hunter2" } }', "mcp.k.headers.Authorization"),
        ('[mcp.k]\nheaders = { X-Site = "a ${T}" }', "mcp.k.headers.X-Site"),
        ('[mcp.k]\nenv = { WEATHER_TOKEN = "hunter2" }', "mcp.k.env.WEATHER_TOKEN"),
        ('[server]\npassword = { env = "not a name" }', "server.password"),
        ('[server]\nstore = "postgresql://u:hunter2@h/n"', "server.store"),
        ('[server]\nstore = "postgresql://u@h/n?password=hunter2"', "server.store"),
    ],
)
def test_a_secret_in_plain_text_in_the_settings_file_is_refused_and_not_shown_in_the_error(
    home: SettingsDirectory, text: str, path: str
) -> None:
    home.write(text)
    with pytest.raises(InvalidSettings) as refused:
        home.load(T="hunter2")
    messages = [
        fault for fault in refused.value.faults if "secret" in fault.sentence or "password in plain" in fault.sentence
    ]
    assert [fault.path for fault in messages] == [path]
    assert "backed up" in messages[0].because and messages[0].try_this
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("path", ["web.brave_key", "providers.openai.key"])
def test_a_key_setting_names_where_the_key_is_stored_and_a_key_in_plain_text_is_refused(
    home: SettingsDirectory, path: str
) -> None:
    section, _, name = path.rpartition(".")
    settings = home.load(f'[{section}]\n{name} = {{ env = "A_KEY" }}\n', A_KEY="k").settings
    found = settings.web.brave_key if section == "web" else settings.providers["openai"].key
    assert found == SecretReference(env="A_KEY")
    fault = home.fault(f'[{section}]\n{name} = "very-secret"\n')
    assert fault.path == path and "very-secret" not in str(fault)


def test_names_in_the_settings_file_such_as_token_or_secret_are_not_taken_for_secrets(home: SettingsDirectory) -> None:
    home.write("""
        [agents.token]
        [mcp.secret]
        command = ["/bin/true"]
        headers = { X-Region = "north", X-Site = { value = "ours" } }
        [plugins.password]
        [skills.entries.api-key]
        [skills.agents.token]
        [sandbox.secrets.token]
        secret = { env = "T" }
        variable = "GH_TOKEN"
        [[provenance.source]]
        tools = "vault_*"
        trust = "private"
        fields = { token = "id:token" }
    """)
    found = home.load(T="hunter2").settings
    assert found.provenance.source[0].fields == {"token": "id:token"}
    assert found.sandbox.secrets["token"].secret == SecretReference(env="T")
    assert {*found.mcp, *found.plugins, *found.skills.entries} == {"secret", "password", "api-key"}
    assert {name: each.read({}) for name, each in found.mcp["secret"].headers.items()} == {
        "X-Region": "north",
        "X-Site": "ours",
    }


@pytest.mark.spec("H68")
def test_an_unsupported_section_of_the_settings_file_is_refused_with_the_reason(home: SettingsDirectory) -> None:
    assert "in its agent directory" in home.fault("[memory]").because


def test_a_password_from_a_variable_is_filled_into_the_settings_and_not_shown_in_their_repr(
    home: SettingsDirectory,
) -> None:
    text = '[server]\nstore = "postgresql://u:${PW}@h/n"'
    settings = home.load(text, PW="hunter2").settings
    assert settings.store == "postgresql://u:hunter2@h/n"
    assert "hunter2" not in repr(settings)


def test_a_settings_error_shows_the_variable_and_not_its_value(home: SettingsDirectory) -> None:
    fault = home.fault('[server]\npublic_url = "ftp://${PW}"', PW="hunter2")
    assert "ftp://${PW}" in fault.sentence and "hunter2" not in str(fault)


def test_all_errors_of_a_settings_file_are_reported_together_in_order(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 'x'\n[server.listen]\nprot = 1\nport = -1\n[agents.a]\nrunner = 'x'")
    with pytest.raises(InvalidSettings) as refused:
        home.load()
    assert [fault.path for fault in refused.value.faults] == [
        "server.drain_s",
        "server.listen.prot",
        "server.listen.port",
        "agents.a.runner",
    ]
    message = str(refused.value)
    assert message.startswith("the settings have 4 errors [config.invalid]")
    assert f"server.listen.prot is not a setting ({home.file}, line 4)" in message
    assert [entry["line"] for entry in refused.value.as_json()] == [2, 4, 5, 7]


def test_the_number_of_reported_settings_errors_is_limited(home: SettingsDirectory) -> None:
    home.write("[server]\n" + "".join(f"x{number} = 1\n" for number in range(5_000)))
    with pytest.raises(InvalidSettings) as refused:
        home.load()
    assert len(refused.value.faults) == FAULTS_KEPT_MAX
    assert str(refused.value).count("\n  - ") == FAULTS_SHOWN_MAX + 1
    assert "200 or more errors" in str(refused.value)


def test_invalid_toml_in_the_settings_file_is_reported_with_its_line(home: SettingsDirectory) -> None:
    fault = home.fault("[server]\nzone = UTC\n")
    assert fault.sentence == "invalid TOML"
    assert fault.position.line == 2


@pytest.mark.parametrize("text", ["a = " + "[" * 5_000, "[server]\na = " + "[" * 200 + "]" * 200])
def test_a_too_deeply_nested_settings_file_is_refused(home: SettingsDirectory, text: str) -> None:
    assert home.faults(text)


def test_an_unreadable_settings_file_is_refused_with_the_reason(home: SettingsDirectory) -> None:
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


PROXY_SETTINGS = 'public_url = "https://server.example"\ntrusted_proxies = ["10.0.0.1"]\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "server.example"])
@pytest.mark.parametrize(
    "settings",
    [
        "",
        'public_url = "https://server.example"',
        PROXY_SETTINGS.replace("https", "http"),
        'trusted_proxies = ["10.0.0.1"]',
    ],
)
def test_settings_that_listen_beyond_loopback_without_a_tls_proxy_are_refused(
    home: SettingsDirectory, host: str, settings: str
) -> None:
    fault = home.fault(f'[server]\n{settings}\n[server.listen]\nhost = "{host}"')
    assert fault.path == "server.listen.host"
    assert "unencrypted" in fault.because


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_settings_that_listen_on_loopback_need_no_proxy(home: SettingsDirectory, host: str) -> None:
    assert home.load(f'[server.listen]\nhost = "{host}"').settings.listen.host == host


def test_settings_that_listen_beyond_loopback_behind_a_trusted_tls_proxy_are_accepted(home: SettingsDirectory) -> None:
    assert home.load(f'[server]\n{PROXY_SETTINGS}[server.listen]\nhost = "::"').settings.listen.host == "::"


def test_settings_of_a_disabled_listener_can_have_any_host(home: SettingsDirectory) -> None:
    assert not home.load('[server.listen]\nenabled = false\nhost = "0.0.0.0"').settings.listen.enabled


def test_examining_a_broken_settings_file_keeps_its_valid_settings(home: SettingsDirectory) -> None:
    home.write("[server]\ndrain_s = 7\nzone = 'Nowhere'\n[server.listen]\nport = 8000\nprot = 1\n[agents.ada]\n")
    examined = examine_configuration(home.environment)
    assert [fault.path for fault in examined.faults] == ["server.zone", "server.listen.prot"]
    assert examined.configuration.settings.drain_s == 7
    assert examined.configuration.settings.listen.port == 8000
    assert examined.configuration.settings.zone == ZoneInfo("UTC")
    assert [each.name for each in examined.configuration.declarations.agents] == ["ada"]


def test_the_server_does_not_start_with_an_unknown_setting_and_names_its_line(home: SettingsDirectory) -> None:
    home.write("[server.listen]\nprot = 1\n")
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
    assert f"server.listen.prot is not a setting ({home.file}, line 2) [config.invalid]" in opened.stderr
    assert not Path(home.folder, "retinue.db").exists()


WORDS = st.sampled_from(
    re.findall(
        r"\w+",
        """server listen port host agents ada templates t extends clear tools allow queue people role bindings agent
        connector schedules kind every_s token secret external url runner permission_policy store zone include
        config_version mirror folder env file limits lockout_s provenance source argument tool_request measure trust
        fields patterns explanations choice_words words explaining_trust""",
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
def test_any_toml_settings_file_is_accepted_or_refused_with_complete_errors(tree: dict[str, Any]) -> None:
    try:
        text = tomlkit.dumps(tree)
        tomllib.loads(text)
    except ValueError:  # The library can produce text that is not TOML.
        return
    examined = examine_configuration({"RETINUE_HOME": "/nowhere/at/all", "A": "a"}, text=text)
    assert examined.configuration.settings.home == Path("/nowhere/at/all")
    for fault in examined.faults:
        assert fault.sentence and fault.because and fault.try_this and fault.position.file, fault
    str(InvalidSettings(examined.faults)) if examined.faults else repr(examined)


@pytest.mark.spec("C1")
def test_an_unknown_setting_stops_the_server_from_starting_but_not_offline_commands(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.kill()
    file = server.home / "retinue.toml"
    file.write_text("[server.listen]\nprot = 1\n")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            env=server_environment(server.home),
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
            check=False,
        )

    opened = run("retinue.app.server")
    assert opened.returncode == 1
    assert f"server.listen.prot is not a setting ({file}, line 2)" in opened.stderr
    looked = run("retinue.cli.main", "ledger")
    assert looked.returncode == 0, looked.stderr
    assert "ledger is consistent" in looked.stdout
