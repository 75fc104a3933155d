"""Display options of a run that the runner applies: streamed thinking and the usage line below an answer."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.display_options import Manner, Reasoning, UsageLine
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId
from retinue.domain.ports import Tell
from retinue.domain.record import Record, Reply


class WithoutThoughts:
    """A run observer that drops thinking and passes everything else on."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def delta(self, delta: Delta) -> None:
        if delta.kind is not DeltaKind.THINKING:
            self._tell.delta(delta)

    def called(self, run: RunId, tool: str) -> None:
        self._tell.called(run, tool)


def heard(tell: Tell, manner: Manner) -> Tell:
    """Hide streamed thinking if it is off, or if it is sent as a whole before the answer (`on`)."""
    return WithoutThoughts(tell) if manner.reasoning in (Reasoning.OFF, Reasoning.ON) else tell


def usage_line(manner: Manner, own: Sequence[Record]) -> tuple[str, ...]:
    """Return the usage of a run for below its answer, as far as the models reported it."""
    line = manner.usage
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if line is None or line is UsageLine.OFF or not replies:
        return ()
    usages = [reply.usage for reply in replies]
    taken = sum(usage.input_tokens for usage in usages)
    given = sum(usage.output_tokens for usage in usages)
    cost = sum(usage.cost_microusd for usage in usages)
    about = "about " if any(usage.estimated for usage in usages) else ""
    tokens = f"{about}{taken:,} tokens in, {given:,} out"
    spent = f"{about}${cost / 1e6:.4f}" if cost else "no cost known"
    match line:
        case UsageLine.TOKENS:
            return (tokens,)
        case UsageLine.COST:
            return (spent,)
        case UsageLine.FULL:
            last = usages[-1].input_tokens + usages[-1].output_tokens
            models = ", ".join(dict.fromkeys(reply.model for reply in replies if reply.model))
            return ("; ".join(filter(None, (tokens, spent, f"{last:,} tokens in mind", models))),)
