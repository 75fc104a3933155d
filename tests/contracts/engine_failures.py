"""The engine's contract: a run may go wrong in any way; its sender hears of it, and the house goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from contracts.engine_cancel import Wait, thinking
from contracts.engine_instance import (
    a_moment,
    ada,
    answers_to,
    lane_tasks,
    notices_to,
    open_approval,
    opened,
    parked,
    questions_to,
    results,
    rows,
    until,
    witness,
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
class Odd:
    """A model that does what it is told, once, and then behaves."""

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


class AnyArguments(msgspec.Struct):
    pass


@dataclass(frozen=True, slots=True)
class Breaks:
    error: Exception
    arguments: type[msgspec.Struct] = AnyArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="breaks", description="Breaks.", parameters=schema_of(AnyArguments))
    )

    async def perform(self, arguments: AnyArguments, context: ToolContext) -> str:
        raise self.error


@pytest.mark.spec("D14", "H3")
async def test_a_run_that_fails_answers_its_sender_with_an_error_and_the_next_is_worked(
    any_household: LocalInstance,
) -> None:
    household = any_household
    household.model.will_reply(ScriptedReply(fails="the model is tired"), "better now")
    async with opened(household) as house:
        first = await house.send("hello")
        settled = await house.wait_for_outcome(first.envelope)
        assert (settled.outcome, settled.because) == (Outcome.DEAD, "model.scripted: the model is tired")
        assert await notices_to(house, "maria") == [
            "Something went wrong: the model is tired [model.scripted]\n"
            "because: the script of the test contains this failure\ntry: retry"
        ]
        assert await house.wait_for_answer((await house.send("again")).envelope) == "better now"
        assert (await house.wait_for_outcome(first.envelope)).outcome is Outcome.DEAD, "done stays done"


INTERNAL = "internal error in the run: "


@pytest.mark.spec("D14")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd(error=ValueError("no such thing")), INTERNAL + "ValueError: no such thing [run.internal_error]"),
        (
            Odd(chunks=[TextChunk("half a sen")], error=RuntimeError("cut")),
            INTERNAL + "RuntimeError: cut [run.internal_error]",
        ),
        (Odd(chunks=[TextChunk("half a sen")]), "the reply of odd was cut off [model.truncated]"),
        (
            Odd(error=TimeoutError("no answer in 30 s")),
            INTERNAL + "TimeoutError: no answer in 30 s [run.internal_error]",
        ),
        (Odd(error=KeyError("x" * 5000)), INTERNAL + "KeyError: '" + "x" * 100),
    ],
    ids=["at once", "mid-stream", "without an end", "its own time-out", "with a long story"],
)
async def test_whatever_a_model_raises_is_told_and_survived(household: LocalInstance, model: Odd, said: str) -> None:
    household.models = (model,)
    household.agents = (ada(model="odd"),)
    household.settings = Settings(
        home=household.root,
        store=household.root / "house.db",
        zone=household.zone,
        models=ModelRoutingSettings(retries_max=0),
    )
    async with opened(household) as house:
        first = await house.send("hello")
        assert (await house.wait_for_outcome(first.envelope)).outcome is Outcome.DEAD
        (told,) = await notices_to(house, "maria")
        assert told.startswith(f"Something went wrong: {said}")
        assert len(told) < 1000
        assert not any(isinstance(record.body, Reply) for record in await house.list_records(first.session))
        assert await house.wait_for_answer((await house.send("again")).envelope) == "better now"
        await house.wait_until_idle()
        assert house.events.partial_replies() == []


@pytest.mark.spec("D14")
@pytest.mark.parametrize(
    ("change", "code"), [({"model": "nobody"}, "model.all_failed"), ({"runner": "nobody"}, "runner.not_found")]
)
async def test_an_agent_that_cannot_work_here_says_why(
    household: LocalInstance, change: dict[str, str], code: str
) -> None:
    household.agents = (ada(**change),)
    async with opened(household) as house:
        receipt = await house.send("hello")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (told,) = await notices_to(house, "maria")
        assert f"[{code}]" in told and "\ntry: " in told


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
    ids=["any error", "its own error", "a time-out", "words no store can keep", "too many words"],
)
async def test_a_tool_that_breaks_is_something_the_model_reads_about(
    household: LocalInstance, error: Exception, read: str
) -> None:
    household.tools = (Breaks(error),)
    household.model.will_reply(tool_call_reply("breaks"), "I see")
    async with opened(household) as house:
        receipt = await house.send("try it")
        assert await house.wait_for_answer(receipt.envelope) == "I see"
        (result,) = results(household.model.prompts[1].records)
        assert result.failed and result.output.startswith(read)
        assert len(result.output) < RESULT_CHARS_MAX + 100
        assert await notices_to(house, "maria") == []


@pytest.mark.parametrize(
    ("tool", "arguments", "read"),
    [
        ("append_line", {}, "Invalid arguments for 'append_line'"),
        ("append_line", {"text": 5}, "Invalid arguments for 'append_line'"),
        ("append_line", {"text": "x", "more": 1}, "Invalid arguments for 'append_line'"),
        ("no_such_tool", {}, "No tool named 'no_such_tool'. Your tools are: "),
    ],
)
async def test_a_call_that_cannot_be_understood_is_answered_and_not_made(
    household: LocalInstance, tool: str, arguments: dict[str, Any], read: str
) -> None:
    household.model.will_reply(ScriptedReply(calls=((tool, arguments),)), "I see")
    async with opened(household) as house:
        assert await house.wait_for_answer((await house.send("try it")).envelope) == "I see"
        (result,) = results(household.model.prompts[1].records)
        assert result.failed and result.output.startswith(read)
        assert witness(household) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x", "\ud800": float("nan")},
        {"text": "x", "deep": [1, {"a": (float("inf"), "\udfff")}], "big": 2**70},
    ],
    ids=["not a number", "deep down"],
)
async def test_arguments_that_fit_no_tool_are_refused_before_anyone_is_asked(
    household: LocalInstance, arguments: dict[str, Any]
) -> None:
    household.agents = (ada(model="odd", tools=ToolRules(ask=("*",))),)
    strange = Call(id="1", tool="append_line", arguments=arguments)
    household.models = (Odd(chunks=[ToolCallChunk(strange), EndChunk(StopReason.CALLS, Usage())]),)
    async with opened(household) as house:
        receipt = await house.send("try it")
        assert await house.wait_for_answer(receipt.envelope) == "better now"
        assert await questions_to(house, "maria") == []
        (result,) = results(await house.list_records(receipt.session))
        assert result.failed and result.output.startswith("Invalid arguments for 'append_line'")


async def test_arguments_that_no_store_keeps_as_they_are_can_still_be_asked_about_and_allowed(
    household: LocalInstance,
) -> None:
    """What is allowed must be what was asked for, byte for byte, from memory and from the store alike."""
    arguments = {"text": "\ud800 \x00"}
    household.agents = (ada(model="odd", tools=ToolRules(ask=("*",))),)
    strange = Call(id="1", tool="append_line", arguments=arguments)
    household.models = (Odd(chunks=[ToolCallChunk(strange), EndChunk(StopReason.CALLS, Usage())]),)
    async with opened(household) as house:
        receipt = await house.send("try it")
        await parked(house)
        await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(receipt.envelope) == "better now"
        assert len(await questions_to(house, "maria")) == 1
        assert len(results(await house.list_records(receipt.session))) == 1


async def test_a_run_that_hangs_is_stopped_at_its_time_and_its_slot_is_free(any_household: LocalInstance) -> None:
    household = any_household
    household.slots = SlotLimits(main=1)
    household.agents = (ada(run_seconds_max=30.0),)
    household.model.will_reply(text_reply("never", after_s=1e9), "better now")
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        other = await house.send("me too", sender="person:owner")
        await household.clock.advance(29)
        await a_moment(house)
        assert len(household.model.prompts) == 1
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(envelope)
        assert settled.because == "run.timed_out: the run took longer than 30 seconds"
        assert settled.outcome is Outcome.DEAD
        (told,) = await notices_to(house, "maria")
        assert "the run took longer than 30 seconds [run.timed_out]" in told
        assert await house.wait_for_answer(other.envelope) == "better now"


async def test_a_tool_that_hangs_is_stopped_too_and_its_call_closed(household: LocalInstance) -> None:
    tool = Wait(household.clock)
    household.tools = (tool,)
    household.agents = (ada(run_seconds_max=30.0),)
    household.model.will_reply(tool_call_reply("wait", seconds=1e9), "better now")
    async with opened(household) as house:
        receipt = await house.send("wait")
        await until(lambda: tool.log, what="the tool to begin")
        await household.clock.advance(31)
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
        (result,) = results(await house.list_records(receipt.session))
        assert result.output.startswith("Interrupted")
        await house.wait_until_idle()
        assert lane_tasks() == []
        assert await house.wait_for_answer((await house.send("again")).envelope) == "better now"


async def test_a_run_of_many_short_turns_is_stopped_at_its_time(household: LocalInstance) -> None:
    household.agents = (ada(run_seconds_max=30.0),)
    household.model.rule = lambda prompt: ScriptedReply(calls=(("session_status", {}),), after_s=8)
    async with opened(household) as house:
        receipt = await house.send("go on")
        for n in range(1, 5):
            await until(lambda n=n: len(household.model.prompts) >= n, what=f"turn {n}")
            await household.clock.advance(8)
        assert "run.timed_out" in (await house.wait_for_outcome(receipt.envelope)).because


async def test_a_bound_is_told_only_where_it_cut_something_off(household: LocalInstance) -> None:
    household.agents = (ada(turns_max=2),)
    household.model.will_reply(
        tool_call_reply("session_status"),
        "done in two",
        tool_call_reply("session_status"),
        tool_call_reply("session_status"),
    )
    async with opened(household) as house:
        first = await house.send("two turns are enough")
        assert await house.wait_for_answer(first.envelope) == "done in two"
        second = await house.send("two turns are not enough")
        assert await house.wait_for_answer(second.envelope) == (
            "[I stopped after 2 turns, which is this agent's limit (turns_max).]"
        )
        assert len(household.model.prompts) == 4


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ({"tokens_max": 30}, "\n\n[I stopped after 30 tokens, which is this agent's limit (tokens_max).]"),
        ({"cost_microusd_max": 200}, "\n\n[I stopped after spending $0.0002, which is this agent's limit"),
    ],
)
async def test_tokens_and_money_of_a_run_are_bounded(
    household: LocalInstance, bound: dict[str, int], told: str
) -> None:
    household.agents = (ada(**bound),)
    household.model.rule = lambda prompt: ScriptedReply(
        text="still at it", calls=(("session_status", {}),), cost_microusd=100
    )
    async with opened(household) as house:
        answer = await house.wait_for_answer((await house.send("go on")).envelope)
        assert answer.startswith(f"still at it{told}")
        assert len(household.model.prompts) == 2


@pytest.mark.spec("C49", "D20.text", "D20.context")
async def test_a_run_may_choose_to_say_nothing(household: LocalInstance) -> None:
    household.model.will_reply("NO_REPLY", "[[SILENT_REPLY]]", "I will say NO_REPLY")
    async with opened(household) as house:
        settled = [await house.wait_for_outcome((await house.send(f"{n}")).envelope) for n in range(3)]
        assert [end.outcome for end in settled] == [Outcome.ANSWERED] * 3
        assert [end.answer is None for end in settled] == [True, True, False]
        assert await answers_to(house, "maria") == ["I will say NO_REPLY"]
        # What was said to nobody is not read again either: neither now, nor after it was loaded anew.
        read = [record.body for record in household.model.prompts[-1].records]
        assert not any(isinstance(body, Reply) for body in read)
    household.model.will_reply("back")
    async with opened(household) as house:
        await house.wait_for_answer((await house.send("again")).envelope)
        read = [record.body.text for record in household.model.prompts[-1].records if isinstance(record.body, Reply)]
        assert read == ["I will say NO_REPLY"]


async def test_an_answer_too_long_for_an_envelope_is_cut_and_says_so(household: LocalInstance) -> None:
    household.model.chunk_chars = 10_000
    household.model.will_reply("é" * ENVELOPE_TEXT_BYTES_MAX)
    async with opened(household) as house:
        answer = await house.wait_for_answer((await house.send("all of it")).envelope)
        assert len(answer.encode()) <= ENVELOPE_TEXT_BYTES_MAX
        assert answer.endswith("more bytes]")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_schedule_set_going_is_told_to_whoever_the_session_belongs_to(
    household: LocalInstance, fails: bool
) -> None:
    household.model.rule = lambda prompt: ScriptedReply(fails="tired") if fails else text_reply("done")
    told: Callable[..., Any] = notices_to if fails else answers_to
    async with opened(household) as house:
        alone = await house.send("tick", sender="schedule:0123456789abcdef")
        at_hers = await house.send(
            "tick", sender="schedule:0123456789abcdef", origin=Origin(OriginKind.WEB, "person:maria")
        )
        elsewhere = await house.send("tick", sender="schedule:0123456789abcdef", origin=Origin(OriginKind.CHAT, "#den"))
        for receipt in (alone, at_hers, elsewhere):
            assert (await house.wait_for_outcome(receipt.envelope)).outcome is (
                Outcome.DEAD if fails else Outcome.ANSWERED
            )
        assert len(await told(house, "owner")) == 2
        assert len(await told(house, "maria")) == 1


async def test_a_failed_run_leaves_nothing_open(household: LocalInstance) -> None:
    household.model.price_microusd = 500
    household.model.will_reply(tool_call_reply("session_status"), ScriptedReply(fails="tired"))
    async with opened(household) as house:
        await house.wait_for_outcome((await house.send("hello")).envelope)
        await house.wait_until_idle()
        assert await rows(house, "SELECT state FROM steps ORDER BY turn, idx") == [
            ("closed",),
            ("closed",),
            ("interrupted",),
        ]
        assert await rows(house, "SELECT sum(held_microusd) FROM money") == [(0,)]
        assert await rows(house, "SELECT wakefulness FROM sessions") == [("sleeping",)]
