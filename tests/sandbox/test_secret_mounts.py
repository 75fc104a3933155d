"""Secrets that a command can use but not read: which command gets which, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.sandbox import SandboxSettings, SecretRule, check_variable_name
from retinue.config.secret import SecretReference
from retinue.domain.errors import RetinueError
from retinue.sandbox.base import Confinement, NetworkAccess, SandboxFailed
from retinue.sandbox.secret_mounts import add_secrets, find_applicable_secrets

SERVER = {"GITHUB": "gh-s3cret", "API": "api-s3cret"}
GH = Path("/usr/bin/gh")
CONFINEMENT = Confinement(folder=Path("/w"), network=NetworkAccess(hosts=("api.example.com", "*.github.com")))


def make_settings(**rule: object) -> SandboxSettings:
    return SandboxSettings(secrets={"one": SecretRule(secret=SecretReference(env="API"), **rule)})  # pyright: ignore


def test_a_header_rule_gives_its_secret_to_the_sandbox_proxy_and_not_to_the_command() -> None:
    rule = make_settings(hosts=("api.example.com",), header="Authorization", prefix="Bearer ")
    made = add_secrets(CONFINEMENT, find_applicable_secrets(rule, "ada", GH, CONFINEMENT), SERVER)
    assert made.network is not None
    assert made.network.injected == {"api.example.com": {"Authorization": "Bearer api-s3cret"}}
    assert made.environment == {}
    assert "s3cret" not in repr(made) and "s3cret" not in repr(rule)


def test_no_secret_is_used_for_a_host_that_the_sandboxed_command_cannot_reach() -> None:
    rule = make_settings(hosts=("other.example.com",), header="Authorization")
    assert find_applicable_secrets(rule, "ada", GH, CONFINEMENT) == ()
    assert find_applicable_secrets(rule, "ada", GH, Confinement(folder=Path("/w"))) == ()


def test_a_variable_rule_gives_its_secret_only_to_the_named_program_in_the_sandbox() -> None:
    rule = make_settings(variable="GH_TOKEN", commands=("/usr/bin/gh",))
    made = add_secrets(CONFINEMENT, find_applicable_secrets(rule, "ada", GH, CONFINEMENT), SERVER)
    assert made.environment == {"GH_TOKEN": "api-s3cret"}
    for program in ("/bin/sh", "/workspace/gh", "gh", "/usr/bin/gh2"):
        assert find_applicable_secrets(rule, "ada", Path(program), CONFINEMENT) == ()
    assert (
        find_applicable_secrets(make_settings(variable="GH_TOKEN"), "ada", GH, CONFINEMENT) == ()
    )  # no command is named, so none gets it


def test_a_sandbox_secret_rule_with_agents_gives_nothing_to_other_agents() -> None:
    rule = make_settings(variable="GH_TOKEN", commands=("/usr/bin/gh",), agents=("ada",))
    assert find_applicable_secrets(rule, "ada", GH, CONFINEMENT)
    assert find_applicable_secrets(rule, "ben", GH, CONFINEMENT) == ()


def test_a_missing_or_multiline_secret_stops_the_sandboxed_command() -> None:
    rule = make_settings(variable="GH_TOKEN", commands=("/usr/bin/gh",))
    given = find_applicable_secrets(rule, "ada", GH, CONFINEMENT)
    with pytest.raises(RetinueError):
        add_secrets(CONFINEMENT, given, {})
    with pytest.raises(SandboxFailed) as failed:
        add_secrets(CONFINEMENT, given, {"API": "two\nlines"})
    assert "two" not in str(failed.value)


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "ld_library_path", "HTTP_PROXY", "PYTHONPATH", "BASH_ENV", "1X", "A=B"]
)
def test_a_variable_that_changes_how_a_sandboxed_command_runs_cannot_carry_a_secret(name: str) -> None:
    assert check_variable_name(name)
    assert check_variable_name("GH_TOKEN") is None
