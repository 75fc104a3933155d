"""Conversations that grow from the first message until they no longer fit into the context of the model."""

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
from contracts.engine_instance import (
    advance_clock_until_done,
    assert_ledger_balances,
    list_notices_to,
    list_tool_results,
    query_rows,
    wait_until_true,
)
from operations.operations_instance import open_operations_server, person

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
from retinue.domain.protected_paths import ProtectedPaths
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
LONG_TEXT = "the garden needs water, and the cat is on the roof again\n" * 700  # about 10,000 tokens


def settings(instance_root: Path, **kw: Any) -> Settings:
    return Settings(home=instance_root, store=instance_root / "retinue.db", zone=ZoneInfo("UTC"), **kw)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def reply_with_usage(tokens: int, text: str = "Noted.") -> ScriptedReply:
    """A reply for which the provider reports this many tokens."""
    return text_reply(text, usage=Usage(input_tokens=tokens - 100, output_tokens=100))


def is_summary(prompt: ModelPrompt) -> bool:
    return prompt.session.endswith("/summary")


def summary_prompts(instance: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in instance.model.prompts if is_summary(prompt)]


def turn_prompts(instance: LocalInstance) -> list[ModelPrompt]:
    return [prompt for prompt in instance.model.prompts if not is_summary(prompt)]


def prompt_text(prompt: ModelPrompt) -> str:
    """All text in a prompt."""
    return "\n".join(
        getattr(record.body, "text", "") or getattr(record.body, "output", "") for record in prompt.records
    )


def seqs(records: Sequence[Record]) -> list[int]:
    return [record.seq for record in records]


async def send_and_wait_for_answer(server: LocalServer, text: str, **kw: Any) -> str:
    return await server.wait_for_answer((await server.send(text, **kw)).envelope)


async def grow_session(server: LocalServer, *, tokens: int, messages: int = 4, **kw: Any) -> str:
    """A conversation of long messages, for whose last reply the provider reports `tokens`. Returns its session."""
    model = server.instance.model
    session: str | None = None
    for n in range(1, messages + 1):
        model.will_reply(reply_with_usage(tokens * n // messages, f"Noted, {n}."))
        receipt = await server.send(f"message {n}\n{LONG_TEXT}", **kw)
        await server.wait_for_outcome(receipt.envelope)
        session = receipt.session
    assert session is not None
    return session


def calls_match_results(records: Sequence[Record]) -> bool:
    """Whether each call is followed by its result, and each result has a call."""
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


# --- more than three quarters full ---


@pytest.mark.spec("D23")
async def test_session_history_returns_every_record_of_a_compacted_session(
    instance: LocalInstance,
) -> None:
    maria = person("maria")
    async with open_operations_server(instance) as made:
        session = await grow_session(made.server, tokens=160_000)
        instance.model.will_reply("A garden.", reply_with_usage(9_000, "Yes."))
        await send_and_wait_for_answer(made.server, "Is it raining?")
        found = (await made.ask(maria, "session.history", session=session, limit=50))["records"]
        assert sorted(record["seq"] for record in found) == list(range(1, len(found) + 1))
        told = json.dumps(found)
        assert all(f"message {n}" in told and f"Noted, {n}." in told for n in range(1, 5))
        assert sum(record["kind"] == "summary" for record in found) == 1


@pytest.mark.spec("D23", "C32")
async def test_a_session_past_three_quarters_of_the_window_is_compacted_and_continues(instance: LocalInstance) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=WINDOW * 3 // 4, origin=terminal_origin("maria"))
        before, history = await server.get_session(session), await server.list_records(session)
        assert before.compactions == 0 and summary_prompts(instance) == []

        instance.model.will_reply("They talked about a garden and a cat.", reply_with_usage(9_000, "On the roof."))
        assert (
            await send_and_wait_for_answer(server, "Where is the cat?", origin=terminal_origin("maria"))
            == "On the roof."
        )

        after = await server.get_session(session)
        assert (after.compactions, after.revision) == (1, before.revision + 1)
        (summary,) = [r.body for r in await server.list_records(session) if isinstance(r.body, Summary)]
        assert summary.kept_from == after.context_start_seq > before.context_start_seq
        # The next prompt: first the summary, then the kept records with the newest turn last, each once.
        prompt = turn_prompts(instance)[-1].records
        assert prompt[0].body == summary and "a garden and a cat" in summary.text
        assert seqs(prompt[1:]) == sorted(set(seqs(prompt[1:]))) and prompt[1].seq == after.context_start_seq
        assert isinstance(prompt[-1].body, UserTurn) and "Where is the cat?" in prompt[-1].body.text
        # The history is complete: nothing was lost, changed or duplicated.
        records = await server.list_records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert [r.kind for r in records[len(history) :]] == [RecordKind.USER, RecordKind.SUMMARY, RecordKind.ASSISTANT]
        # The person was notified once, before the answer.
        mail = [envelope.text for envelope in await server.list_envelopes_to("maria")][-2:]
        assert mail == [COMPACTING_NOTICE, "On the roof."]
        listed_events = await server.store.scan(lambda conn: events.list_after(conn, 0, limit=1000))
        (compacted,) = [each for each in listed_events if each.kind is EventKind.SESSION_COMPACTED]
        assert compacted.body["compactions"] == 1 and compacted.body["kept_from"] == after.context_start_seq
        await assert_ledger_balances(server)


@pytest.mark.spec("D23")
async def test_a_session_below_three_quarters_of_the_window_is_not_compacted(instance: LocalInstance) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=WINDOW * 3 // 4 - 1_000)
        instance.model.will_reply("On the roof.")
        assert await send_and_wait_for_answer(server, "Where is the cat?") == "On the roof."
        assert (await server.get_session(session)).compactions == 0
        assert len(instance.model.prompts) == 5 and await list_notices_to(server, "maria") == []


async def test_a_compacted_context_is_reused_for_the_next_message_and_after_a_restart(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=160_000)
        instance.model.will_reply(
            "It was about a garden.", reply_with_usage(9_000, "Yes."), reply_with_usage(9_500, "No.")
        )
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        assert await send_and_wait_for_answer(server, "Is it snowing?") == "No."
        warm = turn_prompts(instance)[-1].records
    instance.model.will_reply(reply_with_usage(9_900, "Good night."))
    async with instance.run() as server:
        assert await send_and_wait_for_answer(server, "Good night") == "Good night."
        assert turn_prompts(instance)[-1].records[: len(warm)] == warm, (
            "the same records after they are read from the database again"
        )
        assert len(summary_prompts(instance)) == 1 and (await server.get_session(session)).compactions == 1


async def test_a_second_compaction_includes_the_first_summary(instance: LocalInstance) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=160_000)
        instance.model.will_reply("FIRST: a garden.", reply_with_usage(20_000, "Yes."))
        await send_and_wait_for_answer(server, "Is it raining?")
        await grow_session(server, tokens=160_000)
        instance.model.will_reply("SECOND: a garden, and more.", reply_with_usage(20_000, "No."))
        assert await send_and_wait_for_answer(server, "Is it snowing?") == "No."
        assert "FIRST: a garden." in prompt_text(summary_prompts(instance)[1])
        prompt = turn_prompts(instance)[-1].records
        assert [type(r.body) for r in prompt].count(Summary) == 1 and "SECOND" in prompt_text(
            turn_prompts(instance)[-1]
        )
        assert "FIRST" not in prompt_text(turn_prompts(instance)[-1]), "the old summary was replaced"
        assert (await server.get_session(session)).compactions == 2
        records = await server.list_records(session)
        assert seqs(records) == list(range(1, len(records) + 1))
        await assert_ledger_balances(server)


@pytest.mark.spec("D23")
@pytest.mark.parametrize(
    ("sender", "origin"),
    [
        ("agent:bob", Origin(OriginKind.AGENT, "agent:bob")),
        (f"schedule:{7:032x}", Origin(OriginKind.SCHEDULE, "morning")),
        ("person:maria", Origin(OriginKind.SUBAGENT, "person:maria#1")),
    ],
)
async def test_a_compaction_sends_no_notice_in_agent_schedule_and_subagent_sessions(
    instance: LocalInstance, sender: str, origin: Origin
) -> None:
    instance.agents = [*instance.agents, Agent(name="bob", model="quiet")]
    instance.models = [ScriptedModel(instance.clock, name="quiet", rule=lambda _: text_reply("NO_REPLY"))]
    async with instance.run() as server:
        session = await grow_session(server, tokens=160_000, sender=sender, origin=origin)
        instance.model.will_reply("A garden.", "Yes.")
        receipt = await server.send("Is it raining?", sender=sender, origin=origin)
        await server.wait_for_outcome(receipt.envelope)
        assert (await server.get_session(session)).compactions == 1
        assert await query_rows(server, "SELECT text FROM envelopes WHERE kind = 'notice'") == []


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
async def test_a_failed_compaction_leaves_the_context_unchanged_and_the_run_continues(
    instance: LocalInstance, line: ScriptedReply
) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=160_000, messages=2)
        before = await server.get_session(session)
        answers = [line, text_reply("Yes.")]
        # An empty reply is requested once more before it counts as a failure.
        instance.model.rule = lambda prompt: answers[0] if is_summary(prompt) else answers[1]
        assert await advance_clock_until_done(server, send_and_wait_for_answer(server, "Is it raining?")) == "Yes."
        after = await server.get_session(session)
        assert (after.compactions, after.context_start_seq, after.revision) == (
            0,
            before.context_start_seq,
            before.revision,
        )
        assert [type(r.body) for r in turn_prompts(instance)[-1].records] == [
            ContextStart,
            *[UserTurn, Reply] * 2,
            UserTurn,
        ]
        assert not any(isinstance(r.body, Summary) for r in await server.list_records(session))
        assert await query_rows(server, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await assert_ledger_balances(server)


@pytest.mark.spec("C42", "D24")
async def test_a_compaction_that_times_out_is_abandoned_and_its_cost_is_recorded_as_unknown(
    instance: LocalInstance,
) -> None:
    instance.model.price_microusd = 700
    async with instance.run() as server:
        session = await grow_session(server, tokens=160_000)
        instance.model.will_reply(text_reply("never", after_s=3600), "Yes.")
        receipt = await server.send("Is it raining?")
        await wait_until_true(lambda: len(summary_prompts(instance)) == 1, what="the summary to be asked for")
        await instance.clock.advance(121)
        assert await server.wait_for_answer(receipt.envelope) == "Yes."
        assert (await server.get_session(session)).compactions == 0
        given_up = await query_rows(
            server,
            "SELECT call_index < 0, cost_unknown, held_microusd, settled_microusd FROM model_calls WHERE cost_unknown",
        )
        assert [tuple(row) for row in given_up] == [(1, 1, 0, 700)]
        assert await query_rows(server, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await assert_ledger_balances(server)


# --- refused by the provider as too long ---


@pytest.mark.spec("C40", "D25")
async def test_an_overflowing_context_is_compacted_then_truncated_then_reset(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("x" * 30_000)])
    overflow = ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
    lengths = iter((5, 4, 3))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        return text_reply("in short " * next(lengths)) if is_summary(prompt) else overflow

    async with instance.run() as server:
        session = await grow_session(server, tokens=60_000, messages=3)
        instance.model.will_reply(
            tool_call_reply("tell"), reply_with_usage(70_000, "It is known."), reply_with_usage(80_000, "And so on.")
        )
        await send_and_wait_for_answer(server, f"tell me\n{LONG_TEXT}")
        await send_and_wait_for_answer(server, f"go on\n{LONG_TEXT}")
        history = await server.list_records(session)
        instance.model.rule = rule
        begun = len(instance.model.prompts)
        assert await send_and_wait_for_answer(server, "And now?") == OVERFLOW_NOTICE
        tried = instance.model.prompts[begun:]
        compactions = sum(is_summary(prompt) for prompt in tried)
        assert 1 <= compactions <= 3 and compactions == len(summary_prompts(instance))
        sizes = [len(prompt_text(prompt)) for prompt in tried if not is_summary(prompt)]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
        # The person is asked to send the message again, and a new context works.
        instance.model.rule = None
        instance.model.will_reply(reply_with_usage(500, "Good morning."))
        assert await send_and_wait_for_answer(server, "Hello?") == "Good morning."
        assert [r.kind for r in turn_prompts(instance)[-1].records] == [RecordKind.RESET, RecordKind.USER]
        after = await server.get_session(session)
        assert after.compactions == 0, "the count starts again in a new context"
        records = await server.list_records(session)
        assert records[: len(history)] == history and seqs(records) == list(range(1, len(records) + 1))
        assert await query_rows(server, "SELECT count(*) FROM steps WHERE state = 'open'") == [(0,)]
        await assert_ledger_balances(server)


@pytest.mark.spec("C40")
async def test_an_overflow_resolved_by_one_compaction_is_answered_normally(instance: LocalInstance) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=60_000)
        instance.model.will_reply(
            ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW),
            "A garden.",
            reply_with_usage(9_000, "Yes."),
        )
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        assert (await server.get_session(session)).compactions == 1
        steps = await query_rows(server, "SELECT next_action FROM model_calls WHERE failure = 'context_overflow'")
        assert [tuple(row) for row in steps] == [("compaction",)]
        await assert_ledger_balances(server)


@pytest.mark.spec("C40")
async def test_the_compaction_count_of_a_run_restarts_after_each_successful_model_reply(tmp_path: Path) -> None:
    """In one run the prompt was too long four times. One compaction was enough each time, so no result is truncated."""
    tool = FixedResultTool("result\n" * 6_000)
    instance = LocalInstance(tmp_path, tools=[tool])

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply(f"{len(tool.told)} files were looked at.")
        if len(list_tool_results(prompt.records)) > 2:
            return ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
        return (
            text_reply("All are fine.")
            if len(tool.told) == 12
            else tool_call_reply("tell", path=f"file-{len(tool.told)}")
        )

    instance.model.rule = rule
    async with instance.run() as server:
        receipt = await server.send("Look at the twelve files.")
        assert await server.wait_for_answer(receipt.envelope) == "All are fine."
        assert (await server.get_session(receipt.session)).compactions > 3
        assert not any(
            "[cut:" in result.output
            for prompt in turn_prompts(instance)
            for result in list_tool_results(prompt.records)
        )
        assert tool.told == [f"file-{n}" for n in range(12)]
        await assert_ledger_balances(server)


@pytest.mark.spec("C40", "C45")
async def test_the_context_policy_truncates_tool_results_in_the_prompt_if_no_summary_is_possible(
    tmp_path: Path,
) -> None:
    """One question with one very long result: there are no earlier records to summarize."""
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("line\n" * 9_000)])

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return ScriptedReply(fails="cannot", failure=ModelFailureKind.BAD_REQUEST)
        if len(prompt_text(prompt)) > 30_000:
            return ScriptedReply(fails="prompt is too long", failure=ModelFailureKind.CONTEXT_OVERFLOW)
        return text_reply("It is long.") if list_tool_results(prompt.records) else tool_call_reply("tell")

    instance.model.rule = rule
    async with instance.run() as server:
        receipt = await server.send("tell me")
        assert await server.wait_for_answer(receipt.envelope) == "It is long."
        (sent,) = list_tool_results(turn_prompts(instance)[-1].records)
        (kept,) = list_tool_results(await server.list_records(receipt.session))
        assert len(sent.output) < 20_000 and "[cut: this is the beginning of 45000 characters" in sent.output
        assert kept.output == "line\n" * 9_000
        await assert_ledger_balances(server)


@pytest.mark.spec("D25")
@pytest.mark.parametrize("failure", [ModelFailureKind.RATE_LIMIT, ModelFailureKind.OVERLOADED])
async def test_the_context_policy_compacts_and_resets_no_session_after_rate_limit_and_overload_failures(
    instance: LocalInstance, failure: ModelFailureKind
) -> None:
    async with instance.run() as server:
        session = await grow_session(server, tokens=100_000)
        before = await server.get_session(session)
        busy = ScriptedReply(fails="Request too large for tokens per minute: context limit exceeded", failure=failure)
        instance.model.rule = lambda _: busy
        receipt = await server.send("Is it raining?")
        settled = await advance_clock_until_done(server, server.wait_for_outcome(receipt.envelope), step_s=30)
        assert settled.outcome == "dead"
        instance.model.rule = None
        instance.model.will_reply("Yes.")
        assert await send_and_wait_for_answer(server, "Is it raining now?") == "Yes."
        after = await server.get_session(session)
        assert (after.compactions, after.context_start_seq, after.revision) == (
            0,
            before.context_start_seq,
            before.revision,
        )
        assert "message 1" in prompt_text(turn_prompts(instance)[-1]) and summary_prompts(instance) == []


# --- emergency limit ---


@pytest.mark.spec("D81")
@pytest.mark.parametrize(("short_by", "answer"), [(0, "limit is 30,000"), (1, "Yes.")])
async def test_a_context_at_the_emergency_limit_is_reset_and_one_token_below_is_not(
    instance: LocalInstance, short_by: int, answer: str
) -> None:
    limit = 30_000
    instance.model.rule = lambda prompt: (
        text_reply("NO_REPLY") if is_summary(prompt) else text_reply("Yes.")
    )  # no summary is possible
    instance.settings = settings(instance.root, context=ContextSettings(emergency_context_limit=limit))
    async with instance.run() as server:
        session = (await server.send("hello")).session
        await server.wait_until_idle()
        # After one turn, the size of the next turn around its text is known.
        (turn, said) = [len(r.body.text) for r in turn_prompts(instance)[0].records if isinstance(r.body, UserTurn)] + [
            4
        ]
        heads = 2 * (turn - len("hello"))
        padding = (limit - short_by) * 4 - heads - len("hello") - said
        begun = len(instance.model.prompts)
        assert answer in await send_and_wait_for_answer(server, "x" * padding)
        if short_by:
            assert (await server.get_session(session)).revision == 0
        else:
            assert instance.model.prompts[begun:] == [], "no model was called"
            assert "Please send your last message again" in (await server.list_envelopes_to("maria"))[-1].text
            assert await send_and_wait_for_answer(server, "hello again") == "Yes."
            assert [r.kind for r in turn_prompts(instance)[-1].records] == [RecordKind.RESET, RecordKind.USER]
        await assert_ledger_balances(server)


# --- during a long run ---


@dataclass(frozen=True, slots=True)
class FixedResultTool:
    """Returns the given result."""

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
async def test_a_long_run_is_compacted_midway_and_completes(tmp_path: Path) -> None:
    tool = FixedResultTool("result\n" * 6_000)
    instance = LocalInstance(tmp_path, tools=[tool])
    used_up = iter((30_000, 80_000, 120_000, 160_000, 30_000, 50_000, 60_000))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply("Four files were looked at.")
        tokens = next(used_up)
        if len(tool.told) == 6:
            return reply_with_usage(tokens, "All six are fine.")
        return replace(
            tool_call_reply("tell", path=f"file-{len(tool.told)}"), usage=Usage(input_tokens=tokens, output_tokens=10)
        )

    instance.model.rule = rule
    async with instance.run() as server:
        receipt = await server.send("Look at the six files, and mind the commas.", origin=terminal_origin("maria"))
        assert await server.wait_for_answer(receipt.envelope) == "All six are fine."
        assert tool.told == [f"file-{n}" for n in range(6)], "each call once, in order"
        after = await server.get_session(receipt.session)
        assert after.compactions == 1
        prompts = turn_prompts(instance)
        assert all(calls_match_results(prompt.records) for prompt in prompts)
        assert "mind the commas" in prompt_text(prompts[-1]), "the task is still in the prompt"
        assert isinstance(prompts[-1].records[0].body, Summary)
        steps = await query_rows(server, "SELECT turn FROM steps WHERE kind = 'model' AND call_index = 0 ORDER BY turn")
        assert [turn for (turn,) in steps] == list(range(7))
        records = await server.list_records(receipt.session)
        assert seqs(records) == list(range(1, len(records) + 1)) and len(list_tool_results(records)) == 6
        ids = [call.id for r in records if isinstance(r.body, Reply) for call in r.body.calls]
        assert len(set(ids)) == 6
        assert (await list_notices_to(server, "maria")) == [COMPACTING_NOTICE]
        await assert_ledger_balances(server)


async def test_a_person_who_steers_a_run_gets_only_one_compaction_notice(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER))
    tool = FixedResultTool("result\n" * 6_000)
    instance = LocalInstance(tmp_path, tools=[tool], agents=[ada])
    tokens = iter((60_000, 160_000, 60_000, 160_000, 60_000))

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if is_summary(prompt):
            return text_reply(f"{len(tool.told)} files were looked at.")
        usage = Usage(input_tokens=next(tokens), output_tokens=10)
        if len(tool.told) == 4:
            return text_reply("All four are fine.", usage=usage)
        waits_s = 10 if len(tool.told) == 2 else 0
        return replace(tool_call_reply("tell", path=f"file-{len(tool.told)}"), usage=usage, after_s=waits_s)

    instance.model.rule = rule
    async with instance.run() as server:
        first = await server.send("Look at the four files.", origin=terminal_origin("maria"))
        await wait_until_true(lambda: len(turn_prompts(instance)) == 3, what="the turn after the first compaction")
        second = await server.send("Mind the commas.", origin=terminal_origin("maria"))
        await instance.clock.advance(10)
        assert (
            await server.wait_for_answer(first.envelope)
            == await server.wait_for_answer(second.envelope)
            == "All four are fine."
        )
        assert (await server.get_session(first.session)).compactions == 2
        assert "Mind the commas." in prompt_text(turn_prompts(instance)[-1])
        assert await list_notices_to(server, "maria") == [COMPACTING_NOTICE]
        await assert_ledger_balances(server)


@pytest.mark.spec("C42", "C116", "C114.compaction")
async def test_the_safeguard_summary_of_a_compaction_lists_changed_files_and_tool_failures(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("fine\n" * 5_000, name="write")])
    flush_off = MemoryFlushSettings(enabled=False)
    instance.settings = settings(
        tmp_path,
        context=ContextSettings(compaction=CompactionSettings(mode=CompactionMode.SAFEGUARD, memory_flush=flush_off)),
    )
    async with instance.run() as server:
        instance.model.will_reply(
            tool_call_reply("write", path="garden.md"),
            tool_call_reply("read", path="no-such.md"),
            reply_with_usage(10_000, "One failed."),
        )
        await send_and_wait_for_answer(server, "write it down")
        await grow_session(server, tokens=160_000)
        instance.model.rule = lambda prompt: text_reply("A garden.") if is_summary(prompt) else text_reply("Yes.")
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        summary = turn_prompts(instance)[-1].records[0].body
        assert isinstance(summary, Summary)
        assert "## Files changed\n- garden.md" in summary.text
        assert "## Tool failures\n- read: " in summary.text


# --- memory flush before a compaction ---


@pytest.mark.spec("C116")
async def test_an_agent_that_can_write_is_prompted_to_save_memory_once_before_each_compaction(tmp_path: Path) -> None:
    memory = FixedResultTool("written", name="write")
    instance = LocalInstance(tmp_path, tools=[memory])
    async with instance.run() as server:
        session = await grow_session(server, tokens=147_000)
        writes = replace(
            tool_call_reply("write", path="memory/today.md"), usage=Usage(input_tokens=148_000, output_tokens=10)
        )
        instance.model.will_reply(writes, reply_with_usage(149_000, "Yes."))
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        assert memory.told == ["memory/today.md"] and (await server.get_session(session)).compactions == 0
        (note,) = [r.body for r in turn_prompts(instance)[-2].records if isinstance(r.body, Note)]
        assert note.text.startswith(FLUSH_HEAD) and "memory/2026-" in note.text

        # The context is full: compacted without a memory flush.
        instance.model.will_reply(reply_with_usage(149_500, "No."), "A garden.", reply_with_usage(9_000, "Maybe."))
        assert await send_and_wait_for_answer(server, "Is it snowing?") == "No."
        assert await send_and_wait_for_answer(server, f"Will it hail?\n{LONG_TEXT}") == "Maybe."
        assert (await server.get_session(session)).compactions == 1
        notes = [r for r in await server.list_records(session) if isinstance(r.body, Note)]
        assert len(notes) == 1, "one memory flush in each cycle"

        # The next cycle has its own memory flush.
        await grow_session(server, tokens=147_000)
        instance.model.will_reply(reply_with_usage(148_000, "Yes."))
        await send_and_wait_for_answer(server, "Is it raining?")
        assert len([r for r in await server.list_records(session) if isinstance(r.body, Note)]) == 2
        await assert_ledger_balances(server)


@pytest.mark.spec("C43")
async def test_a_memory_flush_before_a_compaction_writes_a_real_file_and_sends_no_notice(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, tools=[])
    async with instance.run() as server:
        ground = FileServices(
            store=server.store,
            clock=instance.clock,
            files=AttachmentFiles(tmp_path / "files"),
            withheld=ProtectedPaths(data_directory=tmp_path),
        )
        instance.toolbox.set_tools([WriteTool(ground)])
        session = await grow_session(server, tokens=147_000)
        today = f"memory/{instance.clock.now().date()}.md"
        keeps = replace(
            tool_call_reply("write", path=today, content="- maria: no peanuts\n", append=True),
            usage=Usage(input_tokens=148_000, output_tokens=10),
        )
        instance.model.will_reply(keeps, reply_with_usage(149_000, "Yes."))
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        assert (tmp_path / "agents" / "ada" / today).read_text() == "- maria: no peanuts\n"
        kept = [r.body for r in await server.list_records(session) if isinstance(r.body, Note)]
        assert len(kept) == 1 and await list_notices_to(server, "maria") == []

        # Before the next compaction the note exists already, so there is no second memory flush.
        instance.model.will_reply(reply_with_usage(149_200, "No."))
        await send_and_wait_for_answer(server, "Is it snowing?")
        assert len([r for r in await server.list_records(session) if isinstance(r.body, Note)]) == 1


@pytest.mark.spec("C43")
async def test_an_agent_with_a_read_only_workspace_gets_no_memory_flush_prompt_before_a_compaction(
    tmp_path: Path,
) -> None:
    """In a read-only workspace `write` is not available, so there is no memory flush."""
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("written", name="write")])
    instance.run_resources = RunResources(is_read_only=True)
    async with instance.run() as server:
        session = await grow_session(server, tokens=147_000)
        instance.model.will_reply(reply_with_usage(148_000, "Yes."))
        assert await send_and_wait_for_answer(server, "Is it raining?") == "Yes."
        assert not any(isinstance(r.body, Note) for r in await server.list_records(session))
        assert "write" not in {tool.name for tool in turn_prompts(instance)[-1].tools}


@pytest.mark.spec("C116")
@pytest.mark.parametrize("switched_off", [False, True])
async def test_an_agent_that_cannot_write_or_has_it_disabled_gets_no_memory_flush_before_a_compaction(
    instance: LocalInstance, switched_off: bool
) -> None:
    if switched_off:
        instance.tools = [FixedResultTool("written", name="write")]
        flush = MemoryFlushSettings(enabled=False)
        instance.settings = settings(
            instance.root, context=ContextSettings(compaction=CompactionSettings(memory_flush=flush))
        )
    async with instance.run() as server:
        session = await grow_session(server, tokens=147_000)
        instance.model.will_reply(reply_with_usage(160_000, "Yes."), "A garden.", "No.")
        await send_and_wait_for_answer(server, "Is it raining?")
        await send_and_wait_for_answer(server, "Is it snowing?")
        assert (await server.get_session(session)).compactions == 1
        assert not any(isinstance(r.body, Note) for r in await server.list_records(session))


# --- results: sent and stored ---


@pytest.mark.spec("C44", "C117")
async def test_old_tool_results_are_pruned_in_the_context_but_not_in_the_history(tmp_path: Path) -> None:
    pruning = PruningSettings(
        mode=PruningMode.CACHE_TTL, ttl_s=300, keep_last_assistants=1, soft_trim_ratio=0.0, soft_trim=SoftTrimSettings()
    )
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("result\n" * 2_000)], settings=settings(tmp_path))
    instance.settings = settings(tmp_path, context=ContextSettings(pruning=pruning))
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("tell"), "told", "warm", "cold", "off")
        receipt = await server.send("tell me")
        await server.wait_for_outcome(receipt.envelope)
        history = await server.list_records(receipt.session)
        await send_and_wait_for_answer(server, "still here?")
        (warm,) = list_tool_results(turn_prompts(instance)[-1].records)
        await instance.clock.advance(301)
        await send_and_wait_for_answer(server, "and now?")
        (cold,) = list_tool_results(turn_prompts(instance)[-1].records)
        assert len(warm.output) == 14_000 and 3_000 < len(cold.output) < 3_200
        assert "[trimmed: the first 1500 and the last 1500 of 14000 characters are shown]" in cold.output
        assert (await server.list_records(receipt.session))[: len(history)] == history

        instance.loop_parts.settings = settings(tmp_path)  # changed settings apply from the next reply
        await send_and_wait_for_answer(server, "and then?")
        (full_result,) = list_tool_results(turn_prompts(instance)[-1].records)
        assert full_result.output == warm.output


@pytest.mark.spec("C45")
async def test_the_context_policy_limits_a_single_tool_result_to_a_share_of_the_context_window(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, tools=[FixedResultTool("line\n" * 9_000)])
    instance.model.window_tokens = 32_000
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("tell"), "Long.")
        receipt = await server.send("tell me")
        assert await server.wait_for_answer(receipt.envelope) == "Long."
        (sent,) = list_tool_results(turn_prompts(instance)[-1].records)
        assert 30_000 < len(sent.output) <= 32_000 * 4 * 0.3
        assert sent.output.endswith("ask for the rest in smaller parts]")
        (kept,) = list_tool_results(await server.list_records(receipt.session))
        assert len(kept.output) == 45_000


# --- models with a small context window ---


@pytest.mark.spec("C41")
async def test_a_model_with_a_too_small_context_window_is_refused_with_the_setting_to_change(
    instance: LocalInstance,
) -> None:
    instance.model.window_tokens = 15_999
    async with instance.run() as server:
        receipt = await server.send("hello")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome == "dead"
        (notice,) = await list_notices_to(server, "maria")
        assert "the context window of scripted is too small: 15,999 tokens [model.window_too_small]" in notice
        assert "set `window_tokens` of 'scripted'" in notice and instance.model.prompts == []


@pytest.mark.spec("C41")
async def test_a_model_with_a_small_context_window_is_used_and_logged_once(
    instance: LocalInstance, caplog: pytest.LogCaptureFixture
) -> None:
    instance.model.window_tokens = 31_999
    with caplog.at_level(logging.WARNING, logger="retinue"):
        async with instance.run() as server:
            instance.model.will_reply("Yes.", "No.")
            assert [await send_and_wait_for_answer(server, "one"), await send_and_wait_for_answer(server, "two")] == [
                "Yes.",
                "No.",
            ]
    assert [record.getMessage() for record in caplog.records].count("model window small") == 1
