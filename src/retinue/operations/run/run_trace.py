"""Operation that shows everything that a run did, in order and with start and end times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.audit import hash_content
from retinue.domain.decision import DecisionKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.grant import GrantScope
from retinue.domain.principal import Principal
from retinue.domain.record import Note, Record, Reply, Usage
from retinue.domain.run import StepKind, StepState
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.ui_context import text_without_context
from retinue.operations.base import Operation, Services
from retinue.operations.run.runs import RunIdRequest, RunRow, to_run_row
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.runs import runs
from retinue.store.runs.model_calls import RecordedModelCall
from retinue.store.runs.run_trace import RunProgressEvent, StoredRunTrace, TracedStep, load_trace

TRACE_ENTRIES_MAX = 1_000
TEXT_CHARS_MAX = 2_000  # per reply, result, or argument of a call
ENVELOPE_TEXT_CHARS_MAX = 200  # per envelope

_encode = msgspec.json.Encoder().encode


class TraceEntryStatus(StrEnum):
    """Status of a trace entry."""

    DONE = "done"
    FAILED = "failed"
    OPEN = "open"  # still running
    INTERRUPTED = "interrupted"
    REFUSED = "refused"  # never performed


class EnvelopeReadEntry(msgspec.Struct, frozen=True, tag_field="type", tag="envelope_read"):
    """An envelope that the run read. `steered` is true if the envelope was added to the run while it was active."""

    at_ms: int
    envelope: str
    sender: str = msgspec.field(name="from")
    kind: EnvelopeKind
    excerpt: str
    steered: bool


class EnvelopeSentEntry(msgspec.Struct, frozen=True, tag_field="type", tag="envelope_sent"):
    at_ms: int
    envelope: str
    to: str
    kind: EnvelopeKind
    excerpt: str


class ModelCallEntry(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """One attempt at a model call.

    `summary` is true if the call compacts the context. `failure` is the kind of error, and `next_action`
    is what the server did after it. `record` is the number of the record that contains the full reply.
    """

    at_ms: int
    ended_ms: int | None
    status: TraceEntryStatus
    turn: int
    attempt: int
    summary: bool
    model: str
    usage: Usage
    cost_microusd: int
    cost_unknown: bool
    failure: str | None
    next_action: str | None
    error: str | None
    text: str
    text_chars: int
    calls: list[str]
    record: int | None


class ToolCallEntry(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """One tool call.

    `because` is the reason for the decision to allow or refuse the call, and `approval` is the approval
    that was requested for it. `output` is truncated. `record` is the number of the record that contains
    the output. If the output is long, `full_result` is the file that contains all of it.
    """

    at_ms: int
    ended_ms: int | None
    status: TraceEntryStatus
    turn: int
    attempt: int
    call: str
    tool: str
    arguments: dict[str, Any]
    decision: DecisionKind
    because: str
    approval: str | None
    output: str
    output_chars: int
    full_result: str
    record: int | None


class ApprovalEntry(msgspec.Struct, frozen=True, tag_field="type", tag="approval"):
    at_ms: int
    ended_ms: int | None
    approval: str
    state: ApprovalState
    calls: list[str]
    because: str
    recipients: list[str]
    decided_by: str
    scope: GrantScope | None
    comment: str


class RunSuspendedEntry(msgspec.Struct, frozen=True, tag_field="type", tag="suspended"):
    at_ms: int
    approval: str | None
    because: str


class RunResumedEntry(msgspec.Struct, frozen=True, tag_field="type", tag="resumed"):
    at_ms: int
    because: str
    attempt: int


TraceEntry = (
    EnvelopeReadEntry
    | EnvelopeSentEntry
    | ModelCallEntry
    | ToolCallEntry
    | ApprovalEntry
    | RunSuspendedEntry
    | RunResumedEntry
)


class RunTraceDetails(msgspec.Struct, frozen=True):
    """Everything that one run did. Times are Unix milliseconds.

    If `purged` is true, the steps of the run were deleted, so the remaining entries have no durations.
    """

    run: RunRow
    entries: list[TraceEntry]
    omitted_count: int
    purged: bool


async def show_trace(services: Services, caller: Principal, request: RunIdRequest) -> RunTraceDetails:
    def body(conn: sa.Connection) -> RunTraceDetails:
        _, id_ = find_by_short_id(conn, request.id, (IdKind.RUN,), seen_by=caller)
        run = runs.get(conn, id_)
        assert run is not None  # found by its id in the same snapshot
        found = load_trace(conn, run)
        acts = build_trace_entries(found)
        return RunTraceDetails(
            run=to_run_row(services, conn, run),
            entries=acts[:TRACE_ENTRIES_MAX],
            omitted_count=max(0, len(acts) - TRACE_ENTRIES_MAX),
            purged=_is_purged(found),
        )

    return await services.store.scan(body)


def build_trace_entries(stored_trace: StoredRunTrace) -> list[TraceEntry]:
    """Return the entries of a run, ordered by start time.

    If two entries have the same time, the cause comes before its effect.
    """
    acts: list[TraceEntry] = [
        *_build_envelope_read_entries(stored_trace),
        *_build_model_and_tool_entries(stored_trace),
        *map(_to_approval_entry, stored_trace.approvals),
    ]
    acts += [
        act for event in stored_trace.events if (act := _to_suspend_or_resume_entry(stored_trace, event)) is not None
    ]
    acts += [
        EnvelopeSentEntry(
            at_ms=to_ms(each.accepted_at),
            envelope=each.id,
            to=str(each.recipient),
            kind=each.kind,
            excerpt=_truncate(each.text, ENVELOPE_TEXT_CHARS_MAX),
        )
        for each in stored_trace.sent
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _is_purged(stored_trace: StoredRunTrace) -> bool:
    return not stored_trace.steps and any(isinstance(record.body, Reply) for record in stored_trace.records)


# --- envelopes, approvals, suspend and resume ---


def _build_envelope_read_entries(stored_trace: StoredRunTrace) -> Iterator[EnvelopeReadEntry]:
    joined = {
        id_
        for event in stored_trace.events
        if event.kind is EventKind.RUN_JOINED
        for id_ in event.body.get("envelopes", ())
    }
    started_ms = to_ms(stored_trace.run.started_at)
    for each in stored_trace.read:
        claimed_ms = to_ms(each.claimed_at) if each.claimed_at else started_ms
        yield EnvelopeReadEntry(
            at_ms=claimed_ms if each.id in joined else started_ms,
            envelope=each.id,
            sender=str(each.sender),
            kind=each.kind,
            excerpt=_truncate(text_without_context(each.text), ENVELOPE_TEXT_CHARS_MAX),
            steered=each.id in joined,
        )


def _to_approval_entry(approval: Approval) -> ApprovalEntry:
    return ApprovalEntry(
        at_ms=to_ms(approval.requested_at),
        ended_ms=to_ms(approval.decided_at) if approval.decided_at else None,
        approval=approval.id,
        state=approval.state,
        calls=[call.id for call in approval.calls],
        because=approval.because,
        recipients=[str(each) for each in approval.recipients],
        decided_by=approval.decided_by,
        scope=approval.scope,
        comment=approval.comment,
    )


def _to_suspend_or_resume_entry(stored_trace: StoredRunTrace, event: RunProgressEvent) -> TraceEntry | None:
    if event.kind is EventKind.RUN_SUSPENDED:
        id_ = event.body.get("approval")
        because = next((each.because for each in stored_trace.approvals if each.id == id_), "")
        return RunSuspendedEntry(at_ms=event.at_ms, approval=id_, because=because)
    if event.kind is EventKind.RUN_RESUMED:
        after, attempt = str(event.body.get("after", "")), int(event.body.get("attempt", 1))
        return RunResumedEntry(at_ms=event.at_ms, because=after, attempt=attempt)
    return None


# --- models and tools ---


def _build_model_and_tool_entries(stored_trace: StoredRunTrace) -> Iterator[TraceEntry]:
    """Yield an entry for each reply and tool result, each step without a record, and each failed model call."""
    by_seq = {taken.record_seq: taken for taken in stored_trace.steps if taken.record_seq is not None}
    calls: dict[str, Call] = {taken.step.call.id: taken.step.call for taken in stored_trace.steps if taken.step.call}
    turn = -1
    for record in stored_trace.records:
        taken = by_seq.pop(record.seq, None)
        match record.body:
            case Reply() as reply:
                turn = taken.step.turn if taken is not None else turn + 1
                calls |= {call.id: call for call in reply.calls}
                yield _to_reply_entry(stored_trace, record, reply, taken, turn)
            case ToolResult() as result:
                yield _to_tool_result_entry(stored_trace, record, result, calls.get(result.call), taken, turn)
            case Note(call=id_) as note if id_:
                result = ToolResult(call=id_, tool="", output=note.text, trust=note.trust, whole=note.whole)
                yield _to_tool_result_entry(stored_trace, record, result, calls.get(id_), taken, -1)
            case _:
                pass
    yield from (
        _to_unrecorded_step_entry(stored_trace, taken) for taken in stored_trace.steps if taken.record_seq is None
    )
    yield from (_to_failed_model_call_entry(made) for made in stored_trace.calls if made.failure is not None)


def _find_model_call(
    calls: Sequence[RecordedModelCall], stored_step: TracedStep | None, turn: int
) -> RecordedModelCall | None:
    """Find the successful model call of a step, or of a turn if the steps are purged."""
    index = stored_step.step.index if stored_step is not None else 0
    at = stored_step.step.turn if stored_step is not None else turn
    return next((c for c in reversed(calls) if (c.turn, c.index) == (at, index) and c.failure is None), None)


def _to_reply_entry(
    stored_trace: StoredRunTrace, record: Record, reply: Reply, stored_step: TracedStep | None, turn: int
) -> ModelCallEntry:
    paid = _find_model_call(stored_trace.calls, stored_step, turn)
    began_ms = (
        to_ms(paid.at) if paid is not None else stored_step.opened_ms if stored_step is not None else record.at_ms
    )
    interrupted = stored_step is not None and stored_step.step.state is StepState.INTERRUPTED
    return ModelCallEntry(
        at_ms=began_ms,
        ended_ms=stored_step.closed_ms if stored_step is not None else record.at_ms,
        status=TraceEntryStatus.INTERRUPTED if interrupted else TraceEntryStatus.DONE,
        turn=turn,
        attempt=stored_step.step.attempt if stored_step is not None else 1,
        summary=False,
        model=reply.model,
        usage=paid.usage if paid is not None else reply.usage,
        cost_microusd=paid.settled_microusd if paid is not None else reply.usage.cost_microusd,
        cost_unknown=paid is not None and paid.cost_unknown,
        failure=None,
        next_action=None,
        error=None,
        text=_truncate(reply.text, TEXT_CHARS_MAX),
        text_chars=len(reply.text),
        calls=[call.id for call in reply.calls],
        record=record.seq,
    )


def _to_failed_model_call_entry(model_call: RecordedModelCall) -> ModelCallEntry:
    return ModelCallEntry(
        at_ms=to_ms(model_call.at),
        ended_ms=to_ms(model_call.ended_at) if model_call.ended_at else None,
        status=TraceEntryStatus.FAILED,
        turn=model_call.turn,
        attempt=model_call.attempt,
        summary=model_call.index < 0,
        model=str(model_call.ref),
        usage=model_call.usage,
        cost_microusd=model_call.settled_microusd,
        cost_unknown=model_call.cost_unknown,
        failure=model_call.failure,
        next_action=model_call.next_action,
        error=model_call.error,
        text="",
        text_chars=0,
        calls=[],
        record=None,
    )


def _to_unrecorded_step_entry(stored_trace: StoredRunTrace, stored_step: TracedStep) -> TraceEntry:
    """Return the entry of a step that has no record, because it is open, was interrupted, or wrote no record."""
    step = stored_step.step
    status = {
        StepState.OPEN: TraceEntryStatus.OPEN,
        StepState.INTERRUPTED: TraceEntryStatus.INTERRUPTED,
        StepState.CLOSED: TraceEntryStatus.DONE,
    }[step.state]
    if step.kind is StepKind.TOOL:
        return _to_tool_call_entry(
            stored_trace, step.call or Call(id="", tool=""), stored_step, status=status, turn=step.turn
        )
    paid = _find_model_call(stored_trace.calls, stored_step, step.turn)
    return ModelCallEntry(
        at_ms=stored_step.opened_ms,
        ended_ms=stored_step.closed_ms,
        status=status,
        turn=step.turn,
        attempt=step.attempt,
        summary=step.index < 0,
        model=step.hash,
        usage=paid.usage if paid is not None else Usage(),
        cost_microusd=paid.settled_microusd if paid is not None else 0,
        cost_unknown=paid is not None and paid.cost_unknown,
        failure=None,
        next_action=None,
        error=None,
        text="",
        text_chars=0,
        calls=[],
        record=None,
    )


def _to_tool_result_entry(
    stored_trace: StoredRunTrace,
    record: Record,
    result: ToolResult,
    call: Call | None,
    stored_step: TracedStep | None,
    turn: int,
) -> ToolCallEntry:
    call = call or Call(id=result.call, tool=result.tool)
    if stored_step is None:
        status = (
            TraceEntryStatus.REFUSED
            if not _is_purged(stored_trace)
            else TraceEntryStatus.FAILED
            if result.failed
            else TraceEntryStatus.DONE
        )
    elif stored_step.step.state is StepState.INTERRUPTED:
        status = TraceEntryStatus.INTERRUPTED
    else:
        status = TraceEntryStatus.FAILED if result.failed else TraceEntryStatus.DONE
    return _to_tool_call_entry(stored_trace, call, stored_step, status=status, turn=turn, record=record, result=result)


def _to_tool_call_entry(
    stored_trace: StoredRunTrace,
    call: Call,
    stored_step: TracedStep | None,
    *,
    status: TraceEntryStatus,
    turn: int,
    record: Record | None = None,
    result: ToolResult | None = None,
) -> ToolCallEntry:
    output = result.output if result is not None else ""
    refused = status is TraceEntryStatus.REFUSED
    because = (
        stored_trace.refused.get(hash_content(output), "") if refused else stored_trace.allowed.get(call_hash(call), "")
    )
    asked = next((each for each in stored_trace.approvals if any(call.id == one.id for one in each.calls)), None)
    at_ms = stored_step.opened_ms if stored_step is not None else record.at_ms if record is not None else 0
    return ToolCallEntry(
        at_ms=at_ms,
        ended_ms=stored_step.closed_ms if stored_step is not None else at_ms,
        status=status,
        turn=turn,
        attempt=stored_step.step.attempt if stored_step is not None else 1,
        call=call.id,
        tool=call.tool,
        arguments=_truncate_arguments(call.arguments),
        decision=DecisionKind.DENY if refused else DecisionKind.ALLOW,
        because=because,
        approval=asked.id if asked is not None else None,
        output=_truncate(output, TEXT_CHARS_MAX),
        output_chars=len(output),
        full_result=result.whole if result is not None else "",
        record=record.seq if record is not None else None,
    )


def _truncate_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Truncate long argument values.

    A long value that is not a string is shown as truncated JSON text.
    """
    return {name: _truncate_value(value) for name, value in arguments.items()}


def _truncate_value(value: Any) -> Any:
    if isinstance(value, str):
        return _truncate(value, TEXT_CHARS_MAX)
    written = _encode(value).decode(errors="replace")
    return value if len(written) <= TEXT_CHARS_MAX else _truncate(written, TEXT_CHARS_MAX)


def _truncate(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]} [cut: {len(text) - chars_max:,} more characters]"


OPERATIONS = (
    Operation(
        name="run.trace",
        summary="Show everything a run did: model calls, tool calls, approvals and envelopes, with times and cost.",
        parameters=RunIdRequest,
        handler=show_trace,
        permission=PermissionLevel.RESTRICTED,
        result=RunTraceDetails,
    ),
)
