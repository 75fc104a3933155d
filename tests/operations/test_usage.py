"""What was used and spent, as each who asks may know of it; and how much of each cap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person
from store.model_spending import Till, run_of, terms

from retinue.config import load_configuration
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid
from retinue.domain.model import FREE_PRICE, ModelRef
from retinue.domain.record import Usage
from retinue.domain.run import Run
from retinue.domain.structs import replace
from retinue.operations.config_holder import ConfigHolder
from retinue.policy.limits.budgets import compute_budget_days
from retinue.store.agents import agents
from retinue.testing.local_instance import LocalInstance

OWNER, MARIA, NOOR = person("owner"), person("maria"), person("noor")
USAGE = Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=400, reasoning_tokens=30)  # 4,500
LOCAL = ModelRef("", "local")


@pytest.fixture(params=["sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DeskHouse]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with desk_house(LocalInstance(tmp_path, url=url)) as made:
        yield made


def till_of(house: DeskHouse, *, days_ago: int = 0) -> Till:
    now = house.desk.clock.now() - timedelta(days=days_ago)
    return Till(house.house.store, compute_budget_days(now, house.desk.zone))


async def spend(
    house: DeskHouse, run: Run, *, usage: Usage = USAGE, days_ago: int = 0, turn: int = 0, **kw: Any
) -> None:
    till, asked = till_of(house, days_ago=days_ago), terms(**kw)
    await till.reserve(run, asked, turn=turn)
    await till.settle(run, asked, usage, turn=turn)


async def a_week(house: DeskHouse) -> None:
    """Two people, two agents, two models: something free, something estimated, something failed, something open."""
    await spend(house, run_of("1"), days_ago=6)
    await spend(house, run_of("1"), turn=1, days_ago=6)
    await spend(house, run_of("2", agent="bo", sender="person:noor"), days_ago=1)
    await spend(house, run_of("3", agent="bo", sender="schedule:abcdef01"), price=FREE_PRICE, ref=LOCAL)
    await spend(house, run_of("4"), usage=replace(USAGE, estimated=True))
    await till_of(house).reserve(run_of("5"), terms())
    await till_of(house).fail(run_of("6"), terms(), unknown=False)
    await spend(house, run_of("7"), days_ago=40)


async def used(house: DeskHouse, who: Any = OWNER, **kw: Any) -> dict[str, Any]:
    return await house.ask(who, "usage.show", **kw)


async def costs(house: DeskHouse, who: Any = OWNER, **kw: Any) -> dict[str, int]:
    return {row["key"]: row["cost-microusd"] for row in (await used(house, who, **kw))["rows"]}


WHOLE = 33_000


@pytest.mark.spec("D21")
async def test_totals_are_per_provider_and_model_and_no_estimate_enters_them(house: DeskHouse) -> None:
    await a_week(house)
    by_model = await used(house, by="model")
    claude, local = by_model["rows"]
    assert (claude["key"], claude["calls"], claude["input-tokens"], claude["output-tokens"]) == (
        *("anthropic/claude", 6, 3_000, 300),
    )
    assert (claude["cache-read-tokens"], claude["reasoning-tokens"]) == (1_200, 90)
    assert (claude["cost-microusd"], claude["unknown-microusd"], claude["held-microusd"]) == (
        *(3 * 4_500 + WHOLE, WHOLE, WHOLE),
    )
    assert (claude["failed-calls"], claude["unknown-calls"]) == (1, 1)
    assert (local["key"], local["cost-microusd"], local["input-tokens"]) == ("local", 0, 1_000)
    assert by_model["total"]["calls"] == 7 and by_model["total"]["input-tokens"] == 4_000
    assert await costs(house, by="provider") == {"anthropic": 3 * 4_500 + WHOLE, "": 0}


async def test_the_same_sum_is_shown_by_whatever_one_likes(house: DeskHouse) -> None:
    await a_week(house)
    whole = 3 * 4_500 + WHOLE
    for by in ("day", "agent", "model", "provider", "person", "session", "run"):
        assert sum((await costs(house, by=by)).values()) == whole, by
        assert (await used(house, by=by))["total"]["cost-microusd"] == whole, by
    assert await costs(house, by="person") == {"maria": 9_000 + WHOLE, "noor": 4_500, "": 0}
    assert await costs(house, by="agent") == {"ada": 9_000 + WHOLE, "bo": 4_500}
    assert (await costs(house, by="run"))[run_of("1").id] == 9_000
    assert await costs(house, by="session") == {"5" * 32: whole}


async def test_days_stand_in_their_order_and_are_those_of_the_owner(house: DeskHouse) -> None:
    await a_week(house)
    today = house.desk.clock.now().astimezone(house.desk.zone).date()
    told = await used(house)
    assert [row["key"] for row in told["rows"]] == [str(today - timedelta(days=ago)) for ago in (6, 1, 0)]
    assert (told["from"], told["to"]) == (str(today - timedelta(days=29)), str(today))
    assert len((await used(house, **{"from": "-41D"}))["rows"]) == 4
    one = {"from": str(today - timedelta(days=6)), "to": str(today - timedelta(days=1))}
    assert list((await costs(house, **one)).values()) == [9_000, 4_500]


async def test_filters_take_an_agent_and_a_person_in_any_case(house: DeskHouse) -> None:
    await a_week(house)
    assert await costs(house, by="agent", agent="BO") == {"bo": 4_500}
    assert await costs(house, by="agent", agent="bo", person="Maria") == {}
    assert await costs(house, by="person", person="NOOR") == {"noor": 4_500}
    assert await costs(house, by="agent", agent="nobody") == {}


async def test_a_member_sees_what_was_spent_for_them_and_an_agent_its_own(house: DeskHouse) -> None:
    await a_week(house)
    assert await costs(house, MARIA, by="person") == {"maria": 9_000 + WHOLE}
    assert await costs(house, NOOR, by="agent") == {"bo": 4_500}
    assert (await used(house, NOOR, person="maria"))["total"]["calls"] == 0
    assert await costs(house, agent("bo"), by="person") == {"noor": 4_500, "": 0}
    assert (await used(house, agent("cy")))["rows"] == []


async def test_what_is_left_out_is_counted_and_the_total_is_of_all(house: DeskHouse) -> None:
    await a_week(house)
    told = await used(house, by="run", limit=2)
    assert (len(told["rows"]), told["left-out"], told["total"]["calls"]) == (2, 4, 7)
    assert told["rows"][0]["cost-microusd"] == WHOLE, "the dearest first"
    newest = await used(house, limit=1)
    assert [row["key"] for row in newest["rows"]] == [newest["to"]]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"from": "yesterday"}, "date.invalid"),
        ({"from": "0001-01-01"}, "date.invalid"),
        ({"from": "2026-01-03", "to": "2026-01-02"}, "time.inverted"),
        ({"to": "-99999Y"}, "time.invalid"),
        ({"limit": 0}, "list.limit"),
        ({"limit": 10**6}, "list.limit"),
        ({"by": "mood"}, "request.invalid"),
    ],
)
async def test_what_cannot_be_asked_is_refused_with_a_reason(tmp_path: Path, asked: Any, code: str) -> None:
    async with desk_house(LocalInstance(tmp_path)) as house:
        with pytest.raises(Invalid) as refused:
            await used(house, **asked)
    assert refused.value.code == code


# Budgets


async def with_caps(house: DeskHouse, **budgets: float) -> DeskHouse:
    home = house.desk.data_dir
    lines = [f"{name} = {dollars}" for name, dollars in budgets.items()]
    (home / "retinue.toml").write_text("\n".join(["[budgets]", *lines, ""]))
    environment = {"RETINUE_HOME": str(home)}
    ada = Agent(name="ada", model="scripted", day_microusd_max=100_000, cost_microusd_max=50_000)
    await house.house.store.write(lambda conn: agents.upsert(conn, ada, source="test", at_ms=2), point="test")
    return replace(
        house, desk=replace(house.desk, config_holder=ConfigHolder(load_configuration(environment), environment))
    )


async def budgets_of(house: DeskHouse, who: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    told = await house.ask(who, "usage.budgets")
    keys = ("cap-microusd", "spent-microusd", "held-microusd", "left-microusd", "share", "resets-on")
    return {(row["what"], row["whose"]): tuple(row[key] for key in keys) for row in told["budgets"]}


async def test_each_cap_says_what_is_spent_held_and_left_and_when_it_begins_anew(house: DeskHouse) -> None:
    await a_week(house)
    house = await with_caps(house, house_day_usd=1.0, person_month_usd=0.05, tree_usd=2)
    found = await budgets_of(house, OWNER)
    assert found["house's day", ""] == (1_000_000, WHOLE, WHOLE, 1_000_000 - 2 * WHOLE, 0.033, "2026-01-06")
    assert found["agent's day", "ada"] == (100_000, WHOLE, WHOLE, 34_000, 0.33, "2026-01-06")
    assert found["person's month", "maria"] == (50_000, WHOLE, WHOLE, 0, 0.66, "2026-02-01")
    assert found["person's month", "gus"] == (50_000, 0, 0, 50_000, 0.0, "2026-02-01")
    assert found["tree", ""] == (2_000_000, None, None, None, None, None)
    assert found["run", "ada"] == (50_000, None, None, None, None, None)


async def test_the_houses_caps_are_the_owners_and_everyone_knows_their_own(house: DeskHouse) -> None:
    house = await with_caps(house, house_day_usd=1.0, person_day_usd=0.5)
    assert list(await budgets_of(house, MARIA)) == [("person's day", "maria")]
    assert list(await budgets_of(house, agent("ada"))) == [("agent's day", "ada"), ("run", "ada")]
    assert await budgets_of(house, agent("bo")) == {}
    told = await house.ask(OWNER, "usage.budgets")
    assert told["warn-share"] == 0.8
    assert told["budgets"][0]["raised-by"] == "`budgets.house_day_usd`"


async def test_a_house_without_caps_has_none_to_show(house: DeskHouse) -> None:
    assert (await house.ask(OWNER, "usage.budgets"))["budgets"] == []


async def test_days_are_told_apart_and_those_beyond_the_limit_are_one(house: DeskHouse) -> None:
    await a_week(house)
    by_agent = await house.ask(OWNER, "usage.days", by="agent", **{"from": "-6D"})
    assert len(by_agent["days"]) == 7
    assert [series["key"] for series in by_agent["series"]] == ["ada", "bo"]
    ada, bo = by_agent["series"]
    assert (ada["calls"][0], ada["cost-microusd"][0], ada["input-tokens"][0]) == (2, 9_000, 2_000)
    assert sum(ada["cost-microusd"]) + sum(bo["cost-microusd"]) == by_agent["total"]["cost-microusd"]
    assert bo["cost-microusd"][5] == 4_500 and not any(series["rest"] for series in by_agent["series"])
    shown = await used(house, by="model", **{"from": "-6D"})
    [claude, rest] = (await house.ask(OWNER, "usage.days", by="model", limit=1, **{"from": "-6D"}))["series"]
    assert (claude["key"], rest["key"], rest["rest"]) == ("anthropic/claude", "", True)
    assert [sum(claude["cost-microusd"]), sum(rest["calls"])] == [
        shown["rows"][0]["cost-microusd"],
        shown["rows"][1]["calls"],
    ]


async def test_days_show_each_what_is_theirs_and_have_an_end(house: DeskHouse) -> None:
    await a_week(house)
    hers = await house.ask(NOOR, "usage.days", by="agent")
    assert [(series["key"], sum(series["cost-microusd"])) for series in hers["series"]] == [("bo", 4_500)]
    refused: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 51},
        {"from": "2020-01-01"},
        {"from": "-3D", "to": "-4D"},
        {"by": "run"},
    ]
    for asked in refused:
        with pytest.raises(Invalid):
            await house.ask(OWNER, "usage.days", **asked)
