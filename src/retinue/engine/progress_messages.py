"""Sends progress messages to a person who asked for them: tool calls, their results and the model's thinking.

Each message is an envelope in the commit of the step it describes, so it is sent only once, even if the run is
resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.address import AddressKind
from retinue.domain.display_options import NO_DISPLAY_OPTIONS, ReasoningDisplay, Verbosity
from retinue.domain.record import Reply
from retinue.domain.run import Step, StepKind
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.tool import ToolResult
from retinue.engine.run_context import ClaimedRun
from retinue.engine.step_writer import PendingWrite, StepResult
from retinue.intake.accept import Wake, notify_sender
from retinue.intake.routing import get_answer_address
from retinue.store.core.transaction import Transaction

ARGUMENT_CHARS_MAX = 60
CALL_CHARS_MAX = 200
OUTPUT_BYTES_MAX = 1_500
THINKING_BYTES_MAX = 32_768
THINKING_HEADING = "Reasoning:"


def send_progress(
    tx: Transaction, claim: ClaimedRun, pending: Sequence[PendingWrite], opening: Step | None = None
) -> tuple[Wake, ...]:
    """Send progress messages to the person who waits for the answer. No other recipient gets them.

    If they are in the run's last commit, they come before the answer.
    """
    if claim.display == NO_DISPLAY_OPTIONS or not claim.envelopes:
        return ()
    to = get_answer_address(claim.run.sender, origin=claim.session.origin, kind=claim.envelopes[0].kind)
    people = to is not None and to.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
    if to is None or not people or not claim.session.origin.kind.is_foreground:
        return ()
    about = claim.envelopes[0]  # stays first when others join
    wakes: list[Wake] = []
    for purpose, text in _progress_texts(claim, pending, opening):
        wakes += notify_sender(tx, to, about.id, about.kind, f"{claim.run.id}/{purpose}", text, session=claim.session)
    return tuple(wakes)


def _progress_texts(claim: ClaimedRun, pending: Sequence[PendingWrite], opening: Step | None) -> list[tuple[str, str]]:
    verbose, reasoning = claim.display.verbose, claim.display.reasoning
    messages: list[tuple[str, str]] = []
    calls_told = verbose in (Verbosity.ON, Verbosity.FULL)
    for closing in pending:
        if (
            calls_told
            and isinstance(closing, StepResult)
            and closing.started_ms is not None
            and closing.step is not None
        ):
            messages.append(_call_started_text(closing.step))
        match closing:
            case StepResult(Reply(thinking=thoughts), Step(turn=turn)) if thoughts and reasoning is ReasoningDisplay.ON:
                messages.append(
                    (f"thoughts {turn}", f"{THINKING_HEADING}\n{truncate_bytes(thoughts, THINKING_BYTES_MAX)}")
                )
            case StepResult(ToolResult() as result) if verbose is Verbosity.FULL:
                messages.append((f"output {result.call}", _format_result(result)))
            case _:
                pass
    if calls_told and opening is not None and opening.kind is StepKind.TOOL:
        messages.append(_call_started_text(opening))
    return messages


def _call_started_text(step: Step) -> tuple[str, str]:
    return f"call {step.turn}.{step.index}", _format_call(step)


def _format_call(step: Step) -> str:
    """Format a call on one line: the tool and its arguments, shortened."""
    assert step.call is not None  # a tool step has a call
    given = " ".join(f"{name}={_shorten(value)}" for name, value in step.call.arguments.items())
    line = f"→ {step.call.tool} {given}".strip()
    return line if len(line) <= CALL_CHARS_MAX else f"{line[: CALL_CHARS_MAX - 1]}…"


def _shorten(value: object) -> str:
    words = " ".join(str(value).split())
    return words if len(words) <= ARGUMENT_CHARS_MAX else f"{words[: ARGUMENT_CHARS_MAX - 1]}…"


def _format_result(result: ToolResult) -> str:
    failed = " failed" if result.failed else ""
    return f"← {result.tool}{failed}: {truncate_bytes(result.output, OUTPUT_BYTES_MAX)}"
