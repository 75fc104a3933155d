"""The guide in a complete server: each ability is tested by what a person sees."""

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
from retinue.domain.envelope import (
    ENVELOPE_TEXT_BYTES_MAX,
    NO_CONTEXT,
    Envelope,
    EnvelopeKind,
    EnvelopeStatus,
    Outcome,
)
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

GUIDE_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "offline-guide.md"
SCRIPT_NOTICE = "not a language model"
GUIDE = Agent(name="guide", model="guide")
CLERK = Agent(name="clerk", model="guide", tools=ToolRules(ask=("append_line",)))


def build_instance_at(root: Path, *agents: Agent, pause_s: float = 0, **kw: Any) -> LocalInstance:
    clock = FakeClock()
    return LocalInstance(
        root, clock=clock, agents=agents or (GUIDE, CLERK), models=(OfflineGuide(clock, pause_s=pause_s),), **kw
    )


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return build_instance_at(tmp_path)


async def send_and_wait(server: LocalServer, text: str, *, to: str = "agent:guide") -> str:
    receipt = await server.send(text, recipient=to)
    return await server.wait_for_answer(receipt.envelope)


async def advance_until_outcome(server: LocalServer, envelope: str) -> None:
    while await server.store.scan(lambda conn: envelopes.get_outcome(conn, envelope)) is None:
        await server.instance.clock.advance(1)


async def wait_for_approval(server: LocalServer) -> str:
    """Wait for a request for approval, and return the name of the approval."""
    statement = "select id from approvals where state = 'open'"
    found = await wait_until(lambda: server.execute_sql(statement), "a question is put", poll_s=0.005)
    return found[0].id


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class EndlessTool:
    """A tool that never ends and must not be repeated."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="stuck", description="Never ends.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


# --- it answers and describes itself ---


@pytest.mark.parametrize("words", ["hello", "Who are you?", "are you an AI?", "help", "What is the meaning of life?"])
async def test_the_offline_guide_says_that_it_is_a_script(instance: LocalInstance, words: str) -> None:
    async with instance.run() as server:
        assert SCRIPT_NOTICE in await send_and_wait(server, words)


GREETINGS = ["Hi!", "hello hello", "Hey there.", "good afternoon", "HELLO, GUIDE"]
FIRST_QUESTIONS = [
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


@pytest.mark.parametrize("words", GREETINGS + FIRST_QUESTIONS)
def test_the_offline_guide_answers_a_greeting_or_first_question_with_things_to_try(words: str) -> None:
    answer = reply_text_to(words)
    assert SCRIPT_NOTICE in answer
    named = [each for each in ("count to 20", "count to 50", "status", "how does it work") if f"`{each}`" in answer]
    assert len(named) >= 2, "the greeting names things to try"
    assert "`retinue credential add anthropic" in answer and "`ANTHROPIC_API_KEY`" in answer


@pytest.mark.parametrize("words", ["count to 20", "status", "how does it work", "help", "connect a real model"])
def test_every_command_that_the_guide_proposes_works(words: str) -> None:
    assert f"`{words}`" in reply_text_to("Book me a flight to Lisbon") or f"`{words}`" in reply_text_to("hello")
    assert "do not know" not in reply_text_to(words)


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
def test_a_guide_command_works_with_and_without_a_greeting(words: str, answer: str) -> None:
    assert reply_text_to(words) == answer


@pytest.mark.parametrize("words", ["hello", "how do I start", "connect a real model"])
def test_every_terminal_command_that_the_guide_names_exists(words: str) -> None:
    named = re.findall(r"`retinue (.+?)`", reply_text_to(words))
    assert named
    for each in named:
        assert parse_arguments(each.split()).command in ("credential add", "chat", "agent register", "models")


@pytest.mark.parametrize(
    "words",
    ["connect a real model", "How do I add my OpenAI key?", "How do I use another model?", "where does my API key go"],
)
async def test_the_guide_explains_how_to_connect_a_real_model(instance: LocalInstance, words: str) -> None:
    async with instance.run() as server:
        answer = await send_and_wait(server, words)
        assert "ANTHROPIC_API_KEY" in answer


async def test_the_offline_guide_answers_an_unknown_request_shortly_with_known_commands(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        answer = await send_and_wait(server, "Book me a flight to Lisbon")
        assert "“Book me a flight to Lisbon”" in answer
        assert all(f"`{each}`" in answer for each in ("count to 20", "status", "how does it work", "help"))
        assert len(answer) < 300


async def test_help_lists_all_abilities_of_the_guide(instance: LocalInstance) -> None:
    async with instance.run() as server:
        shown = await send_and_wait(server, "help")
    assert [a.example for a in ABILITIES if a.example and f"- `{a.example}`: {a.description}" not in shown] == []


@pytest.mark.parametrize("words", [a.example for a in ABILITIES if a.example and a.example != "fail"])
def test_the_guide_understands_every_example_of_its_help(words: str) -> None:
    assert "do not know" not in reply_text_to(words)


@pytest.mark.parametrize(
    "words", ["echo Good day!", "Echo  Good day!", "please echo Good day!", "Could you please, ECHO: Good day!"]
)
async def test_case_spaces_and_polite_words_do_not_matter_in_a_guide_command(
    instance: LocalInstance, words: str
) -> None:
    async with instance.run() as server:
        assert await send_and_wait(server, words) == "Good day!"


@pytest.mark.parametrize(
    "words", ["count to 3", "Count 3.", "COUNT UP TO 3!!", "guide, count to 3, please", " count 3 "]
)
def test_punctuation_does_not_matter_in_a_guide_command(words: str) -> None:
    assert reply_text_to(words) == "1 2 3 Done."


# --- it streams, thinks, waits, fails and stays silent ---


async def test_the_guide_streams_a_count_in_small_deltas(instance: LocalInstance) -> None:
    async with instance.run() as server:
        watcher = server.events.subscribe(None)
        answer = await send_and_wait(server, "count to 12")
        assert answer == "1 2 3 4 5 6 7 8 9 10 11 12 Done."
        texts = [delta.text for delta in watcher.deltas if delta.kind is DeltaKind.TEXT]
        assert texts == [f"{number} " for number in range(1, 13)] + ["Done."]


def test_the_guide_stops_counting_at_its_maximum_and_says_so() -> None:
    assert reply_text_to("count to 1000000").endswith(f"{COUNT_MAX} I stop here: I count to {COUNT_MAX} at most.")
    assert reply_text_to("count to " + "9" * 5000) == reply_text_to("count to 1000000")


async def test_the_guide_pauses_between_words(tmp_path: Path) -> None:
    instance = build_instance_at(tmp_path, pause_s=0.1)
    async with instance.run() as server:
        receipt = await server.send("echo one two three", recipient="agent:guide")
        await advance_until_outcome(server, receipt.envelope)
        assert instance.clock.now() - START >= timedelta(seconds=0.3)


async def test_a_guide_count_interrupted_by_a_crash_is_answered_completely_and_once(tmp_path: Path) -> None:
    instance = build_instance_at(tmp_path, pause_s=1)
    async with instance.run() as server:
        receipt = await server.send("count to 10", recipient="agent:guide")
        while not any("3" in partial.text for partial in server.events.partial_replies()):
            await instance.clock.advance(1)
        server.crash()
    async with instance.run() as server:
        await advance_until_outcome(server, receipt.envelope)
        assert [mail.text for mail in await server.list_envelopes_to("maria")] == ["1 2 3 4 5 6 7 8 9 10 Done."]


async def test_thinking_of_the_guide_is_separate_from_its_answer(instance: LocalInstance) -> None:
    async with instance.run() as server:
        watcher = server.events.subscribe(None)
        receipt = await server.send("think about tea", recipient="agent:guide")
        answer = await server.wait_for_answer(receipt.envelope)
        [reply] = [r.body for r in await server.list_records(receipt.session) if isinstance(r.body, Reply)]
        assert "think about tea" in reply.thinking
        assert "".join(d.text for d in watcher.deltas if d.kind is DeltaKind.THINKING) == reply.thinking
        assert "I thought about tea" in answer
        assert reply.thinking not in answer


@pytest.mark.parametrize(("words", "seconds"), [("slow 10", 10), ("Be slow for 2.5 seconds", 2.5), ("slow 3s", 3)])
async def test_the_slow_command_of_the_guide_delays_the_answer_by_the_given_seconds(
    instance: LocalInstance, words: str, seconds: float
) -> None:
    async with instance.run() as server:
        receipt = await server.send(words, recipient="agent:guide")
        await advance_until_outcome(server, receipt.envelope)
        assert await server.wait_for_answer(receipt.envelope) == f"I waited {seconds:g} seconds before this answer."
        assert instance.clock.now() - START >= timedelta(seconds=seconds)


async def test_the_guide_fails_on_request_and_the_session_continues(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("Please fail!", recipient="agent:guide")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        [notice] = await server.list_envelopes_to("maria")
        assert "the guide failed, as you asked [model.requested_failure]" in notice.text
        assert await send_and_wait(server, "echo still here") == "still here"


async def test_the_guide_sends_no_answer_on_request(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("be silent", recipient="agent:guide")
        settled = await server.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await server.list_envelopes_to("maria") == []


async def test_the_guide_answers_each_envelope_of_a_batch(instance: LocalInstance) -> None:
    async with instance.run() as server:
        first = await server.send("slow 5", recipient="agent:guide")
        await server.wait_for(lambda _: server.engine.active_lanes == 1, what="the first run")
        others = [await server.send(f"echo {word}", recipient="agent:guide") for word in ("one", "two", "three")]
        await advance_until_outcome(server, first.envelope)
        assert await server.wait_for_answer(others[-1].envelope) == "one\n\ntwo\n\nthree"
        assert len(await server.list_envelopes_to("maria")) == 2


# --- it remembers ---


async def test_the_guide_repeats_earlier_messages_even_after_a_restart(instance: LocalInstance) -> None:
    async with instance.run() as server:
        assert "no earlier messages" in await send_and_wait(server, "What did I say?")
        await send_and_wait(server, "remember that the key is\nunder the mat")
    async with instance.run() as server:
        assert await send_and_wait(server, "remember") == (
            "Your earlier messages:\n- What did I say?\n- remember that the key is under the mat"
        )


async def test_the_guide_remembers_nothing_after_a_reset(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("echo secret", recipient="agent:guide")
        await server.wait_for_answer(receipt.envelope)
        assert receipt.session is not None
        await server.engine.reset(receipt.session, by="maria")
        assert await send_and_wait(server, "remember") == "There are no earlier messages in this context."


# --- it uses tools ---


async def test_the_guide_calls_a_tool_and_quotes_its_result(instance: LocalInstance) -> None:
    async with instance.run() as server:
        answer = await send_and_wait(server, "Status?")
        assert answer.startswith("`session_status` returned:\n")
        assert "model: guide" in answer


async def test_the_guide_reads_a_file_of_its_agent_directory(instance: LocalInstance) -> None:
    async with instance.run() as server:
        assert await send_and_wait(server, "read SOUL.md") == "`read` returned nothing."
        (instance.root / "agents" / "guide" / "SOUL.md").write_text("Be kind.\n")
        assert await send_and_wait(server, "Please read SOUL.md.") == "`read` returned:\nBe kind."
        assert "`read` failed: no file or folder 'x.md'" in await send_and_wait(server, "read x.md")


async def test_the_guide_calls_any_tool_with_json_or_plain_text_arguments(instance: LocalInstance) -> None:
    async with instance.run() as server:
        assert (
            await send_and_wait(server, 'call append_line {"text": "one; and two"}')
            == "`append_line` returned:\nappended"
        )
        assert await send_and_wait(server, "Call append_line three and four") == "`append_line` returned:\nappended"
    lines = instance.witness_file.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["one; and two", "three and four"]


async def test_the_guide_calls_several_tools_in_one_reply(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send(
            'call session_status and append_line {"text": "x"}; read SOUL.md', recipient="agent:guide"
        )
        answer = await server.wait_for_answer(receipt.envelope)
        called, _ = [r.body for r in await server.list_records(receipt.session) if isinstance(r.body, Reply)]
        assert [call.tool for call in called.calls] == ["session_status", "append_line", "read"]
        assert called.text == "I call `session_status` and `append_line` and `read`."
        assert [part.partition("`")[2].partition("`")[0] for part in answer.split("\n\n")] == [
            "session_status",
            "append_line",
            "read",
        ]


async def test_the_guide_lists_only_the_offered_tools(tmp_path: Path) -> None:
    rules = ToolRules(deny=("append_line",))
    async with build_instance_at(tmp_path, Agent(name="guide", model="guide", tools=rules)).run() as server:
        listed = await send_and_wait(server, "tools")
        assert "- `read`: Read a file in your workspace" in listed
        assert "append_line" not in listed
        answer = await send_and_wait(server, "call append_line hello")
        assert answer.startswith("`append_line` failed: Not allowed: the agent guide denies 'append_line'")


async def test_the_guide_quotes_the_error_of_an_unknown_tool(instance: LocalInstance) -> None:
    async with instance.run() as server:
        assert "failed: No tool named 'fly'. Your tools are: session_status" in await send_and_wait(
            server, "call fly to Rome"
        )


@pytest.mark.parametrize(
    "arguments",
    ["{path: SOUL.md}", '{"path": NaN}', '{"path": 1e999}', '{"path": "\\ud800"}', '{"a":' * 100_000, "{", ""],
)
def test_the_guide_makes_no_call_with_invalid_arguments(arguments: str) -> None:
    chunks = reply_chunks(prompt_of(f"call read {arguments}".strip() if arguments else "call"))
    assert [c for c in chunks if isinstance(c, ToolCallChunk)] == []
    assert 'Write them like this: `call read {"path": "SOUL.md"}`' in joined_text(chunks)


# --- it asks for approval and reports the result truthfully ---


async def test_a_guide_call_that_needs_approval_is_performed_once_allowed(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("ask append_line hello", recipient="agent:clerk")
        approval = await wait_for_approval(server)
        assert not instance.witness_file.exists()
        await server.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        assert await server.wait_for_answer(receipt.envelope) == "`append_line` returned:\nappended"
        assert instance.witness_file.read_text().endswith(" hello\n")


async def test_a_denied_guide_call_is_reported_as_not_done(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("ask append_line hello", recipient="agent:clerk")
        approval = await wait_for_approval(server)
        await server.engine.answer_approval(approval, allow=False, by=boss_principal("maria"))
        answer = await server.wait_for_answer(receipt.envelope)
        assert answer == f"`append_line` was not done: approval {approval[:8]} is denied."
        assert not instance.witness_file.exists()


@pytest.mark.parametrize("allow", [True, False])
async def test_a_pending_guide_call_is_reported_as_waiting_and_its_late_decision_is_answered(
    instance: LocalInstance, allow: bool
) -> None:
    async with instance.run() as server:
        first = await server.send("ask append_line hello", recipient="agent:clerk")
        approval = await wait_for_approval(server)
        assert await send_and_wait(server, "echo meanwhile", to="agent:clerk") == "meanwhile"
        waiting = await server.wait_for_answer(first.envelope)
        assert waiting.startswith(f"`append_line` is not done yet: it is waiting for approval {approval[:8]}.")
        await server.engine.answer_approval(approval, allow=allow, by=boss_principal("maria"))
        await server.wait_until_idle()
        received = (await server.list_envelopes_to("maria"))[-1].text
        if allow:
            assert received.startswith(f"I see: maria allowed append_line (approval {approval[:8]}).\n\n")
            assert received.endswith("returned:\nappended")
            assert instance.witness_file.read_text().endswith(" hello\n")
        else:
            assert received == f"I see: maria denied append_line (approval {approval[:8]})."
            assert not instance.witness_file.exists()


async def test_the_ask_command_of_the_guide_performs_a_call_that_needs_no_approval(instance: LocalInstance) -> None:
    async with instance.run() as server:
        receipt = await server.send("ask", recipient="agent:guide")
        assert await server.wait_for_answer(receipt.envelope) == "`read` returned nothing."
        first = next(r.body for r in await server.list_records(receipt.session) if isinstance(r.body, Reply))
        assert "if they say `allow`, it is done at once" in first.text


async def test_a_guide_call_interrupted_by_a_crash_is_reported_as_interrupted(tmp_path: Path) -> None:
    stuck = EndlessTool()
    instance = build_instance_at(tmp_path, tools=(stuck,))
    async with instance.run() as server:
        receipt = await server.send("call stuck", recipient="agent:guide")
        await stuck.begun.wait()
        server.crash()
    async with instance.run() as server:
        answer = await server.wait_for_answer(receipt.envelope)
        assert answer.startswith("`stuck` was interrupted, and may or may not have taken effect.")


def test_the_guide_quotes_a_file_whose_text_looks_like_a_refusal_as_a_file() -> None:
    for words in ("Waiting for approval ab12cd34.", "Not done: the approval ab12cd34 is denied.", "Interrupted: x"):
        result = ToolResult(call="c", tool="read", output=words)
        assert joined_text(reply_chunks(prompt_of("read x", Reply(text=""), result))) == f"`read` returned:\n{words}"


def test_the_guide_answers_a_message_steered_in_after_a_tool_result_along_with_the_result() -> None:
    result = ToolResult(call="c", tool="read", output="Be kind.")
    joined = UserTurn(text=turn("echo and hurry"))
    assert (
        joined_text(reply_chunks(prompt_of("read x", Reply(text=""), result, joined)))
        == "`read` returned:\nBe kind.\n\nand hurry"
    )


# --- how it reads a turn ---


def test_the_guide_reads_only_the_text_of_each_envelope_in_a_turn() -> None:
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


def test_the_guide_reads_text_that_is_not_a_rendered_turn_as_the_text_of_one_envelope() -> None:
    assert split_envelope_texts("echo hi") == ["echo hi"]
    assert split_envelope_texts("") == [""]
    assert split_envelope_texts("a\n---\nb\n---\n") == ["a\n---\nb\n---"]
    assert split_envelope_texts(render_note(envelope("quiet news", silent=True))) == ["quiet news"]


def test_an_empty_envelope_is_answered_by_the_guide() -> None:
    assert reply_text_to("").startswith("Your message has no text.")


def test_the_guide_sends_no_reply_to_an_empty_prompt() -> None:
    prompt = ModelPrompt(session=SessionId("s"), instructions="", records=[], tools=[])
    assert joined_text(reply_chunks(prompt)) == "NO_REPLY"


@given(st.lists(st.text(), min_size=1, max_size=3), st.booleans())
@example(["count to ٣"], True)
@example(["count to ²"], True)
@example(["slow 1.2.3"], True)
@example(["call read {}}{"], True)
@example(["\ud800\x00\u202e"], False)
@example(["maria allowed read (approval ab)."], True)
def test_the_guide_replies_completely_to_any_text(texts: list[str], as_a_turn: bool) -> None:
    bodies = [UserTurn(text=turn(*texts))] if as_a_turn else [UserTurn(text=text) for text in texts]
    check_complete_reply_or_requested_failure(prompt_of(*bodies))


WORDS = ["please", "count", "to", "slow", "9" * 400, "1.5", "call", "read", '{"path": "x"}', "{", ";", "and", "fail"]
WORDS += ["hello,", "who are you", "what is this", "here", "help me", "start"]
WORDS += ["echo", "think", "about", "ask", "remember", "what did i say", "\n", "\x00", "?", "---", "thank you", "é"]


@given(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join))
def test_the_guide_replies_completely_to_any_mix_of_its_own_words(text: str) -> None:
    check_complete_reply_or_requested_failure(prompt_of(text))


@given(st.text(), st.booleans())
def test_the_guide_replies_completely_to_any_tool_result_or_note(output: str, failed: bool) -> None:
    result = ToolResult(call="c", tool="read", output=output, failed=failed)
    check_complete_reply_or_requested_failure(prompt_of("read x", Reply(text=""), result, Note(text=output, call="c")))


def test_the_guide_gives_the_same_reply_to_the_same_records() -> None:
    for ability in ABILITIES:
        if ability.example and ability.example != "fail":
            assert reply_chunks(prompt_of(ability.example)) == reply_chunks(prompt_of(ability.example))


@pytest.mark.parametrize(
    "unit", [" ", "a ", ".", "call ", "and ", ";", "please ", "{", "real ", "count 1.", "---\n", "1", "<context "]
)
def test_the_guide_parses_the_longest_messages_quickly(unit: str) -> None:
    for text in (
        unit,
        f"count {unit}",
        f"call read {unit}",
        f"slow 1{unit}",
        f"are you{unit}",
        f"hi {unit}",
        f"what is this{unit}",
    ):
        check_complete_reply_or_requested_failure(
            prompt_of((text + unit * (ENVELOPE_TEXT_BYTES_MAX // len(unit)))[: ENVELOPE_TEXT_BYTES_MAX - 1] + "x")
        )


@given(st.text())
def test_the_pieces_of_a_guide_answer_join_to_the_same_text(text: str) -> None:
    assert "".join(split_pieces(text)) == text


def test_the_guide_splits_a_long_answer_into_a_limited_number_of_pieces() -> None:
    text = "word " * 50_000
    assert "".join(split_pieces(text)) == text
    assert len(split_pieces(text)) <= PIECES_MAX


def test_the_offline_guide_page_documents_every_ability() -> None:
    page = GUIDE_PAGE.read_text()
    assert [a.example for a in ABILITIES if a.example and f"`{a.example}`" not in page] == []
    assert "`model.requested_failure`" in page


# --- prompts written by hand ---


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
    """Return a prompt with these record bodies. A plain text is a turn with one envelope."""
    made = [UserTurn(text=turn(body)) if isinstance(body, str) else body for body in bodies]
    records = [
        Record(session=SessionId("s"), seq=seq, kind=body_kind(body), body=body, at_ms=to_ms(START), run=RunId("r"))
        for seq, body in enumerate(made, start=1)
    ]
    return ModelPrompt(session=SessionId("s"), instructions="", records=records, tools=[ReadTool().spec])


def reply_chunks(prompt: ModelPrompt) -> list[ReplyChunk]:
    async def listen() -> list[ReplyChunk]:
        return [chunk async for chunk in OfflineGuide(InstantClock(), pause_s=0).reply(prompt)]

    return asyncio.run(listen())


class InstantClock(FakeClock):
    """A clock on which every sleep ends at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def joined_text(chunks: Sequence[ReplyChunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))


def reply_text_to(words: str) -> str:
    return joined_text(reply_chunks(prompt_of(words)))


def check_complete_reply_or_requested_failure(prompt: ModelPrompt) -> None:
    try:
        chunks = reply_chunks(prompt)
    except ModelFailed:
        received = [
            words for r in prompt.records if isinstance(r.body, UserTurn) for words in split_envelope_texts(r.body.text)
        ]
        assert any("fail" in words.lower().split() for words in received), "it failed without a request to fail"
    else:
        assert isinstance(chunks[-1], EndChunk)
        assert joined_text(chunks) or any(isinstance(chunk, ToolCallChunk) for chunk in chunks)
