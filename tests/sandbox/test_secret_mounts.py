"""Secrets that are used and not read: who gets which, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.sandbox import SandboxSettings, SecretRule, check_variable_name
from retinue.config.secret import SecretReference
from retinue.domain.errors import RetinueError
from retinue.sandbox.base import Confinement, NetworkAccess, SandboxFailed
from retinue.sandbox.secret_mounts import add_secrets, find_applicable_secrets

HOUSE = {"GITHUB": "gh-s3cret", "API": "api-s3cret"}
GH = Path("/usr/bin/gh")
CONFINED = Confinement(folder=Path("/w"), network=NetworkAccess(hosts=("api.example.com", "*.github.com")))


def settings(**rule: object) -> SandboxSettings:
    return SandboxSettings(secrets={"one": SecretRule(secret=SecretReference(env="API"), **rule)})  # pyright: ignore


def test_a_header_rule_gives_the_secret_to_the_proxy_and_never_to_the_command() -> None:
    rule = settings(hosts=("api.example.com",), header="Authorization", before="Bearer ")
    made = add_secrets(CONFINED, find_applicable_secrets(rule, "ada", GH, CONFINED), HOUSE)
    assert made.network is not None
    assert made.network.injected == {"api.example.com": {"Authorization": "Bearer api-s3cret"}}
    assert made.environment == {}
    assert "s3cret" not in repr(made) and "s3cret" not in repr(rule)


def test_a_host_that_the_command_may_not_reach_gets_no_secret() -> None:
    rule = settings(hosts=("other.example.com",), header="Authorization")
    assert find_applicable_secrets(rule, "ada", GH, CONFINED) == ()
    assert find_applicable_secrets(rule, "ada", GH, Confinement(folder=Path("/w"))) == ()


def test_a_variable_rule_gives_it_to_the_named_program_alone() -> None:
    rule = settings(variable="GH_TOKEN", commands=("/usr/bin/gh",))
    made = add_secrets(CONFINED, find_applicable_secrets(rule, "ada", GH, CONFINED), HOUSE)
    assert made.environment == {"GH_TOKEN": "api-s3cret"}
    for program in ("/bin/sh", "/workspace/gh", "gh", "/usr/bin/gh2"):
        assert find_applicable_secrets(rule, "ada", Path(program), CONFINED) == ()
    assert find_applicable_secrets(settings(variable="GH_TOKEN"), "ada", GH, CONFINED) == ()  # no command named: none


def test_an_agent_that_is_not_named_gets_nothing() -> None:
    rule = settings(variable="GH_TOKEN", commands=("/usr/bin/gh",), agents=("ada",))
    assert find_applicable_secrets(rule, "ada", GH, CONFINED)
    assert find_applicable_secrets(rule, "ben", GH, CONFINED) == ()


def test_a_secret_that_is_missing_or_no_line_stops_the_command() -> None:
    rule = settings(variable="GH_TOKEN", commands=("/usr/bin/gh",))
    given = find_applicable_secrets(rule, "ada", GH, CONFINED)
    with pytest.raises(RetinueError):
        add_secrets(CONFINED, given, {})
    with pytest.raises(SandboxFailed) as failed:
        add_secrets(CONFINED, given, {"API": "two\nlines"})
    assert "two" not in str(failed.value)


@pytest.mark.parametrize(
    "name", ["PATH", "LD_PRELOAD", "ld_library_path", "HTTP_PROXY", "PYTHONPATH", "BASH_ENV", "1X", "A=B"]
)
def test_a_variable_that_decides_what_a_command_is_cannot_carry_a_secret(name: str) -> None:
    assert check_variable_name(name)
    assert check_variable_name("GH_TOKEN") is None
