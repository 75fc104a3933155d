"""The cost of tool calls: deciding a call and performing a trivial one, beyond what the loop needs for a step.

CPU times are those of the whole process, including the threads of the store.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.measure import Figure, median
from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.config.provenance import ProvenanceSettings
from retinue.domain.address import person_address
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import default_rights
from retinue.domain.record import Record, RecordBody, Reply, UserTurn, body_kind, body_trust
from retinue.domain.session import OriginKind
from retinue.domain.tool import Call, ToolEffect, ToolResult, ToolSpec
from retinue.domain.trust import Trust
from retinue.engine.journal import ApprovalAnswers
from retinue.policy.provenance.provenance_rules import ProvenancePolicy, build_policy_with_defaults
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import open_store
from retinue.testing.tools import AppendLineTool
from retinue.tools.base import Tool, ToolContext, schema_of
from retinue.tools.earlier_messages import EarlierOwnerTurns
from retinue.tools.grants import GrantCache
from retinue.tools.result_truncation import FullResultStore
from retinue.tools.toolbox import Toolbox, TurnContext

ROUNDS, CALLS_PER_ROUND = 21, 100
TURNS = 50  # in the conversation that a decision checks

CALLS_PER_MINUTE = 1_000_000_000

CALL_MS_MAX = 1.0
DECISION_MS_MAX = 0.1

SESSION, RUN = SessionId("5" * 32), RunId("6" * 32)
AGENT = Agent(name="ada", tools=ToolRules(ask=("exec",), deny=("group:web",)))
TRIVIAL_CALL = Call(id="c1", tool="trivial")
APPEND_CALL = Call(id="c2", tool="append_line", arguments={"text": "the garden needs water"})


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class TrivialTool:
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="trivial",
            description="Does nothing.",
            parameters=schema_of(NoArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
        )
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        return "nothing"


def measure(folder: Path) -> list[Figure]:
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> list[Figure]:
    clock, ids = RealClock(), RandomIds()
    store = await open_store(str(folder / "retinue.db"))
    try:
        trivial = TrivialTool()
        tools: list[Tool] = [trivial, AppendLineTool(folder / "lines.txt")]
        policy = build_policy_with_defaults(ProvenanceSettings())

        def origin() -> ProvenancePolicy:
            return policy

        bare_toolbox = Toolbox(tools, clock=clock, provenance_policy=origin, ids=ids)
        toolbox = Toolbox(
            tools,
            clock=clock,
            calls_per_minute=CALLS_PER_MINUTE,
            provenance_policy=origin,
            ids=ids,
            grants=GrantCache(store, clock),
            earlier_turns=EarlierOwnerTurns(store),
            full_results=FullResultStore(AttachmentFiles(folder / "files"), store),
        )
        no_answers = ApprovalAnswers(())
        trusted, untrusted = _turn_context(folder, Trust.PRIVATE), _turn_context(folder, Trust.UNTRUSTED)
        tool_context = trusted.tool_context(TRIVIAL_CALL)

        async def perform_calls() -> None:
            plan = await toolbox.decide([TRIVIAL_CALL], no_answers, trusted)
            await toolbox.perform(TRIVIAL_CALL, plan.contexts[TRIVIAL_CALL.id])

        async def run_bare_calls() -> None:
            await trivial.perform(NoArguments(), tool_context)

        async def decide_calls(turn_context: TurnContext) -> None:
            await bare_toolbox.evaluate_call(APPEND_CALL, turn_context)

        call_ms, bare_ms = await _cpu_ms(perform_calls), await _cpu_ms(run_bare_calls)
        return [
            Figure(
                "tool-call-cpu",
                call_ms - bare_ms,
                "ms",
                CALL_MS_MAX,
                note=f"beyond {bare_ms:.3f} ms of the tool itself",
            ),
            Figure("tool-decision-cpu", await _cpu_ms(lambda: decide_calls(trusted)), "ms", DECISION_MS_MAX),
            Figure(
                "tool-decision-untrusted-cpu",
                await _cpu_ms(lambda: decide_calls(untrusted)),
                "ms",
                note=f"after {TURNS} turns with untrusted results",
            ),
        ]
    finally:
        await store.close()


async def _cpu_ms(act: Callable[[], Awaitable[None]]) -> float:
    """Measure the CPU time of one operation: the median of several rounds, because the first rounds fill the caches."""
    taken: list[float] = []
    gc.collect()
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(CALLS_PER_ROUND):
            await act()
        taken.append((time.process_time() - before) * 1000 / CALLS_PER_ROUND)
    return median(taken)


def _turn_context(folder: Path, trust: Trust) -> TurnContext:
    bodies: list[tuple[RecordBody, Trust]] = []
    for turn in range(TURNS):
        call = Call(id=f"r{turn}", tool="read", arguments={"path": f"notes-{turn}.txt"})
        bodies += [
            (UserTurn(text=f"Read notes-{turn}.txt and tell me what is in it."), Trust.OWNER),
            (Reply(text="", calls=(call,)), Trust.PRIVATE),
            (ToolResult(call=call.id, tool="read", output=f"Note {turn}: buy milk.\n" * 20, trust=trust), trust),
            (Reply(text="It says to buy milk."), Trust.PRIVATE),
        ]
    return TurnContext(
        agent=AGENT,
        session=SESSION,
        run=RUN,
        agent_directory=folder,
        rights=default_rights(folder, folder),
        circumstances=ToolPolicyContext(origin=OriginKind.TERMINAL, sender=person_address("owner")),
        context=[
            Record(
                session=SESSION,
                seq=seq,
                kind=body_kind(body),
                body=body,
                at_ms=seq,
                run=RUN,
                trust=label or body_trust(body),
            )
            for seq, (body, label) in enumerate(bodies, start=1)
        ],
    )
