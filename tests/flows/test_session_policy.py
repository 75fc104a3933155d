"""Resets of the context (automatic or requested), what they keep, and which answers are sent."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import assert_ledger_balances
from faults import poll_until
from flows.fake_provider import KEY, parse_settings, provider_section
from operations.operations_instance import open_operations_server, person
from schedules.schedule_instance import add, ended, make_schedule, utc

from retinue.config.tools import ToolSettings
from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Envelope, EnvelopeContext, EnvelopeKind, Outcome
from retinue.domain.errors import NotAllowed
from retinue.domain.record import ContextStart, RecordKind, Usage
from retinue.domain.reset_rules import ResetRules
from retinue.domain.schedule import ScheduleSession
from retinue.domain.session import Session, SessionOptions
from retinue.domain.session_keys import ChatType
from retinue.domain.trust import Trust
from retinue.engine.slash_commands import GREETING_PROMPT
from retinue.models.base import ModelPrompt
from retinue.store.envelopes import envelopes
from retinue.store.runs.explanations import explain
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply, tool_call_reply

BERLIN = ZoneInfo("Europe/Berlin")
PLAN_FILE = Attachment(name="plan.txt", hash="0" * 64, size_bytes=5, media_type="text/plain")


def build_instance_with(root: Path, toml: str = "", **kw: Any) -> LocalInstance:
    instance = LocalInstance(root, settings=parse_settings(root, toml, {}), **kw)
    instance.model.rule = lambda _: text_reply("Yes.")
    return instance


async def send_and_wait_for_answer(server: LocalServer, text: str, **kw: Any) -> str:
    """Send a message in the terminal of maria; the answer."""
    kw.setdefault("origin", terminal_origin("maria"))
    return await server.wait_for_answer((await server.send(text, **kw)).envelope)


async def only_session(server: LocalServer) -> Session:
    ((session,),) = await server.execute_sql("SELECT id FROM sessions")
    return await server.get_session(session)


async def list_reset_reasons(server: LocalServer, session: str | None = None) -> list[str]:
    """The reasons of all context resets, oldest first."""
    records = await server.list_records(session or (await only_session(server)).id)
    return [r.body.because for r in records if r.kind is RecordKind.RESET and isinstance(r.body, ContextStart)]


def read(prompt: ModelPrompt) -> str:
    """All text in the prompt of one turn."""
    return "\n".join(str(record.body) for record in prompt.records)


def jump_ahead(server: LocalServer, **kw: float) -> None:
    """Let time pass while the server is idle."""
    server.instance.clock.jump(timedelta(**kw))


def jump_to_wall_time(server: LocalServer, text: str, zone: ZoneInfo) -> None:
    """Set the clock to a later wall time."""
    server.instance.clock.jump(datetime.fromisoformat(text).replace(tzinfo=zone) - server.instance.clock.now())


# --- a session continues ---


@pytest.mark.spec("H39")
async def test_a_session_continues_by_its_id_across_turns_and_restarts(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "My cat is called Mia.")
        await send_and_wait_for_answer(server, "She is grey.")
        before = await only_session(server)
    async with instance.run() as server:
        jump_ahead(server, days=3)
        await send_and_wait_for_answer(
            server, "What is my cat called?", recipient=f"agent:ada/{before.id}", origin=None
        )
        assert "My cat is called Mia." in read(instance.model.prompts[-1])
        server.crash()
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "And now?")
        assert "My cat is called Mia." in read(instance.model.prompts[-1])
        after = await only_session(server)
        assert (after.id, after.context_start_seq, after.context_started_ms) == (
            before.id,
            before.context_start_seq,
            before.context_started_ms,
        )
        assert await list_reset_reasons(server) == []


# --- daily ---


@pytest.mark.spec("H40", "C12", "C114.user_timezone")
async def test_the_first_run_after_the_daily_reset_time_starts_a_new_context_in_the_owners_time_zone(
    tmp_path: Path,
) -> None:
    instance = build_instance_with(tmp_path, '[sessions.reset]\ndaily_at = "4:00"', zone=BERLIN)
    async with instance.run() as server:
        jump_to_wall_time(server, "2026-03-28T22:00", BERLIN)  # clocks go forward in this night
        await send_and_wait_for_answer(server, "the last of the day")
        jump_to_wall_time(server, "2026-03-29T03:59", BERLIN)
        await send_and_wait_for_answer(server, "still up")
        assert "the last of the day" in read(instance.model.prompts[-1])
    async with instance.run() as server:
        jump_to_wall_time(server, "2026-03-29T04:00", BERLIN)
        await send_and_wait_for_answer(server, "good morning")
        assert "the last of the day" not in read(instance.model.prompts[-1])
        assert await list_reset_reasons(server) == ["contexts are reset daily at 04:00 (2026-03-29T04:00:00+02:00)"]
        await send_and_wait_for_answer(server, "and on")
        assert "good morning" in read(instance.model.prompts[-1])
        assert len(await list_reset_reasons(server)) == 1, "reset once a day"
        await assert_ledger_balances(server)


@pytest.mark.spec("H40")
async def test_a_run_that_crosses_the_daily_reset_keeps_its_context_and_the_next_one_is_reset(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path, '[sessions.reset]\ndaily_at = "04:00"')
    async with instance.run() as server:
        jump_to_wall_time(server, "2026-03-02T03:59", ZoneInfo("UTC"))
        instance.model.will_reply(text_reply("Slowly.", after_s=120))
        asked = await server.send("long work", origin=terminal_origin("maria"))
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model to be called")
        await instance.clock.advance(121)
        assert await server.wait_for_answer(asked.envelope) == "Slowly."
        assert await list_reset_reasons(server) == []
        await send_and_wait_for_answer(server, "and now?")
        assert "long work" not in read(instance.model.prompts[-1])


# --- idle ---


@pytest.mark.spec("H41", "C12")
async def test_a_session_idle_longer_than_the_timeout_is_reset_with_a_reason(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        jump_ahead(server, minutes=30)
        await send_and_wait_for_answer(server, "still there?")
        assert "hello" in read(instance.model.prompts[-1])
        jump_ahead(server, minutes=31)
        asked = await server.send("long ago", origin=terminal_origin("maria"))
        await server.wait_for_outcome(asked.envelope)
        assert "hello" not in read(instance.model.prompts[-1])
        (because,) = await list_reset_reasons(server)
        assert because == "there was no activity for over 30 minutes, since 2026-01-05T09:30:00+00:00"
        session = await only_session(server)
        for id_ in (session.id, asked.envelope):
            explanation = await server.store.scan(lambda conn, id_=id_: explain(conn, id_).format_lines(instance.zone))
            assert any(f"The context was reset: {because}" in line for line in explanation), explanation
        ((news,),) = await server.execute_sql("SELECT body FROM events WHERE kind = 'session.reset'")
        assert because in news
        assert session.revision == 1


@pytest.mark.spec("H41")
async def test_the_idle_time_before_a_session_reset_counts_from_the_end_of_a_long_run(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with instance.run() as server:
        instance.model.will_reply(text_reply("At last.", after_s=3000))
        asked = await server.send("dig a pond", origin=terminal_origin("maria"))
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model to be called")
        jump_ahead(server, minutes=50)
        await instance.clock.advance(3000)
        await server.wait_for_outcome(asked.envelope)
        jump_ahead(server, minutes=20)
        await send_and_wait_for_answer(server, "thanks")
        assert "dig a pond" in read(instance.model.prompts[-1])


@pytest.mark.parametrize("place", [ScheduleSession.MAIN, ScheduleSession.OWN])
async def test_schedule_messages_do_not_postpone_the_idle_reset_of_a_persons_session(
    tmp_path: Path, place: ScheduleSession
) -> None:
    """A schedule sends a message to the conversation ten minutes before the person does, and once more to its own."""
    instance = build_instance_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with instance.run() as server:
        owner = {"sender": "person:owner", "origin": terminal_origin("owner")}
        await send_and_wait_for_answer(server, "plant a tree", **owner)
        talk = await only_session(server)
        schedule = await add(server, make_schedule(instance, "20 9 * * *", place=place))
        instance.clock.jump(utc("2026-01-05T09:20:00") - instance.clock.now())
        await instance.clock.advance(60)
        await ended(server, schedule, at=utc("2026-01-05T09:20:00"))
        instance.clock.jump(utc("2026-01-05T09:31:00") - instance.clock.now())
        await send_and_wait_for_answer(server, "and water it", **owner)
        assert len(await list_reset_reasons(server, talk.id)) == 1, (
            "since nine only the schedule has sent messages here"
        )
        assert "plant a tree" not in read(instance.model.prompts[-1])


# --- length ---


@pytest.mark.spec("H42")
async def test_a_context_above_its_token_limit_is_reset_before_the_next_run_and_an_unknown_size_is_not(
    tmp_path: Path,
) -> None:
    instance = build_instance_with(tmp_path, "[sessions.reset]\ncontext_tokens_max = 1000")
    async with instance.run() as server:
        instance.model.will_reply(
            text_reply("short", usage=Usage(input_tokens=900, output_tokens=100)),
            text_reply("unknown", usage=Usage()),
            text_reply("long", usage=Usage(input_tokens=900, output_tokens=101)),
        )
        for text in ("one", "two", "three"):
            await send_and_wait_for_answer(server, text)
            assert await list_reset_reasons(server) == []
        waiting = await only_session(server)
        assert waiting.reset_because == "the context had 1,001 tokens, and the limit is 1,000 tokens"
        assert f"next-reset: with the next run: {waiting.reset_because}" in await send_and_wait_for_answer(
            server, "/status"
        )
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "four")
        assert "three" not in read(instance.model.prompts[-1])
        assert await list_reset_reasons(server) == [waiting.reset_because]
        assert (await only_session(server)).reset_because is None
        await send_and_wait_for_answer(server, "five")
        assert len(await list_reset_reasons(server)) == 1


async def test_a_message_queued_behind_a_run_that_exceeded_the_token_limit_is_read_after_a_reset(
    tmp_path: Path,
) -> None:
    """The next run is claimed in the commit that ends the long one."""
    instance = build_instance_with(tmp_path, "[sessions.reset]\ncontext_tokens_max = 1000")
    async with instance.run() as server:
        instance.model.will_reply(text_reply("long", usage=Usage(input_tokens=2000), after_s=60))
        await server.send("first words", origin=terminal_origin("maria"))
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model to be called")
        behind = await server.send("and these", origin=terminal_origin("maria"))
        await instance.clock.advance(61)
        await server.wait_for_outcome(behind.envelope)
        assert "first words" not in read(instance.model.prompts[-1])
        assert len(await list_reset_reasons(server)) == 1
        await assert_ledger_balances(server)


# --- by kind of origin ---


@pytest.mark.spec("C12")
async def test_reset_rules_can_differ_by_session_kind_connector_and_agent(tmp_path: Path) -> None:
    toml = """
    [sessions.reset]
    idle_minutes = 10
    [sessions.reset.by_kind.terminal]
    idle_minutes = 60
    [sessions.reset.by_kind.group]
    idle_minutes = 0
    [sessions.reset.by_channel.quiet]
    idle_minutes = 20
    """
    patient = Agent(name="bo", model="scripted", reset=ResetRules(idle_minutes=0))
    instance = build_instance_with(tmp_path, toml, agents=(Agent(name="ada", model="scripted"), patient))
    quiet = FakeConnector(instance.clock)
    other = FakeConnector(instance.clock, name="other")
    instance.connectors |= {"quiet": quiet, "other": other}

    async def send_on_every_path(server: LocalServer) -> None:
        for recipient in ("agent:ada", "agent:bo"):
            await send_and_wait_for_answer(server, "hello", recipient=recipient)
            await send_and_wait_for_answer(server, "hello", recipient=recipient, sender="person:owner", origin=None)
        for connector in (quiet, other):
            receipt = await connector.send_inbound("hello", channel="kitchen")
            assert receipt is not None
            await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()

    async with instance.run() as server:
        await send_on_every_path(server)
        jump_ahead(server, minutes=15)
        await send_on_every_path(server)
        begun = {(r.agent, r.origin_key): r.revision for r in await server.execute_sql("SELECT * FROM sessions")}
        assert begun == {
            ("ada", "person:maria"): 0,
            ("ada", "person:owner"): 1,
            ("bo", "person:maria"): 0,
            ("bo", "person:owner"): 0,
            ("ada", "channel:quiet:kitchen"): 0,
            ("ada", "channel:other:kitchen"): 0,  # several people write there, and groups are never reset
        }
        jump_ahead(server, minutes=21)
        await send_on_every_path(server)
        ((revision,),) = await server.execute_sql(
            "SELECT revision FROM sessions WHERE origin_key = 'channel:quiet:kitchen'"
        )
        assert revision == 1, "the rule for its connector overrides the rule for groups"
        types = {
            r.origin_key: r.chat_type for r in await server.execute_sql("SELECT origin_key, chat_type FROM sessions")
        }
        assert types["channel:quiet:kitchen"] == ChatType.GROUP and types["person:maria"] is None


# --- what is not interrupted ---


async def test_a_late_approval_continues_in_its_context_and_only_the_next_message_resets_the_session(
    tmp_path: Path,
) -> None:
    """A day passes between the request and its answer: the call is performed and read in the old context."""
    instance = build_instance_with(tmp_path, "[sessions.reset]\nidle_minutes = 10")
    instance.tool_settings = ToolSettings(ask=("append_line",))
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"), "It waits.", "It is done.")
        asked = await server.send("write it down", origin=terminal_origin("maria"))
        ((approval,),) = await server.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT id FROM approvals").all() or None, what="a pending approval"
        )
        await instance.clock.advance(601)
        await server.wait_for_outcome(asked.envelope)
        jump_ahead(server, minutes=30)
        await send_and_wait_for_answer(
            server, f"/allow {approval[:8]}", sender="person:owner", recipient=f"agent:ada/{asked.session}"
        )
        await server.wait_until_idle()
        assert "write it down" in read(instance.model.prompts[-1])
        assert await list_reset_reasons(server) == []
        jump_ahead(server, minutes=30)
        await send_and_wait_for_answer(server, "next")
        assert len(await list_reset_reasons(server)) == 1, "the next message resets the context"


async def test_a_silent_message_is_read_in_the_next_context_after_a_reset(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path, "[sessions.reset]\nidle_minutes = 10")
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "plant a tree")
        talk = await only_session(server)
        jump_ahead(server, minutes=20)
        note = await server.send(
            "The tree has arrived.",
            sender="agent:ada",
            recipient=f"agent:ada/{talk.id}",
            kind=EnvelopeKind.SYSTEM,
            silent=True,
        )
        await server.wait_for_outcome(note.envelope)
        assert len(instance.model.prompts) == 1
        await send_and_wait_for_answer(server, "is there anything new?")
        prompt_text = read(instance.model.prompts[-1])
        assert "The tree has arrived." in prompt_text and "plant a tree" not in prompt_text
        assert len(await list_reset_reasons(server, talk.id)) == 1


# --- requested during a run ---


@pytest.mark.spec("H43")
async def test_a_reset_requested_during_a_run_applies_after_it_even_after_a_crash(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path)
    async with open_operations_server(instance) as operations:
        server = operations.server
        instance.model.rule = lambda _: text_reply("Done.", after_s=60)
        asked = await server.send("long work", origin=terminal_origin("maria"))
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model to be called")
        first = await operations.ask(
            person("maria"), "session.reset_after_run", session=asked.session, reason="a new topic"
        )
        again = await operations.ask(person("owner"), "session.reset_after_run", session=asked.session)
        reasons = "requested by person:maria: a new topic; requested by person:owner"
        assert (first["reset"], again["reset"], again["pending_reset_because"]) == (False, False, reasons)
        server.crash()
    instance.model.rule = lambda _: text_reply("Done.")
    async with instance.run() as server:
        assert await server.wait_for_answer(asked.envelope) == "Done.", "the run is resumed, not stopped"
        assert "long work" in read(instance.model.prompts[-1])
        assert await list_reset_reasons(server) == []
        await send_and_wait_for_answer(server, "the new topic")
        assert "long work" not in read(instance.model.prompts[-1])
        assert await list_reset_reasons(server) == [reasons], "one reset for both"
        await send_and_wait_for_answer(server, "and on")
        assert "the new topic" in read(instance.model.prompts[-1])
        await assert_ledger_balances(server)


@pytest.mark.spec("H43")
async def test_a_reset_requested_while_nothing_runs_applies_at_once(tmp_path: Path) -> None:
    async with open_operations_server(build_instance_with(tmp_path)) as operations:
        _, session = await operations.converse(person("maria"), "hello")
        done = await operations.ask(person("maria"), "session.reset_after_run", session=session)
        assert done == {"session": session, "reset": True, "pending_reset_because": None}
        assert await list_reset_reasons(operations.server, session) == ["requested by person:maria"]


async def test_contexts_are_reset_the_same_way_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    toml = "[sessions.reset]\nidle_minutes = 30\ncontext_tokens_max = 1000\n[sessions.send]\ndefault = 'deny'"
    instance = build_instance_with(tmp_path, toml, url=postgres_url)
    connector = channel(instance)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        jump_ahead(server, minutes=31)
        instance.model.will_reply(text_reply("long", usage=Usage(input_tokens=2000)))
        await send_and_wait_for_answer(server, "long ago")
        first = await only_session(server)
        assert "hello" not in read(instance.model.prompts[-1]) and first.reset_because is not None
        assert (await send_and_read_delivery_outcome(server, connector, "who is there?"))[0] is Outcome.REFUSED
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "and now?")
        assert "long ago" not in read(instance.model.prompts[-1])
        assert len(await list_reset_reasons(server, first.id)) == 2
        explanation = await server.store.scan(lambda conn: explain(conn, first.id).format_lines(instance.zone))
        assert sum("The context was reset: " in line for line in explanation) == 2
        await assert_ledger_balances(server)


# --- /new and /reset ---


def _texts_of(mail: list[Envelope]) -> list[str]:
    return [letter.text for letter in mail]


@pytest.mark.spec("C13.remainder", "C13.model_hint")
async def test_text_after_the_new_command_is_read_after_the_reset_and_a_model_name_selects_the_model(
    tmp_path: Path,
) -> None:
    toml = """
    [models]
    default = { primary = "mock/m1" }
    [models.entries."mock/m1"]
    [models.entries."mock/claude-opus-4-5"]
    alias = "big"
    [models.entries."mock/claude-haiku-4-5"]
    """
    settings = parse_settings(tmp_path, provider_section("mock", "http://127.0.0.1:9/v1") + toml, {"MOCK_KEY": KEY})
    instance = LocalInstance(tmp_path, settings=settings, environment={"MOCK_KEY": KEY})
    instance.model.rule = lambda _: text_reply("Yes.")
    named = {
        "/new big": "mock/claude-opus-4-5",
        "/new OPUS": "mock/claude-opus-4-5",
        "/new mock/claude-haiku-4-5": "mock/claude-haiku-4-5",
        "/new haiku ": "mock/claude-haiku-4-5",
    }
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/think low")
        for command, model in named.items():
            answer = await send_and_wait_for_answer(server, command)
            assert (
                answer
                == f"The context was reset, and this conversation now uses {model}. /model default clears the choice."
            )
            session = await only_session(server)
            assert session.options == SessionOptions(model=model, effort="low")
        await send_and_wait_for_answer(server, "/model scripted")
        for words in ("claude, are you there?", "4 apples", "scripted replies", "5", "docs/readme.md is empty", "op"):
            asked = await server.send(f"/new {words}", origin=terminal_origin("maria"))
            assert await server.wait_for_answer(asked.envelope) == "The context was reset."
            await server.wait_until_idle()
            assert words in read(instance.model.prompts[-1]), "the whole text is a message"
            assert (await only_session(server)).options.model == "scripted"
        await send_and_wait_for_answer(server, "/new scripted")
        assert len(instance.model.prompts) == 6, "the name of a configured model alone is no message"


@pytest.mark.spec("C13.overrides")
@pytest.mark.parametrize("command", ["/new opus\nplan the day", "/new plan the day"])
async def test_session_options_survive_a_reset(tmp_path: Path, command: str) -> None:
    instance = build_instance_with(tmp_path)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/verbose on")
        await send_and_wait_for_answer(server, "/queue followup")
        await send_and_wait_for_answer(server, "/send off", sender="person:owner")
        before = await only_session(server)
        await send_and_wait_for_answer(server, command)
        await server.wait_until_idle()
        after = await only_session(server)
        assert (after.id, after.options, after.queue) == (before.id, before.options, before.queue)
        assert "plan the day" in read(instance.model.prompts[-1])


async def test_a_file_sent_with_the_new_command_is_read_after_the_session_reset(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        await send_and_wait_for_answer(server, "/new", attachments=(PLAN_FILE,))
        await server.wait_until_idle()
        prompt_text = read(instance.model.prompts[-1])
        assert "plan.txt" in prompt_text and "hello" not in prompt_text


@pytest.mark.spec("C13.greeting")
@pytest.mark.parametrize("greeting", [True, False])
async def test_a_reset_by_the_new_command_without_text_triggers_a_greeting_if_the_setting_is_on(
    tmp_path: Path, *, greeting: bool
) -> None:
    instance = build_instance_with(tmp_path, f"[sessions]\ngreeting = {str(greeting).lower()}")
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        instance.model.rule = lambda _: text_reply("Good to see you. What shall we do?")
        assert await send_and_wait_for_answer(server, "/new") == "The context was reset."
        await server.wait_until_idle()
        mail = _texts_of(await server.list_envelopes_to("maria"))
        if greeting:
            assert mail[-1] == "Good to see you. What shall we do?"
            prompt_text = read(instance.model.prompts[-1])
            assert GREETING_PROMPT in prompt_text and "hello" not in prompt_text
        else:
            assert mail[-1] == "The context was reset." and len(instance.model.prompts) == 1
        await assert_ledger_balances(server)


@pytest.mark.spec("C14", "C13.triggers")
@pytest.mark.parametrize("command", ["/new", "/reset", "/reset mind the cat"])
async def test_a_reset_command_stops_the_run_and_keeps_the_history(tmp_path: Path, command: str) -> None:
    instance = build_instance_with(tmp_path)
    async with open_operations_server(instance) as operations:
        server = operations.server
        _, session = await operations.converse(person("maria"), "My cat is called Mia.")
        instance.model.rule = lambda _: text_reply("never", after_s=3600)
        asked = await operations.ask(person("maria"), "envelope.send", to=f"agent:ada/{session}", text="long work")
        await poll_until(lambda: len(instance.model.prompts) == 2, "the model to be called")
        before = await server.list_records(session)
        instance.model.rule = lambda _: text_reply("Yes.")
        await operations.converse(person("maria"), command, to=f"agent:ada/{session}")
        assert (await server.wait_for_outcome(asked["envelope"])).outcome is Outcome.CANCELLED
        kept = await server.list_records(session)
        assert kept[: len(before)] == before, "no record was deleted"
        (because,) = await list_reset_reasons(server, session)
        assert because == f"requested by person:maria: {command.split()[0]}"
        history = await operations.ask(person("maria"), "session.history", session=session)
        assert "My cat is called Mia." in str(history["records"]), "the archived session can be read"
        present = await operations.ask(person("maria"), "session.transcript", session=session)
        assert present["has_earlier"] and "My cat is called Mia." not in str(present["records"])
        archived = await operations.ask(
            person("maria"), "session.transcript", session=session, before=present["context_start"]
        )
        assert "My cat is called Mia." in str(archived["records"])
        assert (await server.get_session(session)).revision == 1
        await operations.converse(person("maria"), "And now?", to=f"agent:ada/{session}")
        assert "Mia" not in read(instance.model.prompts[-1])


async def test_the_status_command_shows_the_reset_rules_and_the_next_reset(tmp_path: Path) -> None:
    toml = '[sessions.reset]\ndaily_at = "4:00"\nidle_minutes = 1440\ncontext_tokens_max = 50000'
    instance = build_instance_with(tmp_path, toml, zone=BERLIN)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        lines = (await send_and_wait_for_answer(server, "/status")).splitlines()
        assert "reset-rules: daily at 04:00, after 1440 minutes without activity, beyond 50,000 tokens" in lines
        assert "next-reset: 2026-01-06T04:00:00+01:00 (daily)" in lines
        assert "send: according to the rules of the server" in lines
    silent = build_instance_with(tmp_path / "other")
    silent.root.mkdir()
    async with silent.run() as server:
        await send_and_wait_for_answer(server, "hello")
        lines = (await send_and_wait_for_answer(server, "/status")).splitlines()
        assert "reset-rules: only on request" in lines and "next-reset: not automatically" in lines


async def test_without_reset_rules_a_session_is_never_reset(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "hello")
        jump_ahead(server, days=400)
        await send_and_wait_for_answer(server, "hello again")
        assert "hello" in read(instance.model.prompts[-1]) and await list_reset_reasons(server) == []


# --- which answers are sent ---


def channel(instance: LocalInstance) -> FakeConnector:
    connector = FakeConnector(instance.clock)
    instance.connectors["quiet"] = connector
    return connector


async def send_and_read_delivery_outcome(
    server: LocalServer, connector: FakeConnector, text: str, **kw: Any
) -> tuple[Outcome, str]:
    """Send a message in a channel: how its answer was delivered, and why."""
    receipt = await connector.send_inbound(text, channel=kw.pop("channel", "kitchen"), **kw)
    assert receipt is not None
    settled = await server.wait_for_outcome(receipt.envelope)
    assert settled.outcome is Outcome.ANSWERED, "the run is performed in any case"
    assert settled.answer is not None
    ending = await server.wait_for_outcome(settled.answer)
    return ending.outcome, ending.because


@pytest.mark.spec("C15")
async def test_an_answer_denied_by_the_send_policy_is_stored_with_the_reason_and_not_delivered(tmp_path: Path) -> None:
    toml = """
    [sessions.send.rules.quiet-kitchen]
    key_prefix = "channel:quiet:kitch"
    chat_type = "group"
    """
    instance = build_instance_with(tmp_path, toml)
    connector = channel(instance)
    async with instance.run() as server:
        assert await send_and_read_delivery_outcome(server, connector, "who is there?") == (
            Outcome.REFUSED,
            "not sent: the rule quiet-kitchen matches: deny for chat_type group, key_prefix channel:quiet:kitch "
            "(`sessions.send.rules.quiet-kitchen`)",
        )
        assert (await send_and_read_delivery_outcome(server, connector, "and here?", channel="cellar"))[
            0
        ] is Outcome.DELIVERED
        alone = EnvelopeContext(chat_type=ChatType.DIRECT)
        assert (await send_and_read_delivery_outcome(server, connector, "alone", channel="kitchenette", context=alone))[
            0
        ] is Outcome.DELIVERED
        await server.wait_until_idle()
        assert {envelope.recipient.rest for envelope in connector.delivered_envelopes} == {"cellar", "kitchenette"}
        ((held,),) = await server.execute_sql("SELECT envelope FROM outcomes WHERE outcome = 'refused'")
        explanation = await server.store.scan(lambda conn: explain(conn, held).format_lines(instance.zone))
        assert "the rule quiet-kitchen matches" in explanation[0]
        assert (await server.get_envelope(held)).text == "Yes.", "the text is kept"
        await send_and_read_delivery_outcome(server, connector, "still nobody?")
        assert "was not sent: a rule of this server blocks it" in read(instance.model.prompts[-1])
        await assert_ledger_balances(server)


@pytest.mark.spec("C15")
async def test_the_owners_send_command_overrides_the_send_policy_and_survives_a_restart(tmp_path: Path) -> None:
    instance = build_instance_with(tmp_path, '[sessions.send]\ndefault = "deny"')
    connector = channel(instance)

    async def command(server: LocalServer, text: str, *, trust: Trust = Trust.OWNER) -> str:
        """Send a command from the channel, as its owner or as a known person."""
        asked = await server.send(text, sender="channel:quiet:kitchen", trust=trust)
        settled = await server.wait_for_outcome(asked.envelope)
        assert settled.answer is not None
        answer = await server.store.read(lambda conn: envelopes.get(conn, settled.answer or ""))
        assert answer is not None
        assert (await server.wait_for_outcome(answer.id)).outcome is Outcome.DELIVERED, (
            "answers of commands are always delivered"
        )
        return answer.text

    async with instance.run() as server:
        assert (await send_and_read_delivery_outcome(server, connector, "hello"))[0] is Outcome.REFUSED
        assert (await command(server, "/send on", trust=Trust.PERSON)).startswith("Only the owner")
        assert (await send_and_read_delivery_outcome(server, connector, "hello"))[0] is Outcome.REFUSED, (
            "the refused command changed nothing"
        )
        assert await command(server, "/send on") == "Sending: on, whatever the rules say."
        assert (await send_and_read_delivery_outcome(server, connector, "hello"))[0] is Outcome.DELIVERED
    async with instance.run() as server:
        assert (await send_and_read_delivery_outcome(server, connector, "hello"))[0] is Outcome.DELIVERED
        assert (await command(server, "/send maybe")).startswith("Invalid value 'maybe' for /send.")
        assert (await command(server, "/send")).startswith("Sending: on, whatever the rules say.")
        assert (await command(server, "/send off")).startswith("Sending: off")
        assert await send_and_read_delivery_outcome(server, connector, "hello") == (
            Outcome.REFUSED,
            "not sent: /send off was set in this conversation (`/send`)",
        )
        assert await command(server, "/send inherit") == "Sending: according to the rules of the server."
        assert (await send_and_read_delivery_outcome(server, connector, "hello"))[1].endswith(
            "(`sessions.send.default`)"
        )
        await assert_ledger_balances(server)


@pytest.mark.spec("C15")
async def test_only_the_owner_sets_the_send_policy_of_a_session_by_operation(tmp_path: Path) -> None:
    async with open_operations_server(build_instance_with(tmp_path)) as operations:
        _, session = await operations.converse(person("maria"), "hello")
        with pytest.raises(NotAllowed):
            await operations.ask(person("maria"), "session.set_sending", session=session, send="off")
        assert (await operations.server.get_session(session)).options.send is None
        for word, kept in (("off", False), ("on", True), ("inherit", None)):
            said = await operations.ask(person("owner"), "session.set_sending", session=session, send=word)
            assert said == {"session": session, "send": word}
            assert (await operations.server.get_session(session)).options.send is kept
        shown = await operations.ask(person("maria"), "session.policy", session=session)
        assert (shown["send"], shown["next_reset_at"], shown["pending_reset_because"]) == ("inherit", None, None)
