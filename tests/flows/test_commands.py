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
from retinue.domain.envelope import Kind, Outcome
from retinue.domain.errors import Conflict
from retinue.domain.ids import SessionId
from retinue.domain.record import RecordKind
from retinue.domain.run import RunStatus
from retinue.domain.session import Mind, Origin, OriginKind, QueueOverride
from retinue.domain.slash_command import ABORT_WORDS
from retinue.domain.trust import Trust
from retinue.testing.local_instance import House, Household, terminal
from retinue.testing.scripted_model import says

STAFF = (
    Agent(name="ada", model="scripted", description="Keeps the house."),
    Agent(name="bo", model="scripted", description="Cooks."),
    Agent(name="cy", model="scripted", visible=False),
)


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return Household(tmp_path, agents=STAFF)


@pytest.fixture
async def house(household: Household) -> AsyncIterator[House]:
    async with household.open() as opened:
        yield opened
        await opened.quiet()
        await books_hold(opened)


async def post(house: House, text: str, **kw: Any) -> str:
    kw.setdefault("origin", terminal("maria"))
    return (await house.post(text, **kw)).envelope


async def say(house: House, text: str, **kw: Any) -> str:
    return await house.answer_to(await post(house, text, **kw))


async def session_of(house: House, agent: str = "ada") -> SessionId:
    ((id_,),) = await house.sql("SELECT id FROM sessions WHERE agent = :agent", agent=agent)
    return id_


async def busy(house: House) -> str:
    """Something runs that will not end by itself."""
    house.household.model.will_reply(says("too late", after_s=3600))
    envelope = await post(house, "long work")
    await house.eventually(lambda _: len(house.household.model.prompts) or None, what="a run")
    return envelope


async def sent_out(house: House, name: str) -> None:
    """A session below the conversation, with something to do."""
    below = Origin(OriginKind.SUBAGENT, name, parent=await session_of(house))
    await house.post("look it up", sender="house", recipient="agent:bo", origin=below, kind=Kind.SYSTEM)


def prompted(house: House) -> str:
    """The words that the model was asked last."""
    return str(house.household.model.prompts[-1].records[-1].body)


# Only at the doors where people write


@pytest.mark.spec("D80")
@pytest.mark.parametrize("text", ["/reset", "/stop", "stop", "hello /think high"])
@pytest.mark.parametrize(
    ("sender", "kind", "trust"),
    [
        ("agent:bo", Kind.MESSAGE, Trust.AGENT),
        ("schedule:" + "0" * 32, Kind.MESSAGE, Trust.OWNER),
        ("house", Kind.SYSTEM, Trust.PRIVATE),
        ("person:owner", Kind.SYSTEM, Trust.OWNER),
    ],
)
async def test_a_slash_of_an_agent_the_clock_or_the_house_is_plain_words_and_resets_nothing(
    house: House, text: str, sender: str, kind: Kind, trust: Trust
) -> None:
    house.household.model.rule = lambda _: says("Yes.")
    await say(house, "hello")
    session = await session_of(house)
    receipt = await house.post(text, sender=sender, recipient=f"agent:ada/{session}", kind=kind, trust=trust)
    await house.outcome(receipt.envelope)
    assert text in str(house.household.model.prompts[1].records[-1].body)
    records = await house.records(session)
    assert not [record for record in records if record.kind is RecordKind.RESET]
    kept = await house.session(session)
    assert kept.mind == Mind() and kept.context_from == 1
    # The same words at a person's door are carried out.
    if text == "/reset":
        assert await say(house, text) == "A fresh context."


@pytest.mark.spec("C27")
@pytest.mark.parametrize("text", ["tell me /think high about it", "hey /status", "stop"])
async def test_a_strangers_slash_among_words_stays_plain_text(house: House, text: str) -> None:
    house.household.model.rule = lambda _: says("Yes.")
    receipt = await house.post(text, sender="channel:quiet:lobby", trust=Trust.UNTRUSTED)
    await house.outcome(receipt.envelope)
    assert text in prompted(house) and house.household.model.prompts[-1].effort is None


@pytest.mark.parametrize("text", ["/stop", "/think high tell me", "/dance", "/skill weather", "/switch bo hello"])
async def test_a_strangers_command_is_refused_recorded_and_not_answered(house: House, text: str) -> None:
    working = await busy(house)
    receipt = await house.post(text, sender="channel:quiet:lobby", origin=terminal("maria"), trust=Trust.UNTRUSTED)
    settled = await house.outcome(receipt.envelope)
    assert (settled.outcome, settled.answer) == (Outcome.REFUSED, None)
    assert settled.because.startswith("command-not-allowed")
    assert (await house.envelope(working)).status == "claimed", "it stopped nothing"
    assert len(await house.sql("SELECT id FROM sessions")) == 1, "and opened nothing"
    await say(house, "/stop")


# Among words


@pytest.mark.spec("C27")
async def test_a_directive_among_words_is_for_one_message_and_the_model_does_not_read_it(house: House) -> None:
    model = house.household.model
    model.rule = lambda _: says("Yes.")
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
async def test_shortcuts_among_words_are_answered_and_the_rest_goes_on(house: House) -> None:
    house.household.model.rule = lambda _: says("Yes.")
    assert await say(house, "hey /whoami /status what now?", key="k") == "Yes."
    assert "hey what now?" in prompted(house)
    mail = [each.text for each in await house.mail_for("maria")]
    assert mail[0].startswith("You are person:maria") and mail[1].startswith("now: ") and mail[2] == "Yes."
    # A door that sends again gets what it got: nothing is answered twice.
    again = await house.post("hey /whoami /status what now?", key="k", origin=terminal("maria"))
    assert again.duplicate and len(await house.mail_for("maria")) == 3
    with pytest.raises(Conflict):
        await house.post("hey /whoami /status what else?", key="k", origin=terminal("maria"))


async def test_a_directive_beside_a_file_goes_with_it(house: House) -> None:
    house.household.model.rule = lambda _: says("Yes.")
    file = Attachment(name="list.txt", hash="0" * 64, media_type="text/plain", size_bytes=3)
    await say(house, "/think high", attachments=(file,))
    assert house.household.model.prompts[-1].effort == "high" and "list.txt" in prompted(house)
    assert (await house.session(await session_of(house))).mind == Mind()


# Stopping


@pytest.mark.spec("C29")
@pytest.mark.parametrize("word", sorted(ABORT_WORDS))
async def test_a_word_that_stops_does_so_while_something_runs_and_is_a_word_otherwise(house: House, word: str) -> None:
    working = await busy(house)
    waiting = await post(house, "and more")
    assert await say(house, f"{word.capitalize()}!") == "1 run stopped, 1 waiting cleared."
    for envelope in (working, waiting):
        assert (await house.outcome(envelope)).outcome is Outcome.CANCELLED
    await house.quiet()
    house.household.model.will_reply("Yes.")
    assert await say(house, word) == "Yes." and word in prompted(house)


@pytest.mark.spec("C29")
@pytest.mark.parametrize("command", ["/stop", "/abort", "stop"])
async def test_stopping_reaches_subagents_counts_them_and_the_next_turn_is_told(house: House, command: str) -> None:
    model = house.household.model
    await busy(house)
    for name in ("one", "two"):
        model.will_reply(says("too late", after_s=3600))
        await sent_out(house, name)
    await house.eventually(lambda _: len(model.prompts) == 3 or None, what="three runs")
    await post(house, "and more")
    assert await say(house, command) == "1 run stopped, 1 waiting cleared, 2 subagents stopped."
    rows = await house.sql("SELECT status FROM runs")
    assert [row.status for row in rows] == [RunStatus.CANCELLED] * 3
    await house.quiet()
    model.will_reply("Back.")
    await say(house, "go on")
    context = str([record.body for record in model.prompts[-1].records])
    assert f"This run was cancelled by person:maria: /{command.removeprefix('/')}." in context


@pytest.mark.spec("C29")
async def test_a_bare_word_stops_subagents_of_a_conversation_that_rests(house: House) -> None:
    model = house.household.model
    model.will_reply("Yes.", says("too late", after_s=3600))
    await say(house, "hello")
    await sent_out(house, "one")
    await house.eventually(lambda _: len(model.prompts) == 2 or None, what="a subagent at work")
    assert await say(house, "stop") == "0 runs stopped, 0 waiting cleared, 1 subagent stopped."


# How a conversation stands


@pytest.mark.spec("C28.status")
async def test_status_says_how_this_conversation_stands_and_not_another(house: House) -> None:
    house.household.model.rule = lambda _: says("Yes.")
    await say(house, "hello")
    await say(house, "/think high /verbose on /queue steer cap:3")
    status = dict(line.split(": ", 1) for line in (await say(house, "/status")).splitlines())
    assert (status["agent"], status["run"], status["waiting-envelopes"]) == ("ada", "none", "0")
    assert (status["effort"], status["verbose"]) == ("high", "on")
    assert status["queue"] == "steer debounce:0s cap:3 drop:refuse"
    assert status["used"].startswith("10 tokens in, 5 out") and status["context"].startswith("about ")
    assert status["asks-now"].startswith("scripted")
    other = dict(line.split(": ", 1) for line in (await say(house, "/status", recipient="agent:bo")).splitlines())
    assert (other["agent"], other["effort"], other["verbose"]) == ("bo", "as the model would have it", "off")
    assert other["used"].startswith("0 tokens in")


@pytest.mark.parametrize(("command", "words"), [("/commands", "/switch AGENT"), ("/id", "You are person:maria")])
async def test_other_names_of_commands_do_the_same(house: House, command: str, words: str) -> None:
    assert words in await say(house, command)


async def test_the_staff_is_listed_without_those_who_are_hidden(house: House) -> None:
    assert (await say(house, "/agents")).splitlines() == [
        "* ada: Keeps the house.",
        "  bo: Cooks.",
        "Go on with another one: /switch AGENT [WORDS].",
    ]


# The queue


async def test_the_queue_is_set_by_words_and_undone(house: House) -> None:
    assert await say(house, "/queue") == "Queue: collect debounce:0s cap:20 drop:refuse. /queue default undoes."
    told = await say(house, "/queue steer-backlog debounce:2s cap:25 drop:summarize")
    assert told == "Queue: steer-backlog debounce:2s cap:25 drop:summarize."
    assert await say(house, "/queue drop:old") == "Queue: steer-backlog debounce:2s cap:25 drop:oldest."
    assert await say(house, "/queue reset") == "Queue: collect debounce:0s cap:20 drop:refuse."
    assert (await house.session(await session_of(house))).queue == QueueOverride()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sideways", "There is no queue mode 'sideways'."),
        ("steer cap:many", "A cap is a number from 0 to 1,000, and 'many' is none."),
        ("cap:-1", "A cap is a number"),
        ("drop:all", "What is dropped is one of: old, new, "),
        ("debounce:2h", "A debounce is a time such as 2s or 500ms, up to 60s, and '2h' is none."),
        ("debounce:61s", "A debounce is a time"),
    ],
)
async def test_a_queue_that_cannot_be_is_said_and_changes_nothing(house: House, words: str, said: str) -> None:
    assert (await say(house, f"/queue {words}")).startswith(said)
    assert (await house.session(await session_of(house))).queue == QueueOverride()


async def test_mail_waits_for_more_of_it_until_none_has_come_for_so_long_as_the_queue_says(house: House) -> None:
    clock, model = house.household.clock, house.household.model
    await say(house, "/queue debounce:10s")
    model.will_reply(says("First.", after_s=5))
    first = await post(house, "one")
    await house.eventually(lambda _: len(model.prompts) == 1 or None, what="the first run")
    two = await post(house, "two")
    await clock.advance(timedelta(seconds=5))
    assert await house.answer_to(first) == "First."
    await house.quiet()
    assert (await house.envelope(two)).status == "pending", "it waits, although nothing runs"
    three = await post(house, "three")
    await house.quiet()
    await clock.advance(timedelta(seconds=9))
    await house.quiet()
    assert (await house.envelope(two)).status == "pending", "more has come since"
    model.will_reply("Both.")
    await clock.advance(timedelta(seconds=1))
    assert [await house.answer_to(each) for each in (two, three)] == ["Both.", "Both."]
    assert "two" in prompted(house) and "three" in prompted(house)


async def test_mail_that_waits_for_more_is_found_again_after_a_restart(household: Household) -> None:
    async with household.open() as house:
        await say(house, "/queue debounce:10s")
        household.model.will_reply(says("First.", after_s=5))
        first = await post(house, "one")
        await house.eventually(lambda _: len(household.model.prompts) == 1 or None, what="the first run")
        two = await post(house, "two")
        await household.clock.advance(timedelta(seconds=5))
        await house.answer_to(first)
        await house.quiet()
    await household.clock.advance(timedelta(seconds=10))
    household.model.will_reply("Second.")
    async with household.open() as house:
        assert await house.answer_to(two) == "Second."
        await books_hold(house)


# On the other database


async def test_commands_do_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    household = Household(tmp_path, agents=STAFF, url=postgres_url)
    household.model.rule = lambda _: says("Yes.")
    async with household.open() as house:
        await say(house, "hello /think high")
        assert household.model.prompts[-1].effort == "high"
        assert "calls: 1" in (await say(house, "/usage")).splitlines()
        assert "effort: low" in (await say(house, "/think low /status")).splitlines()
        assert (await say(house, "/queue cap:3 debounce:1s")).startswith("Queue: collect debounce:1s cap:3")
        assert (await say(house, "/switch bo hello")).startswith("You go on with bo")
        await house.quiet()
        assert (await say(house, "/switch back", recipient="agent:bo")).startswith("You go on with ada")
        assert await say(house, "/stop") == "Nothing was running here, and nothing waited."
        await house.quiet()
        await books_hold(house)
