"""Conversations that grow, from the first message to long after the model could have all of it in mind."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from contracts.engine_instance import as_time_goes_by, books_hold, notices_to, results, rows, until
from operations.operations_instance import desk_house, person

from retinue.config import Settings
from retinue.config.models import (
    CompactionMode,
    CompactionSettings,
    ContextSettings,
    MemoryFlushSettings,
    PruningMode,
    PruningSettings,
    SoftTrimSettings,
)
from retinue.domain.agent import Agent
from retinue.domain.event import EventKind
from retinue.domain.model import ModelFailureKind
from retinue.domain.permission import ProtectedPaths
from retinue.domain.record import ContextStart, Note, Record, RecordKind, Reply, Summary, Usage, UserTurn
from retinue.domain.session import Origin, OriginKind, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.runners.base import RunResources
from retinue.runners.context_policy import COMPACTING_NOTICE, OVERFLOW_NOTICE
from retinue.runners.model_context import FLUSH_HEAD
from retinue.store.core import events
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import ScriptedModel, ScriptedReply, text_reply, tool_call_reply
from retinue.tools.base import ToolContext, schema_of
from retinue.tools.files import FileServices, WriteTool

WINDOW = 200_000
LONG = "the garden needs water, and the cat is on the roof again\n" * 700  # about 10,000 tokens


def settings(household_root: Path, **kw: Any) -> Settings:
    return Settings(home=household_root, store=household_root / "house.db", zone=ZoneInfo("UTC"), **kw)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def used(tokens: int, text: str = "Noted.") -> ScriptedReply:
    """A reply whose provider has counted so many tokens."""
    return text_reply(text, usage=Usage(input_tokens=tokens - 100, output_tokens=100))


def is_summary(prompt: ModelPrompt) -> bool:
    return prompt.session.endswith("/summary")


def summaries(household: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in household.model.prompts if is_summary(prompt)]


def turns(household: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in household.model.prompts if not is_summary(prompt)]


def words(prompt: ModelPrompt) -> str:
    """Everything a prompt holds for the model to read."""
    return "\n".join(
        getattr(record.body, "text", "") or getattr(record.body, "output", "") for record in prompt.records
    )


def seqs(records: Sequence[Record]) -> list[int]:
    return [record.seq for record in records]


async def asked(house: LocalServer, text: str, **kw: Any) -> str:
    return await house.wait_for_answer((await house.send(text, **kw)).envelope)


async def grown(house: LocalServer, *, tokens: int, messages: int = 4, **kw: Any) -> str:
    """A conversation of so many long messages, at whose end its provider has counted `tokens`. Returns its session."""
    model = house.instance.model
    session: str | None = None
    for n in range(1, messages + 1):
        model.will_reply(used(tokens * n // messages, f"Noted, {n}."))
        receipt = await house.send(f"message {n}\n{LONG}", **kw)
        await house.wait_for_outcome(receipt.envelope)
        session = receipt.session
    assert session is not None
    return session


def paired(records: Sequence[Record]) -> bool:
    """Whether each call is followed by its result, and no result stands without its call."""
    waiting: set[str] = set()
    for record in records:
        if isinstance(record.body, ToolResult):
            if record.body.call not in waiting:
                return False
            waiting.discard(record.body.call)
        elif waiting:
            return False
        elif isinstance(record.body, Reply):
            waiting = {call.id for call in record.body.calls}
    return not waiting


# A conversation grows past three quarters


@pytest.mark.spec("D23")
async def test_whoever_asks_for_the_history_of_a_compacted_conversation_reads_all_of_it(
    household: LocalInstance,
) -> None:
    maria = person("maria")
    async with desk_house(household) as made:
        session = await grown(made.house, tokens=160_000)
        household.model.will_reply("A garden.", used(9_000, "Yes."))
        await asked(made.house, "Is it raining?")
        found = (await made.ask(maria, "session.history", session=session, limit=50))["records"]
        assert sorted(record["seq"] for record in found) == list(range(1, len(found) + 1))
        told = json.dumps(found)
        assert all(f"message {n}" in told and f"Noted, {n}." in told for n in range(1, 5))
        assert sum(record["kind"] == "summary" for record in found) == 1


@pytest.mark.spec("D23", "C32")
async def test_a_conversation_past_three_quarters_is_told_in_short_and_goes_on(household: LocalInstance) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=WINDOW * 3 // 4, origin=terminal_origin("maria"))
        before, history = await house.get_session(session), await house.list_records(session)
        assert before.compactions == 0 and summaries(household) == []

        household.model.will_reply("They talked about a garden and a cat.", used(9_000, "On the roof."))
        assert await asked(house, "Where is the cat?", origin=terminal_origin("maria")) == "On the roof."

        after = await house.get_session(session)
        assert (after.compactions, after.revision) == (1, before.revision + 1)
        (summary,) = [r.body for r in await house.list_records(session) if isinstance(r.body, Summary)]
        assert summary.kept_from == after.context_start_seq > before.context_start_seq
        # The next prompt: first the summary, then what was kept, the newest turn last, each once.
        prompt = turns(household)[-1].records
        assert prompt[0].body == summary and "a garden and a cat" in summary.text
        assert seqs(prompt[1:]) == sorted(set(seqs(prompt[1:]))) and prompt[1].seq == after.context_start_seq
        assert isinstance(prompt[-1].body, UserTurn) and "Where is the cat?" in prompt[-1].body.text
        # Nothing of the history is lost, changed or doubled.
        records = await house.list_records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert [r.kind for r in records[len(history) :]] == [RecordKind.USER, RecordKind.SUMMARY, RecordKind.ASSISTANT]
        # The person was told, once, before the answer.
        mail = [envelope.text for envelope in await house.list_envelopes_to("maria")][-2:]
        assert mail == [COMPACTING_NOTICE, "On the roof."]
        told = await house.store.scan(lambda conn: events.list_after(conn, 0, limit=1000))
        (compacted,) = [each for each in told if each.kind is EventKind.SESSION_COMPACTED]
        assert compacted.body["compactions"] == 1 and compacted.body["kept_from"] == after.context_start_seq
        await books_hold(house)


@pytest.mark.spec("D23")
async def test_a_conversation_below_three_quarters_is_left_alone(household: LocalInstance) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=WINDOW * 3 // 4 - 1_000)
        household.model.will_reply("On the roof.")
        assert await asked(house, "Where is the cat?") == "On the roof."
        assert (await house.get_session(session)).compactions == 0
        assert len(household.model.prompts) == 5 and await notices_to(house, "maria") == []


async def test_what_was_told_in_short_stays_so_for_the_next_message_and_after_a_restart(
    household: LocalInstance,
) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=160_000)
        household.model.will_reply("It was about a garden.", used(9_000, "Yes."), used(9_500, "No."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert await asked(house, "Is it snowing?") == "No."
        warm = turns(household)[-1].records
    household.model.will_reply(used(9_900, "Good night."))
    async with household.run() as house:
        assert await asked(house, "Good night") == "Good night."
        assert turns(household)[-1].records[: len(warm)] == warm, "as it is read from the store again"
        assert len(summaries(household)) == 1 and (await house.get_session(session)).compactions == 1


async def test_a_second_compaction_tells_the_first_summary_on(household: LocalInstance) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=160_000)
        household.model.will_reply("FIRST: a garden.", used(20_000, "Yes."))
        await asked(house, "Is it raining?")
        await grown(house, tokens=160_000)
        household.model.will_reply("SECOND: a garden, and more.", used(20_000, "No."))
        assert await asked(house, "Is it snowing?") == "No."
        assert "FIRST: a garden." in words(summaries(household)[1])
        prompt = turns(household)[-1].records
        assert [type(r.body) for r in prompt].count(Summary) == 1 and "SECOND" in words(turns(household)[-1])
        assert "FIRST" not in words(turns(household)[-1]), "one summary, not two"
        assert (await house.get_session(session)).compactions == 2
        records = await house.list_records(session)
        assert seqs(records) == list(range(1, len(records) + 1))
        await books_hold(house)


@pytest.mark.spec("D23")
@pytest.mark.parametrize(
    ("sender", "origin"),
    [
        ("agent:bob", Origin(OriginKind.AGENT, "agent:bob")),
        (f"schedule:{7:032x}", Origin(OriginKind.SCHEDULE, "morning")),
        ("person:maria", Origin(OriginKind.SUBAGENT, "person:maria#1")),
    ],
)
async def test_nobody_is_told_of_a_compaction_behind_whom_no_person_waits(
    household: LocalInstance, sender: str, origin: Origin
) -> None:
    household.agents = [*household.agents, Agent(name="bob", model="quiet")]
    household.models = [ScriptedModel(household.clock, name="quiet", rule=lambda _: text_reply("NO_REPLY"))]
    async with household.run() as house:
        session = await grown(house, tokens=160_000, sender=sender, origin=origin)
        household.model.will_reply("A garden.", "Yes.")
        receipt = await house.send("Is it raining?", sender=sender, origin=origin)
        await house.wait_for_outcome(receipt.envelope)
        assert (await house.get_session(session)).compactions == 1
        assert await rows(house, "SELECT text FROM envelopes WHERE kind = 'notice'") == []


@pytest.mark.spec("D24")
@pytest.mark.parametrize(
    "line",
    [
        text_reply("   "),
        text_reply("NO_REPLY"),
        ScriptedReply(fails="not today", failure=ModelFailureKind.BAD_REQUEST),
        ScriptedReply(fails="too much", failure=ModelFailureKind.CONTEXT_OVERFLOW),
        text_reply("endless " * 40_000),
    ],
    ids=["empty", "silent", "refused", "too-long", "longer-than-what-it-tells"],
)
async def test_a_summary_that_failed_leaves_the_context_as_it_was_and_the_run_goes_on(
    household: LocalInstance, line: ScriptedReply
) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=160_000, messages=2)
        before = await house.get_session(session)
        answers = [line, text_reply("Yes.")]
        # An empty reply is asked for once more before it counts as a failure.
        household.model.rule = lambda prompt: answers[0] if is_summary(prompt) else answers[1]
        assert await as_time_goes_by(house, asked(house, "Is it raining?")) == "Yes."
        after = await house.get_session(session)
        assert (after.compactions, after.context_start_seq, after.revision) == (
            0,
            before.context_start_seq,
            before.revision,
        )
        assert [type(r.body) for r in turns(household)[-1].records] == [ContextStart, *[UserTurn, Reply] * 2, UserTurn]
        assert not any(isinstance(r.body, Summary) for r in await house.list_records(session))
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


@pytest.mark.spec("C42", "D24")
async def test_a_summary_that_takes_too_long_is_given_up_and_its_money_is_not_known(household: LocalInstance) -> None:
    household.model.price_microusd = 700
    async with household.run() as house:
        session = await grown(house, tokens=160_000)
        household.model.will_reply(text_reply("never", after_s=3600), "Yes.")
        receipt = await house.send("Is it raining?")
        await until(lambda: len(summaries(household)) == 1, what="the summary to be asked for")
        await household.clock.advance(121)
        assert await house.wait_for_answer(receipt.envelope) == "Yes."
        assert (await house.get_session(session)).compactions == 0
        given_up = await rows(
            house, "SELECT idx < 0, unknown, held_microusd, settled_microusd FROM money WHERE unknown"
        )
        assert [tuple(row) for row in given_up] == [(1, 1, 0, 700)]
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


# Too much for the provider


@pytest.mark.spec("C40", "D25")
async def test_what_does_not_fit_is_compacted_three_times_then_cut_short_then_begun_afresh(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, tools=[Tell("x" * 30_000)])
    overflow = ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
    lengths = iter((5, 4, 3))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        return text_reply("in short " * next(lengths)) if is_summary(prompt) else overflow

    async with household.run() as house:
        session = await grown(house, tokens=60_000, messages=3)
        household.model.will_reply(tool_call_reply("tell"), used(70_000, "It is known."), used(80_000, "And so on."))
        await asked(house, f"tell me\n{LONG}")
        await asked(house, f"go on\n{LONG}")
        history = await house.list_records(session)
        household.model.rule = rule
        begun = len(household.model.prompts)
        assert await asked(house, "And now?") == OVERFLOW_NOTICE
        tried = household.model.prompts[begun:]
        compactions = sum(is_summary(prompt) for prompt in tried)
        assert 1 <= compactions <= 3 and compactions == len(summaries(household))
        sizes = [len(words(prompt)) for prompt in tried if not is_summary(prompt)]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
        # The person is asked to send it again, and a fresh context works.
        household.model.rule = None
        household.model.will_reply(used(500, "Good morning."))
        assert await asked(house, "Hello?") == "Good morning."
        assert [r.kind for r in turns(household)[-1].records] == [RecordKind.RESET, RecordKind.USER]
        after = await house.get_session(session)
        assert after.compactions == 0, "counted within a context"
        records = await house.list_records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


@pytest.mark.spec("C40")
async def test_an_overflow_that_one_compaction_cures_is_not_noticed(household: LocalInstance) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=60_000)
        household.model.will_reply(
            ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW),
            "A garden.",
            used(9_000, "Yes."),
        )
        assert await asked(house, "Is it raining?") == "Yes."
        assert (await house.get_session(session)).compactions == 1
        steps = await rows(house, "SELECT next_move FROM money WHERE failure = 'context_overflow'")
        assert [tuple(row) for row in steps] == [("compaction",)]
        await books_hold(house)


@pytest.mark.spec("C40")
async def test_in_a_long_run_compactions_are_counted_anew_once_a_model_had_room_to_reply(tmp_path: Path) -> None:
    """Four times in one run it was too much, and each time one compaction was enough: no result is cut short for it."""
    tool = Tell("result\n" * 6_000)
    household = LocalInstance(tmp_path, tools=[tool])

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply(f"{len(tool.told)} files were looked at.")
        if len(results(prompt.records)) > 2:
            return ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
        return (
            text_reply("All are fine.")
            if len(tool.told) == 12
            else tool_call_reply("tell", path=f"file-{len(tool.told)}")
        )

    household.model.rule = rule
    async with household.run() as house:
        receipt = await house.send("Look at the twelve files.")
        assert await house.wait_for_answer(receipt.envelope) == "All are fine."
        assert (await house.get_session(receipt.session)).compactions > 3
        assert not any("[cut:" in result.output for prompt in turns(household) for result in results(prompt.records))
        assert tool.told == [f"file-{n}" for n in range(12)]
        await books_hold(house)


@pytest.mark.spec("C40", "C45")
async def test_results_are_cut_short_where_no_summary_can_be_had(tmp_path: Path) -> None:
    """One question, one endless result: there is nothing before it that could be told in short."""
    household = LocalInstance(tmp_path, tools=[Tell("line\n" * 9_000)])

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return ScriptedReply(fails="cannot", failure=ModelFailureKind.BAD_REQUEST)
        if len(words(prompt)) > 30_000:
            return ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
        return text_reply("It is long.") if results(prompt.records) else tool_call_reply("tell")

    household.model.rule = rule
    async with household.run() as house:
        receipt = await house.send("tell me")
        assert await house.wait_for_answer(receipt.envelope) == "It is long."
        (sent,) = results(turns(household)[-1].records)
        (kept,) = results(await house.list_records(receipt.session))
        assert len(sent.output) < 20_000 and "[cut: this is the beginning of 45000 characters" in sent.output
        assert kept.output == "line\n" * 9_000
        await books_hold(house)


@pytest.mark.spec("D25")
@pytest.mark.parametrize("failure", [ModelFailureKind.RATE_LIMIT, ModelFailureKind.OVERLOADED])
async def test_a_provider_that_is_asked_too_often_never_costs_the_conversation(
    household: LocalInstance, failure: ModelFailureKind
) -> None:
    async with household.run() as house:
        session = await grown(house, tokens=100_000)
        before = await house.get_session(session)
        busy = ScriptedReply(fails="Request too large for tokens per minute: context limit exceeded", failure=failure)
        household.model.rule = lambda _: busy
        receipt = await house.send("Is it raining?")
        settled = await as_time_goes_by(house, house.wait_for_outcome(receipt.envelope), step_s=30)
        assert settled.outcome == "dead"
        household.model.rule = None
        household.model.will_reply("Yes.")
        assert await asked(house, "Is it raining now?") == "Yes."
        after = await house.get_session(session)
        assert (after.compactions, after.context_start_seq, after.revision) == (
            0,
            before.context_start_seq,
            before.revision,
        )
        assert "message 1" in words(turns(household)[-1]) and summaries(household) == []


# The emergency limit


@pytest.mark.spec("D81")
@pytest.mark.parametrize(("short_by", "answer"), [(0, "limit is 30,000"), (1, "Yes.")])
async def test_at_the_emergency_limit_a_context_is_begun_afresh_and_one_token_below_it_is_not(
    household: LocalInstance, short_by: int, answer: str
) -> None:
    limit = 30_000
    household.model.rule = lambda prompt: (
        text_reply("NO_REPLY") if is_summary(prompt) else text_reply("Yes.")
    )  # none can be had
    household.settings = settings(household.root, context=ContextSettings(emergency_context_limit=limit))
    async with household.run() as house:
        session = (await house.send("hello")).session
        await house.wait_until_idle()
        # How long the next turn is beside its words is known once one was read.
        (turn, said) = [len(r.body.text) for r in turns(household)[0].records if isinstance(r.body, UserTurn)] + [4]
        heads = 2 * (turn - len("hello"))
        letters = (limit - short_by) * 4 - heads - len("hello") - said
        begun = len(household.model.prompts)
        assert answer in await asked(house, "x" * letters)
        if short_by:
            assert (await house.get_session(session)).revision == 0
        else:
            assert household.model.prompts[begun:] == [], "before any model was asked"
            assert "Please send your last message again" in (await house.list_envelopes_to("maria"))[-1].text
            assert await asked(house, "hello again") == "Yes."
            assert [r.kind for r in turns(household)[-1].records] == [RecordKind.RESET, RecordKind.USER]
        await books_hold(house)


# In the middle of a long run


@dataclass(frozen=True, slots=True)
class Tell:
    """A tool that has much to say, or has failed."""

    output: str
    name: str = "tell"
    told: list[str] = field(default_factory=list[str])
    arguments: type[msgspec.Struct] = msgspec.defstruct("TellArguments", [("path", str, "")])

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description="Tell.", parameters=schema_of(self.arguments))

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        self.told.append(arguments.path)
        return self.output


@pytest.mark.spec("C42", "D23")
async def test_a_long_run_is_compacted_in_its_middle_and_comes_to_its_answer(tmp_path: Path) -> None:
    tool = Tell("result\n" * 6_000)
    household = LocalInstance(tmp_path, tools=[tool])
    used_up = iter((30_000, 80_000, 120_000, 160_000, 30_000, 50_000, 60_000))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply("Four files were looked at.")
        tokens = next(used_up)
        if len(tool.told) == 6:
            return used(tokens, "All six are fine.")
        return replace(
            tool_call_reply("tell", path=f"file-{len(tool.told)}"), usage=Usage(input_tokens=tokens, output_tokens=10)
        )

    household.model.rule = rule
    async with household.run() as house:
        receipt = await house.send("Look at the six files, and mind the commas.", origin=terminal_origin("maria"))
        assert await house.wait_for_answer(receipt.envelope) == "All six are fine."
        assert tool.told == [f"file-{n}" for n in range(6)], "each once, in order"
        after = await house.get_session(receipt.session)
        assert after.compactions == 1
        prompts = turns(household)
        assert all(paired(prompt.records) for prompt in prompts)
        assert "mind the commas" in words(prompts[-1]), "the words it works on are still before it"
        assert isinstance(prompts[-1].records[0].body, Summary)
        steps = await rows(house, "SELECT turn FROM steps WHERE kind = 'model' AND idx = 0 ORDER BY turn")
        assert [turn for (turn,) in steps] == list(range(7))
        records = await house.list_records(receipt.session)
        assert seqs(records) == list(range(1, len(records) + 1)) and len(results(records)) == 6
        ids = [call.id for r in records if isinstance(r.body, Reply) for call in r.body.calls]
        assert len(set(ids)) == 6
        assert (await notices_to(house, "maria")) == [COMPACTING_NOTICE]
        await books_hold(house)


async def test_a_person_who_joins_in_is_not_told_a_second_time_of_the_same_run(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER))
    tool = Tell("result\n" * 6_000)
    household = LocalInstance(tmp_path, tools=[tool], agents=[ada])
    tokens = iter((60_000, 160_000, 60_000, 160_000, 60_000))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply(f"{len(tool.told)} files were looked at.")
        usage = Usage(input_tokens=next(tokens), output_tokens=10)
        if len(tool.told) == 4:
            return text_reply("All four are fine.", usage=usage)
        waits_s = 10 if len(tool.told) == 2 else 0
        return replace(tool_call_reply("tell", path=f"file-{len(tool.told)}"), usage=usage, after_s=waits_s)

    household.model.rule = rule
    async with household.run() as house:
        first = await house.send("Look at the four files.", origin=terminal_origin("maria"))
        await until(lambda: len(turns(household)) == 3, what="the turn after the first compaction")
        second = await house.send("Mind the commas.", origin=terminal_origin("maria"))
        await household.clock.advance(10)
        assert (
            await house.wait_for_answer(first.envelope)
            == await house.wait_for_answer(second.envelope)
            == "All four are fine."
        )
        assert (await house.get_session(first.session)).compactions == 2
        assert "Mind the commas." in words(turns(household)[-1])
        assert await notices_to(house, "maria") == [COMPACTING_NOTICE]
        await books_hold(house)


@pytest.mark.spec("C42", "C116", "C114.compaction")
async def test_a_safeguarded_summary_lists_the_files_and_failures_of_what_it_tells(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, tools=[Tell("fine\n" * 5_000, name="write")])
    flush_off = MemoryFlushSettings(enabled=False)
    household.settings = settings(
        tmp_path,
        context=ContextSettings(compaction=CompactionSettings(mode=CompactionMode.SAFEGUARD, memory_flush=flush_off)),
    )
    async with household.run() as house:
        household.model.will_reply(
            tool_call_reply("write", path="garden.md"),
            tool_call_reply("read", path="no-such.md"),
            used(10_000, "One failed."),
        )
        await asked(house, "write it down")
        await grown(house, tokens=160_000)
        household.model.rule = lambda prompt: text_reply("A garden.") if is_summary(prompt) else text_reply("Yes.")
        assert await asked(house, "Is it raining?") == "Yes."
        summary = turns(household)[-1].records[0].body
        assert isinstance(summary, Summary)
        assert "## Files changed\n- garden.md" in summary.text
        assert "## Tool failures\n- read: " in summary.text


# Before a compaction: what must not be lost


@pytest.mark.spec("C116")
async def test_an_agent_that_can_write_is_asked_to_once_before_each_compaction(tmp_path: Path) -> None:
    memory = Tell("written", name="write")
    household = LocalInstance(tmp_path, tools=[memory])
    async with household.run() as house:
        session = await grown(house, tokens=147_000)
        writes = replace(
            tool_call_reply("write", path="memory/today.md"), usage=Usage(input_tokens=148_000, output_tokens=10)
        )
        household.model.will_reply(writes, used(149_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert memory.told == ["memory/today.md"] and (await house.get_session(session)).compactions == 0
        (note,) = [r.body for r in turns(household)[-2].records if isinstance(r.body, Note)]
        assert note.text.startswith(FLUSH_HEAD) and "memory/2026-" in note.text

        # It is full: compacted without being asked to write again.
        household.model.will_reply(used(149_500, "No."), "A garden.", used(9_000, "Maybe."))
        assert await asked(house, "Is it snowing?") == "No."
        assert await asked(house, f"Will it hail?\n{LONG}") == "Maybe."
        assert (await house.get_session(session)).compactions == 1
        notes = [r for r in await house.list_records(session) if isinstance(r.body, Note)]
        assert len(notes) == 1, "once in each cycle"

        # The next cycle has a note of its own.
        await grown(house, tokens=147_000)
        household.model.will_reply(used(148_000, "Yes."))
        await asked(house, "Is it raining?")
        assert len([r for r in await house.list_records(session) if isinstance(r.body, Note)]) == 2
        await books_hold(house)


@pytest.mark.spec("C43")
async def test_what_must_not_be_lost_is_written_into_a_real_file_and_nobody_hears_of_it(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, tools=[])
    async with household.run() as house:
        ground = FileServices(
            store=house.store,
            clock=household.clock,
            files=AttachmentFiles(tmp_path / "files"),
            withheld=ProtectedPaths(data_directory=tmp_path),
        )
        household.toolbox.set_tools([WriteTool(ground)])
        session = await grown(house, tokens=147_000)
        today = f"memory/{household.clock.now().date()}.md"
        keeps = replace(
            tool_call_reply("write", path=today, content="- maria: no peanuts\n", append=True),
            usage=Usage(input_tokens=148_000, output_tokens=10),
        )
        household.model.will_reply(keeps, used(149_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert (tmp_path / "agents" / "ada" / today).read_text() == "- maria: no peanuts\n"
        kept = [r.body for r in await house.list_records(session) if isinstance(r.body, Note)]
        assert len(kept) == 1 and await notices_to(house, "maria") == []

        # Again before the compaction that follows: the note is there already, and nobody is asked twice.
        household.model.will_reply(used(149_200, "No."))
        await asked(house, "Is it snowing?")
        assert len([r for r in await house.list_records(session) if isinstance(r.body, Note)]) == 1


@pytest.mark.spec("C43")
async def test_who_may_not_write_is_not_asked_to(tmp_path: Path) -> None:
    """A workspace that is mounted read-only takes `write` away, and with it the note."""
    household = LocalInstance(tmp_path, tools=[Tell("written", name="write")])
    household.run_resources = RunResources(is_read_only=True)
    async with household.run() as house:
        session = await grown(house, tokens=147_000)
        household.model.will_reply(used(148_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert not any(isinstance(r.body, Note) for r in await house.list_records(session))
        assert "write" not in {tool.name for tool in turns(household)[-1].tools}


@pytest.mark.spec("C116")
@pytest.mark.parametrize("switched_off", [False, True])
async def test_an_agent_that_cannot_write_or_need_not_reads_no_note(
    household: LocalInstance, switched_off: bool
) -> None:
    if switched_off:
        household.tools = [Tell("written", name="write")]
        flush = MemoryFlushSettings(enabled=False)
        household.settings = settings(
            household.root, context=ContextSettings(compaction=CompactionSettings(memory_flush=flush))
        )
    async with household.run() as house:
        session = await grown(house, tokens=147_000)
        household.model.will_reply(used(160_000, "Yes."), "A garden.", "No.")
        await asked(house, "Is it raining?")
        await asked(house, "Is it snowing?")
        assert (await house.get_session(session)).compactions == 1
        assert not any(isinstance(r.body, Note) for r in await house.list_records(session))


# Results: what is sent, and what is kept


@pytest.mark.spec("C44", "C117")
async def test_old_results_are_pruned_in_what_is_sent_and_in_nothing_that_is_kept(tmp_path: Path) -> None:
    pruning = PruningSettings(
        mode=PruningMode.CACHE_TTL, ttl_s=300, keep_last_assistants=1, soft_trim_ratio=0.0, soft_trim=SoftTrimSettings()
    )
    household = LocalInstance(tmp_path, tools=[Tell("result\n" * 2_000)], settings=settings(tmp_path))
    household.settings = settings(tmp_path, context=ContextSettings(pruning=pruning))
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("tell"), "told", "warm", "cold", "off")
        receipt = await house.send("tell me")
        await house.wait_for_outcome(receipt.envelope)
        history = await house.list_records(receipt.session)
        await asked(house, "still here?")
        (warm,) = results(turns(household)[-1].records)
        await household.clock.advance(301)
        await asked(house, "and now?")
        (cold,) = results(turns(household)[-1].records)
        assert len(warm.output) == 14_000 and 3_000 < len(cold.output) < 3_200
        assert "[trimmed: the first 1500 and the last 1500 of 14000 characters are shown]" in cold.output
        assert (await house.list_records(receipt.session))[: len(history)] == history

        household.loop_parts.settings = settings(tmp_path)  # as changed settings arrive: from the next reply on
        await asked(house, "and then?")
        (whole,) = results(turns(household)[-1].records)
        assert whole.output == warm.output


@pytest.mark.spec("C45")
async def test_one_result_takes_at_most_a_share_of_the_window(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, tools=[Tell("line\n" * 9_000)])
    household.model.window_tokens = 32_000
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("tell"), "Long.")
        receipt = await house.send("tell me")
        assert await house.wait_for_answer(receipt.envelope) == "Long."
        (sent,) = results(turns(household)[-1].records)
        assert 30_000 < len(sent.output) <= 32_000 * 4 * 0.3
        assert sent.output.endswith("ask for the rest in smaller parts]")
        (kept,) = results(await house.list_records(receipt.session))
        assert len(kept.output) == 45_000


# Models that can have little in mind


@pytest.mark.spec("C41")
async def test_a_model_with_too_small_a_window_is_refused_with_what_to_set(household: LocalInstance) -> None:
    household.model.window_tokens = 15_999
    async with household.run() as house:
        receipt = await house.send("hello")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome == "dead"
        (notice,) = await notices_to(house, "maria")
        assert "the context window of scripted is too small: 15,999 tokens [model.window_too_small]" in notice
        assert "set `window_tokens` of 'scripted'" in notice and household.model.prompts == []


@pytest.mark.spec("C41")
async def test_a_model_with_a_small_window_is_used_with_a_line_in_the_log(
    household: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.window_tokens = 31_999
    with caplog.at_level(logging.WARNING, logger="retinue"):
        async with household.run() as house:
            household.model.will_reply("Yes.", "No.")
            assert [await asked(house, "one"), await asked(house, "two")] == ["Yes.", "No."]
    assert [record.getMessage() for record in caplog.records].count("model window small") == 1
