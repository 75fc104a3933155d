"""The tools at an agent's hand: which are offered, which calls are allowed, and performing them.

Every mishap of a call is a result that the model reads: an unknown tool, bad arguments, a failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.approval import ApprovalState
from retinue.domain.decision import Decision, Verdict
from retinue.domain.ports import Ask, Clock
from retinue.domain.text import storable
from retinue.domain.tool import Call, Effect, ToolResult, ToolSpec, clipped
from retinue.domain.trust import Trust
from retinue.policy import tools as policy
from retinue.policy.rates import Buckets
from retinue.tools.base import Output, Scene, Tool, ToolFailed

RULES_REMEMBERED_MAX = 1_000
AGENTS_REMEMBERED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to become of each call of one reply, decided before any is performed."""

    allowed: tuple[Call, ...] = ()
    asked: tuple[Call, ...] = ()
    closed: tuple[ToolResult, ...] = ()
    because: str = ""


def _decide(agent: Agent, spec: ToolSpec) -> Decision:
    return policy.decide(agent.tools, spec.name, by_name=spec.by_name)


def refusal(call: Call, why: str) -> ToolResult:
    return ToolResult(call=call.id, tool=call.tool, output=clipped(storable(why)), failed=True)


class Toolbox:
    def __init__(self, tools: Sequence[Tool], *, clock: Clock | None = None, calls_per_minute: int = 0) -> None:
        """With a clock, no agent makes more calls than that in a minute."""
        self._tools = {tool.spec.name: tool for tool in tools}
        self._clock = clock
        self._calls = Buckets(calls_per_minute, AGENTS_REMEMBERED_MAX)
        self._offered: dict[ToolRules, Sequence[ToolSpec]] = {}  # the same rules, the same tools: asked every turn

    def limit_calls(self, per_minute: int) -> None:
        self._calls.per_minute = per_minute

    def offered(self, agent: Agent) -> Sequence[ToolSpec]:
        offered = self._offered.get(agent.tools)
        if offered is None:
            if len(self._offered) >= RULES_REMEMBERED_MAX:
                self._offered.clear()
            offered = [tool.spec for tool in self._tools.values() if not _decide(agent, tool.spec).denied]
            self._offered[agent.tools] = offered
        return offered

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return tool.spec if tool else None

    def decide(self, agent: Agent, calls: Sequence[Call], ask: Ask) -> Plan:
        """Pure. Policy is asked each time, so a yes from last week does not outlive a rule from today."""
        allowed: list[Call] = []
        asked: list[Call] = []
        closed: list[ToolResult] = []
        because = ""
        for call in calls:
            if call.tool not in self._tools:
                known = ", ".join(spec.name for spec in self.offered(agent)) or "none"
                closed.append(refusal(call, f"There is no tool '{call.tool}'. Tools here: {known}."))
                continue
            decision = _decide(agent, self._tools[call.tool].spec)
            # Whoever was asked has the last word, also where the rules would no longer ask: a no stays a no, and a yes
            # that is still to come has a run of its own.
            match decision.verdict, ask.answer_to(call):
                case Verdict.DENY, _:
                    closed.append(refusal(call, f"Not allowed: {decision.because}."))
                case Verdict.ASK, None:
                    asked.append(call)
                    because = decision.because
                case _, None | ApprovalState.ALLOWED:
                    allowed.append(call)
                case _, ApprovalState.OPEN:
                    closed.append(refusal(call, f"Waiting for approval {ask.name_of(call)}. Go on without it for now."))
                case _, state:
                    closed.append(refusal(call, f"Not done: the approval {ask.name_of(call)} is {state}."))
        return Plan(allowed=tuple(allowed), asked=tuple(asked), closed=tuple(closed), because=because)

    async def perform(self, call: Call, scene: Scene) -> ToolResult:
        tool = self._tools[call.tool]
        if self._clock is not None:
            wait_s = math.ceil(self._calls.take(scene.agent.name, self._clock.now().timestamp()))
            if wait_s:
                most = self._calls.per_minute
                return refusal(
                    call, f"Not done: {scene.agent.name} may make {most} calls in a minute. Try again in {wait_s} s."
                )
        try:
            arguments = msgspec.convert(call.arguments, tool.arguments)
            output = await tool.perform(arguments, scene)
        except msgspec.ValidationError as error:
            return refusal(call, f"These arguments do not fit '{call.tool}': {error}.")
        except ToolFailed as error:
            return refusal(call, str(error))
        except Exception as error:  # noqa: BLE001 - a broken tool is something the model reads about
            return refusal(call, f"'{call.tool}' broke: {type(error).__name__}: {error}")
        if isinstance(output, str):
            output = Output(text=output)
        return ToolResult(
            call=call.id,
            tool=call.tool,
            output=clipped(storable(output.text)),
            failed=output.failed,
            trust=output.trust or _trust_of(tool.spec),
            attachments=output.attachments,
        )


def _trust_of(spec: ToolSpec) -> Trust:
    return Trust.UNTRUSTED if Effect.READS_UNTRUSTED in spec.effects else Trust.PRIVATE
