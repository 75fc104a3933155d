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
from retinue.config.models import Compaction, CompactionMode, Context, MemoryFlush, Pruning, PruningMode, SoftTrim
from retinue.domain.agent import Agent
from retinue.domain.event import NewsKind
from retinue.domain.model import Failure
from retinue.domain.permission import Withheld
from retinue.domain.record import Mark, Note, Record, RecordKind, Reply, Summary, Usage, UserTurn
from retinue.domain.session import Origin, OriginKind, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.base import Prompt
from retinue.runners.base import Equipment
from retinue.runners.context_policy import COMPACTING, OVERFLOWED
from retinue.runners.model_context import FLUSH_HEAD
from retinue.store.core import events
from retinue.store.envelopes.attachment_files import Files
from retinue.testing.local_instance import House, Household, terminal
from retinue.testing.scripted_model import Line, ScriptedModel, calls, says
from retinue.tools.base import Scene, schema_of
from retinue.tools.files import Ground, Write

WINDOW = 200_000
LONG = "the garden needs water, and the cat is on the roof again\n" * 700  # about 10,000 tokens


def settings(household_root: Path, **kw: Any) -> Settings:
    return Settings(home=household_root, store=household_root / "house.db", zone=ZoneInfo("UTC"), **kw)


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return Household(tmp_path)


def used(tokens: int, text: str = "Noted.") -> Line:
    """A reply whose provider has counted so many tokens."""
    return says(text, usage=Usage(input_tokens=tokens - 100, output_tokens=100))


def is_summary(prompt: Prompt) -> bool:
    return prompt.session.endswith("/summary")


def summaries(household: Household) -> list[Prompt]:
    return [prompt for prompt in household.model.prompts if is_summary(prompt)]


def turns(household: Household) -> list[Prompt]:
    return [prompt for prompt in household.model.prompts if not is_summary(prompt)]


def words(prompt: Prompt) -> str:
    """Everything a prompt holds for the model to read."""
    return "\n".join(
        getattr(record.body, "text", "") or getattr(record.body, "output", "") for record in prompt.records
    )


def seqs(records: Sequence[Record]) -> list[int]:
    return [record.seq for record in records]


async def asked(house: House, text: str, **kw: Any) -> str:
    return await house.answer_to((await house.post(text, **kw)).envelope)


async def grown(house: House, *, tokens: int, messages: int = 4, **kw: Any) -> str:
    """A conversation of so many long messages, at whose end its provider has counted `tokens`. Returns its session."""
    model = house.household.model
    session: str | None = None
    for n in range(1, messages + 1):
        model.will_reply(used(tokens * n // messages, f"Noted, {n}."))
        receipt = await house.post(f"message {n}\n{LONG}", **kw)
        await house.outcome(receipt.envelope)
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
async def test_whoever_asks_for_the_history_of_a_compacted_conversation_reads_all_of_it(household: Household) -> None:
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
async def test_a_conversation_past_three_quarters_is_told_in_short_and_goes_on(household: Household) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=WINDOW * 3 // 4, origin=terminal("maria"))
        before, history = await house.session(session), await house.records(session)
        assert before.compactions == 0 and summaries(household) == []

        household.model.will_reply("They talked about a garden and a cat.", used(9_000, "On the roof."))
        assert await asked(house, "Where is the cat?", origin=terminal("maria")) == "On the roof."

        after = await house.session(session)
        assert (after.compactions, after.revision) == (1, before.revision + 1)
        (summary,) = [r.body for r in await house.records(session) if isinstance(r.body, Summary)]
        assert summary.kept_from == after.context_from > before.context_from
        # The next prompt: first the summary, then what was kept, the newest turn last, each once.
        prompt = turns(household)[-1].records
        assert prompt[0].body == summary and "a garden and a cat" in summary.text
        assert seqs(prompt[1:]) == sorted(set(seqs(prompt[1:]))) and prompt[1].seq == after.context_from
        assert isinstance(prompt[-1].body, UserTurn) and "Where is the cat?" in prompt[-1].body.text
        # Nothing of the history is lost, changed or doubled.
        records = await house.records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert [r.kind for r in records[len(history) :]] == [RecordKind.USER, RecordKind.SUMMARY, RecordKind.ASSISTANT]
        # The person was told, once, before the answer.
        mail = [envelope.text for envelope in await house.mail_for("maria")][-2:]
        assert mail == [COMPACTING, "On the roof."]
        told = await house.store.scan(lambda conn: events.after(conn, 0, limit=1000))
        (compacted,) = [each for each in told if each.kind is NewsKind.SESSION_COMPACTED]
        assert compacted.body["compactions"] == 1 and compacted.body["kept_from"] == after.context_from
        await books_hold(house)


@pytest.mark.spec("D23")
async def test_a_conversation_below_three_quarters_is_left_alone(household: Household) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=WINDOW * 3 // 4 - 1_000)
        household.model.will_reply("On the roof.")
        assert await asked(house, "Where is the cat?") == "On the roof."
        assert (await house.session(session)).compactions == 0
        assert len(household.model.prompts) == 5 and await notices_to(house, "maria") == []


async def test_what_was_told_in_short_stays_so_for_the_next_message_and_after_a_restart(household: Household) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=160_000)
        household.model.will_reply("It was about a garden.", used(9_000, "Yes."), used(9_500, "No."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert await asked(house, "Is it snowing?") == "No."
        warm = turns(household)[-1].records
    household.model.will_reply(used(9_900, "Good night."))
    async with household.open() as house:
        assert await asked(house, "Good night") == "Good night."
        assert turns(household)[-1].records[: len(warm)] == warm, "as it is read from the store again"
        assert len(summaries(household)) == 1 and (await house.session(session)).compactions == 1


async def test_a_second_compaction_tells_the_first_summary_on(household: Household) -> None:
    async with household.open() as house:
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
        assert (await house.session(session)).compactions == 2
        records = await house.records(session)
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
    household: Household, sender: str, origin: Origin
) -> None:
    household.agents = [*household.agents, Agent(name="bob", model="quiet")]
    household.models = [ScriptedModel(household.clock, name="quiet", rule=lambda _: says("NO_REPLY"))]
    async with household.open() as house:
        session = await grown(house, tokens=160_000, sender=sender, origin=origin)
        household.model.will_reply("A garden.", "Yes.")
        receipt = await house.post("Is it raining?", sender=sender, origin=origin)
        await house.outcome(receipt.envelope)
        assert (await house.session(session)).compactions == 1
        assert await rows(house, "SELECT text FROM envelopes WHERE kind = 'notice'") == []


@pytest.mark.spec("D24")
@pytest.mark.parametrize(
    "line",
    [
        says("   "),
        says("NO_REPLY"),
        Line(fails="not today", failure=Failure.BAD_REQUEST),
        Line(fails="too much", failure=Failure.CONTEXT_OVERFLOW),
        says("endless " * 40_000),
    ],
    ids=["empty", "silent", "refused", "too-long", "longer-than-what-it-tells"],
)
async def test_a_summary_that_failed_leaves_the_context_as_it_was_and_the_run_goes_on(
    household: Household, line: Line
) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=160_000, messages=2)
        before = await house.session(session)
        answers = [line, says("Yes.")]
        # An empty reply is asked for once more before it counts as a failure.
        household.model.rule = lambda prompt: answers[0] if is_summary(prompt) else answers[1]
        assert await as_time_goes_by(house, asked(house, "Is it raining?")) == "Yes."
        after = await house.session(session)
        assert (after.compactions, after.context_from, after.revision) == (0, before.context_from, before.revision)
        assert [type(r.body) for r in turns(household)[-1].records] == [Mark, *[UserTurn, Reply] * 2, UserTurn]
        assert not any(isinstance(r.body, Summary) for r in await house.records(session))
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


@pytest.mark.spec("C42", "D24")
async def test_a_summary_that_takes_too_long_is_given_up_and_its_money_is_not_known(household: Household) -> None:
    household.model.price_microusd = 700
    async with household.open() as house:
        session = await grown(house, tokens=160_000)
        household.model.will_reply(says("never", after_s=3600), "Yes.")
        receipt = await house.post("Is it raining?")
        await until(lambda: len(summaries(household)) == 1, what="the summary to be asked for")
        await household.clock.advance(121)
        assert await house.answer_to(receipt.envelope) == "Yes."
        assert (await house.session(session)).compactions == 0
        given_up = await rows(
            house, "SELECT idx < 0, unknown, held_microusd, settled_microusd FROM money WHERE unknown"
        )
        assert [tuple(row) for row in given_up] == [(1, 1, 0, 700)]
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


# Too much for the provider


@pytest.mark.spec("C40", "D25")
async def test_what_does_not_fit_is_compacted_three_times_then_cut_short_then_begun_afresh(tmp_path: Path) -> None:
    household = Household(tmp_path, tools=[Tell("x" * 30_000)])
    overflow = Line(fails="prompt is too long", failure=Failure.CONTEXT_OVERFLOW)
    lengths = iter((5, 4, 3))

    def rule(prompt: Prompt) -> Line:
        return says("in short " * next(lengths)) if is_summary(prompt) else overflow

    async with household.open() as house:
        session = await grown(house, tokens=60_000, messages=3)
        household.model.will_reply(calls("tell"), used(70_000, "It is known."), used(80_000, "And so on."))
        await asked(house, f"tell me\n{LONG}")
        await asked(house, f"go on\n{LONG}")
        history = await house.records(session)
        household.model.rule = rule
        begun = len(household.model.prompts)
        assert await asked(house, "And now?") == OVERFLOWED
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
        after = await house.session(session)
        assert after.compactions == 0, "counted within a context"
        records = await house.records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert await rows(house, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await books_hold(house)


@pytest.mark.spec("C40")
async def test_an_overflow_that_one_compaction_cures_is_not_noticed(household: Household) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=60_000)
        household.model.will_reply(
            Line(fails="prompt is too long", failure=Failure.CONTEXT_OVERFLOW), "A garden.", used(9_000, "Yes.")
        )
        assert await asked(house, "Is it raining?") == "Yes."
        assert (await house.session(session)).compactions == 1
        steps = await rows(house, "SELECT next_move FROM money WHERE failure = 'context_overflow'")
        assert [tuple(row) for row in steps] == [("compaction",)]
        await books_hold(house)


@pytest.mark.spec("C40")
async def test_in_a_long_run_compactions_are_counted_anew_once_a_model_had_room_to_reply(tmp_path: Path) -> None:
    """Four times in one run it was too much, and each time one compaction was enough: no result is cut short for it."""
    tool = Tell("result\n" * 6_000)
    household = Household(tmp_path, tools=[tool])

    def rule(prompt: Prompt) -> Line:
        if is_summary(prompt):
            return says(f"{len(tool.told)} files were looked at.")
        if len(results(prompt.records)) > 2:
            return Line(fails="prompt is too long", failure=Failure.CONTEXT_OVERFLOW)
        return says("All are fine.") if len(tool.told) == 12 else calls("tell", path=f"file-{len(tool.told)}")

    household.model.rule = rule
    async with household.open() as house:
        receipt = await house.post("Look at the twelve files.")
        assert await house.answer_to(receipt.envelope) == "All are fine."
        assert (await house.session(receipt.session)).compactions > 3
        assert not any("[cut:" in result.output for prompt in turns(household) for result in results(prompt.records))
        assert tool.told == [f"file-{n}" for n in range(12)]
        await books_hold(house)


@pytest.mark.spec("C40", "C45")
async def test_results_are_cut_short_where_no_summary_can_be_had(tmp_path: Path) -> None:
    """One question, one endless result: there is nothing before it that could be told in short."""
    household = Household(tmp_path, tools=[Tell("line\n" * 9_000)])

    def rule(prompt: Prompt) -> Line:
        if is_summary(prompt):
            return Line(fails="cannot", failure=Failure.BAD_REQUEST)
        if len(words(prompt)) > 30_000:
            return Line(fails="prompt is too long", failure=Failure.CONTEXT_OVERFLOW)
        return says("It is long.") if results(prompt.records) else calls("tell")

    household.model.rule = rule
    async with household.open() as house:
        receipt = await house.post("tell me")
        assert await house.answer_to(receipt.envelope) == "It is long."
        (sent,) = results(turns(household)[-1].records)
        (kept,) = results(await house.records(receipt.session))
        assert len(sent.output) < 20_000 and "[cut: this is the beginning of 45000 characters" in sent.output
        assert kept.output == "line\n" * 9_000
        await books_hold(house)


@pytest.mark.spec("D25")
@pytest.mark.parametrize("failure", [Failure.RATE_LIMIT, Failure.OVERLOADED])
async def test_a_provider_that_is_asked_too_often_never_costs_the_conversation(
    household: Household, failure: Failure
) -> None:
    async with household.open() as house:
        session = await grown(house, tokens=100_000)
        before = await house.session(session)
        busy = Line(fails="Request too large for tokens per minute: context limit exceeded", failure=failure)
        household.model.rule = lambda _: busy
        receipt = await house.post("Is it raining?")
        settled = await as_time_goes_by(house, house.outcome(receipt.envelope), step_s=30)
        assert settled.outcome == "dead"
        household.model.rule = None
        household.model.will_reply("Yes.")
        assert await asked(house, "Is it raining now?") == "Yes."
        after = await house.session(session)
        assert (after.compactions, after.context_from, after.revision) == (0, before.context_from, before.revision)
        assert "message 1" in words(turns(household)[-1]) and summaries(household) == []


# The emergency limit


@pytest.mark.spec("D81")
@pytest.mark.parametrize(("short_by", "answer"), [(0, "limit is 30,000"), (1, "Yes.")])
async def test_at_the_emergency_limit_a_context_is_begun_afresh_and_one_token_below_it_is_not(
    household: Household, short_by: int, answer: str
) -> None:
    limit = 30_000
    household.model.rule = lambda prompt: says("NO_REPLY") if is_summary(prompt) else says("Yes.")  # none can be had
    household.settings = settings(household.root, context=Context(emergency_context_limit=limit))
    async with household.open() as house:
        session = (await house.post("hello")).session
        await house.quiet()
        # How long the next turn is beside its words is known once one was read.
        (turn, said) = [len(r.body.text) for r in turns(household)[0].records if isinstance(r.body, UserTurn)] + [4]
        heads = 2 * (turn - len("hello"))
        letters = (limit - short_by) * 4 - heads - len("hello") - said
        begun = len(household.model.prompts)
        assert answer in await asked(house, "x" * letters)
        if short_by:
            assert (await house.session(session)).revision == 0
        else:
            assert household.model.prompts[begun:] == [], "before any model was asked"
            assert "Please send your last message again" in (await house.mail_for("maria"))[-1].text
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

    async def perform(self, arguments: Any, scene: Scene) -> str:
        self.told.append(arguments.path)
        return self.output


@pytest.mark.spec("C42", "D23")
async def test_a_long_run_is_compacted_in_its_middle_and_comes_to_its_answer(tmp_path: Path) -> None:
    tool = Tell("result\n" * 6_000)
    household = Household(tmp_path, tools=[tool])
    used_up = iter((30_000, 80_000, 120_000, 160_000, 30_000, 50_000, 60_000))

    def rule(prompt: Prompt) -> Line:
        if is_summary(prompt):
            return says("Four files were looked at.")
        tokens = next(used_up)
        if len(tool.told) == 6:
            return used(tokens, "All six are fine.")
        return replace(calls("tell", path=f"file-{len(tool.told)}"), usage=Usage(input_tokens=tokens, output_tokens=10))

    household.model.rule = rule
    async with household.open() as house:
        receipt = await house.post("Look at the six files, and mind the commas.", origin=terminal("maria"))
        assert await house.answer_to(receipt.envelope) == "All six are fine."
        assert tool.told == [f"file-{n}" for n in range(6)], "each once, in order"
        after = await house.session(receipt.session)
        assert after.compactions == 1
        prompts = turns(household)
        assert all(paired(prompt.records) for prompt in prompts)
        assert "mind the commas" in words(prompts[-1]), "the words it works on are still before it"
        assert isinstance(prompts[-1].records[0].body, Summary)
        steps = await rows(house, "SELECT turn FROM steps WHERE kind = 'model' AND idx = 0 ORDER BY turn")
        assert [turn for (turn,) in steps] == list(range(7))
        records = await house.records(receipt.session)
        assert seqs(records) == list(range(1, len(records) + 1)) and len(results(records)) == 6
        ids = [call.id for r in records if isinstance(r.body, Reply) for call in r.body.calls]
        assert len(set(ids)) == 6
        assert (await notices_to(house, "maria")) == [COMPACTING]
        await books_hold(house)


async def test_a_person_who_joins_in_is_not_told_a_second_time_of_the_same_run(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER))
    tool = Tell("result\n" * 6_000)
    household = Household(tmp_path, tools=[tool], agents=[ada])
    tokens = iter((60_000, 160_000, 60_000, 160_000, 60_000))

    def rule(prompt: Prompt) -> Line:
        if is_summary(prompt):
            return says(f"{len(tool.told)} files were looked at.")
        usage = Usage(input_tokens=next(tokens), output_tokens=10)
        if len(tool.told) == 4:
            return says("All four are fine.", usage=usage)
        waits_s = 10 if len(tool.told) == 2 else 0
        return replace(calls("tell", path=f"file-{len(tool.told)}"), usage=usage, after_s=waits_s)

    household.model.rule = rule
    async with household.open() as house:
        first = await house.post("Look at the four files.", origin=terminal("maria"))
        await until(lambda: len(turns(household)) == 3, what="the turn after the first compaction")
        second = await house.post("Mind the commas.", origin=terminal("maria"))
        await household.clock.advance(10)
        assert await house.answer_to(first.envelope) == await house.answer_to(second.envelope) == "All four are fine."
        assert (await house.session(first.session)).compactions == 2
        assert "Mind the commas." in words(turns(household)[-1])
        assert await notices_to(house, "maria") == [COMPACTING]
        await books_hold(house)


@pytest.mark.spec("C42", "C116", "C114.compaction")
async def test_a_safeguarded_summary_lists_the_files_and_failures_of_what_it_tells(tmp_path: Path) -> None:
    household = Household(tmp_path, tools=[Tell("fine\n" * 5_000, name="write")])
    flush_off = MemoryFlush(enabled=False)
    household.settings = settings(
        tmp_path, context=Context(compaction=Compaction(mode=CompactionMode.SAFEGUARD, memory_flush=flush_off))
    )
    async with household.open() as house:
        household.model.will_reply(
            calls("write", path="garden.md"), calls("read", path="no-such.md"), used(10_000, "One failed.")
        )
        await asked(house, "write it down")
        await grown(house, tokens=160_000)
        household.model.rule = lambda prompt: says("A garden.") if is_summary(prompt) else says("Yes.")
        assert await asked(house, "Is it raining?") == "Yes."
        summary = turns(household)[-1].records[0].body
        assert isinstance(summary, Summary)
        assert "## Files changed\n- garden.md" in summary.text
        assert "## Tool failures\n- read: " in summary.text


# Before a compaction: what must not be lost


@pytest.mark.spec("C116")
async def test_an_agent_that_can_write_is_asked_to_once_before_each_compaction(tmp_path: Path) -> None:
    memory = Tell("written", name="write")
    household = Household(tmp_path, tools=[memory])
    async with household.open() as house:
        session = await grown(house, tokens=147_000)
        writes = replace(calls("write", path="memory/today.md"), usage=Usage(input_tokens=148_000, output_tokens=10))
        household.model.will_reply(writes, used(149_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert memory.told == ["memory/today.md"] and (await house.session(session)).compactions == 0
        (note,) = [r.body for r in turns(household)[-2].records if isinstance(r.body, Note)]
        assert note.text.startswith(FLUSH_HEAD) and "memory/2026-" in note.text

        # It is full: compacted without being asked to write again.
        household.model.will_reply(used(149_500, "No."), "A garden.", used(9_000, "Maybe."))
        assert await asked(house, "Is it snowing?") == "No."
        assert await asked(house, f"Will it hail?\n{LONG}") == "Maybe."
        assert (await house.session(session)).compactions == 1
        notes = [r for r in await house.records(session) if isinstance(r.body, Note)]
        assert len(notes) == 1, "once in each cycle"

        # The next cycle has a note of its own.
        await grown(house, tokens=147_000)
        household.model.will_reply(used(148_000, "Yes."))
        await asked(house, "Is it raining?")
        assert len([r for r in await house.records(session) if isinstance(r.body, Note)]) == 2
        await books_hold(house)


@pytest.mark.spec("C43")
async def test_what_must_not_be_lost_is_written_into_a_real_file_and_nobody_hears_of_it(tmp_path: Path) -> None:
    household = Household(tmp_path, tools=[])
    async with household.open() as house:
        ground = Ground(
            store=house.store, clock=household.clock, files=Files(tmp_path / "files"), withheld=Withheld(house=tmp_path)
        )
        household.toolbox.bring([Write(ground)])
        session = await grown(house, tokens=147_000)
        today = f"memory/{household.clock.now().date()}.md"
        keeps = replace(
            calls("write", path=today, content="- maria: no peanuts\n", append=True),
            usage=Usage(input_tokens=148_000, output_tokens=10),
        )
        household.model.will_reply(keeps, used(149_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert (tmp_path / "agents" / "ada" / today).read_text() == "- maria: no peanuts\n"
        kept = [r.body for r in await house.records(session) if isinstance(r.body, Note)]
        assert len(kept) == 1 and await notices_to(house, "maria") == []

        # Again before the compaction that follows: the note is there already, and nobody is asked twice.
        household.model.will_reply(used(149_200, "No."))
        await asked(house, "Is it snowing?")
        assert len([r for r in await house.records(session) if isinstance(r.body, Note)]) == 1


@pytest.mark.spec("C43")
async def test_who_may_not_write_is_not_asked_to(tmp_path: Path) -> None:
    """A workspace that is mounted read-only takes `write` away, and with it the note."""
    household = Household(tmp_path, tools=[Tell("written", name="write")])
    household.equipment = Equipment(read_only=True)
    async with household.open() as house:
        session = await grown(house, tokens=147_000)
        household.model.will_reply(used(148_000, "Yes."))
        assert await asked(house, "Is it raining?") == "Yes."
        assert not any(isinstance(r.body, Note) for r in await house.records(session))
        assert "write" not in {tool.name for tool in turns(household)[-1].tools}


@pytest.mark.spec("C116")
@pytest.mark.parametrize("switched_off", [False, True])
async def test_an_agent_that_cannot_write_or_need_not_reads_no_note(household: Household, switched_off: bool) -> None:
    if switched_off:
        household.tools = [Tell("written", name="write")]
        flush = MemoryFlush(enabled=False)
        household.settings = settings(household.root, context=Context(compaction=Compaction(memory_flush=flush)))
    async with household.open() as house:
        session = await grown(house, tokens=147_000)
        household.model.will_reply(used(160_000, "Yes."), "A garden.", "No.")
        await asked(house, "Is it raining?")
        await asked(house, "Is it snowing?")
        assert (await house.session(session)).compactions == 1
        assert not any(isinstance(r.body, Note) for r in await house.records(session))


# Results: what is sent, and what is kept


@pytest.mark.spec("C44", "C117")
async def test_old_results_are_pruned_in_what_is_sent_and_in_nothing_that_is_kept(tmp_path: Path) -> None:
    pruning = Pruning(
        mode=PruningMode.CACHE_TTL, ttl_s=300, keep_last_assistants=1, soft_trim_ratio=0.0, soft_trim=SoftTrim()
    )
    household = Household(tmp_path, tools=[Tell("result\n" * 2_000)], settings=settings(tmp_path))
    household.settings = settings(tmp_path, context=Context(pruning=pruning))
    async with household.open() as house:
        household.model.will_reply(calls("tell"), "told", "warm", "cold", "off")
        receipt = await house.post("tell me")
        await house.outcome(receipt.envelope)
        history = await house.records(receipt.session)
        await asked(house, "still here?")
        (warm,) = results(turns(household)[-1].records)
        await household.clock.advance(301)
        await asked(house, "and now?")
        (cold,) = results(turns(household)[-1].records)
        assert len(warm.output) == 14_000 and 3_000 < len(cold.output) < 3_200
        assert "[trimmed: the first 1500 and the last 1500 of 14000 characters are shown]" in cold.output
        assert (await house.records(receipt.session))[: len(history)] == history

        household.thinking.settings = settings(tmp_path)  # as changed settings arrive: from the next reply on
        await asked(house, "and then?")
        (whole,) = results(turns(household)[-1].records)
        assert whole.output == warm.output


@pytest.mark.spec("C45")
async def test_one_result_takes_at_most_a_share_of_the_window(tmp_path: Path) -> None:
    household = Household(tmp_path, tools=[Tell("line\n" * 9_000)])
    household.model.window_tokens = 32_000
    async with household.open() as house:
        household.model.will_reply(calls("tell"), "Long.")
        receipt = await house.post("tell me")
        assert await house.answer_to(receipt.envelope) == "Long."
        (sent,) = results(turns(household)[-1].records)
        assert 30_000 < len(sent.output) <= 32_000 * 4 * 0.3
        assert sent.output.endswith("ask for the rest in smaller parts]")
        (kept,) = results(await house.records(receipt.session))
        assert len(kept.output) == 45_000


# Models that can have little in mind


@pytest.mark.spec("C41")
async def test_a_model_with_too_small_a_window_is_refused_with_what_to_set(household: Household) -> None:
    household.model.window_tokens = 15_999
    async with household.open() as house:
        receipt = await house.post("hello")
        assert (await house.outcome(receipt.envelope)).outcome == "dead"
        (notice,) = await notices_to(house, "maria")
        assert "scripted can have only 15,999 tokens in mind [model.window-too-small]" in notice
        assert "set `window_tokens` of 'scripted'" in notice and household.model.prompts == []


@pytest.mark.spec("C41")
async def test_a_model_with_a_small_window_is_used_with_a_line_in_the_log(
    household: Household, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.window_tokens = 31_999
    with caplog.at_level(logging.WARNING, logger="retinue"):
        async with household.open() as house:
            household.model.will_reply("Yes.", "No.")
            assert [await asked(house, "one"), await asked(house, "two")] == ["Yes.", "No."]
    assert [record.getMessage() for record in caplog.records].count("model window small") == 1
