"""Applies the display options of a run: whether thinking is streamed, and the usage line below an answer."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.display_options import DisplayOptions, ReasoningDisplay, UsageFooter
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId
from retinue.domain.ports import RunObserver
from retinue.domain.record import Record, Reply


class ThinkingFilter:
    """A run observer that drops thinking and passes everything else on."""

    def __init__(self, observer: RunObserver) -> None:
        self._observer = observer

    def on_delta(self, delta: Delta) -> None:
        if delta.kind is not DeltaKind.THINKING:
            self._observer.on_delta(delta)

    def on_tool_call(self, run: RunId, tool: str) -> None:
        self._observer.on_tool_call(run, tool)


def filter_thinking(observer: RunObserver, display: DisplayOptions) -> RunObserver:
    """Return an observer that drops streamed thinking if the display option `reasoning` is `off` or `on`.

    With `on`, the thinking of each model reply is sent as a separate message instead.
    """
    return ThinkingFilter(observer) if display.reasoning in (ReasoningDisplay.OFF, ReasoningDisplay.ON) else observer


def usage_line(display: DisplayOptions, run_records: Sequence[Record]) -> tuple[str, ...]:
    """Return the line below an answer that shows how many tokens the run used and what they cost.

    Empty if the display option is off.
    """
    line = display.usage
    replies = [record.body for record in run_records if isinstance(record.body, Reply)]
    if line is None or line is UsageFooter.OFF or not replies:
        return ()
    usages = [reply.usage for reply in replies]
    taken = sum(usage.input_tokens for usage in usages)
    given = sum(usage.output_tokens for usage in usages)
    cost = sum(usage.cost_microusd for usage in usages)
    about = "about " if any(usage.estimated for usage in usages) else ""
    tokens = f"{about}{taken:,} tokens in, {given:,} out"
    spent = f"{about}${cost / 1e6:.4f}" if cost else "cost unknown"
    match line:
        case UsageFooter.TOKENS:
            return (tokens,)
        case UsageFooter.COST:
            return (spent,)
        case UsageFooter.FULL:
            last = usages[-1].input_tokens + usages[-1].output_tokens
            models = ", ".join(dict.fromkeys(reply.model for reply in replies if reply.model))
            return ("; ".join(filter(None, (tokens, spent, f"{last:,} tokens in context", models))),)
