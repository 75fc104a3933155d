"""The engine's contract for failures: however a run fails, its sender is notified and the server keeps running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from contracts.engine_cancel import WaitTool, send_and_wait_for_model_call
from contracts.engine_instance import (
    ada,
    let_tasks_settle,
    list_answers_to,
    list_approval_questions_to,
    list_lane_tasks,
    list_notices_to,
    list_tool_results,
    query_rows,
    read_witness_file,
    run_with_ledger_check,
    wait_for_open_approval,
    wait_until_suspended,
    wait_until_true,
)

from retinue.config import Settings
from retinue.config.models import ModelRoutingSettings
from retinue.domain.agent import ToolRules
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, Outcome
from retinue.domain.model import FREE_PRICE, ModelFacts, ModelRef
from retinue.domain.record import Reply, StopReason, Usage
from retinue.domain.session import Origin, OriginKind
from retinue.domain.tool import RESULT_CHARS_MAX, Call, ToolSpec
from retinue.engine.lanes import SlotLimits
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ToolCallChunk
from retinue.testing.local_instance import LocalInstance, boss_principal
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.base import ToolContext, ToolFailed, schema_of


@dataclass(slots=True)
class MisbehavingModel:
    """A model that misbehaves once as scripted, then behaves normally."""

    chunks: list[ReplyChunk] = field(default_factory=list[ReplyChunk])
    error: BaseException | None = None
    name: str = "odd"
    asked: int = 0

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=FREE_PRICE)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        self.asked += 1
        if self.asked > 1:
            yield TextChunk("better now")
            yield EndChunk(StopReason.END, Usage())
            return
        for chunk in self.chunks:
            yield chunk
        if self.error is not None:
            raise self.error


class NoArguments(msgspec.Struct):
    pass


@dataclass(frozen=True, slots=True)
class FailingTool:
    error: Exception
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="breaks", description="Breaks.", parameters=schema_of(NoArguments))
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        raise self.error


@pytest.mark.spec("D14", "H3")
async def test_a_failed_run_sends_an_error_and_the_next_message_is_answered(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.model.will_reply(ScriptedReply(fails="the model is tired"), "better now")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        settled = await server.wait_for_outcome(first.envelope)
        assert (settled.outcome, settled.because) == (Outcome.DEAD, "model.scripted: the model is tired")
        assert await list_notices_to(server, "maria") == [
            "Something went wrong: the model is tired [model.scripted]\n"
            "because: the script of the test contains this failure\ntry: retry"
        ]
        assert await server.wait_for_answer((await server.send("again")).envelope) == "better now"
        assert (await server.wait_for_outcome(first.envelope)).outcome is Outcome.DEAD, "done stays done"


INTERNAL_ERROR_PREFIX = "internal error in the run: "


@pytest.mark.spec("D14")
@pytest.mark.parametrize(
    ("model", "error_text"),
    [
        (
            MisbehavingModel(error=ValueError("no such thing")),
            INTERNAL_ERROR_PREFIX + "ValueError: no such thing [run.internal_error]",
        ),
        (
            MisbehavingModel(chunks=[TextChunk("half a sen")], error=RuntimeError("cut")),
            INTERNAL_ERROR_PREFIX + "RuntimeError: cut [run.internal_error]",
        ),
        (MisbehavingModel(chunks=[TextChunk("half a sen")]), "the reply of odd was cut off [model.truncated]"),
        (
            MisbehavingModel(error=TimeoutError("no answer in 30 s")),
            INTERNAL_ERROR_PREFIX + "TimeoutError: no answer in 30 s [run.internal_error]",
        ),
        (MisbehavingModel(error=KeyError("x" * 5000)), INTERNAL_ERROR_PREFIX + "KeyError: '" + "x" * 100),
    ],
    ids=["at once", "mid-stream", "without an end", "its own time-out", "with a long text"],
)
async def test_any_error_raised_by_a_model_is_reported_and_the_session_continues(
    instance: LocalInstance, model: MisbehavingModel, error_text: str
) -> None:
    instance.models = (copy(model),)  # it counts its calls, and the parameter lives as long as the process
    instance.agents = (ada(model="odd"),)
    instance.settings = Settings(
        home=instance.root,
        store=instance.root / "retinue.db",
        zone=instance.zone,
        models=ModelRoutingSettings(retries_max=0),
    )
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        assert (await server.wait_for_outcome(first.envelope)).outcome is Outcome.DEAD
        (notice,) = await list_notices_to(server, "maria")
        assert notice.startswith(f"Something went wrong: {error_text}")
        assert len(notice) < 1000
        assert not any(isinstance(record.body, Reply) for record in await server.list_records(first.session))
        assert await server.wait_for_answer((await server.send("again")).envelope) == "better now"
        await server.wait_until_idle()
        assert server.events.partial_replies() == []


@pytest.mark.spec("D14")
@pytest.mark.parametrize(
    ("change", "code"), [({"model": "nobody"}, "model.all_failed"), ({"runner": "nobody"}, "runner.not_found")]
)
async def test_an_unknown_model_or_runner_is_reported_with_a_code_and_a_next_step(
    instance: LocalInstance, change: dict[str, str], code: str
) -> None:
    instance.agents = (ada(**change),)
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("hello")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (notice,) = await list_notices_to(server, "maria")
        assert f"[{code}]" in notice and "\ntry: " in notice


@pytest.mark.spec("D14")
@pytest.mark.parametrize(
    ("error", "read"),
    [
        (ValueError("bad luck"), "'breaks' failed: ValueError: bad luck"),
        (ToolFailed("no such file", because="it was moved", try_this="look elsewhere"), "no such file [tool.failed]"),
        (TimeoutError("30 s"), "'breaks' failed: TimeoutError: 30 s"),
        (RuntimeError("\ud800 and \x00"), "'breaks' failed: RuntimeError: \ufffd and \ufffd"),
        (RuntimeError("x" * 10 * RESULT_CHARS_MAX), "'breaks' failed: RuntimeError: xxx"),
    ],
    ids=["any error", "its own error", "a time-out", "unstorable text", "too much text"],
)
async def test_a_tool_error_is_returned_to_the_model_as_a_failed_result(
    instance: LocalInstance, error: Exception, read: str
) -> None:
    instance.tools = (FailingTool(error),)
    instance.model.will_reply(tool_call_reply("breaks"), "I see")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("try it")
        assert await server.wait_for_answer(receipt.envelope) == "I see"
        (result,) = list_tool_results(instance.model.prompts[1].records)
        assert result.failed and result.output.startswith(read)
        assert len(result.output) < RESULT_CHARS_MAX + 100
        assert await list_notices_to(server, "maria") == []


@pytest.mark.parametrize(
    ("tool", "arguments", "read"),
    [
        ("append_line", {}, "Invalid arguments for 'append_line'"),
        ("append_line", {"text": 5}, "Invalid arguments for 'append_line'"),
        ("append_line", {"text": "x", "more": 1}, "Invalid arguments for 'append_line'"),
        ("no_such_tool", {}, "No tool named 'no_such_tool'. Your tools are: "),
    ],
)
async def test_an_invalid_tool_call_returns_an_error_and_is_not_performed(
    instance: LocalInstance, tool: str, arguments: dict[str, Any], read: str
) -> None:
    instance.model.will_reply(ScriptedReply(calls=((tool, arguments),)), "I see")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer((await server.send("try it")).envelope) == "I see"
        (result,) = list_tool_results(instance.model.prompts[1].records)
        assert result.failed and result.output.startswith(read)
        assert read_witness_file(instance) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x", "\ud800": float("nan")},
        {"text": "x", "deep": [1, {"a": (float("inf"), "\udfff")}], "big": 2**70},
    ],
    ids=["not a number", "deep down"],
)
async def test_invalid_tool_arguments_are_refused_before_an_approval_is_requested(
    instance: LocalInstance, arguments: dict[str, Any]
) -> None:
    instance.agents = (ada(model="odd", tools=ToolRules(ask=("*",))),)
    strange = Call(id="1", tool="append_line", arguments=arguments)
    instance.models = (MisbehavingModel(chunks=[ToolCallChunk(strange), EndChunk(StopReason.CALLS, Usage())]),)
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("try it")
        assert await server.wait_for_answer(receipt.envelope) == "better now"
        assert await list_approval_questions_to(server, "maria") == []
        (result,) = list_tool_results(await server.list_records(receipt.session))
        assert result.failed and result.output.startswith("Invalid arguments for 'append_line'")


async def test_tool_arguments_with_unstorable_characters_can_still_be_approved(
    instance: LocalInstance,
) -> None:
    """The approved call must equal the requested call byte for byte, from memory and from the store."""
    arguments = {"text": "\ud800 \x00"}
    instance.agents = (ada(model="odd", tools=ToolRules(ask=("*",))),)
    strange = Call(id="1", tool="append_line", arguments=arguments)
    instance.models = (MisbehavingModel(chunks=[ToolCallChunk(strange), EndChunk(StopReason.CALLS, Usage())]),)
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("try it")
        await wait_until_suspended(server)
        await server.engine.answer_approval(
            await wait_for_open_approval(server), allow=True, by=boss_principal("maria")
        )
        assert await server.wait_for_answer(receipt.envelope) == "better now"
        assert len(await list_approval_questions_to(server, "maria")) == 1
        assert len(list_tool_results(await server.list_records(receipt.session))) == 1


async def test_a_hanging_run_is_stopped_at_its_time_limit_and_frees_its_slot(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.slots = SlotLimits(main=1)
    instance.agents = (ada(run_seconds_max=30.0),)
    instance.model.will_reply(text_reply("never", after_s=1e9), "better now")
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        other = await server.send("me too", sender="person:owner")
        await instance.clock.advance(29)
        await let_tasks_settle(server)
        assert len(instance.model.prompts) == 1
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(envelope)
        assert settled.because == "run.timed_out: the run took longer than 30 seconds"
        assert settled.outcome is Outcome.DEAD
        (notice,) = await list_notices_to(server, "maria")
        assert "the run took longer than 30 seconds [run.timed_out]" in notice
        assert await server.wait_for_answer(other.envelope) == "better now"


async def test_a_hanging_tool_is_stopped_at_the_run_time_limit_and_its_call_is_closed(instance: LocalInstance) -> None:
    tool = WaitTool(instance.clock)
    instance.tools = (tool,)
    instance.agents = (ada(run_seconds_max=30.0),)
    instance.model.will_reply(tool_call_reply("wait", seconds=1e9), "better now")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("wait")
        await wait_until_true(lambda: tool.log, what="the tool to begin")
        await instance.clock.advance(31)
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (result,) = list_tool_results(await server.list_records(receipt.session))
        assert result.output.startswith("Interrupted")
        await server.wait_until_idle()
        assert list_lane_tasks() == []
        assert await server.wait_for_answer((await server.send("again")).envelope) == "better now"


async def test_a_run_of_many_short_turns_is_stopped_at_its_time_limit(instance: LocalInstance) -> None:
    instance.agents = (ada(run_seconds_max=30.0),)
    instance.model.rule = lambda prompt: ScriptedReply(calls=(("session_status", {}),), after_s=8)
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("go on")
        for n in range(1, 5):
            await wait_until_true(lambda n=n: len(instance.model.prompts) >= n, what=f"turn {n}")
            await instance.clock.advance(8)
        assert "run.timed_out" in (await server.wait_for_outcome(receipt.envelope)).because


async def test_the_turn_limit_is_mentioned_only_if_it_stopped_the_run(instance: LocalInstance) -> None:
    instance.agents = (ada(turns_max=2),)
    instance.model.will_reply(
        tool_call_reply("session_status"),
        "done in two",
        tool_call_reply("session_status"),
        tool_call_reply("session_status"),
    )
    async with run_with_ledger_check(instance) as server:
        first = await server.send("two turns are enough")
        assert await server.wait_for_answer(first.envelope) == "done in two"
        second = await server.send("two turns are not enough")
        assert await server.wait_for_answer(second.envelope) == (
            "[I stopped after 2 turns, which is this agent's limit (turns_max).]"
        )
        assert len(instance.model.prompts) == 4


@pytest.mark.parametrize(
    ("limits", "suffix"),
    [
        ({"tokens_max": 30}, "\n\n[I stopped after 30 tokens, which is this agent's limit (tokens_max).]"),
        ({"cost_microusd_max": 200}, "\n\n[I stopped after spending $0.0002, which is this agent's limit"),
    ],
)
async def test_a_run_stops_at_its_token_and_cost_limits(
    instance: LocalInstance, limits: dict[str, int], suffix: str
) -> None:
    instance.agents = (ada(**limits),)
    instance.model.rule = lambda prompt: ScriptedReply(
        text="still at it", calls=(("session_status", {}),), cost_microusd=100
    )
    async with run_with_ledger_check(instance) as server:
        answer = await server.wait_for_answer((await server.send("go on")).envelope)
        assert answer.startswith(f"still at it{suffix}")
        assert len(instance.model.prompts) == 2


@pytest.mark.spec("C49", "D20.text", "D20.context")
async def test_a_no_reply_answer_is_not_sent_and_not_read_again(instance: LocalInstance) -> None:
    instance.model.will_reply("NO_REPLY", "[[SILENT_REPLY]]", "I will say NO_REPLY")
    async with run_with_ledger_check(instance) as server:
        settled = [await server.wait_for_outcome((await server.send(f"{n}")).envelope) for n in range(3)]
        assert [end.outcome for end in settled] == [Outcome.ANSWERED] * 3
        assert [end.answer is None for end in settled] == [True, True, False]
        assert await list_answers_to(server, "maria") == ["I will say NO_REPLY"]
        # Text that was never delivered is not read again either: neither now nor after a reload.
        read = [record.body for record in instance.model.prompts[-1].records]
        assert not any(isinstance(body, Reply) for body in read)
    instance.model.will_reply("back")
    async with run_with_ledger_check(instance) as server:
        await server.wait_for_answer((await server.send("again")).envelope)
        read = [record.body.text for record in instance.model.prompts[-1].records if isinstance(record.body, Reply)]
        assert read == ["I will say NO_REPLY"]


async def test_an_answer_too_long_for_an_envelope_is_truncated_with_a_note(instance: LocalInstance) -> None:
    instance.model.chunk_chars = 10_000
    instance.model.will_reply("é" * ENVELOPE_TEXT_BYTES_MAX)
    async with run_with_ledger_check(instance) as server:
        answer = await server.wait_for_answer((await server.send("all of it")).envelope)
        assert len(answer.encode()) <= ENVELOPE_TEXT_BYTES_MAX
        assert answer.endswith("more bytes]")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_scheduled_run_reports_to_the_person_of_its_session_or_else_to_the_owner(
    instance: LocalInstance, fails: bool
) -> None:
    instance.model.rule = lambda prompt: ScriptedReply(fails="tired") if fails else text_reply("done")
    list_replies: Callable[..., Any] = list_notices_to if fails else list_answers_to
    async with run_with_ledger_check(instance) as server:
        alone = await server.send("tick", sender="schedule:0123456789abcdef")
        at_hers = await server.send(
            "tick", sender="schedule:0123456789abcdef", origin=Origin(OriginKind.WEB, "person:maria")
        )
        elsewhere = await server.send(
            "tick", sender="schedule:0123456789abcdef", origin=Origin(OriginKind.CHAT, "#den")
        )
        for receipt in (alone, at_hers, elsewhere):
            assert (await server.wait_for_outcome(receipt.envelope)).outcome is (
                Outcome.DEAD if fails else Outcome.ANSWERED
            )
        assert len(await list_replies(server, "owner")) == 2
        assert len(await list_replies(server, "maria")) == 1


async def test_a_failed_run_leaves_no_open_steps_or_reservations(instance: LocalInstance) -> None:
    instance.model.price_microusd = 500
    instance.model.will_reply(tool_call_reply("session_status"), ScriptedReply(fails="tired"))
    async with run_with_ledger_check(instance) as server:
        await server.wait_for_outcome((await server.send("hello")).envelope)
        await server.wait_until_idle()
        assert await query_rows(server, "SELECT state FROM steps ORDER BY turn, call_index") == [
            ("closed",),
            ("closed",),
            ("interrupted",),
        ]
        assert await query_rows(server, "SELECT sum(held_microusd) FROM model_calls") == [(0,)]
        assert await query_rows(server, "SELECT activity FROM sessions") == [("sleeping",)]
