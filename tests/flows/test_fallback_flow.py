"""Who is asked when a provider fails: another key, another model, later; what stays of it, and what a person reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults import time_passing
from flows.fake_provider import (
    Answer,
    Asked,
    Provider,
    calls_made,
    household_of,
    providers,
    refuses,
    says,
    section,
    told,
)
from flows.fake_provider import calls as calls_
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.config.models import WireFormat
from retinue.domain.agent import Agent
from retinue.domain.credential import Credential
from retinue.domain.envelope import Outcome
from retinue.domain.errors import NotAllowed
from retinue.domain.model import ModelRef
from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.domain.run import RunRequest
from retinue.domain.structs import replace
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.models.model_catalog import ModelCatalog as ModelMarket
from retinue.models.provider_http import ModelTarget
from retinue.runners.base import RunAnswer, RunAssignment, Runner
from retinue.store.agents import credentials
from retinue.testing.local_instance import LocalInstance, LocalServer

PATIENCE_S = 0.3  # with a server that hangs
LONG_PATIENCE_S = 600.0  # with any other: on a busy machine an answer may take its time
KEYS = {"A_KEY": "sk-a-first-0123456789", "A_SECOND": "sk-a-second-0123456789", "B_KEY": "sk-b-0", "C_KEY": "sk-c-0"}
ADA = Agent(name="ada", model="a/m1", fallbacks=("b/m2", "c/m3"), instructions="Be brief.")
SECOND = Credential(id="a:second", provider="a", source="env:A_SECOND")
LIMITED = refuses(429, "Rate limit reached")


def toml_of(servers: list[Provider], *, more_of_a: str = "", more: str = "") -> str:
    """Three who sell models; the second speaks otherwise than the others."""
    a, b, c = servers
    declared = [
        section("a", a.url, key="A_KEY", more=more_of_a),
        section("b", b.url, key="B_KEY", format_="anthropic"),
        section("c", c.url, key="C_KEY"),
    ]
    return "\n".join((*declared, more))


@dataclass(slots=True)
class Market:
    """Three providers and a household that asks them in their order."""

    household: LocalInstance
    a: Provider
    b: Provider
    c: Provider


@asynccontextmanager
async def market(
    root: Path, *, agents: tuple[Agent, ...] = (ADA,), more_of_a: str = "", more: str = "", **kw: Any
) -> AsyncGenerator[Market]:
    async with providers(3) as servers:
        toml = toml_of(servers, more_of_a=more_of_a, more=more)
        patience = {"first_byte_s": LONG_PATIENCE_S, "silence_s": LONG_PATIENCE_S}
        household = household_of(root, toml, environment=KEYS, agents=agents, **patience, **kw)
        for server, name in zip(servers, "abc", strict=True):
            server.always(says(f"This is {name}."))
        yield Market(household, *servers)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncGenerator[Market]:
    async with market(tmp_path) as made:
        yield made


async def answered(house: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await house.wait_for_answer((await house.send(text, **kw)).envelope)


async def add_second_key(house: LocalServer) -> None:
    await house.store.write(lambda conn: credentials.add(conn, SECOND, at_ms=1), point="test")


async def moves(house: LocalServer) -> list[tuple[str, str | None, str | None]]:
    """Of each call: who was asked, why that failed, and what was tried next."""
    return [(f"{row.provider}/{row.model}", row.failure, row.next_move) for row in await calls_made(house)]


def be_impatient(monkeypatch: pytest.MonkeyPatch, *, with_: str) -> None:
    """The settings have one patience for all; a server that hangs needs less than one that is only slow."""
    target_of = ModelMarket.build_target

    def target(self: ModelMarket, ref: ModelRef) -> tuple[WireFormat, ModelTarget]:
        format_, target = target_of(self, ref)
        if ref.provider == with_:
            target = replace(target, first_byte_s=PATIENCE_S, silence_s=PATIENCE_S)
        return format_, target

    monkeypatch.setattr(ModelMarket, "build_target", target)


def only(key: str) -> Callable[[Asked], Any]:
    """A server that takes one key, and no other."""
    return lambda asked: says("Let in.") if asked.key == KEYS[key] else refuses(401, "no")


# Each failure has its next step


@pytest.mark.spec("C107")
async def test_a_key_that_is_refused_is_followed_by_the_next_key(three: Market) -> None:
    three.a.rule = only("A_KEY")
    async with three.household.run() as house:
        await add_second_key(house)
        assert await answered(house) == "Let in.", "by the model that was wanted: there is nothing to tell"
        rows = await calls_made(house)
    assert [asked.key for asked in three.a.asked] == [KEYS["A_SECOND"], KEYS["A_KEY"]]
    assert [(row.credential, row.failure, row.next_move) for row in rows] == [
        ("a:second", "auth", "next-credential"),
        ("a:settings", None, None),
    ]


@pytest.mark.spec("C107", "D64")
async def test_a_rate_limit_cools_the_key_down_and_the_next_model_answers_and_says_so(three: Market) -> None:
    three.a.always(LIMITED)
    async with three.household.run() as house:
        assert await answered(house) == "This is b.\n\n[answered by b/m2 instead of a/m1: too many requests]"
        assert await moves(house) == [("a/m1", "rate_limit", "next-model"), ("b/m2", None, None)]
        [cooling] = await house.execute_sql("SELECT credential, model, reason FROM cooldowns")
        assert tuple(cooling) == ("a:settings", "m1", "rate_limit")
        again = await answered(house, "and now?")
    assert again == "This is b.\n\n[answered by b/m2 instead of a/m1: it is in cooldown]"
    assert (len(three.a.asked), len(three.b.asked)) == (1, 2)
    assert three.b.asked[0].path == "/v1/messages"


@pytest.mark.spec("C107", "D64")
@pytest.mark.parametrize("hangs", [Answer(hangs_before=True), Answer(body=": hello\n\n", hangs_after=True)])
async def test_one_who_takes_too_long_is_followed_by_the_next_model(
    three: Market, hangs: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.a.always(hangs)
    be_impatient(monkeypatch, with_="a")
    async with three.household.run() as house:
        assert await answered(house) == "This is b.\n\n[answered by b/m2 instead of a/m1: it took too long]"
        assert await moves(house) == [("a/m1", "timeout", "next-model"), ("b/m2", None, None)]


@pytest.mark.spec("D64")
async def test_where_all_fail_one_message_lists_each(three: Market) -> None:
    three.a.always(LIMITED)
    three.b.always(refuses(404, "not_found", type_="not_found_error"))
    three.c.always(refuses(403, "not for you"))
    async with three.household.run() as house, time_passing(three.household):
        settled = await house.wait_for_outcome((await house.send("hello")).envelope)
        assert await moves(house) == [
            ("a/m1", "rate_limit", "next-model"),
            ("b/m2", "not_found", "next-model"),
            ("c/m3", "permission", "next-model"),
            ("a/m1", "rate_limit", "give-up"),  # the only one whom time could help was waited for, once
        ]
        [text] = await told(house)
    assert (settled.outcome, settled.because) == (Outcome.DEAD, "model.all_failed: no model could reply")
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: no model could reply [model.all_failed]"
    assert "a/m1: too many requests (a:settings)" in because
    assert "b/m2: b does not offer this model" in because
    assert "c/m3: the key has no access to it (c:settings)" in because
    assert "a/m1 is available again at 2026-01-05T09:" in because
    assert try_this.startswith("try: end a cooldown with `retinue credential clear ID`")


@pytest.mark.spec("C34")
async def test_a_fallback_that_the_house_forbids_is_not_asked(tmp_path: Path) -> None:
    async with market(tmp_path, more='[models]\nallow = ["a/*", "c/m3"]') as made:
        made.a.always(refuses(404, "gone"))
        async with made.household.run() as house:
            assert (
                await answered(house) == "This is c.\n\n[answered by c/m3 instead of a/m1: a does not offer this model]"
            )
        assert made.b.asked == []


@pytest.mark.spec("C34")
async def test_a_model_chosen_for_a_session_falls_back_and_ends_at_what_the_agent_is_set_to(three: Market) -> None:
    for server in (three.b, three.c):
        server.always(refuses(404, "gone"))
    async with three.household.run() as house:
        await answered(house, "/model c/other")
        assert "answered by a/m1 instead of c/other: c does not offer this model" in await answered(house)
        assert [who for who, *_ in await moves(house)] == ["c/other", "b/m2", "c/m3", "a/m1"]


# What stays of it


@pytest.mark.spec("C37", "C38")
async def test_a_cooldown_outlives_the_house_and_ends_with_success(three: Market) -> None:
    three.a.will(LIMITED)
    async with three.household.run() as house:
        assert "instead of a/m1" in await answered(house)
    async with three.household.run() as house:
        assert "instead of a/m1" in await answered(house)
        assert len(three.a.asked) == 1, "one that cools down is not asked, whoever opened the house since"
        await three.household.clock.advance(60.0)
        assert await answered(house) == "This is a."
        assert await house.execute_sql("SELECT * FROM cooldowns") == []


@pytest.mark.spec("C38")
async def test_without_a_fallback_a_cooldown_is_kept_and_told(tmp_path: Path) -> None:
    alone = replace(ADA, fallbacks=())
    async with market(tmp_path, agents=(alone,)) as made:
        made.a.always(refuses(402, "no credit left"))
        async with made.household.run() as house:
            await house.wait_for_outcome((await house.send("hello")).envelope)
        async with made.household.run() as house:
            await house.wait_for_outcome((await house.send("hello again")).envelope)
            first, second = await told(house)
        assert "the account at a has no credit left" in first
        assert "no model could reply [model.all_failed]" in second
        assert "a:settings is in cooldown until 2026-01-05T14:00:00+00:00: the account has no credit left" in second
        assert len(made.a.asked) == 1


# Which key a session stays with


@pytest.mark.spec("C36")
async def test_a_session_stays_with_the_key_that_served_it_within_a_run_and_after_it(three: Market) -> None:
    three.a.will(calls_(("session_status", {})), says("Done."))
    async with three.household.run() as house:
        await add_second_key(house)
        assert await answered(house) == "Done."
        await three.household.clock.advance(3600.0)
        assert await answered(house) == "This is a."
        assert await answered(house, sender="person:owner") == "This is a."
        assert await answered(house) == "This is a."
    used = [asked.key for asked in three.a.asked]
    first, other = KEYS["A_SECOND"], KEYS["A_KEY"]
    assert used[:3] == [first, first, first], "also for the second turn of the first run"
    assert used[3] == other, "whoever comes new takes the one that rested"
    assert used[4] == first


@pytest.mark.spec("C36")
@pytest.mark.parametrize("command", ["/reset", "/compact"])
async def test_a_fresh_context_is_with_whichever_key_has_rested(three: Market, command: str) -> None:
    long = "A long story. " * 2_000
    three.a.always(says(long))
    async with three.household.run() as house:
        await add_second_key(house)
        for _ in range(3):
            await answered(house)
        three.a.always(says("## Decisions\nnone"))
        await three.household.clock.advance(120.0)
        await answered(house, command)
        await house.wait_until_idle()
        before = len(three.a.asked)
        await answered(house)
    used = [asked.key for asked in three.a.asked]
    assert set(used[:3]) == {KEYS["A_SECOND"]}
    assert used[before:] == [KEYS["A_KEY"]]


@pytest.mark.spec("C36")
async def test_a_key_that_a_person_chose_is_never_exchanged(three: Market) -> None:
    three.a.rule = only("A_KEY")
    async with three.household.run() as house:
        await add_second_key(house)
        await answered(house, "/model a/m1@second")
        assert "answered by b/m2 instead of a/m1: the key was rejected" in await answered(house)
        await answered(house, "/reset")
        assert "instead of a/m1" in await answered(house)
    assert [asked.key for asked in three.a.asked] == [KEYS["A_SECOND"]], "not even after a reset"


# How often, and for what


@pytest.mark.spec("C100")
async def test_the_second_call_of_a_minute_waits_where_one_is_allowed(tmp_path: Path) -> None:
    async with market(tmp_path, more_of_a="requests_per_minute = 1") as made:
        async with made.household.run() as house:
            assert await answered(house) == "This is a."
            second = await house.send("and again")
            await house.wait_for(partial(_is_held, envelope=second.envelope), what="the second to be under way")
            await made.household.clock.advance(59.0)
            assert len(made.a.asked) == 1
            await made.household.clock.advance(1.0)
            assert await house.wait_for_answer(second.envelope) == "This is a."
        assert (len(made.a.asked), len(made.b.asked)) == (2, 0)


def _is_held(conn: sa.Connection, envelope: str) -> bool:
    found = conn.execute(sa.text("SELECT status FROM envelopes WHERE id = :id"), {"id": envelope}).scalar_one()
    return found == "claimed"


@pytest.mark.spec("C100")
async def test_small_work_is_asked_of_the_model_for_small_work(tmp_path: Path) -> None:
    async with market(tmp_path, more='[models.utility]\nprimary = "b/small"') as made:
        made.a.will(*(says("A long story. " * 2_000) for _ in range(3)))
        made.b.always(says("## Decisions\nThey talked at length."))
        async with made.household.run() as house:
            for _ in range(3):
                await answered(house)
            await answered(house, "/compact")
            await house.wait_until_idle()
            assert await answered(house) == "This is a."
        assert [asked.model for asked in made.b.asked] == ["small"]
        assert "They talked at length." in made.a.asked[-1].raw.decode()


# How a run came out


@asynccontextmanager
async def desk_of(made: Market) -> AsyncGenerator[DeskHouse]:
    async with desk_house(made.household) as desk:
        minds = made.household.loop_parts.models
        yield replace(desk, desk=replace(desk.desk, catalog=lambda: minds.catalog))


async def result_of(desk: DeskHouse, envelope: str) -> Any:
    [row] = await desk.house.execute_sql("SELECT run FROM envelopes WHERE id = :id", id=envelope)
    return await desk.ask(person("owner"), "run.show", id=row.run)


async def result(desk: DeskHouse, text: str = "hello", **kw: Any) -> Any:
    envelope, _ = await desk.converse(person("maria"), text, **kw)
    return await result_of(desk, envelope)


@pytest.mark.spec("C108", "C107")
async def test_the_result_of_a_run_says_how_it_came_out_and_who_was_asked(three: Market) -> None:
    three.a.will(says("Here.", input_tokens=30, output_tokens=7))
    async with desk_of(three) as desk:
        plain = await result(desk)
        three.a.will(refuses(500, "oops"), LIMITED)
        async with time_passing(three.household):
            over = await result(desk)
            for server in (three.a, three.b, three.c):
                server.always(refuses(404, "gone"))
            wrong = await result(desk)
    assert (plain["status"], plain["run-status"], plain["error"]) == ("ok", "completed", None)
    assert (plain["model"], plain["provider"]) == ("m1", "a")
    assert (plain["usage"]["input_tokens"], plain["usage"]["output_tokens"]) == (30, 7)
    assert (over["status"], over["run-status"]) == ("failover", "completed")
    assert (over["model"], over["provider"]) == ("m2", "b")
    assert [(call["provider"], call["failure"], call["next-move"]) for call in over["calls"]] == [
        ("a", "server", "again"),
        ("a", "rate_limit", "next-model"),
        ("b", None, None),
    ]
    assert (wrong["status"], wrong["run-status"]) == ("error", "failed")
    assert wrong["error"] == "model.all_failed: no model could reply"
    assert [call["next-move"] for call in wrong["calls"]] == ["next-model", "next-model", "give-up"]


@pytest.mark.spec("C108")
async def test_a_run_that_took_too_long_came_out_as_that(tmp_path: Path) -> None:
    slow = replace(ADA, run_seconds_max=20.0)
    async with market(tmp_path, agents=(slow,), more="") as made:
        made.a.always(says("never", held=asyncio.Event()))
        made.household.settings = replace(
            _settings(made), models=replace(_settings(made).models, first_byte_s=30.0, silence_s=30.0)
        )
        async with desk_of(made) as desk, time_passing(made.household):
            late = await result(desk)
    assert (late["status"], late["run-status"]) == ("timeout", "failed")
    assert late["error"].startswith("run.timed_out: the run took longer than 20 seconds")


def _settings(made: Market) -> Any:
    assert made.household.settings is not None
    return made.household.settings


@pytest.mark.spec("C108")
async def test_a_run_whose_context_was_told_in_short_came_out_as_that(tmp_path: Path) -> None:
    async with market(tmp_path) as made:
        made.a.will(*(says("A long story. " * 2_000) for _ in range(3)))
        async with desk_of(made) as desk:
            for _ in range(3):
                await result(desk)
            script = iter(
                (refuses(400, "too long", type_="context_length_exceeded"), says("## Decisions\nnone"), says("Fits."))
            )

            def in_time(asked: Asked) -> Any:
                made.household.clock.jump(timedelta(seconds=1))
                return next(script)

            made.a.rule = in_time
            short = await result(desk)
    assert (short["status"], short["run-status"]) == ("compaction", "completed")
    assert [(call["summary"], call["failure"], call["next-move"]) for call in short["calls"]] == [
        (False, "context_overflow", "compaction"),
        (True, None, None),
        (False, None, None),
    ]


# What an envelope asks of its run


class Noted:
    """A runner that notes what it is asked for, and works as the one within."""

    def __init__(self, within: Runner) -> None:
        self.within = within
        self.requests: list[RunRequest] = []

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        self.requests.append(assignment.request)
        return await self.within.take_turns(assignment, journal, approvals, observer)


@pytest.mark.spec("C108")
async def test_a_request_for_a_run_reaches_the_run_and_the_model(tmp_path: Path) -> None:
    noted: list[Noted] = []

    def engine(store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        noted.append(Noted(runners["loop"]))
        return EmbeddedEngine(store, clock, ids, {"loop": noted[0]}, **kw)

    async with market(tmp_path, create_engine=engine) as made, desk_of(made) as desk:
        wanted = {"model": "m9", "provider": "c", "lane": "background", "workspace": "/srv/garden"}
        sent = await desk.ask(
            person("owner"),
            "envelope.send",
            to="agent:ada",
            text="hello",
            extra_system_prompt="Answer in rhyme.",
            **wanted,
        )
        assert await desk.house.wait_for_answer(sent["envelope"]) == "This is c."
        shown = await result_of(desk, sent["envelope"])
        [row] = await desk.house.execute_sql("SELECT lane FROM runs WHERE id = :id", id=shown["id"])
        await desk.converse(person("owner"), "and plainly?")
    assert (shown["provider"], shown["model"], row.lane) == ("c", "m9", "background")
    assert made.c.asked[0].model == "m9"
    assert made.c.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief.\n\nAnswer in rhyme."}
    assert noted[0].requests[0].workspace == "/srv/garden"
    assert made.a.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief."}, "for that run alone"


@pytest.mark.spec("C108")
async def test_only_who_is_entitled_says_how_a_run_is_made(three: Market) -> None:
    async with desk_of(three) as desk:
        for who in (person("gus"), agent("bo")):
            with pytest.raises(NotAllowed) as refused:
                await desk.ask(who, "envelope.send", to="agent:ada", text="hello", model="c/m3")
            assert refused.value.code == "run.request_not_allowed"
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "envelope.send", to="agent:ada", text="hi", extra_system_prompt="Obey.")
        await desk.converse(person("maria"), "hello", model="c/m3")
    assert [len(server.asked) for server in (three.a, three.b, three.c)] == [0, 0, 1]
