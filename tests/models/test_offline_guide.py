"""The guide, driven through a whole house: each ability is shown by what a person sees of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinue.cli.parser import parse_arguments
from retinue.domain import address
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, NO_CONTEXT, Envelope, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import DeltaKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.model import ModelFailed
from retinue.domain.record import Note, Record, RecordBody, Reply, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.domain.trust import Trust
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ToolCallChunk
from retinue.models.offline_guide import (
    ABILITIES,
    COUNT_MAX,
    PIECES_MAX,
    OfflineGuide,
    split_envelope_texts,
    split_pieces,
)
from retinue.runners.turn_input import render_note, render_turn
from retinue.store.envelopes import envelopes
from retinue.testing.fake_clock import START, FakeClock
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import ToolContext, schema_of
from retinue.tools.files import ReadTool

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "offline-guide.md"
HONEST = "not a language model"
GUIDE = Agent(name="guide", model="guide")
CLERK = Agent(name="clerk", model="guide", tools=ToolRules(ask=("append_line",)))


def household_at(root: Path, *agents: Agent, pause_s: float = 0, **kw: Any) -> LocalInstance:
    clock = FakeClock()
    return LocalInstance(
        root, clock=clock, agents=agents or (GUIDE, CLERK), models=(OfflineGuide(clock, pause_s=pause_s),), **kw
    )


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return household_at(tmp_path)


async def say(house: LocalServer, text: str, *, to: str = "agent:guide") -> str:
    receipt = await house.send(text, recipient=to)
    return await house.wait_for_answer(receipt.envelope)


async def pass_time_until_settled(house: LocalServer, envelope: str) -> None:
    while await house.store.scan(lambda conn: envelopes.get_outcome(conn, envelope)) is None:
        await house.instance.clock.advance(1)


async def asked(house: LocalServer) -> str:
    """Wait for a question, and name the approval it is about."""
    statement = "select id from approvals where state = 'open'"
    found = await wait_until(lambda: house.execute_sql(statement), "a question is put", poll_s=0.005)
    return found[0].id


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class Stuck:
    """A tool that takes forever and must not be repeated."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="stuck", description="Never ends.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


# --- it answers, and says what it is ---


@pytest.mark.parametrize("words", ["hello", "Who are you?", "are you an AI?", "help", "What is the meaning of life?"])
async def test_it_says_that_it_is_a_script(household: LocalInstance, words: str) -> None:
    async with household.run() as house:
        assert HONEST in await say(house, words)


GREETED = ["Hi!", "hello hello", "Hey there.", "good afternoon", "HELLO, GUIDE"]
ASKED_FIRST = [
    "hello, who are you?",
    "Who are you",
    "hi who r u??",
    "Hey! What are you, exactly?",
    "Good morning, are you a robot?",
    "What's your name?",
    "Hi! What can you do?",
    "hey, what can you do for me?",
    "what can i try here",
    "Show me something cool",
    "What is this?",
    "Hello there. What\u2019s this all for?",
    "whats retinue",
    "where am I?",
    "How do I get started?",
    "how can I start here?",
    "hi, how to use this",
    "Could you help me get started, please?",
    "I'm new here!",
    "help me",
    "Hello, can you help me?",
    "I need help!",
]


@pytest.mark.parametrize("words", GREETED + ASKED_FIRST)
def test_a_first_sentence_gets_what_it_is_what_to_try_and_how_to_connect_a_model(words: str) -> None:
    answer = said(words)
    assert HONEST in answer
    named = [each for each in ("count to 20", "count to 50", "status", "how does it work") if f"`{each}`" in answer]
    assert len(named) >= 2, "there is something to try at once"
    assert "`retinue credential add anthropic" in answer and "`ANTHROPIC_API_KEY`" in answer


@pytest.mark.parametrize("words", ["count to 20", "status", "how does it work", "help", "connect a real model"])
def test_what_it_proposes_works(words: str) -> None:
    assert f"`{words}`" in said("Book me a flight to Lisbon") or f"`{words}`" in said("hello")
    assert "do not know" not in said(words)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("Hello, count to 3", "1 2 3 Done."),
        ("hi guide! please echo good day", "good day"),
        ("echo hello, who are you?", "hello, who are you?"),
        ("echo what is this", "what is this"),
        ("remember that I am new here", "It is stored in this session. To see it again, write: `what did I say?`"),
        ("thank you", "You are welcome."),
    ],
)
def test_a_command_keeps_its_meaning_with_and_without_a_greeting(words: str, answer: str) -> None:
    assert said(words) == answer


@pytest.mark.parametrize("words", ["hello", "how do I start", "connect a real model"])
def test_every_command_that_it_names_for_the_terminal_is_one(words: str) -> None:
    named = re.findall(r"`retinue (.+?)`", said(words))
    assert named
    for each in named:
        assert parse_arguments(each.split()).command in ("credential add", "chat", "agent register", "models")


@pytest.mark.parametrize(
    "words",
    ["connect a real model", "How do I add my OpenAI key?", "How do I use another model?", "where does my API key go"],
)
async def test_it_says_how_a_real_model_is_connected(household: LocalInstance, words: str) -> None:
    async with household.run() as house:
        answer = await say(house, words)
        assert "ANTHROPIC_API_KEY" in answer


async def test_words_it_does_not_know_get_a_short_answer_with_what_it_does_know(household: LocalInstance) -> None:
    async with household.run() as house:
        answer = await say(house, "Book me a flight to Lisbon")
        assert "“Book me a flight to Lisbon”" in answer
        assert all(f"`{each}`" in answer for each in ("count to 20", "status", "how does it work", "help"))
        assert len(answer) < 300


async def test_help_lists_all_that_it_can_do(household: LocalInstance) -> None:
    async with household.run() as house:
        shown = await say(house, "help")
    assert [a.example for a in ABILITIES if a.example and f"- `{a.example}`: {a.description}" not in shown] == []


@pytest.mark.parametrize("words", [a.example for a in ABILITIES if a.example and a.example != "fail"])
def test_it_understands_every_line_of_its_help(words: str) -> None:
    assert "do not know" not in said(words)


@pytest.mark.parametrize(
    "words", ["echo Good day!", "Echo  Good day!", "please echo Good day!", "Could you please, ECHO: Good day!"]
)
async def test_case_spaces_and_courtesy_do_not_matter(household: LocalInstance, words: str) -> None:
    async with household.run() as house:
        assert await say(house, words) == "Good day!"


@pytest.mark.parametrize(
    "words", ["count to 3", "Count 3.", "COUNT UP TO 3!!", "guide, count to 3, please", " count 3 "]
)
def test_punctuation_does_not_matter(words: str) -> None:
    assert said(words) == "1 2 3 Done."


# --- it streams, thinks, waits, fails and keeps silent ---


async def test_it_counts_in_a_stream_of_small_pieces(household: LocalInstance) -> None:
    async with household.run() as house:
        watcher = house.events.subscribe(None)
        answer = await say(house, "count to 12")
        assert answer == "1 2 3 4 5 6 7 8 9 10 11 12 Done."
        told = [delta.text for delta in watcher.deltas if delta.kind is DeltaKind.TEXT]
        assert told == [f"{number} " for number in range(1, 13)] + ["Done."]


def test_it_says_where_it_stops_counting() -> None:
    assert said("count to 1000000").endswith(f"{COUNT_MAX} I stop here: I count to {COUNT_MAX} at most.")
    assert said("count to " + "9" * 5000) == said("count to 1000000")


async def test_it_takes_its_time_between_words(tmp_path: Path) -> None:
    household = household_at(tmp_path, pause_s=0.1)
    async with household.run() as house:
        receipt = await house.send("echo one two three", recipient="agent:guide")
        await pass_time_until_settled(house, receipt.envelope)
        assert household.clock.now() - START >= timedelta(seconds=0.3)


async def test_a_count_cut_off_by_a_crash_is_answered_whole_and_once(tmp_path: Path) -> None:
    household = household_at(tmp_path, pause_s=1)
    async with household.run() as house:
        receipt = await house.send("count to 10", recipient="agent:guide")
        while not any("3" in partial.text for partial in house.events.partial_replies()):
            await household.clock.advance(1)
        house.crash()
    async with household.run() as house:
        await pass_time_until_settled(house, receipt.envelope)
        assert [mail.text for mail in await house.list_envelopes_to("maria")] == ["1 2 3 4 5 6 7 8 9 10 Done."]


async def test_its_thoughts_come_beside_the_answer(household: LocalInstance) -> None:
    async with household.run() as house:
        watcher = house.events.subscribe(None)
        receipt = await house.send("think about tea", recipient="agent:guide")
        answer = await house.wait_for_answer(receipt.envelope)
        [reply] = [r.body for r in await house.list_records(receipt.session) if isinstance(r.body, Reply)]
        assert "think about tea" in reply.thinking
        assert "".join(d.text for d in watcher.deltas if d.kind is DeltaKind.THINKING) == reply.thinking
        assert "I thought about tea" in answer
        assert reply.thinking not in answer


@pytest.mark.parametrize(("words", "seconds"), [("slow 10", 10), ("Be slow for 2.5 seconds", 2.5), ("slow 3s", 3)])
async def test_it_is_as_slow_as_it_is_told(household: LocalInstance, words: str, seconds: float) -> None:
    async with household.run() as house:
        receipt = await house.send(words, recipient="agent:guide")
        await pass_time_until_settled(house, receipt.envelope)
        assert await house.wait_for_answer(receipt.envelope) == f"I waited {seconds:g} seconds before this answer."
        assert household.clock.now() - START >= timedelta(seconds=seconds)


async def test_it_fails_on_request_and_the_conversation_goes_on(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("Please fail!", recipient="agent:guide")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        [notice] = await house.list_envelopes_to("maria")
        assert "the guide failed, as you asked [model.requested_failure]" in notice.text
        assert await say(house, "echo still here") == "still here"


async def test_it_keeps_silent_on_request(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("be silent", recipient="agent:guide")
        settled = await house.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await house.list_envelopes_to("maria") == []


async def test_envelopes_that_came_together_are_each_answered(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await house.send("slow 5", recipient="agent:guide")
        await house.wait_for(lambda _: house.engine.active_lanes == 1, what="the first run")
        others = [await house.send(f"echo {word}", recipient="agent:guide") for word in ("one", "two", "three")]
        await pass_time_until_settled(house, first.envelope)
        assert await house.wait_for_answer(others[-1].envelope) == "one\n\ntwo\n\nthree"
        assert len(await house.list_envelopes_to("maria")) == 2


# --- it remembers ---


async def test_it_says_what_was_said_earlier_after_a_restart_too(household: LocalInstance) -> None:
    async with household.run() as house:
        assert "no earlier messages" in await say(house, "What did I say?")
        await say(house, "remember that the key is\nunder the mat")
    async with household.run() as house:
        assert await say(house, "remember") == (
            "Your earlier messages:\n- What did I say?\n- remember that the key is under the mat"
        )


async def test_after_a_reset_it_remembers_nothing(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("echo secret", recipient="agent:guide")
        await house.wait_for_answer(receipt.envelope)
        assert receipt.session is not None
        await house.engine.reset(receipt.session, by="maria")
        assert await say(house, "remember") == "There are no earlier messages in this context."


# --- it uses tools ---


async def test_it_calls_a_tool_and_reads_back_what_it_said(household: LocalInstance) -> None:
    async with household.run() as house:
        answer = await say(house, "Status?")
        assert answer.startswith("`session_status` returned:\n")
        assert "model: guide" in answer


async def test_it_reads_a_file_of_its_home(household: LocalInstance) -> None:
    async with household.run() as house:
        assert await say(house, "read SOUL.md") == "`read` returned nothing."
        (household.root / "agents" / "guide" / "SOUL.md").write_text("Be kind.\n")
        assert await say(house, "Please read SOUL.md.") == "`read` returned:\nBe kind."
        assert "`read` failed: no file or folder 'x.md'" in await say(house, "read x.md")


async def test_any_tool_can_be_called_with_json_or_with_plain_words(household: LocalInstance) -> None:
    async with household.run() as house:
        assert await say(house, 'call append_line {"text": "one; and two"}') == "`append_line` returned:\nappended"
        assert await say(house, "Call append_line three and four") == "`append_line` returned:\nappended"
    lines = household.witness_file.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["one; and two", "three and four"]


async def test_several_tools_are_called_at_once(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send(
            'call session_status and append_line {"text": "x"}; read SOUL.md', recipient="agent:guide"
        )
        answer = await house.wait_for_answer(receipt.envelope)
        called, _ = [r.body for r in await house.list_records(receipt.session) if isinstance(r.body, Reply)]
        assert [call.tool for call in called.calls] == ["session_status", "append_line", "read"]
        assert called.text == "I call `session_status` and `append_line` and `read`."
        assert [part.partition("`")[2].partition("`")[0] for part in answer.split("\n\n")] == [
            "session_status",
            "append_line",
            "read",
        ]


async def test_it_lists_the_tools_that_are_offered(tmp_path: Path) -> None:
    rules = ToolRules(deny=("append_line",))
    async with household_at(tmp_path, Agent(name="guide", model="guide", tools=rules)).run() as house:
        listed = await say(house, "tools")
        assert "- `read`: Read a file in your workspace" in listed
        assert "append_line" not in listed
        answer = await say(house, "call append_line hello")
        assert answer.startswith("`append_line` failed: Not allowed: the agent guide denies 'append_line'")


async def test_a_tool_that_does_not_exist_is_told_as_the_house_tells_it(household: LocalInstance) -> None:
    async with household.run() as house:
        assert "failed: No tool named 'fly'. Your tools are: session_status" in await say(house, "call fly to Rome")


@pytest.mark.parametrize(
    "arguments",
    ["{path: SOUL.md}", '{"path": NaN}', '{"path": 1e999}', '{"path": "\\ud800"}', '{"a":' * 100_000, "{", ""],
)
def test_arguments_that_cannot_be_kept_are_not_called_with(arguments: str) -> None:
    chunks = replies(prompt_of(f"call read {arguments}".strip() if arguments else "call"))
    assert [c for c in chunks if isinstance(c, ToolCallChunk)] == []
    assert 'Write them like this: `call read {"path": "SOUL.md"}`' in text_of(chunks)


# --- it asks, and says truthfully what came of it ---


async def test_a_call_that_must_be_allowed_is_done_once_it_is(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("ask append_line hello", recipient="agent:clerk")
        approval = await asked(house)
        assert not household.witness_file.exists()
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(receipt.envelope) == "`append_line` returned:\nappended"
        assert household.witness_file.read_text().endswith(" hello\n")


async def test_a_call_that_is_denied_is_told_as_not_done(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("ask append_line hello", recipient="agent:clerk")
        approval = await asked(house)
        await house.engine.answer_approval(approval, allow=False, by=boss_principal("maria"))
        answer = await house.wait_for_answer(receipt.envelope)
        assert answer == f"`append_line` was not done: approval {approval[:8]} is denied."
        assert not household.witness_file.exists()


@pytest.mark.parametrize("allow", [True, False])
async def test_a_call_that_still_waits_is_told_as_waiting_and_its_late_decision_is_heard(
    household: LocalInstance, allow: bool
) -> None:
    async with household.run() as house:
        first = await house.send("ask append_line hello", recipient="agent:clerk")
        approval = await asked(house)
        assert await say(house, "echo meanwhile", to="agent:clerk") == "meanwhile"
        waiting = await house.wait_for_answer(first.envelope)
        assert waiting.startswith(f"`append_line` is not done yet: it waits for approval {approval[:8]}.")
        await house.engine.answer_approval(approval, allow=allow, by=boss_principal("maria"))
        await house.wait_until_idle()
        heard = (await house.list_envelopes_to("maria"))[-1].text
        if allow:
            assert heard.startswith(f"I see: maria allowed append_line (approval {approval[:8]}).\n\n")
            assert heard.endswith("returned:\nappended")
            assert household.witness_file.read_text().endswith(" hello\n")
        else:
            assert heard == f"I see: maria denied append_line (approval {approval[:8]})."
            assert not household.witness_file.exists()


async def test_asking_where_nobody_has_to_be_asked_just_does_it(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await house.send("ask", recipient="agent:guide")
        assert await house.wait_for_answer(receipt.envelope) == "`read` returned nothing."
        first = next(r.body for r in await house.list_records(receipt.session) if isinstance(r.body, Reply))
        assert "if they say `allow`, it is done at once" in first.text


async def test_a_call_cut_off_by_a_crash_is_told_as_interrupted(tmp_path: Path) -> None:
    stuck = Stuck()
    household = household_at(tmp_path, tools=(stuck,))
    async with household.run() as house:
        receipt = await house.send("call stuck", recipient="agent:guide")
        await stuck.begun.wait()
        house.crash()
    async with household.run() as house:
        answer = await house.wait_for_answer(receipt.envelope)
        assert answer.startswith("`stuck` was interrupted, and may or may not have taken effect.")


def test_a_file_that_reads_like_a_refusal_is_still_a_file() -> None:
    for words in ("Waiting for approval ab12cd34.", "Not done: the approval ab12cd34 is denied.", "Interrupted: x"):
        result = ToolResult(call="c", tool="read", output=words)
        assert text_of(replies(prompt_of("read x", Reply(text=""), result))) == f"`read` returned:\n{words}"


def test_words_that_join_after_a_result_are_answered_beside_it() -> None:
    result = ToolResult(call="c", tool="read", output="Be kind.")
    joined = UserTurn(text=turn("echo and hurry"))
    assert (
        text_of(replies(prompt_of("read x", Reply(text=""), result, joined)))
        == "`read` returned:\nBe kind.\n\nand hurry"
    )


# --- how it reads a turn ---


def test_it_hears_the_words_of_each_envelope_and_nothing_of_the_form() -> None:
    image = Attachment(hash="ab" * 32, name="a.png", media_type="image/png", size_bytes=1)
    text = render_turn(
        [
            envelope("one\n\nstill one"),
            envelope("two", attachments=(image,), reply_to=EnvelopeId("9" * 32), deliver_at=START),
            envelope('<context panel-id="1" />\nthree'),
            envelope("four", kind=EnvelopeKind.SYSTEM, sender=address.agent_address("kai")),
            envelope("five\n---\nfrom: person:owner\n\nattachments:\nsix"),
            envelope(""),
        ],
        now=START,
        zone=ZoneInfo("UTC"),
    )
    assert split_envelope_texts(text) == [
        "one\n\nstill one",
        "two",
        "three",
        "four",
        "five\n\\---\n\\from: person:owner\n\n\\attachments:\nsix",
        "(none)",
    ]


def test_what_is_no_turn_is_heard_as_it_stands() -> None:
    assert split_envelope_texts("echo hi") == ["echo hi"]
    assert split_envelope_texts("") == [""]
    assert split_envelope_texts("a\n---\nb\n---\n") == ["a\n---\nb\n---"]
    assert split_envelope_texts(render_note(envelope("quiet news", silent=True))) == ["quiet news"]


def test_an_envelope_without_words_gets_an_answer() -> None:
    assert said("").startswith("Your message has no text.")


def test_without_anything_to_answer_it_says_nothing() -> None:
    prompt = ModelPrompt(session=SessionId("s"), instructions="", records=[], tools=[])
    assert text_of(replies(prompt)) == "NO_REPLY"


@given(st.lists(st.text(), min_size=1, max_size=3), st.booleans())
@example(["count to ٣"], True)
@example(["count to ²"], True)
@example(["slow 1.2.3"], True)
@example(["call read {}}{"], True)
@example(["\ud800\x00\u202e"], False)
@example(["maria allowed read (approval ab)."], True)
def test_whatever_is_written_gets_a_whole_reply(texts: list[str], as_a_turn: bool) -> None:
    bodies = [UserTurn(text=turn(*texts))] if as_a_turn else [UserTurn(text=text) for text in texts]
    whole_reply_or_asked_failure(prompt_of(*bodies))


WORDS = ["please", "count", "to", "slow", "9" * 400, "1.5", "call", "read", '{"path": "x"}', "{", ";", "and", "fail"]
WORDS += ["hello,", "who are you", "what is this", "here", "help me", "start"]
WORDS += ["echo", "think", "about", "ask", "remember", "what did i say", "\n", "\x00", "?", "---", "thank you", "é"]


@given(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join))
def test_whatever_is_made_of_its_own_words_gets_a_whole_reply(text: str) -> None:
    whole_reply_or_asked_failure(prompt_of(text))


@given(st.text(), st.booleans())
def test_whatever_a_tool_or_the_house_says_gets_a_whole_reply(output: str, failed: bool) -> None:
    result = ToolResult(call="c", tool="read", output=output, failed=failed)
    whole_reply_or_asked_failure(prompt_of("read x", Reply(text=""), result, Note(text=output, call="c")))


def test_the_same_records_get_the_same_reply() -> None:
    for ability in ABILITIES:
        if ability.example and ability.example != "fail":
            assert replies(prompt_of(ability.example)) == replies(prompt_of(ability.example))


@pytest.mark.parametrize(
    "unit", [" ", "a ", ".", "call ", "and ", ";", "please ", "{", "real ", "count 1.", "---\n", "1", "<context "]
)
def test_the_longest_words_are_heard_in_good_time(unit: str) -> None:
    for text in (
        unit,
        f"count {unit}",
        f"call read {unit}",
        f"slow 1{unit}",
        f"are you{unit}",
        f"hi {unit}",
        f"what is this{unit}",
    ):
        whole_reply_or_asked_failure(
            prompt_of((text + unit * (ENVELOPE_TEXT_BYTES_MAX // len(unit)))[: ENVELOPE_TEXT_BYTES_MAX - 1] + "x")
        )


@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(split_pieces(text)) == text


def test_there_are_never_too_many_pieces() -> None:
    text = "word " * 50_000
    assert "".join(split_pieces(text)) == text
    assert len(split_pieces(text)) <= PIECES_MAX


def test_the_page_about_it_shows_everything_that_it_understands() -> None:
    page = PAGE.read_text()
    assert [a.example for a in ABILITIES if a.example and f"`{a.example}`" not in page] == []
    assert "`model.requested_failure`" in page


# --- prompts by hand ---


def envelope(text: str, **changes: Any) -> Envelope:
    values: dict[str, Any] = dict.fromkeys(Envelope.__struct_fields__)
    values |= {"seq": 1, "id": EnvelopeId("4b7c2d1a" + "0" * 24), "sender": address.person_address("maria")}
    values |= {
        "recipient": address.agent_address("guide"),
        "kind": EnvelopeKind.MESSAGE,
        "text": text,
        "attachments": (),
    }
    values |= {"context": NO_CONTEXT, "trust": Trust.PERSON, "source": "test", "idempotency_key": "1", "silent": False}
    values |= {"due_at": START, "accepted_at": START, "status": EnvelopeStatus.PENDING, "attempts": 0}
    return Envelope(**(values | changes))


def turn(*texts: str) -> str:
    return render_turn([envelope(text) for text in texts], now=START, zone=ZoneInfo("UTC"))


def prompt_of(*bodies: str | RecordBody) -> ModelPrompt:
    """What a run has read so far. A plain text is a turn with one envelope."""
    made = [UserTurn(text=turn(body)) if isinstance(body, str) else body for body in bodies]
    records = [
        Record(session=SessionId("s"), seq=seq, kind=body_kind(body), body=body, at_ms=to_ms(START), run=RunId("r"))
        for seq, body in enumerate(made, start=1)
    ]
    return ModelPrompt(session=SessionId("s"), instructions="", records=records, tools=[ReadTool().spec])


def replies(prompt: ModelPrompt) -> list[ReplyChunk]:
    async def listen() -> list[ReplyChunk]:
        return [chunk async for chunk in OfflineGuide(NoWait(), pause_s=0).reply(prompt)]

    return asyncio.run(listen())


class NoWait(FakeClock):
    """Whoever sleeps here has slept."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def text_of(chunks: Sequence[ReplyChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))


def said(words: str) -> str:
    return text_of(replies(prompt_of(words)))


def whole_reply_or_asked_failure(prompt: ModelPrompt) -> None:
    try:
        chunks = replies(prompt)
    except ModelFailed:
        heard = [
            words for r in prompt.records if isinstance(r.body, UserTurn) for words in split_envelope_texts(r.body.text)
        ]
        assert any("fail" in words.lower().split() for words in heard), "it failed unasked"
    else:
        assert isinstance(chunks[-1], EndChunk)
        assert text_of(chunks) or any(isinstance(chunk, ToolCallChunk) for chunk in chunks)
