"""Credentials over operations: whose they are, where their keys lie and how they fared; a key is in no answer."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

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
async def opened(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    home = household.root / "home"
    home.mkdir(exist_ok=True)
    (home / "retinue.toml").write_text(SETTINGS)
    variables = ("ANTHROPIC_API_KEY", "MINE_KEY", "WORK_KEY", "SPARE_KEY")
    environment = {"RETINUE_HOME": str(home), **dict.fromkeys(variables, KEY)}
    async with desk_house(household) as made:
        made.desk = replace(
            made.desk, config_holder=ConfigHolder(load_configuration(environment), environment), data_dir=home
        )
        yield made


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with opened(LocalInstance(tmp_path)) as made:
        yield made


async def listed(house: DeskHouse, **which: str) -> dict[str, dict[str, Any]]:
    found = (await house.ask(OWNER, "credential.list", **which))["credentials"]
    return {f"{each['agent'] or ''}/{each['id']}": each for each in found}


async def refused(house: DeskHouse, error: type[RetinueError], operation: str, **asked: Any) -> RetinueError:
    with pytest.raises(error) as raised:
        await house.ask(OWNER, operation, **asked)
    assert isinstance(raised.value, AgentNotFound) or raised.value.because
    assert raised.value.try_this and KEY not in str(raised.value)
    return raised.value


async def add(house: DeskHouse, name: str, **more: str) -> dict[str, Any]:
    return await house.ask(OWNER, "credential.add", provider="anthropic", name=name, **more)


def cools_for(failure: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(failure["cooling-until"]) - datetime.fromisoformat(failure["failed-at"])


@pytest.mark.spec("C106")
async def test_what_is_found_and_what_was_added_is_listed_with_where_its_key_is(house: DeskHouse) -> None:
    await add(house, "Work", key_env="WORK_KEY", kind="token", region="eu-west-1")
    found = await listed(house)
    assert {id_: (each["where"], each["state"]) for id_, each in found.items()} == {
        "/anthropic:work": ("env:WORK_KEY", "ready"),
        "/anthropic:env": ("env:ANTHROPIC_API_KEY", "ready"),
        "/mine:settings": ("env:MINE_KEY", "ready"),
    }
    assert next(iter(found)) == "/anthropic:work"  # tokens are asked first
    work = found["/anthropic:work"]
    assert (work["kind"], work["region"], work["used-at"], work["failures"]) == ("token", "eu-west-1", None, {})
    assert list(await listed(house, provider="mine")) == ["/mine:settings"]


@pytest.mark.spec("C106")
async def test_a_key_given_by_value_lies_in_a_file_of_the_house_and_is_shown_nowhere(house: DeskHouse) -> None:
    made = await add(house, "work", key=KEY)
    where, _, path = made["where"].partition(":")
    file = Path(path)
    assert where == "file" and file.is_relative_to(house.desk.data_dir / "keys") and file.read_text() == KEY
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700
    answers = [made, await listed(house)]
    for operation in ("credential.mark-used", "credential.clear"):
        answers.append(await house.ask(OWNER, operation, id="anthropic:work"))
    answers.append(await house.ask(OWNER, "credential.mark-failed", id="anthropic:work", reason="auth"))
    answers.append(await house.ask(OWNER, "credential.order", provider="anthropic", ids=["anthropic:work"]))
    answers.append(await house.ask(OWNER, "credential.remove", id="anthropic:work"))
    assert KEY not in json.dumps(answers) and KEY[-4:] not in json.dumps(answers)
    assert not file.exists()  # it went with its credential
    stored = b"".join(each.read_bytes() for each in house.house.instance.root.glob("house.db*"))
    assert stored and KEY.encode() not in stored


async def test_a_file_of_the_owners_is_left_where_it_is(house: DeskHouse, tmp_path: Path) -> None:
    file = tmp_path / "my-key"
    file.write_text(KEY)
    file.chmod(0o600)
    await add(house, "work", key_file=str(file))
    await house.ask(OWNER, "credential.remove", id="anthropic:work")
    assert file.read_text() == KEY


@pytest.mark.spec("C106")
async def test_an_agents_own_are_apart_from_the_houses(house: DeskHouse) -> None:
    await add(house, "work", key_env="WORK_KEY")
    await add(house, "work", key_env="SPARE_KEY", agent="ADA")
    await add(house, "work", key_env="SPARE_KEY", agent="bo")
    assert set(await listed(house, provider="anthropic", agent="ada")) == {
        "ada/anthropic:work",
        "/anthropic:work",
        "/anthropic:env",
    }
    await house.ask(OWNER, "credential.mark-failed", id="anthropic:work", agent="ada", reason="quota")
    found = await listed(house)
    assert found["ada/anthropic:work"]["state"] == "cooling-down"
    assert found["/anthropic:work"]["state"] == found["bo/anthropic:work"]["state"] == "ready"
    await house.ask(OWNER, "credential.remove", id="anthropic:work", agent="ada")
    assert "ada/anthropic:work" not in await listed(house)
    assert "/anthropic:work" in await listed(house)


async def test_what_an_agent_leaves_behind_can_still_be_removed(house: DeskHouse) -> None:
    made = await add(house, "work", key=KEY, agent="bo")
    await house.ask(OWNER, "agent.delete", name="bo")
    assert list(await listed(house, agent="bo", provider="anthropic"))[-1] == "bo/anthropic:work"
    assert (await house.ask(OWNER, "credential.remove", id="anthropic:work", agent="BO"))["removed"]
    assert not Path(made["where"].removeprefix("file:")).exists()
    gone = await refused(house, NotFound, "credential.add", provider="anthropic", name="x", key=KEY, agent="bo")
    assert gone.code == "agent.not_found"


@pytest.mark.spec("C37", "C106")
async def test_failures_cool_for_longer_each_time_and_using_it_forgives_them(house: DeskHouse) -> None:
    minutes, told, failure = list[int](), dict[str, Any](), dict[str, Any]()
    for _ in range(5):
        told = await house.ask(
            OWNER, "credential.mark-failed", id="anthropic:env", reason="rate_limit", model="claude-opus-4-5"
        )
        failure = told["failures"]["claude-opus-4-5"]
        assert failure["reason"] == "rate_limit"
        minutes.append(cools_for(failure) // timedelta(minutes=1))
    assert minutes == [1, 5, 25, 60, 60] and failure["errors"] == 5
    assert told["state"] == "cooling-down" and "for claude-opus-4-5" in told["because"]
    told = await house.ask(OWNER, "credential.mark-used", id="anthropic:env", model="another")
    assert told["state"] == "cooling-down" and told["used-at"]  # with another model it says nothing of this one
    told = await house.ask(OWNER, "credential.mark-used", id="anthropic:env")
    assert (told["state"], told["failures"]) == ("ready", {})


@pytest.mark.spec("C37")
async def test_an_empty_purse_cools_for_hours_and_failures_can_be_cleared(house: DeskHouse) -> None:
    hours = list[int]()
    for _ in range(4):
        told = await house.ask(OWNER, "credential.mark-failed", id="anthropic:env", reason="quota", model="any")
        hours.append(cools_for(told["failures"]["*"]) // timedelta(hours=1))  # nothing is left for any model
    assert hours == [5, 10, 20, 24]
    told = await house.ask(OWNER, "credential.clear", id="anthropic:env")
    assert (told["state"], told["failures"]) == ("ready", {})


@pytest.mark.spec("C35", "C106")
async def test_an_order_is_kept_until_it_is_taken_back(house: DeskHouse) -> None:
    for name, variable in (("work", "WORK_KEY"), ("spare", "SPARE_KEY")):
        await add(house, name, key_env=variable)

    async def ordered(*ids: str) -> list[str]:
        answer = await house.ask(OWNER, "credential.order", provider="anthropic", ids=ids)
        return [each["id"] for each in answer["credentials"]]

    assert (await ordered("anthropic:env", "anthropic:work"))[:2] == ["anthropic:env", "anthropic:work"]
    assert (await ordered("anthropic:work", "anthropic:env"))[:2] == ["anthropic:work", "anthropic:env"]
    await house.ask(OWNER, "credential.mark-failed", id="anthropic:work", reason="auth")
    assert list(await listed(house, provider="anthropic"))[-1] == "/anthropic:work"  # those that cool come last
    await house.ask(OWNER, "credential.clear", id="anthropic:work")
    await house.ask(OWNER, "credential.mark-used", id="anthropic:env")
    assert (await ordered())[-1] == "anthropic:env"  # the longest unused first
    error = await refused(
        house, Invalid, "credential.order", provider="anthropic", ids=["anthropic:env", "mine:settings"]
    )
    assert error.code == "credential.order_invalid"
    twice = await refused(house, Invalid, "credential.order", provider="anthropic", ids=["anthropic:env"] * 2)
    assert "twice" in twice.because


async def test_what_cannot_be_read_is_refused_when_added_and_told_when_it_is_lost_later(
    house: DeskHouse, tmp_path: Path
) -> None:
    error = await refused(house, Invalid, "credential.add", provider="anthropic", name="x", key_env="NOT_SET_ANYWHERE")
    assert error.code == "config.secret_missing"
    made = await add(house, "work", key=KEY)
    Path(made["where"].removeprefix("file:")).unlink()
    work = (await listed(house))["/anthropic:work"]
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
async def test_what_makes_no_credential_is_refused_and_leaves_nothing_behind(
    house: DeskHouse, asked: dict[str, str], code: str
) -> None:
    error = await refused(house, Invalid, "credential.add", provider="anthropic", **asked)
    assert error.code == code
    assert not [each for each in (house.desk.data_dir / "keys").rglob("*") if each.is_file()]


async def test_strangers_are_not_found_and_names_are_taken_once(house: DeskHouse) -> None:
    unknown = await refused(house, NotFound, "credential.add", provider="nobody", name="x", key=KEY)
    assert unknown.code == "model.provider_unknown" and "anthropic" in unknown.because and "mine" in unknown.because
    nobody = await refused(house, NotFound, "credential.add", provider="mine", name="x", key=KEY, agent="zed")
    assert nobody.code == "agent.not_found"
    assert (await refused(house, NotFound, "credential.clear", id="anthropic:x")).code == "credential.not_found"
    await add(house, "work", key=KEY)
    taken = await refused(house, Conflict, "credential.add", provider="claude", name="WORK", key=KEY)
    assert taken.code == "credential.exists"
    assert len([each for each in (house.desk.data_dir / "keys").rglob("*") if each.is_file()]) == 1
    found = await refused(house, Conflict, "credential.remove", id="anthropic:env")
    assert found.code == "credential.not_removable" and "ANTHROPIC_API_KEY" in found.because


@pytest.mark.spec("C106")
async def test_only_the_owner_may_ask_and_no_agent_gives_a_key_by_value(house: DeskHouse) -> None:
    for name in [each for each in OPERATIONS if each.startswith("credential.")]:
        assert OPERATIONS[name].permission is PermissionLevel.BOSS
        with pytest.raises(NotAllowed):
            await house.ask(MARIA, name)
    steward = agent("ada", PermissionLevel.BOSS)
    with pytest.raises(Invalid) as raised:
        await house.ask(steward, "credential.add", provider="anthropic", name="x", key=KEY)
    assert raised.value.code == "credential.key_by_agent"


async def test_what_is_known_outlives_the_house(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    async with opened(household) as house:
        await add(house, "work", key_env="WORK_KEY")
        await house.ask(OWNER, "credential.mark-failed", id="anthropic:work", reason="quota")
        await house.ask(OWNER, "credential.mark-used", id="mine:settings")
        before = await listed(house)
    async with opened(household) as house:
        assert await listed(house) == before
