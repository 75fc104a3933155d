"""How a step's end is written: the record it left, the step closed, its money settled. Part of a larger commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retinue.domain.event import NewsKind
from retinue.domain.record import Note, Reply
from retinue.domain.run import Step, StepKind, StepState
from retinue.domain.tool import ToolResult
from retinue.engine.custody import Append
from retinue.store import money, runs


@dataclass(frozen=True, slots=True)
class Closing:
    """What came back and is not written yet. `step` is None for a result that took no act."""

    body: Reply | ToolResult | Note
    step: Step | None


def write_closings(append: Append, closings: Sequence[Closing]) -> None:
    page = append.page
    for closing in closings:
        record = append.add(closing.body)
        step = closing.step
        if step is None:
            continue
        runs.close_step(page.conn, step, record_seq=record.seq, at_ms=page.at_ms)
        if step.kind is StepKind.MODEL and step.reserved_microusd and isinstance(closing.body, Reply):
            money.settle(page.conn, step.run, step.turn, step.attempt, microusd=closing.body.usage.cost_microusd)
        if step.kind is StepKind.TOOL or _asks(closing.body):
            page.tell(
                NewsKind.STEP_CLOSED,
                session=append.session.id,
                run=step.run,
                record_seq=record.seq,
                turn=step.turn,
                index=step.index,
                interrupted=step.state is StepState.INTERRUPTED,
            )


def _asks(body: Reply | ToolResult | Note) -> bool:
    """A reply that asks for calls is news of its own; a last reply is told with the run's end."""
    return isinstance(body, Reply) and bool(body.calls)
