"""The journal of one run: each step is stored before it is performed, and its result with the next step.

    commit(step 1) -> perform 1 -> commit(result 1, step 2) -> perform 2 -> ... -> commit(result, end of run)

A read-only call needs only one commit: perform -> commit(step, result, next step). See
docs/decisions/0013-one-commit-for-a-read-only-tool-call.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.budget import ModelCallReservation, ModelCallReservationRequest
from retinue.domain.display_options import NO_DISPLAY_OPTIONS
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.ids import short_id
from retinue.domain.model import ModelFailed
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock, CrashPoints, ModelStep, ToolStep
from retinue.domain.record import Note, Record, Reply, Summary, UserTurn, body_kind, body_trust
from retinue.domain.run import Run, Step, StepKind, StepState
from retinue.domain.session import BATCH_MAX, QueueMode
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.trust import Trust
from retinue.engine.interim_replies import send_interim_replies
from retinue.engine.progress_messages import send_progress
from retinue.engine.queue_modes import may_steer
from retinue.engine.run_context import ClaimedRun, RecordAppender, trust_of_envelopes
from retinue.engine.run_finish import interrupted_result
from retinue.engine.step_writer import (
    AbandonedStep,
    CallCharge,
    CompletedSummaryCall,
    FailedModelCall,
    PendingWrite,
    StepResult,
    emit_step_opened,
    write_pending,
)
from retinue.engine.transcript_cache import CachedTranscript
from retinue.intake.accept import Wake, notify_sender
from retinue.intake.routing import get_answer_address
from retinue.policy.limits.budgets import compute_budget_days, max_input_tokens
from retinue.runners import turn_input
from retinue.runners.base import is_silent
from retinue.runners.token_estimate import weight_of_record
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import budget_reservations, runs
from retinue.store.sessions import records, sessions

T = TypeVar("T")

SUMMARIES_MAX = 100  # per worker and run
PENDING_S_MAX = 0.02  # how long results may wait for a read-only call, to be written with it
STEERING_READ_MAX = 50  # number of due envelopes read: envelopes that do not steer may precede those that do


class RunJournal:
    """Writes everything that a run stores.

    The epoch of the run's claim is checked with each write, so a run that was cancelled or claimed
    again writes nothing.
    """

    def __init__(
        self,
        claim: ClaimedRun,
        transcript: CachedTranscript,
        *,
        run_records: Sequence[Record] | None = None,
        store: Store,
        clock: Clock,
        zone: ZoneInfo,
        faults: CrashPoints,
        has_new_envelopes: Callable[[], bool],
        wake: Callable[[Wake], None],
    ) -> None:
        self.claim = claim
        self._transcript = transcript
        self._records = transcript.records
        self._run_records = _own_records(self._records, claim.run) if run_records is None else list(run_records)
        self._store = store
        self._clock = clock
        self._zone = zone
        self._faults = faults
        self._has_new_envelopes = has_new_envelopes
        self._wake = wake
        self._is_resumed = not claim.new_records  # a resumed run does not know what arrived before it
        self._pending: list[PendingWrite] = []
        self._pending_since_ms = 0  # when the first pending result came back
        self._open_call: _OpenModelCall | None = None  # the model call in progress
        self._summaries = 0
        self._has_silent_reply = False  # a silent reply: stored, but not part of the context
        self._unstored_records = 0  # records in memory that the next commit will store
        self._open_steps = {(step.turn, step.index): step for step in claim.open_steps}
        # An open step of a resumed run was opened by an earlier worker. Otherwise the claim opened it.
        self._inherited_steps = set(self._open_steps) if self._is_resumed else set[tuple[int, int]]()

    @property
    def run(self) -> Run:
        return self.claim.run

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    @property
    def least_trust(self) -> Trust:
        return self._transcript.least_trust()

    @property
    def run_records(self) -> Sequence[Record]:
        return self._run_records

    @property
    def pending_writes(self) -> Sequence[PendingWrite]:
        """The results that the run's last commit must write, and the model steps that were opened but not used."""
        # Model steps that were opened and not used: a summary started before a crash, or a reply that did not
        # fit.
        left = [AbandonedStep(step) for step in self._open_steps.values() if step.kind is StepKind.MODEL]
        return [*self._pending, *left] if left else self._pending

    @property
    def matches_store(self) -> bool:
        """Whether the context in memory will match the store after the last commit."""
        newest = max((record.seq for record in (self._records[:1] + self._records[-1:])), default=0)
        return newest == self.claim.session.record_seq + self._unstored_records and not self._has_silent_reply

    @asynccontextmanager
    async def model_call(self, turn: int, *, request: ModelCallReservationRequest) -> AsyncGenerator[ModelStep]:
        step, granted = await self._open_model_step(turn, 0, request)
        call = ModelStep(step.attempt, granted)
        yield call
        self._close_model_step(turn, 0)
        self._add_result(StepResult(_recorded(call.reply), _close_step(step), self._charge(request)))

    @asynccontextmanager
    async def summary_call(
        self, turn: int, *, request: ModelCallReservationRequest, notice: str = ""
    ) -> AsyncGenerator[ModelStep]:
        self._summaries += 1
        # A resumed run has a higher epoch, so its indexes are unused.
        index = -(self.run.epoch * SUMMARIES_MAX + self._summaries)
        step, granted = await self._open_model_step(turn, index, request, notice=notice)
        call = ModelStep(step.attempt, granted)
        yield call
        self._close_model_step(turn, index)
        usage = _recorded(call.reply).usage
        self._pending.append(CompletedSummaryCall(_close_step(step), self._charge(request), usage))

    def _close_model_step(self, turn: int, index: int) -> None:
        self._faults.reach("model.after")
        self._open_call = None
        self._open_steps.pop((turn, index), None)

    async def compact(self, summary: Summary) -> None:
        self._add_result(StepResult(summary, None))
        await self._commit(kept_from=summary.kept_from)
        self._transcript.drop_summarized()

    async def flush(self) -> None:
        if self._pending:
            await self._commit()

    async def add_note(self, note: Note) -> None:
        self._add_result(StepResult(note, None))

    def record_failure(self, turn: int, error: ModelFailed, *, next_action: str) -> None:
        asked, self._open_call = self._open_call, None
        if asked is None:
            return  # refused before the call, for example by a budget
        self._pending.append(FailedModelCall(asked.step, self._charge(asked.terms), error, next_action))
        if asked.step.index < 0:  # the next summary call opens a new step
            self._open_steps.pop((asked.step.turn, asked.step.index), None)
            self._pending.append(AbandonedStep(asked.step))
        else:
            self._inherited_steps.add((asked.step.turn, asked.step.index))

    async def _open_model_step(
        self, turn: int, index: int, terms: ModelCallReservationRequest, *, notice: str = ""
    ) -> tuple[Step, ModelCallReservation]:
        """Write the intent of a model call with its cost reservation in one commit.

        No commit is needed if the claim already wrote the intent.
        """
        step = self._open_steps.get((turn, index))
        granted = ModelCallReservation(output_tokens_max=terms.output_tokens_max)
        if step is None:
            step = Step(run=self.run.id, turn=turn, index=index, kind=StepKind.MODEL, hash=str(terms.ref)[:32])
            granted = await self._commit(opening=step, steer=turn > 0 and index == 0, terms=terms, notice=notice)
        elif (turn, index) in self._inherited_steps:
            step = replace(step, attempt=step.attempt + 1)
            granted = await self._commit(retrying=step, terms=terms)
            self._inherited_steps.discard((turn, index))
        elif (
            terms.is_charged or terms.limits.has_any or self._unstored_records
        ):  # everything a model reads is stored first
            granted = await self._commit(retrying=step, terms=terms)
        self._open_steps[turn, index] = step
        self._open_call = _OpenModelCall(step, terms)
        self._faults.reach("model.before")
        return step, granted

    def _charge(self, terms: ModelCallReservationRequest) -> CallCharge:
        return CallCharge(terms=terms, days=compute_budget_days(self._clock.now(), self._zone))

    def was_interrupted(self, turn: int, index: int) -> bool:
        return (turn, index) in self._open_steps

    @asynccontextmanager
    async def tool_call(
        self,
        turn: int,
        index: int,
        call: Call,
        *,
        repeatable: bool,
        is_read_only: bool = False,
        is_late: bool = False,
        because: str = "",
    ) -> AsyncGenerator[ToolStep]:
        step = self._open_steps.pop((turn, index), None)
        if step is not None and not repeatable:
            # It is unknown how the call ended. Reporting that is better than performing it twice.
            result = interrupted_result(call.id, call.tool)
            self._add_step_result(replace(step, state=StepState.INTERRUPTED), _result_or_note(result, stored=is_late))
            yield ToolStep(result)
            return
        performed = ToolStep()
        if step is not None:
            step = replace(step, attempt=step.attempt + 1)
            await self._commit(retrying=step)
        else:
            step = Step(
                run=self.run.id,
                turn=turn,
                index=index,
                kind=StepKind.TOOL,
                hash=call_hash(call),
                call=call,
                because=because,
            )
            if is_read_only and (left_s := self._pending_s_left()) > 0:
                async with self._late_intent(step, within_s=left_s) as intent:
                    yield performed
                self._faults.reach("tool.after")
                result = _result_or_note(_recorded(performed.result), stored=is_late)
                self._add_step_result(step, result, started_ms=intent.unwritten_since_ms)
                return
            await self._commit(opening=step)
        self._faults.reach("tool.before")
        self._open_steps[turn, index] = step  # a call that suspends the run is performed again later
        yield performed
        del self._open_steps[turn, index]
        self._faults.reach("tool.after")
        self._add_step_result(step, _result_or_note(_recorded(performed.result), stored=is_late))

    def _pending_s_left(self) -> float:
        """Return the number of seconds within which the pending results must be stored.

        Returns 0 if the wall clock was set back.
        """
        if not self._pending:
            return PENDING_S_MAX
        waited_s = (to_ms(self._clock.now()) - self._pending_since_ms) / 1000
        return PENDING_S_MAX - waited_s if waited_s >= 0 else 0.0

    @asynccontextmanager
    async def _late_intent(self, step: Step, *, within_s: float) -> AsyncGenerator[_LateIntent]:
        """Let a read-only call start at once, so that its intent can be written together with its result.

        If the call takes longer than `within_s`, the intent is written while the call continues.
        """
        intent = _LateIntent(to_ms(self._clock.now()))
        writing: list[asyncio.Future[ModelCallReservation]] = []
        looking = True

        def write_intent() -> None:
            if looking:
                writing.append(asyncio.ensure_future(self._commit(opening=step)))

        call_off = self._clock.call_later(within_s, write_intent)
        self._faults.reach("tool.before")
        try:
            yield intent
        finally:
            looking = False
            call_off()
            # The intent commit must end before anything else of this run is written, also on cancellation.
            written = await asyncio.gather(*writing, return_exceptions=True) if writing else ()
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        if writing:
            intent.unwritten_since_ms = None

    async def add_bodies(self, bodies: Sequence[ToolResult | Reply]) -> None:
        for body in bodies:
            self._add_result(StepResult(body, None))

    async def add_late_result(self, result: ToolResult) -> None:
        self._add_result(StepResult(_result_or_note(result, stored=True), None))

    def _add_step_result(self, step: Step, body: ToolResult | Note, *, started_ms: int | None = None) -> None:
        self._add_result(StepResult(body, _close_step(step), started_ms=started_ms))

    def _add_result(self, result: StepResult) -> None:
        """Add a result to the context now. The next commit stores it under the same record number."""
        now_ms = to_ms(self._clock.now())
        if not self._pending:
            self._pending_since_ms = now_ms
        self._pending.append(result)
        self._unstored_records += 1
        record = Record(
            session=self.claim.session.id,
            seq=self.claim.session.record_seq + self._unstored_records,
            kind=body_kind(result.body),
            body=result.body,
            at_ms=now_ms,
            run=self.run.id,
            trust=body_trust(result.body),
        )
        self._run_records.append(record)
        if is_silent(result.body):
            self._has_silent_reply = True
        else:
            self._records.append(record)

    async def _commit(
        self,
        *,
        opening: Step | None = None,
        retrying: Step | None = None,
        steer: bool = False,
        terms: ModelCallReservationRequest | None = None,
        kept_from: int | None = None,
        notice: str = "",
    ) -> ModelCallReservation:
        body = partial(
            write_step,
            claim=self.claim,
            pending=tuple(self._pending),
            opening=opening,
            retrying=retrying,
            steer=steer and (self._has_new_envelopes() or self._is_resumed),
            now_ms=to_ms(self._clock.now()),
            zone=self._zone,
            charge=self._charge(terms) if terms is not None else None,
            notice=notice,
        )
        written = await self._store.write(body, point="step", then=self._wake_all)
        self._pending.clear()
        self._unstored_records = 0
        run = self.claim.run
        if written.envelopes is not self.claim.envelopes:  # an envelope has joined the run
            run = replace(run, envelopes=tuple(e.id for e in written.envelopes))
        self.claim = replace(
            self.claim,
            session=replace(
                self.claim.session,
                record_seq=written.record_seq,
                context_start_seq=self.claim.session.context_start_seq if kept_from is None else kept_from,
                compactions=self.claim.session.compactions + (kept_from is not None),
                revision=self.claim.session.revision + (kept_from is not None),
            ),
            run=run,
            envelopes=written.envelopes,
        )
        self._records.extend(written.joined_records)
        self._run_records.extend(written.joined_records)
        return written.granted

    def _wake_all(self, written: StepCommit | None) -> None:
        """Send the wake-ups together with the commit, because the task that waits for the commit may be cancelled."""
        for wake in written.wakes if written is not None else ():
            self._wake(wake)


def _own_records(context: Sequence[Record], run: Run) -> list[Record]:
    """Return the records of this run. The search starts at the end, so its cost does not depend on the history."""
    own: list[Record] = []
    for record in reversed(context):
        if record.seq < run.first_seq:
            break
        if record.run == run.id:
            own.append(record)
    own.reverse()
    return own


def _result_or_note(result: ToolResult, *, stored: bool) -> ToolResult | Note:
    if not stored:
        return result
    outcome = "failed" if result.failed else "returned"
    return Note(
        text=f"The call {result.tool} that was waiting for a decision {outcome}:\n{result.output}",
        call=result.call,
        trust=result.trust,
        whole=result.whole,
        attachments=result.attachments,
    )


class StepCommit(Struct, frozen=True):
    """The effects of a commit between two steps: records, envelopes of the run, cost reservation and wake-ups."""

    record_seq: int
    envelopes: tuple[Envelope, ...]
    joined_records: tuple[Record, ...]
    granted: ModelCallReservation
    wakes: tuple[Wake, ...] = ()


class _LateIntent(Struct):
    """The intent of a read-only call that was not written before the call. None once it is written."""

    unwritten_since_ms: int | None


class _OpenModelCall(Struct, frozen=True):
    """A model call in progress: its step and its cost reservation."""

    step: Step
    terms: ModelCallReservationRequest


def _recorded(value: T | None) -> T:
    """Return what the block of a step has recorded."""
    if value is None:
        raise RuntimeError("the block of a step has recorded nothing")
    return value


def _close_step(step: Step) -> Step:
    return step if step.state is StepState.INTERRUPTED else replace(step, state=StepState.CLOSED)


def write_step(
    conn: sa.Connection,
    *,
    claim: ClaimedRun,
    pending: Sequence[PendingWrite],
    opening: Step | None,
    retrying: Step | None,
    steer: bool,
    now_ms: int,
    zone: ZoneInfo,
    charge: CallCharge | None,
    notice: str,
) -> StepCommit:
    """Write pending results, the next intent and envelopes that join the run in one commit: all of them or none."""
    tx = Transaction(conn, now_ms)
    append = RecordAppender(claim.session, tx, claim.run)
    write_pending(append, pending, opening=opening)
    held = claim.envelopes
    joined: tuple[Record, ...] = ()
    if steer:
        held, joined = _steer(append, claim, zone)
        charge = _charge_with_joined(charge, joined)
    sessions.update_step_fenced(
        conn, claim.session.id, epoch=claim.session.epoch, record_seq=append.last_seq, at_ms=tx.at_ms
    )
    if append.records:
        records.add(conn, append.records)
    granted = ModelCallReservation(output_tokens_max=0)
    if opening is not None:
        runs.open_step(conn, opening, at_ms=tx.at_ms)
        if charge is not None:
            granted = _reserve_cost(tx, claim.run, opening, charge)
        emit_step_opened(append, opening)
    if retrying is not None:
        runs.set_step_attempt(conn, retrying)
        if charge is not None:
            granted = _reserve_cost(tx, claim.run, retrying, charge)
    wakes = _notify_person(tx, claim, notice) if notice and opening is not None else ()
    if claim.display != NO_DISPLAY_OPTIONS:
        wakes += send_progress(tx, claim, pending, opening)
    if claim.reply_delivery is not None:
        wakes += send_interim_replies(tx, claim, pending)
    tx.close()
    return StepCommit(append.last_seq, held, joined, granted, wakes)


def _charge_with_joined(charge: CallCharge | None, joined: Sequence[Record]) -> CallCharge | None:
    """Return the charge of a model call, with the size of the joined records added to its input.

    The cost to reserve for the call is computed from this input.
    """
    if charge is None or not joined:
        return charge
    more = max_input_tokens(sum(weight_of_record(record).size_bytes for record in joined))
    return replace(charge, terms=replace(charge.terms, input_tokens_max=charge.terms.input_tokens_max + more))


def _notify_person(tx: Transaction, claim: ClaimedRun, notice: str) -> tuple[Wake, ...]:
    """Send a notice to the person who waits for the answer, at most once per run. Other recipients get none."""
    kind = claim.envelopes[0].kind if claim.envelopes else EnvelopeKind.MESSAGE
    to = get_answer_address(claim.run.sender, origin=claim.session.origin, kind=kind)
    if to is None or not claim.session.origin.kind.is_foreground or not claim.envelopes:
        return ()
    if claim.envelopes[0].kind is EnvelopeKind.DELEGATION:
        return ()
    about = claim.envelopes[0]  # stays first when others join
    purpose = f"notice {claim.run.id}"
    if envelopes.get_by_key(tx.conn, "server", f"{about.id}/{purpose}") is not None:
        return ()
    return notify_sender(tx, to, about.id, about.kind, purpose, notice, session=claim.session)


def _reserve_cost(tx: Transaction, run: Run, step: Step, charge: CallCharge) -> ModelCallReservation:
    terms = charge.terms
    if not terms.is_charged and not terms.limits.has_any:
        return ModelCallReservation(output_tokens_max=terms.output_tokens_max)
    return budget_reservations.reserve(
        tx.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=terms,
        days=charge.days,
        root=run.root_run,
        at_ms=tx.at_ms,
    )


def _steer(
    appender: RecordAppender, claim: ClaimedRun, zone: ZoneInfo
) -> tuple[tuple[Envelope, ...], tuple[Record, ...]]:
    """Add due envelopes of the run's sender, or of the owner, to this turn (steering).

    Without steering, they would wait for the end of the run.
    """
    tx = appender.tx
    due = envelopes.list_due(tx.conn, claim.session.id, tx.at_ms, limit=STEERING_READ_MAX)
    mine = [e for e in due if may_steer(e, claim.queue, claim.envelopes)][:BATCH_MAX]
    if not mine:
        return claim.envelopes, ()
    text = turn_input.render_turn(mine, now=from_ms(tx.at_ms), zone=zone)
    record = appender.add(
        UserTurn(text=text, envelopes=tuple(e.id for e in mine), attachments=turn_input.collect_attachments(mine)),
        trust=trust_of_envelopes(mine),
    )
    tx.emit(
        EventKind.RUN_JOINED,
        session=claim.session.id,
        run=claim.run.id,
        record_seq=record.seq,
        envelopes=[e.id for e in mine],
    )
    ids = [e.id for e in mine]
    if claim.queue.mode is QueueMode.STEER_BACKLOG:
        envelopes.mark_steered(tx.conn, ids, run=claim.run.id)
        return claim.envelopes, (record,)
    envelopes.claim(tx.conn, ids, run=claim.run.id, now_ms=tx.at_ms)
    held = (*claim.envelopes, *mine)
    runs.set_envelopes(tx.conn, claim.run.id, [e.id for e in held])
    return held, (record,)


class ApprovalAnswers:
    """The decisions of people about the calls of this run. A decision applies to exactly one call."""

    def __init__(self, approvals: Sequence[Approval]) -> None:
        self._by_call = {(call.id, call_hash(call)): approval for approval in approvals for call in approval.calls}

    def state_of(self, call: Call) -> ApprovalState | None:
        if not self._by_call:  # the usual case: no need to hash the call
            return None
        approval = self._by_call.get((call.id, call_hash(call)))
        return approval.state if approval else None

    def short_id_of(self, call: Call) -> str:
        approval = self._by_call.get((call.id, call_hash(call)))
        return short_id(approval.id) if approval else ""

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        approval = self._by_call.get((call.id, call_hash(call)))
        return approval.call_permissions if approval else ()
