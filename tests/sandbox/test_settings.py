"""Sandbox settings in the settings file, and values that are refused."""

from __future__ import annotations

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import InvalidSettings
from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxScope, WorkspaceAccess

ALL_SETTINGS_TOML = """
config_version = 2
[sandbox]
kind = "docker"
mode = "non-main"
scope = "session"
workspace = "ro"
hosts = ["pypi.org", "*.example.com", "git.example.org:22"]
private_hosts = ["nas.lan"]
hidden = ["/srv/secret"]
[sandbox.limits]
seconds = 60
memory_mib = 512
processes = 64
file_mib = 10
tmp_mib = 20
output_mib = 4
[sandbox.docker]
image = "debian:12"
prefix = "agents"
cpus = 2
binds = ["/srv/data:/data:ro"]
setup = "true"
idle_hours = 1
age_days = 2
[sandbox.secrets.github]
secret = { env = "GITHUB_TOKEN" }
agents = ["ada"]
hosts = ["api.github.com"]
header = "Authorization"
prefix = "Bearer "
[sandbox.secrets.gh]
secret = { file = "/run/keys/gh" }
variable = "GH_TOKEN"
commands = ["/usr/bin/gh"]
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> SettingsDirectory:
    return SettingsDirectory(tmp_path_factory.mktemp("home"))


def test_all_sandbox_settings_are_read_from_the_settings_file(home: SettingsDirectory) -> None:
    sandbox = home.load(ALL_SETTINGS_TOML).settings.sandbox
    assert (sandbox.kind, sandbox.mode) == (SandboxKind.DOCKER, SandboxMode.NON_MAIN)
    assert (sandbox.scope, sandbox.workspace) == (SandboxScope.SESSION, WorkspaceAccess.READ)
    assert sandbox.limits.memory_mib == 512
    assert sandbox.docker.cpus == 2
    assert sandbox.secrets["github"].header == "Authorization"
    assert str(sandbox.secrets["gh"].secret) == "the secret in /run/keys/gh"


def test_the_default_sandbox_settings_confine_all_commands_and_allow_no_host(home: SettingsDirectory) -> None:
    sandbox = home.load().settings.sandbox
    assert (sandbox.kind, sandbox.mode) == (SandboxKind.BUBBLEWRAP, SandboxMode.ALL)
    assert sandbox.hosts == () and sandbox.secrets == {}


@pytest.mark.spec("D50.wildcard")
@pytest.mark.parametrize(
    "line",
    [
        'kind = "none"',
        'hosts = ["*"]',
        'hosts = ["*.com"]',
        'hosts = ["https://example.com"]',
        'hosts = ["example.com:0"]',
        "limits = { processes = 1 }",
        'docker = { image = "-v" }',
        'docker = { prefix = "A B" }',
        'secrets.x = { secret = { env = "X" }, header = "a b" }',
        'secrets.x = { secret = { env = "X" }, variable = "LD_PRELOAD" }',
        'secrets.x = { secret = "s3cret" }',
        'netwrok = "all"',
    ],
)
def test_invalid_or_too_broad_sandbox_settings_are_refused(home: SettingsDirectory, line: str) -> None:
    with pytest.raises(InvalidSettings) as failed:
        home.load(f"config_version = 2\n[sandbox]\n{line}\n")
    assert "s3cret" not in str(failed.value)
