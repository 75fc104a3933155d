"""Credential operations: owner, source of the key, and cooldowns. No response contains a key."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.config import load_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.structs import replace
from retinue.operations.catalog import OPERATIONS
from retinue.operations.config_holder import ConfigHolder
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA = person("owner"), person("maria")
KEY = "sk-very-secret-0123456789"
SETTINGS = """
[providers.mine]
url = "http://127.0.0.1:9/v1"
key = { env = "MINE_KEY" }
"""


@asynccontextmanager
async def open_instance(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    home = instance.root / "home"
    home.mkdir(exist_ok=True)
    (home / "retinue.toml").write_text(SETTINGS)
    variables = ("ANTHROPIC_API_KEY", "MINE_KEY", "WORK_KEY", "SPARE_KEY")
    environment = {"RETINUE_HOME": str(home), **dict.fromkeys(variables, KEY)}
    async with open_operations_server(instance) as made:
        made.services = replace(
            made.services, config_holder=ConfigHolder(load_configuration(environment), environment), data_dir=home
        )
        yield made


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_instance(LocalInstance(tmp_path)) as made:
        yield made


async def list_credentials(server: OperationsServer, **which: str) -> dict[str, dict[str, Any]]:
    found = (await server.ask(OWNER, "credential.list", **which))["credentials"]
    return {f"{each['agent'] or ''}/{each['id']}": each for each in found}


async def error_of(server: OperationsServer, error: type[RetinueError], operation: str, **asked: Any) -> RetinueError:
    with pytest.raises(error) as raised:
        await server.ask(OWNER, operation, **asked)
    assert isinstance(raised.value, AgentNotFound) or raised.value.because
    assert raised.value.try_this and KEY not in str(raised.value)
    return raised.value


async def add(server: OperationsServer, name: str, **more: str) -> dict[str, Any]:
    return await server.ask(OWNER, "credential.add", provider="anthropic", name=name, **more)


def cooldown_of(failure: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(failure["cooling_until"]) - datetime.fromisoformat(failure["failed_at"])


@pytest.mark.spec("C106")
async def test_found_and_added_credentials_are_listed_with_the_source_of_their_key(server: OperationsServer) -> None:
    await add(server, "Work", key_env="WORK_KEY", kind="token", region="eu-west-1")
    found = await list_credentials(server)
    assert {id_: (each["source"], each["state"]) for id_, each in found.items()} == {
        "/anthropic:work": ("env:WORK_KEY", "ready"),
        "/anthropic:env": ("env:ANTHROPIC_API_KEY", "ready"),
        "/mine:settings": ("env:MINE_KEY", "ready"),
    }
    assert next(iter(found)) == "/anthropic:work"  # tokens are tried first
    work = found["/anthropic:work"]
    assert (work["kind"], work["region"], work["used_at"], work["failures"]) == ("token", "eu-west-1", None, {})
    assert list(await list_credentials(server, provider="mine")) == ["/mine:settings"]


@pytest.mark.spec("C106")
async def test_a_key_given_by_value_is_stored_in_a_private_file_and_never_shown(server: OperationsServer) -> None:
    made = await add(server, "work", key=KEY)
    where, _, path = made["source"].partition(":")
    file = Path(path)
    assert where == "file" and file.is_relative_to(server.services.data_dir / "keys") and file.read_text() == KEY
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700
    answers = [made, await list_credentials(server)]
    for operation in ("credential.mark_used", "credential.clear"):
        answers.append(await server.ask(OWNER, operation, id="anthropic:work"))
    answers.append(await server.ask(OWNER, "credential.mark_failed", id="anthropic:work", reason="auth"))
    answers.append(await server.ask(OWNER, "credential.order", provider="anthropic", ids=["anthropic:work"]))
    answers.append(await server.ask(OWNER, "credential.remove", id="anthropic:work"))
    assert KEY not in json.dumps(answers) and KEY[-4:] not in json.dumps(answers)
    assert not file.exists()  # the file is deleted with its credential
    stored = b"".join(each.read_bytes() for each in server.server.instance.root.glob("retinue.db*"))
    assert stored and KEY.encode() not in stored


async def test_removing_a_credential_keeps_the_owners_key_file(server: OperationsServer, tmp_path: Path) -> None:
    file = tmp_path / "my-key"
    file.write_text(KEY)
    file.chmod(0o600)
    await add(server, "work", key_file=str(file))
    await server.ask(OWNER, "credential.remove", id="anthropic:work")
    assert file.read_text() == KEY


@pytest.mark.spec("C106")
async def test_an_agents_credentials_are_separate_from_those_of_the_instance(server: OperationsServer) -> None:
    await add(server, "work", key_env="WORK_KEY")
    await add(server, "work", key_env="SPARE_KEY", agent="ADA")
    await add(server, "work", key_env="SPARE_KEY", agent="bo")
    assert set(await list_credentials(server, provider="anthropic", agent="ada")) == {
        "ada/anthropic:work",
        "/anthropic:work",
        "/anthropic:env",
    }
    await server.ask(OWNER, "credential.mark_failed", id="anthropic:work", agent="ada", reason="quota")
    found = await list_credentials(server)
    assert found["ada/anthropic:work"]["state"] == "cooling_down"
    assert found["/anthropic:work"]["state"] == found["bo/anthropic:work"]["state"] == "ready"
    await server.ask(OWNER, "credential.remove", id="anthropic:work", agent="ada")
    assert "ada/anthropic:work" not in await list_credentials(server)
    assert "/anthropic:work" in await list_credentials(server)


async def test_a_deleted_agents_credentials_can_still_be_removed(server: OperationsServer) -> None:
    made = await add(server, "work", key=KEY, agent="bo")
    await server.ask(OWNER, "agent.delete", name="bo")
    assert list(await list_credentials(server, agent="bo", provider="anthropic"))[-1] == "bo/anthropic:work"
    assert (await server.ask(OWNER, "credential.remove", id="anthropic:work", agent="BO"))["removed"]
    assert not Path(made["source"].removeprefix("file:")).exists()
    gone = await error_of(server, NotFound, "credential.add", provider="anthropic", name="x", key=KEY, agent="bo")
    assert gone.code == "agent.not_found"


@pytest.mark.spec("C37", "C106")
async def test_repeated_failures_lengthen_a_credentials_cooldown_until_it_is_used(server: OperationsServer) -> None:
    minutes, response, failure = list[int](), dict[str, Any](), dict[str, Any]()
    for _ in range(5):
        response = await server.ask(
            OWNER, "credential.mark_failed", id="anthropic:env", reason="rate_limit", model="claude-opus-4-5"
        )
        failure = response["failures"]["claude-opus-4-5"]
        assert failure["reason"] == "rate_limit"
        minutes.append(cooldown_of(failure) // timedelta(minutes=1))
    assert minutes == [1, 5, 25, 60, 60] and failure["errors"] == 5
    assert response["state"] == "cooling_down" and "for claude-opus-4-5" in response["because"]
    # A success with another model does not end the cooldown for this one.
    response = await server.ask(OWNER, "credential.mark_used", id="anthropic:env", model="another")
    assert response["state"] == "cooling_down" and response["used_at"]
    response = await server.ask(OWNER, "credential.mark_used", id="anthropic:env")
    assert (response["state"], response["failures"]) == ("ready", {})


@pytest.mark.spec("C37")
async def test_a_quota_failure_cools_a_credential_down_for_hours_and_can_be_cleared(server: OperationsServer) -> None:
    hours = list[int]()
    for _ in range(4):
        response = await server.ask(OWNER, "credential.mark_failed", id="anthropic:env", reason="quota", model="any")
        hours.append(cooldown_of(response["failures"]["*"]) // timedelta(hours=1))  # no model can use it
    assert hours == [5, 10, 20, 24]
    response = await server.ask(OWNER, "credential.clear", id="anthropic:env")
    assert (response["state"], response["failures"]) == ("ready", {})


@pytest.mark.spec("C35", "C106")
async def test_a_credential_order_is_kept_until_it_is_reset(server: OperationsServer) -> None:
    for name, variable in (("work", "WORK_KEY"), ("spare", "SPARE_KEY")):
        await add(server, name, key_env=variable)

    async def set_order(*ids: str) -> list[str]:
        answer = await server.ask(OWNER, "credential.order", provider="anthropic", ids=ids)
        return [each["id"] for each in answer["credentials"]]

    assert (await set_order("anthropic:env", "anthropic:work"))[:2] == ["anthropic:env", "anthropic:work"]
    assert (await set_order("anthropic:work", "anthropic:env"))[:2] == ["anthropic:work", "anthropic:env"]
    await server.ask(OWNER, "credential.mark_failed", id="anthropic:work", reason="auth")
    assert (
        list(await list_credentials(server, provider="anthropic"))[-1] == "/anthropic:work"
    )  # credentials that cool down come last
    await server.ask(OWNER, "credential.clear", id="anthropic:work")
    await server.ask(OWNER, "credential.mark_used", id="anthropic:env")
    assert (await set_order())[-1] == "anthropic:env"  # least recently used first
    error = await error_of(
        server, Invalid, "credential.order", provider="anthropic", ids=["anthropic:env", "mine:settings"]
    )
    assert error.code == "credential.order_invalid"
    twice = await error_of(server, Invalid, "credential.order", provider="anthropic", ids=["anthropic:env"] * 2)
    assert "twice" in twice.because


async def test_an_unreadable_key_is_refused_on_add_and_listed_as_unreadable_when_lost_later(
    server: OperationsServer, tmp_path: Path
) -> None:
    error = await error_of(
        server, Invalid, "credential.add", provider="anthropic", name="x", key_env="NOT_SET_ANYWHERE"
    )
    assert error.code == "config.secret_missing"
    made = await add(server, "work", key=KEY)
    Path(made["source"].removeprefix("file:")).unlink()
    work = (await list_credentials(server))["/anthropic:work"]
    assert work["state"] == "unreadable" and work["because"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"name": "env", "key_env": "WORK_KEY"}, "credential.name_reserved"),
        ({"name": "settings", "key_env": "WORK_KEY"}, "credential.name_reserved"),
        ({"name": "../x", "key_env": "WORK_KEY"}, "name.invalid"),
        ({"name": "x"}, "credential.key_source_invalid"),
        ({"name": "x", "key_env": "WORK_KEY", "key": KEY}, "credential.key_source_invalid"),
        ({"name": "x", "key_env": KEY}, "credential.key_env_invalid"),
        ({"name": "x", "key_file": "relative/key"}, "credential.key_file_invalid"),
        ({"name": "x", "key": "two words"}, "credential.key_invalid"),
        ({"name": "x", "key": "naïve"}, "credential.key_invalid"),
        ({"name": "x", "key": KEY, "region": "a\nb"}, "credential.region_invalid"),
    ],
)
async def test_an_invalid_credential_is_refused_and_leaves_nothing_behind(
    server: OperationsServer, asked: dict[str, str], code: str
) -> None:
    error = await error_of(server, Invalid, "credential.add", provider="anthropic", **asked)
    assert error.code == code
    assert not [each for each in (server.services.data_dir / "keys").rglob("*") if each.is_file()]


async def test_unknown_providers_agents_and_credentials_are_not_found_and_names_are_unique(
    server: OperationsServer,
) -> None:
    unknown = await error_of(server, NotFound, "credential.add", provider="nobody", name="x", key=KEY)
    assert unknown.code == "model.provider_unknown" and "anthropic" in unknown.because and "mine" in unknown.because
    nobody = await error_of(server, NotFound, "credential.add", provider="mine", name="x", key=KEY, agent="zed")
    assert nobody.code == "agent.not_found"
    assert (await error_of(server, NotFound, "credential.clear", id="anthropic:x")).code == "credential.not_found"
    await add(server, "work", key=KEY)
    taken = await error_of(server, Conflict, "credential.add", provider="claude", name="WORK", key=KEY)
    assert taken.code == "credential.exists"
    assert len([each for each in (server.services.data_dir / "keys").rglob("*") if each.is_file()]) == 1
    found = await error_of(server, Conflict, "credential.remove", id="anthropic:env")
    assert found.code == "credential.not_removable" and "ANTHROPIC_API_KEY" in found.because


@pytest.mark.spec("C106")
async def test_credential_operations_are_for_the_owner_and_agents_cannot_pass_a_key_by_value(
    server: OperationsServer,
) -> None:
    for name in [each for each in OPERATIONS if each.startswith("credential.")]:
        assert OPERATIONS[name].permission is PermissionLevel.BOSS
        with pytest.raises(NotAllowed):
            await server.ask(MARIA, name)
    steward = agent("ada", PermissionLevel.BOSS)
    with pytest.raises(Invalid) as raised:
        await server.ask(steward, "credential.add", provider="anthropic", name="x", key=KEY)
    assert raised.value.code == "credential.key_by_agent"


async def test_credential_states_survive_a_restart(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    async with open_instance(instance) as server:
        await add(server, "work", key_env="WORK_KEY")
        await server.ask(OWNER, "credential.mark_failed", id="anthropic:work", reason="quota")
        await server.ask(OWNER, "credential.mark_used", id="mine:settings")
        before = await list_credentials(server)
    async with open_instance(instance) as server:
        assert await list_credentials(server) == before
