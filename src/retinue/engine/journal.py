"""The journal of one run: each step is written before it is taken, and its result with the next intent.

intent -> commit -> act -> (result + next intent) -> commit -> act -> ... -> (last result + finish) -> commit
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.envelope import Envelope, Kind, Trust
from retinue.domain.event import NewsKind
from retinue.domain.ids import short
from retinue.domain.ports import Clock, Faults
from retinue.domain.record import Note, Record, Reply, UserTurn, kind_of
from retinue.domain.run import Run, Step, StepKind, StepState
from retinue.domain.session import BATCH_MAX, QueueMode, Wakefulness
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call, ToolResult, call_hash
from retinue.engine.custody import Append, Work
from retinue.engine.endings import interrupted
from retinue.engine.lanes import voice
from retinue.engine.writing import Closing, write_closings
from retinue.runners import turn_input
from retinue.store import envelopes, money, records, runs, sessions
from retinue.store.connection import Store
from retinue.store.house import Page


class RunJournal:
    """The rim of one run: everything it writes, under the epoch it was claimed with."""

    def __init__(
        self,
        work: Work,
        context: list[Record],
        *,
        store: Store,
        clock: Clock,
        zone: ZoneInfo,
        faults: Faults,
        has_mail: Callable[[], bool],
    ) -> None:
        self.work = work
        self._records = context
        self._own = _own_records(context, work.run)
        self._store = store
        self._clock = clock
        self._zone = zone
        self._faults = faults
        self._has_mail = has_mail
        self._resumed = not work.fresh  # then nobody has told us what came in meanwhile
        self._closings: list[Closing] = []
        self._unnumbered = 0  # records in memory that the next commit will number
        self._open = {(step.turn, step.index): step for step in work.open_steps}
        # A step that was open when we took the run was opened by someone else, unless the claim itself opened it.
        self._inherited = set(self._open) if self._resumed else set[tuple[int, int]]()

    @property
    def run(self) -> Run:
        return self.work.run

    @property
    def records(self) -> Sequence[Record]:
        return self._records

    @property
    def own(self) -> Sequence[Record]:
        return self._own

    @property
    def closings(self) -> Sequence[Closing]:
        """What the run's last commit still has to write."""
        return self._closings

    async def reply(self, turn: int, ask: Callable[[int], Awaitable[Reply]], *, reserve_microusd: int = 0) -> Reply:
        step = self._open.pop((turn, 0), None)
        if step is None:
            step = Step(
                run=self.run.id,
                turn=turn,
                index=0,
                kind=StepKind.MODEL,
                hash=self.work.agent.model[:32],
                reserved_microusd=reserve_microusd,
            )
            await self._commit(opening=step, join=turn > 0)
        elif (turn, 0) in self._inherited:
            self._inherited.discard((turn, 0))
            step = replace(step, attempt=step.attempt + 1, reserved_microusd=reserve_microusd)
            await self._commit(again=step)
        elif reserve_microusd:
            step = replace(step, reserved_microusd=reserve_microusd)
            await self._commit(again=step)
        self._faults.reach("model.before")
        reply = await ask(step.attempt)
        self._faults.reach("model.after")
        self._close(step, reply)
        return reply

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
        stored: bool = False,
    ) -> ToolResult:
        step = self._open.pop((turn, index), None)
        if step is not None and not repeatable:
            # Nobody saw the end of it. Doing it twice is worse than saying so.
            result = interrupted(call.id, call.tool)
            self._close(replace(step, state=StepState.INTERRUPTED), _kept(result, stored=stored))
            return result
        if step is not None:
            step = replace(step, attempt=step.attempt + 1)
            await self._commit(again=step)
        else:
            step = Step(run=self.run.id, turn=turn, index=index, kind=StepKind.TOOL, hash=call_hash(call), call=call)
            await self._commit(opening=step)
        self._faults.reach("tool.before")
        result = await act()
        self._faults.reach("tool.after")
        self._close(step, _kept(result, stored=stored))
        return result

    async def keep(self, results: Sequence[ToolResult]) -> None:
        for result in results:
            self._remember(Closing(result, None))

    async def keep_note(self, result: ToolResult) -> None:
        self._remember(Closing(_kept(result, stored=True), None))

    def _close(self, step: Step, body: Reply | ToolResult | Note) -> None:
        closed = step if step.state is StepState.INTERRUPTED else replace(step, state=StepState.CLOSED)
        self._remember(Closing(body, closed))

    def _remember(self, closing: Closing) -> None:
        """Into the context now, into the store with the next commit, under the same number."""
        self._closings.append(closing)
        self._unnumbered += 1
        record = Record(
            session=self.work.session.id,
            seq=self.work.session.record_seq + self._unnumbered,
            kind=kind_of(closing.body),
            body=closing.body,
            at=self._clock.now(),
            run=self.run.id,
        )
        self._records.append(record)
        self._own.append(record)

    async def _commit(self, *, opening: Step | None = None, again: Step | None = None, join: bool = False) -> None:
        body = partial(
            write_step,
            work=self.work,
            closings=tuple(self._closings),
            opening=opening,
            again=again,
            join=join and (self._has_mail() or self._resumed),
            now_ms=to_ms(self._clock.now()),
            zone=self._zone,
        )
        written = await self._store.write(body, point="step")
        self._closings.clear()
        self._unnumbered = 0
        self.work = replace(
            self.work,
            session=replace(self.work.session, record_seq=written.record_seq),
            run=replace(self.work.run, envelopes=tuple(e.id for e in written.envelopes)),
            envelopes=written.envelopes,
        )
        self._records.extend(written.joined)
        self._own.extend(written.joined)


def _own_records(context: Sequence[Record], run: Run) -> list[Record]:
    """From the end: the cost follows the run, not the history before it."""
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
        text=f"The call {result.tool} that was waiting for a decision {outcome}:\n{result.output}", call=result.call
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What a step's commit left behind."""

    record_seq: int
    envelopes: tuple[Envelope, ...]
    joined: tuple[Record, ...]


def write_step(
    conn: sa.Connection,
    *,
    work: Work,
    closings: Sequence[Closing],
    opening: Step | None,
    again: Step | None,
    join: bool,
    now_ms: int,
    zone: ZoneInfo,
) -> Written:
    """The step commit: results so far, the next intent, and whoever joins in, or nothing at all."""
    page = Page(conn, now_ms)
    append = Append(work.session, page, work.run)
    write_closings(append, closings)
    held = work.envelopes
    joined: tuple[Record, ...] = ()
    if join:
        held, joined = _join(append, work, zone)
    sessions.guard(
        conn,
        work.session.id,
        epoch=work.session.epoch,
        record_seq=append.seq,
        wakefulness=Wakefulness.ACTIVE,
        at_ms=page.at_ms,
    )
    if append.records:
        records.add(conn, append.records)
    if opening is not None:
        runs.open_step(conn, opening, at_ms=page.at_ms)
        _reserve(page, work.run, opening)
        if opening.kind is StepKind.TOOL and opening.call is not None:
            page.tell(
                NewsKind.STEP_OPENED,
                session=work.session.id,
                run=work.run.id,
                turn=opening.turn,
                index=opening.index,
                tool=opening.call.tool,
                arguments=opening.call.arguments,
            )
    if again is not None:
        runs.try_step_again(conn, again)
        _reserve(page, work.run, again)
    page.close()
    return Written(append.seq, held, joined)


def _reserve(page: Page, run: Run, step: Step) -> None:
    if step.reserved_microusd:
        money.reserve(page.conn, run, step.turn, step.attempt, microusd=step.reserved_microusd, at_ms=page.at_ms)


def _join(append: Append, work: Work, zone: ZoneInfo) -> tuple[tuple[Envelope, ...], tuple[Record, ...]]:
    """Steering: mail of the run's own sender, or of the owner, is read at this turn instead of after the run."""
    if work.queue.mode not in (QueueMode.STEER, QueueMode.STEER_BACKLOG):
        return work.envelopes, ()
    page = append.page
    due = envelopes.due(page.conn, work.session.id, page.at_ms, limit=BATCH_MAX)
    mine = [e for e in due if _may_steer(e, work)]
    if not mine:
        return work.envelopes, ()
    text = turn_input.render(mine, now=from_ms(page.at_ms), zone=zone)
    record = append.add(UserTurn(text=text, envelopes=tuple(e.id for e in mine)))
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


def _may_steer(envelope: Envelope, work: Work) -> bool:
    # Read on the side once: in a long backlog, every run would otherwise read all of it again.
    if envelope.silent or envelope.kind is not Kind.MESSAGE or envelope.steered_into is not None:
        return False
    own = any(voice(envelope) == voice(held) for held in work.envelopes)
    return own or envelope.trust is Trust.OWNER


class Answers:
    """What people have said about the calls of this run. An approval of one call is not an approval of another."""

    def __init__(self, approvals: Sequence[Approval]) -> None:
        self._by_call = {(call.id, call_hash(call)): approval for approval in approvals for call in approval.calls}

    def answer_to(self, call: Call) -> ApprovalState | None:
        approval = self._by_call.get((call.id, call_hash(call)))
        return approval.state if approval else None

    def name_of(self, call: Call) -> str:
        approval = self._by_call.get((call.id, call_hash(call)))
        return short(approval.id) if approval else ""
