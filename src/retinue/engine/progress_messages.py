"""Progress messages for a person who asked for them: tool calls, their results and the model's thinking.

Each is an envelope in the commit of the step it describes. So it is sent once, also if the run is
resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.address import AddressKind
from retinue.domain.display_options import PLAIN, Reasoning, Verbosity
from retinue.domain.record import Reply
from retinue.domain.run import Step, StepKind
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.tool import ToolResult
from retinue.engine.run_context import Work
from retinue.engine.step_writer import Closing, Unwritten
from retinue.intake.accept import Wake, notify
from retinue.intake.routing import answer_address
from retinue.store.core.transaction import Page

ARGUMENT_CHARS_MAX = 60
CALL_CHARS_MAX = 200
OUTPUT_BYTES_MAX = 1_500
THOUGHTS_BYTES_MAX = 32_768
THOUGHTS = "Reasoning:"


def show_work(page: Page, work: Work, closings: Sequence[Unwritten], opening: Step | None = None) -> tuple[Wake, ...]:
    """Send progress messages to the person who waits for the answer. No other recipient gets them.

    In the run's last commit they come before the answer.
    """
    if work.manner == PLAIN or not work.envelopes:
        return ()
    to = answer_address(work.run.sender, origin=work.session.origin, kind=work.envelopes[0].kind)
    people = to is not None and to.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
    if to is None or not people or not work.session.origin.kind.foreground:
        return ()
    about = work.envelopes[0]  # stays first when others join
    wakes: list[Wake] = []
    for purpose, text in _told(work, closings, opening):
        wakes += notify(page, to, about.id, about.kind, f"{work.run.id}/{purpose}", text, session=work.session)
    return tuple(wakes)


def _told(work: Work, closings: Sequence[Unwritten], opening: Step | None) -> list[tuple[str, str]]:
    verbose, reasoning = work.manner.verbose, work.manner.reasoning
    told: list[tuple[str, str]] = []
    calls_told = verbose in (Verbosity.ON, Verbosity.FULL)
    for closing in closings:
        if calls_told and isinstance(closing, Closing) and closing.begun_ms is not None and closing.step is not None:
            told.append(_begun(closing.step))
        match closing:
            case Closing(Reply(thinking=thoughts), Step(turn=turn)) if thoughts and reasoning is Reasoning.ON:
                told.append((f"thoughts {turn}", f"{THOUGHTS}\n{clipped_bytes(thoughts, THOUGHTS_BYTES_MAX)}"))
            case Closing(ToolResult() as result) if verbose is Verbosity.FULL:
                told.append((f"output {result.call}", _output(result)))
            case _:
                pass
    if calls_told and opening is not None and opening.kind is StepKind.TOOL:
        told.append(_begun(opening))
    return told


def _begun(step: Step) -> tuple[str, str]:
    return f"call {step.turn}.{step.index}", _call(step)


def _call(step: Step) -> str:
    """Format a call on one line: the tool and its arguments, shortened."""
    assert step.call is not None  # a tool step has a call
    given = " ".join(f"{name}={_short(value)}" for name, value in step.call.arguments.items())
    line = f"→ {step.call.tool} {given}".strip()
    return line if len(line) <= CALL_CHARS_MAX else f"{line[: CALL_CHARS_MAX - 1]}…"


def _short(value: object) -> str:
    words = " ".join(str(value).split())
    return words if len(words) <= ARGUMENT_CHARS_MAX else f"{words[: ARGUMENT_CHARS_MAX - 1]}…"


def _output(result: ToolResult) -> str:
    failed = " failed" if result.failed else ""
    return f"← {result.tool}{failed}: {clipped_bytes(result.output, OUTPUT_BYTES_MAX)}"
