"""Fallback when a provider fails: another key, another model or a later retry, and what is stored and shown of it."""

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
from faults import advancing_clock
from flows.fake_provider import (
    Answer,
    Asked,
    Provider,
    build_instance,
    calls_made,
    error_answer,
    list_texts_to,
    provider_section,
    providers,
    says,
)
from flows.fake_provider import calls as calls_reply
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
from retinue.models.model_catalog import ModelCatalog
from retinue.models.provider_http import ModelTarget
from retinue.runners.base import RunAnswer, RunAssignment, Runner
from retinue.store.agents import credentials
from retinue.testing.local_instance import LocalInstance, LocalServer

SHORT_TIMEOUT_S = 0.3  # for a server that hangs
LONG_TIMEOUT_S = 600.0  # for any other server: an answer may take long on a busy machine
KEYS = {"A_KEY": "sk-a-first-0123456789", "A_SECOND": "sk-a-second-0123456789", "B_KEY": "sk-b-0", "C_KEY": "sk-c-0"}
ADA = Agent(name="ada", model="a/m1", fallbacks=("b/m2", "c/m3"), instructions="Be brief.")
SECOND = Credential(id="a:second", provider="a", source="env:A_SECOND")
RATE_LIMITED = error_answer(429, "Rate limit reached")


def write_provider_sections(servers: list[Provider], *, more_of_a: str = "", more: str = "") -> str:
    """Three providers; the second uses another format."""
    a, b, c = servers
    declared = [
        provider_section("a", a.url, key="A_KEY", more=more_of_a),
        provider_section("b", b.url, key="B_KEY", format_="anthropic"),
        provider_section("c", c.url, key="C_KEY"),
    ]
    return "\n".join((*declared, more))


@dataclass(slots=True)
class ThreeProviders:
    """Three providers and an instance that calls them in their order."""

    instance: LocalInstance
    a: Provider
    b: Provider
    c: Provider


@asynccontextmanager
async def run_three_providers(
    root: Path, *, agents: tuple[Agent, ...] = (ADA,), more_of_a: str = "", more: str = "", **kw: Any
) -> AsyncGenerator[ThreeProviders]:
    async with providers(3) as servers:
        toml = write_provider_sections(servers, more_of_a=more_of_a, more=more)
        timeouts = {"first_byte_s": LONG_TIMEOUT_S, "silence_s": LONG_TIMEOUT_S}
        instance = build_instance(root, toml, environment=KEYS, agents=agents, **timeouts, **kw)
        for provider_server, name in zip(servers, "abc", strict=True):
            provider_server.always(says(f"This is {name}."))
        yield ThreeProviders(instance, *servers)


@pytest.fixture
async def three_providers(tmp_path: Path) -> AsyncGenerator[ThreeProviders]:
    async with run_three_providers(tmp_path) as made:
        yield made


async def send_and_wait_for_answer(server: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await server.wait_for_answer((await server.send(text, **kw)).envelope)


async def add_second_key(server: LocalServer) -> None:
    await server.store.write(lambda conn: credentials.add(conn, SECOND, at_ms=1), point="test")


async def list_call_outcomes(server: LocalServer) -> list[tuple[str, str | None, str | None]]:
    """Each call: which model was called, how it failed, and the next action."""
    return [(f"{row.provider}/{row.model}", row.failure, row.next_action) for row in await calls_made(server)]


def shorten_timeouts(monkeypatch: pytest.MonkeyPatch, *, with_: str) -> None:
    """The settings have one timeout for all providers; a server that hangs needs a shorter one than a slow server."""
    target_of = ModelCatalog.build_target

    def target(self: ModelCatalog, ref: ModelRef) -> tuple[WireFormat, ModelTarget]:
        format_, target = target_of(self, ref)
        if ref.provider == with_:
            target = replace(target, first_byte_s=SHORT_TIMEOUT_S, silence_s=SHORT_TIMEOUT_S)
        return format_, target

    monkeypatch.setattr(ModelCatalog, "build_target", target)


def accept_only_key(key: str) -> Callable[[Asked], Any]:
    """A rule that accepts one key and no other."""
    return lambda asked: says("Let in.") if asked.key == KEYS[key] else error_answer(401, "no")


# --- each failure has its next action ---


@pytest.mark.spec("C107")
async def test_the_first_fallback_after_a_rejected_key_is_the_next_key_of_the_provider(
    three_providers: ThreeProviders,
) -> None:
    three_providers.a.rule = accept_only_key("A_KEY")
    async with three_providers.instance.run() as server:
        await add_second_key(server)
        assert await send_and_wait_for_answer(server) == "Let in.", "from the requested model: no notice"
        rows = await calls_made(server)
    assert [asked.key for asked in three_providers.a.asked] == [KEYS["A_SECOND"], KEYS["A_KEY"]]
    assert [(row.credential, row.failure, row.next_action) for row in rows] == [
        ("a:second", "auth", "next_credential"),
        ("a:settings", None, None),
    ]


@pytest.mark.spec("C107", "D64")
async def test_a_rate_limit_starts_a_cooldown_and_the_fallback_model_answers_with_a_note(
    three_providers: ThreeProviders,
) -> None:
    three_providers.a.always(RATE_LIMITED)
    async with three_providers.instance.run() as server:
        assert (
            await send_and_wait_for_answer(server)
            == "This is b.\n\n[answered by b/m2 instead of a/m1: too many requests]"
        )
        assert await list_call_outcomes(server) == [("a/m1", "rate_limit", "next_model"), ("b/m2", None, None)]
        [cooling] = await server.execute_sql("SELECT credential, model, reason FROM cooldowns")
        assert tuple(cooling) == ("a:settings", "m1", "rate_limit")
        again = await send_and_wait_for_answer(server, "and now?")
    assert again == "This is b.\n\n[answered by b/m2 instead of a/m1: it is in cooldown]"
    assert (len(three_providers.a.asked), len(three_providers.b.asked)) == (1, 2)
    assert three_providers.b.asked[0].path == "/v1/messages"


@pytest.mark.spec("C107", "D64")
@pytest.mark.parametrize("hangs", [Answer(hangs_before=True), Answer(body=": hello\n\n", hangs_after=True)])
async def test_a_model_that_times_out_falls_back_to_the_next_model(
    three_providers: ThreeProviders, hangs: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_providers.a.always(hangs)
    shorten_timeouts(monkeypatch, with_="a")
    async with three_providers.instance.run() as server:
        assert (
            await send_and_wait_for_answer(server)
            == "This is b.\n\n[answered by b/m2 instead of a/m1: it took too long]"
        )
        assert await list_call_outcomes(server) == [("a/m1", "timeout", "next_model"), ("b/m2", None, None)]


@pytest.mark.spec("D64")
async def test_if_all_fallback_models_fail_one_message_lists_each_failure(three_providers: ThreeProviders) -> None:
    three_providers.a.always(RATE_LIMITED)
    three_providers.b.always(error_answer(404, "not_found", type_="not_found_error"))
    three_providers.c.always(error_answer(403, "not for you"))
    async with three_providers.instance.run() as server, advancing_clock(server):
        settled = await server.wait_for_outcome((await server.send("hello")).envelope)
        assert await list_call_outcomes(server) == [
            ("a/m1", "rate_limit", "next_model"),
            ("b/m2", "not_found", "next_model"),
            ("c/m3", "permission", "next_model"),
            ("a/m1", "rate_limit", "give_up"),  # waited once, for the only one that may recover
        ]
        [text] = await list_texts_to(server)
    assert (settled.outcome, settled.because) == (Outcome.DEAD, "model.all_failed: no model could reply")
    head, because, try_this = text.split("\n")
    assert head == "Something went wrong: no model could reply [model.all_failed]"
    assert "a/m1: too many requests (a:settings)" in because
    assert "b/m2: b does not offer this model" in because
    assert "c/m3: the key has no access to it (c:settings)" in because
    assert "a/m1 is available again at 2026-01-05T09:" in because
    assert try_this.startswith("try: end a cooldown with `retinue credential clear ID`")


@pytest.mark.spec("C34")
async def test_a_forbidden_fallback_model_is_skipped(tmp_path: Path) -> None:
    async with run_three_providers(tmp_path, more='[models]\nallow = ["a/*", "c/m3"]') as made:
        made.a.always(error_answer(404, "gone"))
        async with made.instance.run() as server:
            assert (
                await send_and_wait_for_answer(server)
                == "This is c.\n\n[answered by c/m3 instead of a/m1: a does not offer this model]"
            )
        assert made.b.asked == []


@pytest.mark.spec("C34")
async def test_a_model_chosen_for_a_session_falls_back_through_the_chain_to_the_agents_model(
    three_providers: ThreeProviders,
) -> None:
    for provider_server in (three_providers.b, three_providers.c):
        provider_server.always(error_answer(404, "gone"))
    async with three_providers.instance.run() as server:
        await send_and_wait_for_answer(server, "/model c/other")
        assert "answered by a/m1 instead of c/other: c does not offer this model" in await send_and_wait_for_answer(
            server
        )
        assert [who for who, *_ in await list_call_outcomes(server)] == ["c/other", "b/m2", "c/m3", "a/m1"]


# --- what is kept of a failure ---


@pytest.mark.spec("C37", "C38")
async def test_a_cooldown_with_a_fallback_model_survives_a_restart_and_ends_with_the_next_success(
    three_providers: ThreeProviders,
) -> None:
    three_providers.a.add_replies(RATE_LIMITED)
    async with three_providers.instance.run() as server:
        assert "instead of a/m1" in await send_and_wait_for_answer(server)
    async with three_providers.instance.run() as server:
        assert "instead of a/m1" in await send_and_wait_for_answer(server)
        assert len(three_providers.a.asked) == 1, "a provider that cools down is not called, also after a restart"
        await three_providers.instance.clock.advance(60.0)
        assert await send_and_wait_for_answer(server) == "This is a."
        assert await server.execute_sql("SELECT * FROM cooldowns") == []


@pytest.mark.spec("C38")
async def test_without_a_fallback_a_cooldown_is_kept_and_explained(tmp_path: Path) -> None:
    alone = replace(ADA, fallbacks=())
    async with run_three_providers(tmp_path, agents=(alone,)) as made:
        made.a.always(error_answer(402, "no credit left"))
        async with made.instance.run() as server:
            await server.wait_for_outcome((await server.send("hello")).envelope)
        async with made.instance.run() as server:
            await server.wait_for_outcome((await server.send("hello again")).envelope)
            first, second = await list_texts_to(server)
        assert "the account at a has no credit left" in first
        assert "no model could reply [model.all_failed]" in second
        assert "a:settings is in cooldown until 2026-01-05T14:00:00+00:00: the account has no credit left" in second
        assert len(made.a.asked) == 1


# --- which key a session keeps ---


@pytest.mark.spec("C36")
async def test_a_session_keeps_its_provider_credential_within_a_run_and_across_runs(
    three_providers: ThreeProviders,
) -> None:
    three_providers.a.add_replies(calls_reply(("session_status", {})), says("Done."))
    async with three_providers.instance.run() as server:
        await add_second_key(server)
        assert await send_and_wait_for_answer(server) == "Done."
        await three_providers.instance.clock.advance(3600.0)
        assert await send_and_wait_for_answer(server) == "This is a."
        assert await send_and_wait_for_answer(server, sender="person:owner") == "This is a."
        assert await send_and_wait_for_answer(server) == "This is a."
    used = [asked.key for asked in three_providers.a.asked]
    first, other = KEYS["A_SECOND"], KEYS["A_KEY"]
    assert used[:3] == [first, first, first], "the same key for the second turn of the first run"
    assert used[3] == other, "a new session takes the key that was used least recently"
    assert used[4] == first


@pytest.mark.spec("C36")
@pytest.mark.parametrize("command", ["/reset", "/compact"])
async def test_a_reset_or_compacted_session_switches_to_the_provider_credential_that_has_been_idle(
    three_providers: ThreeProviders, command: str
) -> None:
    long = "A long story. " * 2_000
    three_providers.a.always(says(long))
    async with three_providers.instance.run() as server:
        await add_second_key(server)
        for _ in range(3):
            await send_and_wait_for_answer(server)
        three_providers.a.always(says("## Decisions\nnone"))
        await three_providers.instance.clock.advance(120.0)
        await send_and_wait_for_answer(server, command)
        await server.wait_until_idle()
        before = len(three_providers.a.asked)
        await send_and_wait_for_answer(server)
    used = [asked.key for asked in three_providers.a.asked]
    assert set(used[:3]) == {KEYS["A_SECOND"]}
    assert used[before:] == [KEYS["A_KEY"]]


@pytest.mark.spec("C36")
async def test_a_provider_key_chosen_by_a_person_has_no_other_key_as_fallback(three_providers: ThreeProviders) -> None:
    three_providers.a.rule = accept_only_key("A_KEY")
    async with three_providers.instance.run() as server:
        await add_second_key(server)
        await send_and_wait_for_answer(server, "/model a/m1@second")
        assert "answered by b/m2 instead of a/m1: the key was rejected" in await send_and_wait_for_answer(server)
        await send_and_wait_for_answer(server, "/reset")
        assert "instead of a/m1" in await send_and_wait_for_answer(server)
    assert [asked.key for asked in three_providers.a.asked] == [KEYS["A_SECOND"]], (
        "no other key, not even after a reset"
    )


# --- how often and for what ---


@pytest.mark.spec("C100")
async def test_a_model_call_beyond_the_requests_per_minute_waits_and_uses_no_fallback(tmp_path: Path) -> None:
    async with run_three_providers(tmp_path, more_of_a="requests_per_minute = 1") as made:
        async with made.instance.run() as server:
            assert await send_and_wait_for_answer(server) == "This is a."
            second = await server.send("and again")
            await server.wait_for(partial(_is_claimed, envelope=second.envelope), what="the second call to be active")
            await made.instance.clock.advance(59.0)
            assert len(made.a.asked) == 1
            await made.instance.clock.advance(1.0)
            assert await server.wait_for_answer(second.envelope) == "This is a."
        assert (len(made.a.asked), len(made.b.asked)) == (2, 0)


def _is_claimed(conn: sa.Connection, envelope: str) -> bool:
    found = conn.execute(sa.text("SELECT status FROM envelopes WHERE id = :id"), {"id": envelope}).scalar_one()
    return found == "claimed"


@pytest.mark.spec("C100")
async def test_the_utility_model_writes_summaries_and_the_main_model_answers(tmp_path: Path) -> None:
    async with run_three_providers(tmp_path, more='[models.utility]\nprimary = "b/small"') as made:
        made.a.add_replies(*(says("A long story. " * 2_000) for _ in range(3)))
        made.b.always(says("## Decisions\nThey talked at length."))
        async with made.instance.run() as server:
            for _ in range(3):
                await send_and_wait_for_answer(server)
            await send_and_wait_for_answer(server, "/compact")
            await server.wait_until_idle()
            assert await send_and_wait_for_answer(server) == "This is a."
        assert [asked.model for asked in made.b.asked] == ["small"]
        assert "They talked at length." in made.a.asked[-1].raw.decode()


# --- result of a run ---


@asynccontextmanager
async def operations_of(made: ThreeProviders) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(made.instance) as operations:
        model_clients = made.instance.loop_parts.models
        yield replace(operations, services=replace(operations.services, catalog=lambda: model_clients.catalog))


async def show_run(operations: OperationsServer, envelope: str) -> Any:
    [row] = await operations.server.execute_sql("SELECT run FROM envelopes WHERE id = :id", id=envelope)
    return await operations.ask(person("owner"), "run.show", id=row.run)


async def send_and_show_run(operations: OperationsServer, text: str = "hello", **kw: Any) -> Any:
    envelope, _ = await operations.converse(person("maria"), text, **kw)
    return await show_run(operations, envelope)


@pytest.mark.spec("C108", "C107")
async def test_the_result_of_a_run_with_fallback_lists_its_status_model_usage_and_failed_calls(
    three_providers: ThreeProviders,
) -> None:
    three_providers.a.add_replies(says("Here.", input_tokens=30, output_tokens=7))
    async with operations_of(three_providers) as operations:
        plain = await send_and_show_run(operations)
        three_providers.a.add_replies(error_answer(500, "oops"), RATE_LIMITED)
        async with advancing_clock(operations.server):
            over = await send_and_show_run(operations)
            for provider_server in (three_providers.a, three_providers.b, three_providers.c):
                provider_server.always(error_answer(404, "gone"))
            wrong = await send_and_show_run(operations)
    assert (plain["status"], plain["run_status"], plain["error"]) == ("ok", "completed", None)
    assert (plain["model"], plain["provider"]) == ("m1", "a")
    assert (plain["usage"]["input_tokens"], plain["usage"]["output_tokens"]) == (30, 7)
    assert (over["status"], over["run_status"]) == ("failover", "completed")
    assert (over["model"], over["provider"]) == ("m2", "b")
    assert [(call["provider"], call["failure"], call["next_action"]) for call in over["calls"]] == [
        ("a", "server", "retry"),
        ("a", "rate_limit", "next_model"),
        ("b", None, None),
    ]
    assert (wrong["status"], wrong["run_status"]) == ("error", "failed")
    assert wrong["error"] == "model.all_failed: no model could reply"
    assert [call["next_action"] for call in wrong["calls"]] == ["next_model", "next_model", "give_up"]


@pytest.mark.spec("C108")
async def test_a_run_that_exceeds_its_time_limit_has_the_status_timeout(tmp_path: Path) -> None:
    slow = replace(ADA, run_seconds_max=20.0)
    async with run_three_providers(tmp_path, agents=(slow,), more="") as made:
        made.a.always(says("never", held=asyncio.Event()))
        async with operations_of(made) as operations, advancing_clock(made.instance):
            late = await send_and_show_run(operations)
    assert (late["status"], late["run_status"]) == ("timeout", "failed")
    assert late["error"].startswith("run.timed_out: the run took longer than 20 seconds")


@pytest.mark.spec("C108")
async def test_a_run_that_was_compacted_has_the_status_compaction(tmp_path: Path) -> None:
    async with run_three_providers(tmp_path) as made:
        made.a.add_replies(*(says("A long story. " * 2_000) for _ in range(3)))
        async with operations_of(made) as operations:
            for _ in range(3):
                await send_and_show_run(operations)
            script = iter(
                (
                    error_answer(400, "too long", type_="context_length_exceeded"),
                    says("## Decisions\nnone"),
                    says("Fits."),
                )
            )

            def reply_after_a_second(asked: Asked) -> Any:
                made.instance.clock.jump(timedelta(seconds=1))
                return next(script)

            made.a.rule = reply_after_a_second
            short = await send_and_show_run(operations)
    assert (short["status"], short["run_status"]) == ("compaction", "completed")
    assert [(call["summary"], call["failure"], call["next_action"]) for call in short["calls"]] == [
        (False, "context_overflow", "compaction"),
        (True, None, None),
        (False, None, None),
    ]


# --- model options of an envelope ---


class RecordingRunner:
    """A runner that records its requests and otherwise does the same as the one it wraps."""

    def __init__(self, inner_runner: Runner) -> None:
        self.inner_runner = inner_runner
        self.requests: list[RunRequest] = []

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        self.requests.append(assignment.request)
        return await self.inner_runner.take_turns(assignment, journal, approvals, observer)


@pytest.mark.spec("C108")
async def test_run_options_of_an_envelope_reach_the_run_and_the_model(tmp_path: Path) -> None:
    recorders: list[RecordingRunner] = []

    def engine(store: Any, clock: Any, ids: Any, runners: Any, **kw: Any) -> EmbeddedEngine:
        recorders.append(RecordingRunner(runners["loop"]))
        return EmbeddedEngine(store, clock, ids, {"loop": recorders[0]}, **kw)

    async with run_three_providers(tmp_path, create_engine=engine) as made, operations_of(made) as operations:
        wanted = {"model": "m9", "provider": "c", "lane": "background", "workspace": "/srv/garden"}
        sent = await operations.ask(
            person("owner"),
            "envelope.send",
            to="agent:ada",
            text="hello",
            extra_system_prompt="Answer in rhyme.",
            **wanted,
        )
        assert await operations.server.wait_for_answer(sent["envelope"]) == "This is c."
        shown = await show_run(operations, sent["envelope"])
        [row] = await operations.server.execute_sql("SELECT lane FROM runs WHERE id = :id", id=shown["id"])
        await operations.converse(person("owner"), "and plainly?")
    assert (shown["provider"], shown["model"], row.lane) == ("c", "m9", "background")
    assert made.c.asked[0].model == "m9"
    assert made.c.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief.\n\nAnswer in rhyme."}
    assert recorders[0].requests[0].workspace == "/srv/garden"
    assert made.a.asked[0].body["messages"][0] == {"role": "system", "content": "Be brief."}, (
        "the option applied to that run alone"
    )


@pytest.mark.spec("C108")
async def test_only_permitted_senders_can_set_run_options(three_providers: ThreeProviders) -> None:
    async with operations_of(three_providers) as operations:
        for who in (person("gus"), agent("bo")):
            with pytest.raises(NotAllowed) as refused:
                await operations.ask(who, "envelope.send", to="agent:ada", text="hello", model="c/m3")
            assert refused.value.code == "run.request_not_allowed"
        with pytest.raises(NotAllowed):
            await operations.ask(
                person("maria"), "envelope.send", to="agent:ada", text="hi", extra_system_prompt="Obey."
            )
        await operations.converse(person("maria"), "hello", model="c/m3")
    assert [
        len(provider_server.asked) for provider_server in (three_providers.a, three_providers.b, three_providers.c)
    ] == [0, 0, 1]
