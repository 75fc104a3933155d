"""Show everything a run did, in order and with timestamps, enough to draw a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.audit import hash_of
from retinue.domain.decision import Verdict
from retinue.domain.envelope import Kind
from retinue.domain.event import NewsKind
from retinue.domain.grant import GrantScope
from retinue.domain.principal import Principal
from retinue.domain.record import Note, Record, Reply, Usage
from retinue.domain.run import StepKind, StepState
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.ui_context import words_of
from retinue.operations.base import Desk, Operation
from retinue.operations.run.run_list import RunListed, listed
from retinue.operations.run.runs import ById
from retinue.store.core.lookup import Noun, find
from retinue.store.runs import runs
from retinue.store.runs.model_calls import CallMade
from retinue.store.runs.run_trace import StepTaken, Told, Trace, trace

ACTS_SHOWN_MAX = 1_000
TEXT_CHARS_MAX = 2_000  # per reply, result, or argument of a call
WORDS_CHARS_MAX = 200  # per envelope

_plain = msgspec.json.Encoder().encode


class Came(StrEnum):
    """Status of a trace entry."""

    DONE = "done"
    FAILED = "failed"
    OPEN = "open"  # still running
    INTERRUPTED = "interrupted"
    REFUSED = "refused"  # never performed


class EnvelopeRead(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="envelope-read"):
    """`joined`: the envelope arrived while the run was working, and the run read it then."""

    at_ms: int
    envelope: str
    sender: str = msgspec.field(name="from")
    kind: Kind
    words: str
    joined: bool


class EnvelopeSent(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="envelope-sent"):
    at_ms: int
    envelope: str
    to: str
    kind: Kind
    words: str


class ModelAsked(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="model"):
    """One attempt at a model call.

    `summary`: the call compacts the context. `failure` is the kind of error, and `next-move` what
    was tried next. `record` is the number of the record that holds the full reply.
    """

    at_ms: int
    ended_ms: int | None
    came: Came
    turn: int
    attempt: int
    summary: bool
    model: str
    usage: Usage
    cost_microusd: int
    cost_unknown: bool
    failure: str | None
    next_move: str | None
    error: str | None
    text: str
    text_chars: int
    calls: list[str]
    record: int | None


class ToolCalled(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="tool"):
    """One tool call.

    `because` is the rule that allowed or refused it, and `approval` the approval that was requested
    for it. `output` is truncated. `record` is the number of the record that holds it, and `whole`
    the file that holds a long output in full.
    """

    at_ms: int
    ended_ms: int | None
    came: Came
    turn: int
    attempt: int
    call: str
    tool: str
    arguments: dict[str, Any]
    verdict: Verdict
    because: str
    approval: str | None
    output: str
    output_chars: int
    whole: str
    record: int | None


class PersonAsked(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="approval"):
    at_ms: int
    ended_ms: int | None
    approval: str
    state: ApprovalState
    calls: list[str]
    because: str
    asked_of: list[str]
    decided_by: str
    scope: GrantScope | None
    words: str


class RunParked(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="parked"):
    at_ms: int
    approval: str | None
    because: str


class RunResumed(msgspec.Struct, frozen=True, rename="kebab", tag_field="act", tag="resumed"):
    at_ms: int
    because: str
    attempt: int


Act = EnvelopeRead | EnvelopeSent | ModelAsked | ToolCalled | PersonAsked | RunParked | RunResumed


class RunTraced(msgspec.Struct, frozen=True, rename="kebab"):
    """`purged`: the run's steps are deleted, so the remaining entries have no durations.

    Times are Unix milliseconds.
    """

    run: RunListed
    acts: list[Act]
    left_out: int
    purged: bool


async def show_trace(desk: Desk, caller: Principal, asked: ById) -> RunTraced:
    def body(conn: sa.Connection) -> RunTraced:
        _, id_ = find(conn, asked.id, (Noun.RUN,), seen_by=caller)
        run = runs.get(conn, id_)
        assert run is not None  # found by its id in the same snapshot
        found = trace(conn, run)
        acts = acts_of(found)
        return RunTraced(
            run=listed(desk, conn, run),
            acts=acts[:ACTS_SHOWN_MAX],
            left_out=max(0, len(acts) - ACTS_SHOWN_MAX),
            purged=_is_purged(found),
        )

    return await desk.store.scan(body)


def acts_of(found: Trace) -> list[Act]:
    """Return the entries ordered by start time.

    Entries with the same time keep their order, cause before effect.
    """
    acts: list[Act] = [*_envelopes_read(found), *_made(found), *map(_asked, found.approvals)]
    acts += [act for told in found.told if (act := _rest(found, told)) is not None]
    acts += [
        EnvelopeSent(
            at_ms=to_ms(each.accepted_at),
            envelope=each.id,
            to=str(each.recipient),
            kind=each.kind,
            words=_cut(each.text, WORDS_CHARS_MAX),
        )
        for each in found.sent
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _is_purged(found: Trace) -> bool:
    return not found.steps and any(isinstance(record.body, Reply) for record in found.records)


# --- envelopes, approvals, suspend and resume ---


def _envelopes_read(found: Trace) -> Iterator[EnvelopeRead]:
    joined = {id_ for told in found.told if told.kind is NewsKind.RUN_JOINED for id_ in told.body.get("envelopes", ())}
    started_ms = to_ms(found.run.started_at)
    for each in found.read:
        claimed_ms = to_ms(each.claimed_at) if each.claimed_at else started_ms
        yield EnvelopeRead(
            at_ms=claimed_ms if each.id in joined else started_ms,
            envelope=each.id,
            sender=str(each.sender),
            kind=each.kind,
            words=_cut(words_of(each.text), WORDS_CHARS_MAX),
            joined=each.id in joined,
        )


def _asked(approval: Approval) -> PersonAsked:
    return PersonAsked(
        at_ms=to_ms(approval.asked_at),
        ended_ms=to_ms(approval.decided_at) if approval.decided_at else None,
        approval=approval.id,
        state=approval.state,
        calls=[call.id for call in approval.calls],
        because=approval.because,
        asked_of=[str(each) for each in approval.asked_of],
        decided_by=approval.decided_by,
        scope=approval.scope,
        words=approval.words,
    )


def _rest(found: Trace, told: Told) -> Act | None:
    if told.kind is NewsKind.RUN_PARKED:
        id_ = told.body.get("approval")
        because = next((each.because for each in found.approvals if each.id == id_), "")
        return RunParked(at_ms=told.at_ms, approval=id_, because=because)
    if told.kind is NewsKind.RUN_RESUMED:
        after, attempt = str(told.body.get("after", "")), int(told.body.get("attempt", 1))
        return RunResumed(at_ms=told.at_ms, because=after, attempt=attempt)
    return None


# --- models and tools ---


def _made(found: Trace) -> Iterator[Act]:
    """Yield the entries of records with their steps, of steps without a record, and of failed model calls."""
    by_seq = {taken.record_seq: taken for taken in found.steps if taken.record_seq is not None}
    calls: dict[str, Call] = {taken.step.call.id: taken.step.call for taken in found.steps if taken.step.call}
    turn = -1
    for record in found.records:
        taken = by_seq.pop(record.seq, None)
        match record.body:
            case Reply() as reply:
                turn = taken.step.turn if taken is not None else turn + 1
                calls |= {call.id: call for call in reply.calls}
                yield _replied(found, record, reply, taken, turn)
            case ToolResult() as result:
                yield _called(found, record, result, calls.get(result.call), taken, turn)
            case Note(call=id_) as note if id_:
                result = ToolResult(call=id_, tool="", output=note.text, trust=note.trust, whole=note.whole)
                yield _called(found, record, result, calls.get(id_), taken, -1)
            case _:
                pass
    yield from (_unrecorded(found, taken) for taken in found.steps if taken.record_seq is None)
    yield from (_in_vain(made) for made in found.calls if made.failure is not None)


def _paid(calls: Sequence[CallMade], taken: StepTaken | None, turn: int) -> CallMade | None:
    """Find the successful model call of a step, or of a turn if the steps are purged."""
    index = taken.step.index if taken is not None else 0
    at = taken.step.turn if taken is not None else turn
    return next((c for c in reversed(calls) if (c.turn, c.index) == (at, index) and c.failure is None), None)


def _replied(found: Trace, record: Record, reply: Reply, taken: StepTaken | None, turn: int) -> ModelAsked:
    paid = _paid(found.calls, taken, turn)
    began_ms = to_ms(paid.at) if paid is not None else taken.opened_ms if taken is not None else record.at_ms
    interrupted = taken is not None and taken.step.state is StepState.INTERRUPTED
    return ModelAsked(
        at_ms=began_ms,
        ended_ms=taken.closed_ms if taken is not None else record.at_ms,
        came=Came.INTERRUPTED if interrupted else Came.DONE,
        turn=turn,
        attempt=taken.step.attempt if taken is not None else 1,
        summary=False,
        model=reply.model,
        usage=paid.usage if paid is not None else reply.usage,
        cost_microusd=paid.settled_microusd if paid is not None else reply.usage.cost_microusd,
        cost_unknown=paid is not None and paid.unknown,
        failure=None,
        next_move=None,
        error=None,
        text=_cut(reply.text, TEXT_CHARS_MAX),
        text_chars=len(reply.text),
        calls=[call.id for call in reply.calls],
        record=record.seq,
    )


def _in_vain(made: CallMade) -> ModelAsked:
    return ModelAsked(
        at_ms=to_ms(made.at),
        ended_ms=to_ms(made.ended_at) if made.ended_at else None,
        came=Came.FAILED,
        turn=made.turn,
        attempt=made.attempt,
        summary=made.index < 0,
        model=str(made.ref),
        usage=made.usage,
        cost_microusd=made.settled_microusd,
        cost_unknown=made.unknown,
        failure=made.failure,
        next_move=made.next_move,
        error=made.error,
        text="",
        text_chars=0,
        calls=[],
        record=None,
    )


def _unrecorded(found: Trace, taken: StepTaken) -> Act:
    """Return the entry of a step without a record: open, interrupted, or closed without writing one."""
    step = taken.step
    came = {StepState.OPEN: Came.OPEN, StepState.INTERRUPTED: Came.INTERRUPTED, StepState.CLOSED: Came.DONE}[step.state]
    if step.kind is StepKind.TOOL:
        return _tool(found, step.call or Call(id="", tool=""), taken, came=came, turn=step.turn)
    paid = _paid(found.calls, taken, step.turn)
    return ModelAsked(
        at_ms=taken.opened_ms,
        ended_ms=taken.closed_ms,
        came=came,
        turn=step.turn,
        attempt=step.attempt,
        summary=step.index < 0,
        model=step.hash,
        usage=paid.usage if paid is not None else Usage(),
        cost_microusd=paid.settled_microusd if paid is not None else 0,
        cost_unknown=paid is not None and paid.unknown,
        failure=None,
        next_move=None,
        error=None,
        text="",
        text_chars=0,
        calls=[],
        record=None,
    )


def _called(
    found: Trace, record: Record, result: ToolResult, call: Call | None, taken: StepTaken | None, turn: int
) -> ToolCalled:
    call = call or Call(id=result.call, tool=result.tool)
    if taken is None:
        came = Came.REFUSED if not _is_purged(found) else Came.FAILED if result.failed else Came.DONE
    elif taken.step.state is StepState.INTERRUPTED:
        came = Came.INTERRUPTED
    else:
        came = Came.FAILED if result.failed else Came.DONE
    return _tool(found, call, taken, came=came, turn=turn, record=record, result=result)


def _tool(
    found: Trace,
    call: Call,
    taken: StepTaken | None,
    *,
    came: Came,
    turn: int,
    record: Record | None = None,
    result: ToolResult | None = None,
) -> ToolCalled:
    output = result.output if result is not None else ""
    refused = came is Came.REFUSED
    because = found.refused.get(hash_of(output), "") if refused else found.allowed.get(call_hash(call), "")
    asked = next((each for each in found.approvals if any(call.id == one.id for one in each.calls)), None)
    at_ms = taken.opened_ms if taken is not None else record.at_ms if record is not None else 0
    return ToolCalled(
        at_ms=at_ms,
        ended_ms=taken.closed_ms if taken is not None else at_ms,
        came=came,
        turn=turn,
        attempt=taken.step.attempt if taken is not None else 1,
        call=call.id,
        tool=call.tool,
        arguments=_bounded(call.arguments),
        verdict=Verdict.DENY if refused else Verdict.ALLOW,
        because=because,
        approval=asked.id if asked is not None else None,
        output=_cut(output, TEXT_CHARS_MAX),
        output_chars=len(output),
        whole=result.whole if result is not None else "",
        record=record.seq if record is not None else None,
    )


def _bounded(arguments: dict[str, Any]) -> dict[str, Any]:
    """Truncate long argument values.

    A long value that is not a string is shown as truncated JSON text.
    """
    return {name: _bounded_value(value) for name, value in arguments.items()}


def _bounded_value(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value, TEXT_CHARS_MAX)
    written = _plain(value).decode(errors="replace")
    return value if len(written) <= TEXT_CHARS_MAX else _cut(written, TEXT_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]} [cut: {len(text) - chars_max:,} more characters]"


OPERATIONS = (
    Operation(
        name="run.trace",
        summary="Tell a run act by act: models, tools, questions and mail, with moments and cost.",
        parameters=ById,
        handler=show_trace,
        permission=PermissionLevel.RESTRICTED,
        result=RunTraced,
    ),
)
