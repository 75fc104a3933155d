"""When a conversation begins afresh, by itself or because someone asks, what stays of it, and what of it goes out."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import books_hold
from faults import until
from flows.fake_provider import KEY, section, settings_of
from operations.operations_instance import desk_house, person
from schedules.schedule_instance import a_schedule, add, ended, utc

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
from retinue.store.runs.why import explain
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply, tool_call_reply

BERLIN = ZoneInfo("Europe/Berlin")
PLAN = Attachment(name="plan.txt", hash="0" * 64, size_bytes=5, media_type="text/plain")


def household_with(root: Path, toml: str = "", **kw: Any) -> LocalInstance:
    household = LocalInstance(root, settings=settings_of(root, toml, {}), **kw)
    household.model.rule = lambda _: text_reply("Yes.")
    return household


async def say(house: LocalServer, text: str, **kw: Any) -> str:
    """In Maria's terminal: the answer."""
    kw.setdefault("origin", terminal_origin("maria"))
    return await house.wait_for_answer((await house.send(text, **kw)).envelope)


async def only_session(house: LocalServer) -> Session:
    ((session,),) = await house.execute_sql("SELECT id FROM sessions")
    return await house.get_session(session)


async def resets(house: LocalServer, session: str | None = None) -> list[str]:
    """Why fresh contexts began, the oldest first."""
    records = await house.list_records(session or (await only_session(house)).id)
    return [r.body.because for r in records if r.kind is RecordKind.RESET and isinstance(r.body, ContextStart)]


def read(prompt: ModelPrompt) -> str:
    """All that a model was told in one turn."""
    return "\n".join(str(record.body) for record in prompt.records)


def later(house: LocalServer, **kw: float) -> None:
    """The time goes by while nobody is there."""
    house.instance.clock.jump(timedelta(**kw))


def to_wall(house: LocalServer, text: str, zone: ZoneInfo) -> None:
    """Set the clock to a moment on the wall, still to come."""
    house.instance.clock.jump(datetime.fromisoformat(text).replace(tzinfo=zone) - house.instance.clock.now())


# A session goes on


@pytest.mark.spec("H39")
async def test_a_session_goes_on_by_its_id_across_turns_and_restarts(tmp_path: Path) -> None:
    household = household_with(tmp_path)
    async with household.run() as house:
        await say(house, "My cat is called Mia.")
        await say(house, "She is grey.")
        before = await only_session(house)
    async with household.run() as house:
        later(house, days=3)
        await say(house, "What is my cat called?", recipient=f"agent:ada/{before.id}", origin=None)
        assert "My cat is called Mia." in read(household.model.prompts[-1])
        house.crash()
    async with household.run() as house:
        await say(house, "And now?")
        assert "My cat is called Mia." in read(household.model.prompts[-1])
        after = await only_session(house)
        assert (after.id, after.context_start_seq, after.context_started_ms) == (
            before.id,
            before.context_start_seq,
            before.context_started_ms,
        )
        assert await resets(house) == []


# Daily


@pytest.mark.spec("H40", "C12", "C114.user_timezone")
async def test_the_first_run_after_the_hour_begins_afresh_in_the_owners_zone(tmp_path: Path) -> None:
    household = household_with(tmp_path, '[sessions.reset]\ndaily_at = "4:00"', zone=BERLIN)
    async with household.run() as house:
        to_wall(house, "2026-03-28T22:00", BERLIN)  # in this night the clock goes forward
        await say(house, "the last of the day")
        to_wall(house, "2026-03-29T03:59", BERLIN)
        await say(house, "still up")
        assert "the last of the day" in read(household.model.prompts[-1])
    async with household.run() as house:
        to_wall(house, "2026-03-29T04:00", BERLIN)
        await say(house, "good morning")
        assert "the last of the day" not in read(household.model.prompts[-1])
        assert await resets(house) == ["contexts are reset daily at 04:00 (2026-03-29T04:00:00+02:00)"]
        await say(house, "and on")
        assert "good morning" in read(household.model.prompts[-1])
        assert len(await resets(house)) == 1, "once a day"
        await books_hold(house)


@pytest.mark.spec("H40")
async def test_a_run_over_the_boundary_ends_as_it_began_and_the_next_one_is_fresh(tmp_path: Path) -> None:
    household = household_with(tmp_path, '[sessions.reset]\ndaily_at = "04:00"')
    async with household.run() as house:
        to_wall(house, "2026-03-02T03:59", ZoneInfo("UTC"))
        household.model.will_reply(text_reply("Slowly.", after_s=120))
        asked = await house.send("long work", origin=terminal_origin("maria"))
        await until(lambda: len(household.model.prompts) == 1, "the model to be asked")
        await household.clock.advance(121)
        assert await house.wait_for_answer(asked.envelope) == "Slowly."
        assert await resets(house) == []
        await say(house, "and now?")
        assert "long work" not in read(household.model.prompts[-1])


# Idle


@pytest.mark.spec("H41", "C12")
async def test_idle_for_longer_than_the_time_out_begins_afresh_and_says_why(tmp_path: Path) -> None:
    household = household_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with household.run() as house:
        await say(house, "hello")
        later(house, minutes=30)
        await say(house, "still there?")
        assert "hello" in read(household.model.prompts[-1])
        later(house, minutes=31)
        asked = await house.send("long ago", origin=terminal_origin("maria"))
        await house.wait_for_outcome(asked.envelope)
        assert "hello" not in read(household.model.prompts[-1])
        (because,) = await resets(house)
        assert because == "there was no activity for over 30 minutes, since 2026-01-05T09:30:00+00:00"
        session = await only_session(house)
        for id_ in (session.id, asked.envelope):
            told = await house.store.scan(lambda conn, id_=id_: explain(conn, id_).format_lines(household.zone))
            assert any(f"The context was reset: {because}" in line for line in told), told
        ((news,),) = await house.execute_sql("SELECT body FROM news WHERE kind = 'session.reset'")
        assert because in news
        assert session.revision == 1


@pytest.mark.spec("H41")
async def test_idle_time_counts_from_the_end_of_a_long_run(tmp_path: Path) -> None:
    household = household_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with household.run() as house:
        household.model.will_reply(text_reply("At last.", after_s=3000))
        asked = await house.send("dig a pond", origin=terminal_origin("maria"))
        await until(lambda: len(household.model.prompts) == 1, "the model to be asked")
        later(house, minutes=50)
        await household.clock.advance(3000)
        await house.wait_for_outcome(asked.envelope)
        later(house, minutes=20)
        await say(house, "thanks")
        assert "dig a pond" in read(household.model.prompts[-1])


@pytest.mark.parametrize("place", [ScheduleSession.MAIN, ScheduleSession.OWN])
async def test_what_the_clock_sends_keeps_no_persons_conversation_awake(tmp_path: Path, place: ScheduleSession) -> None:
    """A schedule speaks into the conversation ten minutes before the person does, and again into one of its own."""
    household = household_with(tmp_path, "[sessions.reset]\nidle_minutes = 30")
    async with household.run() as house:
        owner = {"sender": "person:owner", "origin": terminal_origin("owner")}
        await say(house, "plant a tree", **owner)
        talk = await only_session(house)
        schedule = await add(house, a_schedule(household, "20 9 * * *", place=place))
        household.clock.jump(utc("2026-01-05T09:20:00") - household.clock.now())
        await household.clock.advance(60)
        await ended(house, schedule, at=utc("2026-01-05T09:20:00"))
        household.clock.jump(utc("2026-01-05T09:31:00") - household.clock.now())
        await say(house, "and water it", **owner)
        assert len(await resets(house, talk.id)) == 1, "since nine nobody but the clock has spoken here"
        assert "plant a tree" not in read(household.model.prompts[-1])


# Length


@pytest.mark.spec("H42")
async def test_a_context_above_its_limit_makes_the_next_run_fresh_and_an_unknown_one_does_not(tmp_path: Path) -> None:
    household = household_with(tmp_path, "[sessions.reset]\ncontext_tokens_max = 1000")
    async with household.run() as house:
        household.model.will_reply(
            text_reply("short", usage=Usage(input_tokens=900, output_tokens=100)),
            text_reply("unknown", usage=Usage()),
            text_reply("long", usage=Usage(input_tokens=900, output_tokens=101)),
        )
        for text in ("one", "two", "three"):
            await say(house, text)
            assert await resets(house) == []
        waiting = await only_session(house)
        assert waiting.reset_because == "the context had 1,001 tokens; the limit is 1,000"
        assert f"next-afresh: with the next run: {waiting.reset_because}" in await say(house, "/status")
    async with household.run() as house:
        await say(house, "four")
        assert "three" not in read(household.model.prompts[-1])
        assert await resets(house) == [waiting.reset_because]
        assert (await only_session(house)).reset_because is None
        await say(house, "five")
        assert len(await resets(house)) == 1


async def test_mail_that_waits_behind_a_run_that_grew_too_long_is_read_afresh(tmp_path: Path) -> None:
    """The next run is claimed in the commit in which the long one ends."""
    household = household_with(tmp_path, "[sessions.reset]\ncontext_tokens_max = 1000")
    async with household.run() as house:
        household.model.will_reply(text_reply("long", usage=Usage(input_tokens=2000), after_s=60))
        await house.send("first words", origin=terminal_origin("maria"))
        await until(lambda: len(household.model.prompts) == 1, "the model to be asked")
        behind = await house.send("and these", origin=terminal_origin("maria"))
        await household.clock.advance(61)
        await house.wait_for_outcome(behind.envelope)
        assert "first words" not in read(household.model.prompts[-1])
        assert len(await resets(house)) == 1
        await books_hold(house)


# Some and not others


@pytest.mark.spec("C12")
async def test_kinds_of_conversation_connectors_and_agents_have_rules_of_their_own(tmp_path: Path) -> None:
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
    household = household_with(tmp_path, toml, agents=(Agent(name="ada", model="scripted"), patient))
    quiet = FakeConnector(household.clock)
    other = FakeConnector(household.clock, name="other")
    household.connectors |= {"quiet": quiet, "other": other}

    async def speak(house: LocalServer) -> None:
        for recipient in ("agent:ada", "agent:bo"):
            await say(house, "hello", recipient=recipient)
            await say(house, "hello", recipient=recipient, sender="person:owner", origin=None)
        for connector in (quiet, other):
            receipt = await connector.send_inbound("hello", channel="kitchen")
            assert receipt is not None
            await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()

    async with household.run() as house:
        await speak(house)
        later(house, minutes=15)
        await speak(house)
        begun = {(r.agent, r.origin_key): r.revision for r in await house.execute_sql("SELECT * FROM sessions")}
        assert begun == {
            ("ada", "person:maria"): 0,
            ("ada", "person:owner"): 1,
            ("bo", "person:maria"): 0,
            ("bo", "person:owner"): 0,
            ("ada", "channel:quiet:kitchen"): 0,
            ("ada", "channel:other:kitchen"): 0,  # several speak there, and groups never begin anew
        }
        later(house, minutes=21)
        await speak(house)
        ((revision,),) = await house.execute_sql(
            "SELECT revision FROM sessions WHERE origin_key = 'channel:quiet:kitchen'"
        )
        assert revision == 1, "its connector's word goes before that for groups"
        types = {
            r.origin_key: r.chat_type for r in await house.execute_sql("SELECT origin_key, chat_type FROM sessions")
        }
        assert types["channel:quiet:kitchen"] == ChatType.GROUP and types["person:maria"] is None


# What goes on, goes on


async def test_a_late_yes_is_read_where_it_was_asked_for(tmp_path: Path) -> None:
    """A day goes by between the question and its answer: the call is made, and its result read, in the old context."""
    household = household_with(tmp_path, "[sessions.reset]\nidle_minutes = 10")
    household.tool_settings = ToolSettings(ask=("append_line",))
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"), "It waits.", "It is done.")
        asked = await house.send("write it down", origin=terminal_origin("maria"))
        ((approval,),) = await house.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT id FROM approvals").all() or None, what="a question"
        )
        await household.clock.advance(601)
        await house.wait_for_outcome(asked.envelope)
        later(house, minutes=30)
        await say(house, f"/allow {approval[:8]}", sender="person:owner", recipient=f"agent:ada/{asked.session}")
        await house.wait_until_idle()
        assert "write it down" in read(household.model.prompts[-1])
        assert await resets(house) == []
        later(house, minutes=30)
        await say(house, "next")
        assert len(await resets(house)) == 1, "and with the next message it begins anew"


async def test_what_is_noted_on_the_side_is_read_in_the_context_that_comes(tmp_path: Path) -> None:
    household = household_with(tmp_path, "[sessions.reset]\nidle_minutes = 10")
    async with household.run() as house:
        await say(house, "plant a tree")
        talk = await only_session(house)
        later(house, minutes=20)
        note = await house.send(
            "The tree has arrived.",
            sender="agent:ada",
            recipient=f"agent:ada/{talk.id}",
            kind=EnvelopeKind.SYSTEM,
            silent=True,
        )
        await house.wait_for_outcome(note.envelope)
        assert len(household.model.prompts) == 1
        await say(house, "is there anything new?")
        told = read(household.model.prompts[-1])
        assert "The tree has arrived." in told and "plant a tree" not in told
        assert len(await resets(house, talk.id)) == 1


# Asked for, while somebody works


@pytest.mark.spec("H43")
async def test_a_refresh_asked_for_during_a_run_applies_after_it_also_through_a_crash(tmp_path: Path) -> None:
    household = household_with(tmp_path)
    async with desk_house(household) as desk:
        house = desk.house
        household.model.rule = lambda _: text_reply("Done.", after_s=60)
        asked = await house.send("long work", origin=terminal_origin("maria"))
        await until(lambda: len(household.model.prompts) == 1, "the model to be asked")
        first = await desk.ask(person("maria"), "session.refresh", session=asked.session, why="a new topic")
        again = await desk.ask(person("owner"), "session.refresh", session=asked.session)
        reasons = "requested by person:maria: a new topic; requested by person:owner"
        assert (first["refreshed"], again["refreshed"], again["refresh"]) == (False, False, reasons)
        house.crash()
    household.model.rule = lambda _: text_reply("Done.")
    async with household.run() as house:
        assert await house.wait_for_answer(asked.envelope) == "Done.", "it is taken up and not stopped"
        assert "long work" in read(household.model.prompts[-1])
        assert await resets(house) == []
        await say(house, "the new topic")
        assert "long work" not in read(household.model.prompts[-1])
        assert await resets(house) == [reasons], "once, for both"
        await say(house, "and on")
        assert "the new topic" in read(household.model.prompts[-1])
        await books_hold(house)


@pytest.mark.spec("H43")
async def test_where_nothing_runs_a_refresh_is_done_at_once(tmp_path: Path) -> None:
    async with desk_house(household_with(tmp_path)) as desk:
        _, session = await desk.converse(person("maria"), "hello")
        done = await desk.ask(person("maria"), "session.refresh", session=session)
        assert done == {"session": session, "refreshed": True, "refresh": None}
        assert await resets(desk.house, session) == ["requested by person:maria"]


async def test_contexts_begin_anew_the_same_way_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    toml = "[sessions.reset]\nidle_minutes = 30\ncontext_tokens_max = 1000\n[sessions.send]\ndefault = 'deny'"
    household = household_with(tmp_path, toml, url=postgres_url)
    connector = channel(household)
    async with household.run() as house:
        await say(house, "hello")
        later(house, minutes=31)
        household.model.will_reply(text_reply("long", usage=Usage(input_tokens=2000)))
        await say(house, "long ago")
        first = await only_session(house)
        assert "hello" not in read(household.model.prompts[-1]) and first.reset_because is not None
        assert (await hear(house, connector, "who is there?"))[0] is Outcome.REFUSED
    async with household.run() as house:
        await say(house, "and now?")
        assert "long ago" not in read(household.model.prompts[-1])
        assert len(await resets(house, first.id)) == 2
        told = await house.store.scan(lambda conn: explain(conn, first.id).format_lines(household.zone))
        assert sum("The context was reset: " in line for line in told) == 2
        await books_hold(house)


# /new and /reset


def _words_of(mail: list[Envelope]) -> list[str]:
    return [letter.text for letter in mail]


@pytest.mark.spec("C13.remainder", "C13.model_hint")
async def test_the_words_behind_new_are_worked_on_and_a_model_named_first_is_taken(tmp_path: Path) -> None:
    toml = """
    [models]
    default = { primary = "mock/m1" }
    [models.entries."mock/m1"]
    [models.entries."mock/claude-opus-4-5"]
    alias = "big"
    [models.entries."mock/claude-haiku-4-5"]
    """
    settings = settings_of(tmp_path, section("mock", "http://127.0.0.1:9/v1") + toml, {"MOCK_KEY": KEY})
    household = LocalInstance(tmp_path, settings=settings, environment={"MOCK_KEY": KEY})
    household.model.rule = lambda _: text_reply("Yes.")
    named = {
        "/new big": "mock/claude-opus-4-5",
        "/new OPUS": "mock/claude-opus-4-5",
        "/new mock/claude-haiku-4-5": "mock/claude-haiku-4-5",
        "/new haiku ": "mock/claude-haiku-4-5",
    }
    async with household.run() as house:
        await say(house, "/think low")
        for command, model in named.items():
            answer = await say(house, command)
            assert (
                answer
                == f"The context was reset, and this conversation now uses {model}. /model default clears the choice."
            )
            session = await only_session(house)
            assert session.options == SessionOptions(model=model, effort="low")
        await say(house, "/model scripted")
        for words in ("claude, are you there?", "4 apples", "scripted replies", "5", "docs/readme.md is empty", "op"):
            asked = await house.send(f"/new {words}", origin=terminal_origin("maria"))
            assert await house.wait_for_answer(asked.envelope) == "The context was reset."
            await house.wait_until_idle()
            assert words in read(household.model.prompts[-1]), "words, and all of them"
            assert (await only_session(house)).options.model == "scripted"
        await say(house, "/new scripted")
        assert len(household.model.prompts) == 6, "alone, the name of a model of the house is one"


@pytest.mark.spec("C13.overrides")
@pytest.mark.parametrize("command", ["/new opus\nplan the day", "/new plan the day"])
async def test_what_a_conversation_has_chosen_outlives_a_fresh_context(tmp_path: Path, command: str) -> None:
    household = household_with(tmp_path)
    async with household.run() as house:
        await say(house, "/verbose on")
        await say(house, "/queue followup")
        await say(house, "/send off", sender="person:owner")
        before = await only_session(house)
        await say(house, command)
        await house.wait_until_idle()
        after = await only_session(house)
        assert (after.id, after.options, after.queue) == (before.id, before.options, before.queue)
        assert "plan the day" in read(household.model.prompts[-1])


async def test_a_file_that_comes_with_new_is_worked_on_in_the_fresh_context(tmp_path: Path) -> None:
    household = household_with(tmp_path)
    async with household.run() as house:
        await say(house, "hello")
        await say(house, "/new", attachments=(PLAN,))
        await house.wait_until_idle()
        told = read(household.model.prompts[-1])
        assert "plan.txt" in told and "hello" not in told


@pytest.mark.spec("C13.greeting")
@pytest.mark.parametrize("greeting", [True, False])
async def test_a_bare_new_is_greeted_where_the_house_wants_it(tmp_path: Path, *, greeting: bool) -> None:
    household = household_with(tmp_path, f"[sessions]\ngreeting = {str(greeting).lower()}")
    async with household.run() as house:
        await say(house, "hello")
        household.model.rule = lambda _: text_reply("Good to see you. What shall we do?")
        assert await say(house, "/new") == "The context was reset."
        await house.wait_until_idle()
        mail = _words_of(await house.list_envelopes_to("maria"))
        if greeting:
            assert mail[-1] == "Good to see you. What shall we do?"
            told = read(household.model.prompts[-1])
            assert GREETING_PROMPT in told and "hello" not in told
        else:
            assert mail[-1] == "The context was reset." and len(household.model.prompts) == 1
        await books_hold(house)


@pytest.mark.spec("C14", "C13.triggers")
@pytest.mark.parametrize("command", ["/new", "/reset", "/reset mind the cat"])
async def test_a_reset_stops_the_run_and_keeps_all_that_was_said(tmp_path: Path, command: str) -> None:
    household = household_with(tmp_path)
    async with desk_house(household) as desk:
        house = desk.house
        _, session = await desk.converse(person("maria"), "My cat is called Mia.")
        household.model.rule = lambda _: text_reply("never", after_s=3600)
        asked = await desk.ask(person("maria"), "envelope.send", to=f"agent:ada/{session}", text="long work")
        await until(lambda: len(household.model.prompts) == 2, "the model to be asked")
        before = await house.list_records(session)
        household.model.rule = lambda _: text_reply("Yes.")
        await desk.converse(person("maria"), command, to=f"agent:ada/{session}")
        assert (await house.wait_for_outcome(asked["envelope"])).outcome is Outcome.CANCELLED
        kept = await house.list_records(session)
        assert kept[: len(before)] == before, "not a record of it is gone"
        (because,) = await resets(house, session)
        assert because == f"requested by person:maria: {command.split()[0]}"
        history = await desk.ask(person("maria"), "session.history", session=session)
        assert "My cat is called Mia." in str(history["records"]), "archived, and readable"
        present = await desk.ask(person("maria"), "session.transcript", session=session)
        assert present["earlier"] and "My cat is called Mia." not in str(present["lines"])
        archived = await desk.ask(person("maria"), "session.transcript", session=session, before=present["begins"])
        assert "My cat is called Mia." in str(archived["lines"])
        assert (await house.get_session(session)).revision == 1
        await desk.converse(person("maria"), "And now?", to=f"agent:ada/{session}")
        assert "Mia" not in read(household.model.prompts[-1])


async def test_status_tells_by_which_rules_it_begins_anew_and_when(tmp_path: Path) -> None:
    toml = '[sessions.reset]\ndaily_at = "4:00"\nidle_minutes = 1440\ncontext_tokens_max = 50000'
    household = household_with(tmp_path, toml, zone=BERLIN)
    async with household.run() as house:
        await say(house, "hello")
        lines = (await say(house, "/status")).splitlines()
        assert "begins-afresh: daily at 04:00, after 1440 minutes without activity, beyond 50,000 tokens" in lines
        assert "next-afresh: 2026-01-06T04:00:00+01:00 (daily)" in lines
        assert "send: as the rules of the server say" in lines
    silent = household_with(tmp_path / "other")
    silent.root.mkdir()
    async with silent.run() as house:
        await say(house, "hello")
        lines = (await say(house, "/status")).splitlines()
        assert "begins-afresh: only on request" in lines and "next-afresh: not automatically" in lines


async def test_without_rules_a_conversation_goes_on_for_years(tmp_path: Path) -> None:
    household = household_with(tmp_path)
    async with household.run() as house:
        await say(house, "hello")
        later(house, days=400)
        await say(house, "hello again")
        assert "hello" in read(household.model.prompts[-1]) and await resets(house) == []


# What goes out


def channel(household: LocalInstance) -> FakeConnector:
    connector = FakeConnector(household.clock)
    household.connectors["quiet"] = connector
    return connector


async def hear(house: LocalServer, connector: FakeConnector, text: str, **kw: Any) -> tuple[Outcome, str]:
    """Say something in a room: how the answer to it ended, and why."""
    receipt = await connector.send_inbound(text, channel=kw.pop("room", "kitchen"), **kw)
    assert receipt is not None
    settled = await house.wait_for_outcome(receipt.envelope)
    assert settled.outcome is Outcome.ANSWERED, "the run happens in any case"
    assert settled.answer is not None
    ending = await house.wait_for_outcome(settled.answer)
    return ending.outcome, ending.because


@pytest.mark.spec("C15")
async def test_what_a_rule_denies_is_kept_with_its_because_and_nobody_outside_hears_it(tmp_path: Path) -> None:
    toml = """
    [sessions.send.rules.quiet-kitchen]
    key_prefix = "channel:quiet:kitch"
    chat_type = "group"
    """
    household = household_with(tmp_path, toml)
    connector = channel(household)
    async with household.run() as house:
        assert await hear(house, connector, "who is there?") == (
            Outcome.REFUSED,
            "not sent: the rule quiet-kitchen matches: deny for chat_type group, key_prefix channel:quiet:kitch "
            "(`sessions.send.rules.quiet-kitchen`)",
        )
        assert (await hear(house, connector, "and here?", room="cellar"))[0] is Outcome.DELIVERED
        alone = EnvelopeContext(chat_type=ChatType.DIRECT)
        assert (await hear(house, connector, "alone", room="kitchenette", context=alone))[0] is Outcome.DELIVERED
        await house.wait_until_idle()
        assert {letter.recipient.rest for letter in connector.delivered_envelopes} == {"cellar", "kitchenette"}
        ((held,),) = await house.execute_sql("SELECT envelope FROM outcomes WHERE outcome = 'refused'")
        told = await house.store.scan(lambda conn: explain(conn, held).format_lines(household.zone))
        assert "the rule quiet-kitchen matches" in told[0]
        assert (await house.get_envelope(held)).text == "Yes.", "not a word of it is lost"
        await hear(house, connector, "still nobody?")
        assert "was not sent: a rule of this server blocks it" in read(household.model.prompts[-1])
        await books_hold(house)


@pytest.mark.spec("C15")
async def test_the_owners_word_in_a_conversation_goes_before_the_rules_and_outlives_a_restart(tmp_path: Path) -> None:
    household = household_with(tmp_path, '[sessions.send]\ndefault = "deny"')
    connector = channel(household)

    async def command(house: LocalServer, text: str, *, trust: Trust = Trust.OWNER) -> str:
        """From the room itself, as its owner or as someone at home here."""
        asked = await house.send(text, sender="channel:quiet:kitchen", trust=trust)
        settled = await house.wait_for_outcome(asked.envelope)
        assert settled.answer is not None
        answer = await house.store.read(lambda conn: envelopes.get(conn, settled.answer or ""))
        assert answer is not None
        assert (await house.wait_for_outcome(answer.id)).outcome is Outcome.DELIVERED, (
            "the house's own words always go out"
        )
        return answer.text

    async with household.run() as house:
        assert (await hear(house, connector, "hello"))[0] is Outcome.REFUSED
        assert (await command(house, "/send on", trust=Trust.PERSON)).startswith("Only the owner")
        assert (await hear(house, connector, "hello"))[0] is Outcome.REFUSED, "nothing was changed"
        assert await command(house, "/send on") == "Sending: on, whatever the rules say."
        assert (await hear(house, connector, "hello"))[0] is Outcome.DELIVERED
    async with household.run() as house:
        assert (await hear(house, connector, "hello"))[0] is Outcome.DELIVERED
        assert (await command(house, "/send maybe")).startswith("Invalid value 'maybe' for /send.")
        assert (await command(house, "/send")).startswith("Sending: on, whatever the rules say.")
        assert (await command(house, "/send off")).startswith("Sending: off")
        assert await hear(house, connector, "hello") == (
            Outcome.REFUSED,
            "not sent: /send off was set in this conversation (`/send`)",
        )
        assert await command(house, "/send inherit") == "Sending: as the rules of the server say."
        assert (await hear(house, connector, "hello"))[1].endswith("(`sessions.send.default`)")
        await books_hold(house)


@pytest.mark.spec("C15")
async def test_the_same_word_by_an_operation_is_the_owners_alone(tmp_path: Path) -> None:
    async with desk_house(household_with(tmp_path)) as desk:
        _, session = await desk.converse(person("maria"), "hello")
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "session.sending", session=session, send="off")
        assert (await desk.house.get_session(session)).options.send is None
        for word, kept in (("off", False), ("on", True), ("inherit", None)):
            said = await desk.ask(person("owner"), "session.sending", session=session, send=word)
            assert said == {"session": session, "send": word}
            assert (await desk.house.get_session(session)).options.send is kept
        shown = await desk.ask(person("maria"), "session.policy", session=session)
        assert (shown["send"], shown["next_at"], shown["refresh"]) == ("inherit", None, None)
