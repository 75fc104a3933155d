"""What people ask of the house in a conversation: where it is heard, from whom, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import books_hold

from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeKind, Outcome
from retinue.domain.errors import Conflict
from retinue.domain.ids import SessionId
from retinue.domain.record import RecordKind
from retinue.domain.run import RunStatus
from retinue.domain.session import Origin, OriginKind, QueueOverride, SessionOptions
from retinue.domain.slash_command import ABORT_WORDS
from retinue.domain.trust import Trust
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply

STAFF = (
    Agent(name="ada", model="scripted", description="Keeps the house."),
    Agent(name="bo", model="scripted", description="Cooks."),
    Agent(name="cy", model="scripted", visible=False),
)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path, agents=STAFF)


@pytest.fixture
async def house(household: LocalInstance) -> AsyncIterator[LocalServer]:
    async with household.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await books_hold(opened)


async def post(house: LocalServer, text: str, **kw: Any) -> str:
    kw.setdefault("origin", terminal_origin("maria"))
    return (await house.send(text, **kw)).envelope


async def say(house: LocalServer, text: str, **kw: Any) -> str:
    return await house.wait_for_answer(await post(house, text, **kw))


async def session_of(house: LocalServer, agent: str = "ada") -> SessionId:
    ((id_,),) = await house.execute_sql("SELECT id FROM sessions WHERE agent = :agent", agent=agent)
    return id_


async def busy(house: LocalServer) -> str:
    """Something runs that will not end by itself."""
    house.instance.model.will_reply(text_reply("too late", after_s=3600))
    envelope = await post(house, "long work")
    await house.wait_for(lambda _: len(house.instance.model.prompts) or None, what="a run")
    return envelope


async def sent_out(house: LocalServer, name: str) -> None:
    """A session below the conversation, with something to do."""
    below = Origin(OriginKind.SUBAGENT, name, parent=await session_of(house))
    await house.send("look it up", sender="house", recipient="agent:bo", origin=below, kind=EnvelopeKind.SYSTEM)


def prompted(house: LocalServer) -> str:
    """The words that the model was asked last."""
    return str(house.instance.model.prompts[-1].records[-1].body)


# Only at the doors where people write


@pytest.mark.spec("D80")
@pytest.mark.parametrize("text", ["/reset", "/stop", "stop", "hello /think high"])
@pytest.mark.parametrize(
    ("sender", "kind", "trust"),
    [
        ("agent:bo", EnvelopeKind.MESSAGE, Trust.AGENT),
        ("schedule:" + "0" * 32, EnvelopeKind.MESSAGE, Trust.OWNER),
        ("house", EnvelopeKind.SYSTEM, Trust.PRIVATE),
        ("person:owner", EnvelopeKind.SYSTEM, Trust.OWNER),
    ],
)
async def test_a_slash_of_an_agent_the_clock_or_the_house_is_plain_words_and_resets_nothing(
    house: LocalServer, text: str, sender: str, kind: EnvelopeKind, trust: Trust
) -> None:
    house.instance.model.rule = lambda _: text_reply("Yes.")
    await say(house, "hello")
    session = await session_of(house)
    receipt = await house.send(text, sender=sender, recipient=f"agent:ada/{session}", kind=kind, trust=trust)
    await house.wait_for_outcome(receipt.envelope)
    assert text in str(house.instance.model.prompts[1].records[-1].body)
    records = await house.list_records(session)
    assert not [record for record in records if record.kind is RecordKind.RESET]
    kept = await house.get_session(session)
    assert kept.options == SessionOptions() and kept.context_start_seq == 1
    # The same words at a person's door are carried out.
    if text == "/reset":
        assert await say(house, text) == "The context was reset."


@pytest.mark.spec("C27")
@pytest.mark.parametrize("text", ["tell me /think high about it", "hey /status", "stop"])
async def test_a_strangers_slash_among_words_stays_plain_text(house: LocalServer, text: str) -> None:
    house.instance.model.rule = lambda _: text_reply("Yes.")
    receipt = await house.send(text, sender="channel:quiet:lobby", trust=Trust.UNTRUSTED)
    await house.wait_for_outcome(receipt.envelope)
    assert text in prompted(house) and house.instance.model.prompts[-1].effort is None


@pytest.mark.parametrize("text", ["/stop", "/think high tell me", "/dance", "/skill weather", "/switch bo hello"])
async def test_a_strangers_command_is_refused_recorded_and_not_answered(house: LocalServer, text: str) -> None:
    working = await busy(house)
    receipt = await house.send(
        text, sender="channel:quiet:lobby", origin=terminal_origin("maria"), trust=Trust.UNTRUSTED
    )
    settled = await house.wait_for_outcome(receipt.envelope)
    assert (settled.outcome, settled.answer) == (Outcome.REFUSED, None)
    assert settled.because.startswith("command-not-allowed")
    assert (await house.get_envelope(working)).status == "claimed", "it stopped nothing"
    assert len(await house.execute_sql("SELECT id FROM sessions")) == 1, "and opened nothing"
    await say(house, "/stop")


# Among words


@pytest.mark.spec("C27")
async def test_a_directive_among_words_is_for_one_message_and_the_model_does_not_read_it(house: LocalServer) -> None:
    model = house.instance.model
    model.rule = lambda _: text_reply("Yes.")
    await say(house, "tell me /think high about it")
    assert model.prompts[-1].effort == "high" and "tell me about it" in prompted(house)
    assert "/think" not in prompted(house)
    await say(house, "and more")
    assert model.prompts[-1].effort is None
    await say(house, "/think low")
    await say(house, "and more")
    assert model.prompts[-1].effort == "low", "alone, it is kept"
    await say(house, "/think off again?")
    assert model.prompts[-1].effort == "none" and "again?" in prompted(house), "a message goes before its session"
    await say(house, "what does /think mean, and /model nobody/here?")
    assert "what does /think mean, and /model nobody/here?" in prompted(house)


@pytest.mark.spec("C27", "C28.whoami")
async def test_shortcuts_among_words_are_answered_and_the_rest_goes_on(house: LocalServer) -> None:
    house.instance.model.rule = lambda _: text_reply("Yes.")
    assert await say(house, "hey /whoami /status what now?", key="k") == "Yes."
    assert "hey what now?" in prompted(house)
    mail = [each.text for each in await house.list_envelopes_to("maria")]
    assert mail[0].startswith("You are person:maria") and mail[1].startswith("now: ") and mail[2] == "Yes."
    # A door that sends again gets what it got: nothing is answered twice.
    again = await house.send("hey /whoami /status what now?", key="k", origin=terminal_origin("maria"))
    assert again.duplicate and len(await house.list_envelopes_to("maria")) == 3
    with pytest.raises(Conflict):
        await house.send("hey /whoami /status what else?", key="k", origin=terminal_origin("maria"))


async def test_a_directive_beside_a_file_goes_with_it(house: LocalServer) -> None:
    house.instance.model.rule = lambda _: text_reply("Yes.")
    file = Attachment(name="list.txt", hash="0" * 64, media_type="text/plain", size_bytes=3)
    await say(house, "/think high", attachments=(file,))
    assert house.instance.model.prompts[-1].effort == "high" and "list.txt" in prompted(house)
    assert (await house.get_session(await session_of(house))).options == SessionOptions()


# Stopping


@pytest.mark.spec("C29")
@pytest.mark.parametrize("word", sorted(ABORT_WORDS))
async def test_a_word_that_stops_does_so_while_something_runs_and_is_a_word_otherwise(
    house: LocalServer, word: str
) -> None:
    working = await busy(house)
    waiting = await post(house, "and more")
    assert await say(house, f"{word.capitalize()}!") == "1 run stopped, 1 waiting cleared."
    for envelope in (working, waiting):
        assert (await house.wait_for_outcome(envelope)).outcome is Outcome.CANCELLED
    await house.wait_until_idle()
    house.instance.model.will_reply("Yes.")
    assert await say(house, word) == "Yes." and word in prompted(house)


@pytest.mark.spec("C29")
@pytest.mark.parametrize("command", ["/stop", "/abort", "stop"])
async def test_stopping_reaches_subagents_counts_them_and_the_next_turn_is_told(
    house: LocalServer, command: str
) -> None:
    model = house.instance.model
    await busy(house)
    for name in ("one", "two"):
        model.will_reply(text_reply("too late", after_s=3600))
        await sent_out(house, name)
    await house.wait_for(lambda _: len(model.prompts) == 3 or None, what="three runs")
    await post(house, "and more")
    assert await say(house, command) == "1 run stopped, 1 waiting cleared, 2 subagents stopped."
    rows = await house.execute_sql("SELECT status FROM runs")
    assert [row.status for row in rows] == [RunStatus.CANCELLED] * 3
    await house.wait_until_idle()
    model.will_reply("Back.")
    await say(house, "go on")
    context = str([record.body for record in model.prompts[-1].records])
    assert f"This run was cancelled by person:maria: /{command.removeprefix('/')}." in context


@pytest.mark.spec("C29")
async def test_a_bare_word_stops_subagents_of_a_conversation_that_rests(house: LocalServer) -> None:
    model = house.instance.model
    model.will_reply("Yes.", text_reply("too late", after_s=3600))
    await say(house, "hello")
    await sent_out(house, "one")
    await house.wait_for(lambda _: len(model.prompts) == 2 or None, what="a subagent at work")
    assert await say(house, "stop") == "0 runs stopped, 0 waiting cleared, 1 subagent stopped."


# How a conversation stands


@pytest.mark.spec("C28.status")
async def test_status_says_how_this_conversation_stands_and_not_another(house: LocalServer) -> None:
    house.instance.model.rule = lambda _: text_reply("Yes.")
    await say(house, "hello")
    await say(house, "/think high /verbose on /queue steer cap:3")
    status = dict(line.split(": ", 1) for line in (await say(house, "/status")).splitlines())
    assert (status["agent"], status["run"], status["waiting-envelopes"]) == ("ada", "none", "0")
    assert (status["effort"], status["verbose"]) == ("high", "on")
    assert status["queue"] == "steer debounce:0s cap:3 drop:refuse"
    assert status["used"].startswith("10 tokens in, 5 out") and status["context"].startswith("about ")
    assert status["asks-now"].startswith("scripted")
    other = dict(line.split(": ", 1) for line in (await say(house, "/status", recipient="agent:bo")).splitlines())
    assert (other["agent"], other["effort"], other["verbose"]) == ("bo", "the default of the model", "off")
    assert other["used"].startswith("0 tokens in")


@pytest.mark.parametrize(("command", "words"), [("/commands", "/switch AGENT"), ("/id", "You are person:maria")])
async def test_other_names_of_commands_do_the_same(house: LocalServer, command: str, words: str) -> None:
    assert words in await say(house, command)


async def test_the_staff_is_listed_without_those_who_are_hidden(house: LocalServer) -> None:
    assert (await say(house, "/agents")).splitlines() == [
        "* ada: Keeps the house.",
        "  bo: Cooks.",
        "Switch to another one: /switch AGENT [TEXT].",
    ]


# The queue


async def test_the_queue_is_set_by_words_and_undone(house: LocalServer) -> None:
    assert await say(house, "/queue") == "Queue: collect debounce:0s cap:20 drop:refuse. /queue default clears these."
    told = await say(house, "/queue steer-backlog debounce:2s cap:25 drop:summarize")
    assert told == "Queue: steer-backlog debounce:2s cap:25 drop:summarize."
    assert await say(house, "/queue drop:old") == "Queue: steer-backlog debounce:2s cap:25 drop:oldest."
    assert await say(house, "/queue reset") == "Queue: collect debounce:0s cap:20 drop:refuse."
    assert (await house.get_session(await session_of(house))).queue == QueueOverride()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sideways", "Invalid queue mode 'sideways'."),
        ("steer cap:many", "Invalid cap 'many'. It must be a number from 0 to 1,000."),
        ("cap:-1", "Invalid cap '-1'. It must be a number"),
        ("drop:all", "Invalid drop 'all'. It must be one of: old, new, "),
        ("debounce:2h", "Invalid debounce '2h'. It must be a time such as 2s or 500ms, up to 60s."),
        ("debounce:61s", "Invalid debounce '61s'. It must be a time"),
    ],
)
async def test_a_queue_that_cannot_be_is_said_and_changes_nothing(house: LocalServer, words: str, said: str) -> None:
    assert (await say(house, f"/queue {words}")).startswith(said)
    assert (await house.get_session(await session_of(house))).queue == QueueOverride()


async def test_mail_waits_for_more_of_it_until_none_has_come_for_so_long_as_the_queue_says(house: LocalServer) -> None:
    clock, model = house.instance.clock, house.instance.model
    await say(house, "/queue debounce:10s")
    model.will_reply(text_reply("First.", after_s=5))
    first = await post(house, "one")
    await house.wait_for(lambda _: len(model.prompts) == 1 or None, what="the first run")
    two = await post(house, "two")
    await clock.advance(timedelta(seconds=5))
    assert await house.wait_for_answer(first) == "First."
    await house.wait_until_idle()
    assert (await house.get_envelope(two)).status == "pending", "it waits, although nothing runs"
    three = await post(house, "three")
    await house.wait_until_idle()
    await clock.advance(timedelta(seconds=9))
    await house.wait_until_idle()
    assert (await house.get_envelope(two)).status == "pending", "more has come since"
    model.will_reply("Both.")
    await clock.advance(timedelta(seconds=1))
    assert [await house.wait_for_answer(each) for each in (two, three)] == ["Both.", "Both."]
    assert "two" in prompted(house) and "three" in prompted(house)


async def test_mail_that_waits_for_more_is_found_again_after_a_restart(household: LocalInstance) -> None:
    async with household.run() as house:
        await say(house, "/queue debounce:10s")
        household.model.will_reply(text_reply("First.", after_s=5))
        first = await post(house, "one")
        await house.wait_for(lambda _: len(household.model.prompts) == 1 or None, what="the first run")
        two = await post(house, "two")
        await household.clock.advance(timedelta(seconds=5))
        await house.wait_for_answer(first)
        await house.wait_until_idle()
    await household.clock.advance(timedelta(seconds=10))
    household.model.will_reply("Second.")
    async with household.run() as house:
        assert await house.wait_for_answer(two) == "Second."
        await books_hold(house)


# On the other database


async def test_commands_do_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    household = LocalInstance(tmp_path, agents=STAFF, url=postgres_url)
    household.model.rule = lambda _: text_reply("Yes.")
    async with household.run() as house:
        await say(house, "hello /think high")
        assert household.model.prompts[-1].effort == "high"
        assert "calls: 1" in (await say(house, "/usage")).splitlines()
        assert "effort: low" in (await say(house, "/think low /status")).splitlines()
        assert (await say(house, "/queue cap:3 debounce:1s")).startswith("Queue: collect debounce:1s cap:3")
        assert (await say(house, "/switch bo hello")).startswith("You are now talking to bo")
        await house.wait_until_idle()
        assert (await say(house, "/switch back", recipient="agent:bo")).startswith("You are now talking to ada")
        assert await say(house, "/stop") == "Nothing was running or waiting here."
        await house.wait_until_idle()
        await books_hold(house)
