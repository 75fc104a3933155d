"""Usage and cost as each principal may see them, and how much of each budget is used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person
from store.model_spending import SpendingStore, run_of, terms

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
LOCAL_MODEL = ModelRef("", "local")


@pytest.fixture(params=["sqlite", "postgres"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OperationsServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    async with open_operations_server(LocalInstance(tmp_path, url=url)) as made:
        yield made


def spending_store_of(server: OperationsServer, *, days_ago: int = 0) -> SpendingStore:
    now = server.services.clock.now() - timedelta(days=days_ago)
    return SpendingStore(server.server.store, compute_budget_days(now, server.services.zone))


async def spend(
    server: OperationsServer, run: Run, *, usage: Usage = USAGE, days_ago: int = 0, turn: int = 0, **kw: Any
) -> None:
    spending_store, asked = spending_store_of(server, days_ago=days_ago), terms(**kw)
    await spending_store.reserve(run, asked, turn=turn)
    await spending_store.settle(run, asked, usage, turn=turn)


async def spend_for_a_week(server: OperationsServer) -> None:
    """Record calls of two people, two agents and two models; some free, estimated, failed or still open."""
    await spend(server, run_of("1"), days_ago=6)
    await spend(server, run_of("1"), turn=1, days_ago=6)
    await spend(server, run_of("2", agent="bo", sender="person:noor"), days_ago=1)
    await spend(server, run_of("3", agent="bo", sender="schedule:abcdef01"), price=FREE_PRICE, ref=LOCAL_MODEL)
    await spend(server, run_of("4"), usage=replace(USAGE, estimated=True))
    await spending_store_of(server).reserve(run_of("5"), terms())
    await spending_store_of(server).fail(run_of("6"), terms(), unknown=False)
    await spend(server, run_of("7"), days_ago=40)


async def show_usage(server: OperationsServer, who: Any = OWNER, **kw: Any) -> dict[str, Any]:
    return await server.ask(who, "usage.show", **kw)


async def costs_by_key(server: OperationsServer, who: Any = OWNER, **kw: Any) -> dict[str, int]:
    return {row["key"]: row["cost_microusd"] for row in (await show_usage(server, who, **kw))["rows"]}


RESERVED_MICROUSD = 33_000


@pytest.mark.spec("D21")
async def test_usage_totals_are_exact_by_provider_and_model_and_exclude_estimates(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    by_model = await show_usage(server, by="model")
    claude, local = by_model["rows"]
    assert (claude["key"], claude["calls"], claude["input_tokens"], claude["output_tokens"]) == (
        *("anthropic/claude", 6, 3_000, 300),
    )
    assert (claude["cache_read_tokens"], claude["reasoning_tokens"]) == (1_200, 90)
    assert (claude["cost_microusd"], claude["unknown_microusd"], claude["reserved_microusd"]) == (
        *(3 * 4_500 + RESERVED_MICROUSD, RESERVED_MICROUSD, RESERVED_MICROUSD),
    )
    assert (claude["failed_calls"], claude["unknown_calls"]) == (1, 1)
    assert (local["key"], local["cost_microusd"], local["input_tokens"]) == ("local", 0, 1_000)
    assert by_model["total"]["calls"] == 7 and by_model["total"]["input_tokens"] == 4_000
    assert await costs_by_key(server, by="provider") == {"anthropic": 3 * 4_500 + RESERVED_MICROUSD, "": 0}


async def test_usage_has_the_same_total_for_every_grouping(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    whole = 3 * 4_500 + RESERVED_MICROUSD
    for by in ("day", "agent", "model", "provider", "person", "session", "run"):
        assert sum((await costs_by_key(server, by=by)).values()) == whole, by
        assert (await show_usage(server, by=by))["total"]["cost_microusd"] == whole, by
    assert await costs_by_key(server, by="person") == {"maria": 9_000 + RESERVED_MICROUSD, "noor": 4_500, "": 0}
    assert await costs_by_key(server, by="agent") == {"ada": 9_000 + RESERVED_MICROUSD, "bo": 4_500}
    assert (await costs_by_key(server, by="run"))[run_of("1").id] == 9_000
    assert await costs_by_key(server, by="session") == {"5" * 32: whole}


async def test_usage_by_day_is_in_order_and_in_the_instances_time_zone(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    today = server.services.clock.now().astimezone(server.services.zone).date()
    usage = await show_usage(server)
    assert [row["key"] for row in usage["rows"]] == [str(today - timedelta(days=ago)) for ago in (6, 1, 0)]
    assert (usage["from"], usage["to"]) == (str(today - timedelta(days=29)), str(today))
    assert len((await show_usage(server, **{"from": "-41D"}))["rows"]) == 4
    one = {"from": str(today - timedelta(days=6)), "to": str(today - timedelta(days=1))}
    assert list((await costs_by_key(server, **one)).values()) == [9_000, 4_500]


async def test_usage_filters_by_agent_and_person_case_insensitively(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    assert await costs_by_key(server, by="agent", agent="BO") == {"bo": 4_500}
    assert await costs_by_key(server, by="agent", agent="bo", person="Maria") == {}
    assert await costs_by_key(server, by="person", person="NOOR") == {"noor": 4_500}
    assert await costs_by_key(server, by="agent", agent="nobody") == {}


async def test_members_and_agents_see_only_their_own_usage(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    assert await costs_by_key(server, MARIA, by="person") == {"maria": 9_000 + RESERVED_MICROUSD}
    assert await costs_by_key(server, NOOR, by="agent") == {"bo": 4_500}
    assert (await show_usage(server, NOOR, person="maria"))["total"]["calls"] == 0
    assert await costs_by_key(server, agent("bo"), by="person") == {"noor": 4_500, "": 0}
    assert (await show_usage(server, agent("cy")))["rows"] == []


async def test_usage_with_a_limit_counts_omitted_rows_and_totals_all_rows(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    usage = await show_usage(server, by="run", limit=2)
    assert (len(usage["rows"]), usage["omitted_count"], usage["total"]["calls"]) == (2, 4, 7)
    assert usage["rows"][0]["cost_microusd"] == RESERVED_MICROUSD, "the most expensive first"
    newest = await show_usage(server, limit=1)
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
async def test_invalid_usage_parameters_are_refused(tmp_path: Path, asked: Any, code: str) -> None:
    async with open_operations_server(LocalInstance(tmp_path)) as server:
        with pytest.raises(Invalid) as refused:
            await show_usage(server, **asked)
    assert refused.value.code == code


# Budgets


async def with_budgets(server: OperationsServer, **budgets: float) -> OperationsServer:
    home = server.services.data_dir
    lines = [f"{name} = {dollars}" for name, dollars in budgets.items()]
    (home / "retinue.toml").write_text("\n".join(["[budgets]", *lines, ""]))
    environment = {"RETINUE_HOME": str(home)}
    ada = Agent(name="ada", model="scripted", day_microusd_max=100_000, cost_microusd_max=50_000)
    await server.server.store.write(lambda conn: agents.upsert(conn, ada, source="test", at_ms=2), point="test")
    return replace(
        server,
        services=replace(server.services, config_holder=ConfigHolder(load_configuration(environment), environment)),
    )


async def budgets_of(server: OperationsServer, who: Any) -> dict[tuple[str, str], tuple[Any, ...]]:
    budgets = await server.ask(who, "usage.budgets")
    keys = ("cap_microusd", "spent_microusd", "reserved_microusd", "left_microusd", "share", "resets_on")
    return {(row["name"], row["owner"]): tuple(row[key] for key in keys) for row in budgets["budgets"]}


async def test_usage_budgets_shows_spent_held_and_left_amounts_and_the_reset_date_of_each_budget(
    server: OperationsServer,
) -> None:
    await spend_for_a_week(server)
    server = await with_budgets(server, instance_day_usd=1.0, person_month_usd=0.05, tree_usd=2)
    found = await budgets_of(server, OWNER)
    assert found["instance's day", ""] == (
        1_000_000,
        RESERVED_MICROUSD,
        RESERVED_MICROUSD,
        1_000_000 - 2 * RESERVED_MICROUSD,
        0.033,
        "2026-01-06",
    )
    assert found["agent's day", "ada"] == (100_000, RESERVED_MICROUSD, RESERVED_MICROUSD, 34_000, 0.33, "2026-01-06")
    assert found["person's month", "maria"] == (50_000, RESERVED_MICROUSD, RESERVED_MICROUSD, 0, 0.66, "2026-02-01")
    assert found["person's month", "gus"] == (50_000, 0, 0, 50_000, 0.0, "2026-02-01")
    assert found["tree", ""] == (2_000_000, None, None, None, None, None)
    assert found["run", "ada"] == (50_000, None, None, None, None, None)


async def test_usage_budgets_shows_instance_budgets_to_the_owner_and_other_callers_their_own_budgets(
    server: OperationsServer,
) -> None:
    server = await with_budgets(server, instance_day_usd=1.0, person_day_usd=0.5)
    assert list(await budgets_of(server, MARIA)) == [("person's day", "maria")]
    assert list(await budgets_of(server, agent("ada"))) == [("agent's day", "ada"), ("run", "ada")]
    assert await budgets_of(server, agent("bo")) == {}
    budgets = await server.ask(OWNER, "usage.budgets")
    assert budgets["warn_share"] == 0.8
    assert budgets["budgets"][0]["setting"] == "`budgets.instance_day_usd`"


async def test_usage_budgets_is_empty_for_an_instance_without_budgets(server: OperationsServer) -> None:
    assert (await server.ask(OWNER, "usage.budgets"))["budgets"] == []


async def test_usage_days_returns_one_series_per_key_and_one_for_the_rest(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    by_agent = await server.ask(OWNER, "usage.days", by="agent", **{"from": "-6D"})
    assert len(by_agent["days"]) == 7
    assert [series["key"] for series in by_agent["series"]] == ["ada", "bo"]
    ada, bo = by_agent["series"]
    assert (ada["calls"][0], ada["cost_microusd"][0], ada["input_tokens"][0]) == (2, 9_000, 2_000)
    assert sum(ada["cost_microusd"]) + sum(bo["cost_microusd"]) == by_agent["total"]["cost_microusd"]
    assert bo["cost_microusd"][5] == 4_500 and not any(series["is_rest"] for series in by_agent["series"])
    shown = await show_usage(server, by="model", **{"from": "-6D"})
    [claude, rest] = (await server.ask(OWNER, "usage.days", by="model", limit=1, **{"from": "-6D"}))["series"]
    assert (claude["key"], rest["key"], rest["is_rest"]) == ("anthropic/claude", "", True)
    assert [sum(claude["cost_microusd"]), sum(rest["calls"])] == [
        shown["rows"][0]["cost_microusd"],
        shown["rows"][1]["calls"],
    ]


async def test_usage_days_shows_own_series_only_and_refuses_spans_beyond_its_limits(server: OperationsServer) -> None:
    await spend_for_a_week(server)
    hers = await server.ask(NOOR, "usage.days", by="agent")
    assert [(series["key"], sum(series["cost_microusd"])) for series in hers["series"]] == [("bo", 4_500)]
    refused: list[dict[str, Any]] = [
        {"limit": 0},
        {"limit": 51},
        {"from": "2020-01-01"},
        {"from": "-3D", "to": "-4D"},
        {"by": "run"},
    ]
    for asked in refused:
        with pytest.raises(Invalid):
            await server.ask(OWNER, "usage.days", **asked)
