"""The journal of one run: each step is written before it is taken, and its result with the next intent.

intent -> commit -> act -> (result + next intent) -> commit -> act -> ... -> (last result + finish)
-> commit

A read-only call shares its commit: act -> (intent + result + next intent) -> commit. See
docs/decisions/0013-a-look-shares-its-commit.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.display_options import PLAIN
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.event import NewsKind
from retinue.domain.ids import short
from retinue.domain.model import ModelFailed
from retinue.domain.money import CallTerms, Granted
from retinue.domain.permission import Permission
from retinue.domain.ports import Asking, Clock, Faults
from retinue.domain.record import Note, Record, Reply, Summary, UserTurn, kind_of, trust_of
from retinue.domain.run import Run, Step, StepKind, StepState
from retinue.domain.session import BATCH_MAX, QueueMode, QueuePolicy, WhenBusy
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.domain.trust import Trust
from retinue.engine.interim_replies import say_so_far
from retinue.engine.lanes import voice
from retinue.engine.progress_messages import show_work
from retinue.engine.run_context import Append, Work, trust_of_mail
from retinue.engine.run_finish import interrupted
from retinue.engine.step_writer import Closing, Failing, Leaving, Paid, Summed, Unwritten, tell_opened, write_closings
from retinue.engine.transcript_cache import Transcript
from retinue.intake.accept import Wake, notify
from retinue.intake.routing import answer_address
from retinue.policy.limits.budgets import days, input_bound
from retinue.runners import turn_input
from retinue.runners.base import is_silent
from retinue.runners.token_estimate import weight_of
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import money, runs
from retinue.store.sessions import records, sessions

SUMMARIES_MAX = 100  # per worker and run
UNWRITTEN_S_MAX = 0.02  # how long results may wait for a read-only call, to be written with it
JOINING_LOOKED_AT_MAX = 50  # due envelopes read: ones that do not steer may precede ones that do


class RunJournal:
    """Everything that one run writes, under the epoch of its claim."""

    def __init__(
        self,
        work: Work,
        transcript: Transcript,
        *,
        own: Sequence[Record] | None = None,
        store: Store,
        clock: Clock,
        zone: ZoneInfo,
        faults: Faults,
        has_mail: Callable[[], bool],
        wake: Callable[[Wake], None],
    ) -> None:
        self.work = work
        self._transcript = transcript
        self._records = transcript.records
        self._own = _own_records(self._records, work.run) if own is None else list(own)
        self._store = store
        self._clock = clock
        self._zone = zone
        self._faults = faults
        self._has_mail = has_mail
        self._wake = wake
        self._resumed = not work.fresh  # then the lane does not know what arrived meanwhile
        self._closings: list[Unwritten] = []
        self._unwritten_since_ms = 0  # when the first pending result came back
        self._asked: _Asked | None = None  # the model call in progress
        self._summaries = 0
        self._left_out = False  # a silent reply: stored, but not part of the context
        self._unnumbered = 0  # records in memory that the next commit will store
        self._open = {(step.turn, step.index): step for step in work.open_steps}
        # An open step of a resumed run was opened by an earlier worker. Otherwise the claim opened it.
        self._inherited = set(self._open) if self._resumed else set[tuple[int, int]]()

    @property
    def run(self) -> Run:
        return self.work.run

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    @property
    def believed(self) -> Trust:
        return self._transcript.believed()

    @property
    def own(self) -> Sequence[Record]:
        return self._own

    @property
    def closings(self) -> Sequence[Unwritten]:
        """What the run's last commit still has to write."""
        # Model steps that were opened and not used: a summary started before a crash, or a reply that did not
        # fit.
        left = [Leaving(step) for step in self._open.values() if step.kind is StepKind.MODEL]
        return [*self._closings, *left] if left else self._closings

    @property
    def is_whole(self) -> bool:
        """Whether the context in memory will match the store once the last commit is made."""
        newest = max((record.seq for record in (self._records[:1] + self._records[-1:])), default=0)
        return newest == self.work.session.record_seq + self._unnumbered and not self._left_out

    async def reply(self, turn: int, ask: Asking, *, terms: CallTerms) -> Reply:
        reply, step = await self._ask(turn, 0, ask, terms)
        self._remember(Closing(reply, _closed(step), self._paid(terms)))
        return reply

    async def summarize(self, turn: int, ask: Asking, *, terms: CallTerms, notice: str = "") -> Reply:
        self._summaries += 1
        # A resumed run has a higher epoch, so its indexes are unused.
        index = -(self.run.epoch * SUMMARIES_MAX + self._summaries)
        reply, step = await self._ask(turn, index, ask, terms, notice=notice)
        self._closings.append(Summed(_closed(step), self._paid(terms), reply.usage))
        return reply

    async def _ask(
        self, turn: int, index: int, ask: Asking, terms: CallTerms, *, notice: str = ""
    ) -> tuple[Reply, Step]:
        step, granted = await self._ask_for(turn, index, terms, notice=notice)
        self._faults.reach("model.before")
        reply = await ask(step.attempt, granted)
        self._faults.reach("model.after")
        self._asked = None
        self._open.pop((turn, index), None)
        return reply, step

    async def compact(self, summary: Summary) -> None:
        self._remember(Closing(summary, None))
        await self._commit(kept_from=summary.kept_from)
        self._transcript.rearrange()

    async def settle_up(self) -> None:
        if self._closings:
            await self._commit()

    async def note(self, note: Note) -> None:
        self._remember(Closing(note, None))

    def failed(self, turn: int, error: ModelFailed, *, next_move: str) -> None:
        asked, self._asked = self._asked, None
        if asked is None:
            return  # refused before the call, for example by a budget
        self._closings.append(Failing(asked.step, self._paid(asked.terms), error, next_move))
        if asked.step.index < 0:  # the next summary call opens a new step
            self._open.pop((asked.step.turn, asked.step.index), None)
            self._closings.append(Leaving(asked.step))
        else:
            self._inherited.add((asked.step.turn, asked.step.index))

    async def _ask_for(self, turn: int, index: int, terms: CallTerms, *, notice: str = "") -> tuple[Step, Granted]:
        """Write the intent of a model call with its cost reservation in one commit.

        No commit is needed if the claim already wrote the intent.
        """
        step = self._open.get((turn, index))
        granted = Granted(output_tokens_max=terms.output_tokens_max)
        if step is None:
            step = Step(run=self.run.id, turn=turn, index=index, kind=StepKind.MODEL, hash=str(terms.ref)[:32])
            granted = await self._commit(opening=step, join=turn > 0 and index == 0, terms=terms, notice=notice)
        elif (turn, index) in self._inherited:
            step = replace(step, attempt=step.attempt + 1)
            granted = await self._commit(again=step, terms=terms)
            self._inherited.discard((turn, index))
        elif terms.costs or terms.caps.any or self._unnumbered:  # everything a model reads is stored first
            granted = await self._commit(again=step, terms=terms)
        self._open[turn, index] = step
        self._asked = _Asked(step, terms)
        return step, granted

    def _paid(self, terms: CallTerms) -> Paid:
        return Paid(terms=terms, days=days(self._clock.now(), self._zone))

    def begun(self, turn: int, index: int) -> bool:
        return (turn, index) in self._open

    async def perform(
        self,
        turn: int,
        index: int,
        call: Call,
        act: Callable[[], Awaitable[ToolResult]],
        *,
        repeatable: bool,
        looks: bool = False,
        stored: bool = False,
        because: str = "",
    ) -> ToolResult:
        step = self._open.pop((turn, index), None)
        if step is not None and not repeatable:
            # Its end is unknown. Reporting that is better than performing it twice.
            result = interrupted(call.id, call.tool)
            self._close(replace(step, state=StepState.INTERRUPTED), _kept(result, stored=stored))
            return result
        if step is not None:
            step = replace(step, attempt=step.attempt + 1)
            await self._commit(again=step)
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
            if looks and (left_s := self._unwritten_s_left()) > 0:
                return await self._look(step, act, stored=stored, within_s=left_s)
            await self._commit(opening=step)
        self._faults.reach("tool.before")
        self._open[turn, index] = step  # a call that suspends the run is performed again later
        result = await act()
        del self._open[turn, index]
        self._faults.reach("tool.after")
        self._close(step, _kept(result, stored=stored))
        return result

    def _unwritten_s_left(self) -> float:
        """Return how much longer pending results may wait.

        A wall clock that was set back does not extend the wait.
        """
        if not self._closings:
            return UNWRITTEN_S_MAX
        waited_s = (to_ms(self._clock.now()) - self._unwritten_since_ms) / 1000
        return UNWRITTEN_S_MAX - waited_s if waited_s >= 0 else 0.0

    async def _look(
        self, step: Step, act: Callable[[], Awaitable[ToolResult]], *, stored: bool, within_s: float
    ) -> ToolResult:
        """Perform a read-only call at once. Its intent is written with the result.

        If the call takes longer than `within_s`, the intent is written alone meanwhile.
        """
        begun_ms = to_ms(self._clock.now())
        writing: list[asyncio.Future[Granted]] = []
        looking = True

        def write_intent() -> None:
            if looking:
                writing.append(asyncio.ensure_future(self._commit(opening=step)))

        call_off = self._clock.later(within_s, write_intent)
        self._faults.reach("tool.before")
        try:
            result = await act()
        finally:
            looking = False
            call_off()
            # The intent commit must end before anything else of this run is written, also on cancellation.
            written = await asyncio.gather(*writing, return_exceptions=True) if writing else ()
        for outcome in written:
            if isinstance(outcome, BaseException):
                raise outcome
        self._faults.reach("tool.after")
        self._close(step, _kept(result, stored=stored), begun_ms=None if writing else begun_ms)
        return result

    async def keep(self, bodies: Sequence[ToolResult | Reply]) -> None:
        for body in bodies:
            self._remember(Closing(body, None))

    async def keep_note(self, result: ToolResult) -> None:
        self._remember(Closing(_kept(result, stored=True), None))

    def _close(self, step: Step, body: ToolResult | Note, *, begun_ms: int | None = None) -> None:
        self._remember(Closing(body, _closed(step), begun_ms=begun_ms))

    def _remember(self, closing: Closing) -> None:
        """Add a result to the context now, and to the store with the next commit, under the same number."""
        now_ms = to_ms(self._clock.now())
        if not self._closings:
            self._unwritten_since_ms = now_ms
        self._closings.append(closing)
        self._unnumbered += 1
        record = Record(
            session=self.work.session.id,
            seq=self.work.session.record_seq + self._unnumbered,
            kind=kind_of(closing.body),
            body=closing.body,
            at_ms=now_ms,
            run=self.run.id,
            trust=trust_of(closing.body),
        )
        self._own.append(record)
        if is_silent(closing.body):
            self._left_out = True
        else:
            self._records.append(record)

    async def _commit(
        self,
        *,
        opening: Step | None = None,
        again: Step | None = None,
        join: bool = False,
        terms: CallTerms | None = None,
        kept_from: int | None = None,
        notice: str = "",
    ) -> Granted:
        body = partial(
            write_step,
            work=self.work,
            closings=tuple(self._closings),
            opening=opening,
            again=again,
            join=join and (self._has_mail() or self._resumed),
            now_ms=to_ms(self._clock.now()),
            zone=self._zone,
            paid=self._paid(terms) if terms is not None else None,
            notice=notice,
        )
        written = await self._store.write(body, point="step", then=self._wake_all)
        self._closings.clear()
        self._unnumbered = 0
        run = self.work.run
        if written.envelopes is not self.work.envelopes:  # an envelope has joined the run
            run = replace(run, envelopes=tuple(e.id for e in written.envelopes))
        self.work = replace(
            self.work,
            session=replace(
                self.work.session,
                record_seq=written.record_seq,
                context_from=self.work.session.context_from if kept_from is None else kept_from,
                compactions=self.work.session.compactions + (kept_from is not None),
                revision=self.work.session.revision + (kept_from is not None),
            ),
            run=run,
            envelopes=written.envelopes,
        )
        self._records.extend(written.joined)
        self._own.extend(written.joined)
        return written.granted

    def _wake_all(self, written: Written | None) -> None:
        """Send the wake-ups with the commit: the waiting task may be cancelled at this moment."""
        for wake in written.wakes if written is not None else ():
            self._wake(wake)


def _own_records(context: Sequence[Record], run: Run) -> list[Record]:
    """Return the run's records, searched from the end: the cost depends on the run, not on the history."""
    own: list[Record] = []
    for record in reversed(context):
        if record.seq < run.first_seq:
            break
        if record.run == run.id:
            own.append(record)
    own.reverse()
    return own


def _kept(result: ToolResult, *, stored: bool) -> ToolResult | Note:
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


class Written(Struct, frozen=True):
    """What a step commit wrote."""

    record_seq: int
    envelopes: tuple[Envelope, ...]
    joined: tuple[Record, ...]
    granted: Granted
    wakes: tuple[Wake, ...] = ()


class _Asked(Struct, frozen=True):
    """A model call in progress: its step and its cost terms."""

    step: Step
    terms: CallTerms


def _closed(step: Step) -> Step:
    return step if step.state is StepState.INTERRUPTED else replace(step, state=StepState.CLOSED)


def write_step(
    conn: sa.Connection,
    *,
    work: Work,
    closings: Sequence[Unwritten],
    opening: Step | None,
    again: Step | None,
    join: bool,
    now_ms: int,
    zone: ZoneInfo,
    paid: Paid | None,
    notice: str,
) -> Written:
    """The step commit: pending results, the next intent and joining envelopes, all or nothing."""
    page = Page(conn, now_ms)
    append = Append(work.session, page, work.run)
    write_closings(append, closings, opening=opening)
    held = work.envelopes
    joined: tuple[Record, ...] = ()
    if join:
        held, joined = _join(append, work, zone)
        paid = _with_joined(paid, joined)
    sessions.guard_step(conn, work.session.id, epoch=work.session.epoch, record_seq=append.seq, at_ms=page.at_ms)
    if append.records:
        records.add(conn, append.records)
    granted = Granted(output_tokens_max=0)
    if opening is not None:
        runs.open_step(conn, opening, at_ms=page.at_ms)
        if paid is not None:
            granted = _reserve(page, work.run, opening, paid)
        tell_opened(append, opening)
    if again is not None:
        runs.try_step_again(conn, again)
        if paid is not None:
            granted = _reserve(page, work.run, again, paid)
    wakes = _notify(page, work, notice) if notice and opening is not None else ()
    if work.manner != PLAIN:
        wakes += show_work(page, work, closings, opening)
    if work.words is not None:
        wakes += say_so_far(page, work, closings)
    page.close()
    return Written(append.seq, held, joined, granted, wakes)


def _with_joined(paid: Paid | None, joined: Sequence[Record]) -> Paid | None:
    """Add the input of records that join with the intent to the reservation."""
    if paid is None or not joined:
        return paid
    more = input_bound(sum(weight_of(record).size_bytes for record in joined))
    return replace(paid, terms=replace(paid.terms, input_tokens_bound=paid.terms.input_tokens_bound + more))


def _notify(page: Page, work: Work, notice: str) -> tuple[Wake, ...]:
    """Notify a person who waits, at most once per run. No other recipient needs it."""
    kind = work.envelopes[0].kind if work.envelopes else Kind.MESSAGE
    to = answer_address(work.run.sender, origin=work.session.origin, kind=kind)
    if to is None or not work.session.origin.kind.foreground or not work.envelopes:
        return ()
    if work.envelopes[0].kind is Kind.DELEGATION:
        return ()
    about = work.envelopes[0]  # stays first when others join
    purpose = f"notice {work.run.id}"
    if envelopes.by_key(page.conn, "house", f"{about.id}/{purpose}") is not None:
        return ()
    return notify(page, to, about.id, about.kind, purpose, notice, session=work.session)


def _reserve(page: Page, run: Run, step: Step, paid: Paid) -> Granted:
    terms = paid.terms
    if not terms.costs and not terms.caps.any:
        return Granted(output_tokens_max=terms.output_tokens_max)
    return money.reserve(
        page.conn,
        run,
        turn=step.turn,
        index=step.index,
        attempt=step.attempt,
        terms=terms,
        days=paid.days,
        root=run.root,
        at_ms=page.at_ms,
    )


def _join(append: Append, work: Work, zone: ZoneInfo) -> tuple[tuple[Envelope, ...], tuple[Record, ...]]:
    """Steering: add due envelopes of the run's sender, or of the owner, to this turn.

    Otherwise they would wait for the end of the run.
    """
    page = append.page
    due = envelopes.due(page.conn, work.session.id, page.at_ms, limit=JOINING_LOOKED_AT_MAX)
    mine = [e for e in due if _wants_to_steer(e, work.queue) and _may_steer(e, work)][:BATCH_MAX]
    if not mine:
        return work.envelopes, ()
    text = turn_input.render(mine, now=from_ms(page.at_ms), zone=zone)
    record = append.add(
        UserTurn(text=text, envelopes=tuple(e.id for e in mine), attachments=turn_input.shown(mine)),
        trust=trust_of_mail(mine),
    )
    page.tell(
        NewsKind.RUN_JOINED,
        session=work.session.id,
        run=work.run.id,
        record_seq=record.seq,
        envelopes=[e.id for e in mine],
    )
    ids = [e.id for e in mine]
    if work.queue.mode is QueueMode.STEER_BACKLOG:
        envelopes.mark_steered(page.conn, ids, run=work.run.id)
        return work.envelopes, (record,)
    envelopes.claim(page.conn, ids, run=work.run.id, now_ms=page.at_ms)
    held = (*work.envelopes, *mine)
    runs.set_envelopes(page.conn, work.run.id, [e.id for e in held])
    return held, (record,)


def _wants_to_steer(envelope: Envelope, queue: QueuePolicy) -> bool:
    if envelope.context.when_busy is not None:
        return envelope.context.when_busy is WhenBusy.STEER
    return queue.mode in (QueueMode.STEER, QueueMode.STEER_BACKLOG)


def _may_steer(envelope: Envelope, work: Work) -> bool:
    # Steer an envelope once: otherwise every run would read a long backlog again.
    if envelope.silent or envelope.kind is not Kind.MESSAGE or envelope.steered_into is not None:
        return False
    own = any(voice(envelope) == voice(held) for held in work.envelopes)
    return own or envelope.trust is Trust.OWNER


class Answers:
    """What people have decided about the calls of this run.

    A decision applies to one exact call, not to another.
    """

    def __init__(self, approvals: Sequence[Approval]) -> None:
        self._by_call = {(call.id, call_hash(call)): approval for approval in approvals for call in approval.calls}

    def answer_to(self, call: Call) -> ApprovalState | None:
        if not self._by_call:  # the usual case: no need to hash the call
            return None
        approval = self._by_call.get((call.id, call_hash(call)))
        return approval.state if approval else None

    def name_of(self, call: Call) -> str:
        approval = self._by_call.get((call.id, call_hash(call)))
        return short(approval.id) if approval else ""

    def gives(self, call: Call) -> Sequence[Permission]:
        approval = self._by_call.get((call.id, call_hash(call)))
        return approval.gives if approval else ()
