"""Bugs that tests plant in the server under test, to verify that the checks detect them. For tests only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.app import server
from retinue.domain.delegation import Delegation, DelegationKind, DelegationState
from retinue.domain.delegation_request import DelegationStatus
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.domain.ids import EnvelopeId, derive_id
from retinue.domain.ports import ToolStep
from retinue.domain.schedule import Occurrence, Schedule
from retinue.domain.tool import Call
from retinue.engine import delegations as engine_delegations
from retinue.engine import scheduler
from retinue.engine.journal import RunJournal
from retinue.engine.run_context import RecordAppender
from retinue.intake import external_callbacks
from retinue.intake.accept import EnvelopeIntake, Wake, accept_in_transaction
from retinue.intake.external_callbacks import Callback
from retinue.store.core import tables as t
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule
from retinue.store.sessions import sessions

COMMIT_DELAY_S = 0.1

# The objects to patch, as Any, because their types do not allow it.
_patched_intake: Any = EnvelopeIntake
_patched_journal: Any = RunJournal
_patched_appender: Any = RecordAppender
_patched_sessions: Any = sessions
_patched_server: Any = server
_patched_engine_delegations: Any = engine_delegations
_patched_store_delegations: Any = delegations
_patched_scheduler: Any = scheduler
_patched_schedules: Any = schedules
_patched_callbacks: Any = external_callbacks


def acknowledge_before_commit() -> None:
    """Plant a bug: return the receipt at once, and store the envelope a moment later."""
    post: Callable[[EnvelopeIntake, EnvelopeDraft], Awaitable[Receipt]] = _patched_intake.accept
    storing: set[asyncio.Task[Receipt]] = set()

    async def store(self: EnvelopeIntake, draft: EnvelopeDraft) -> Receipt:
        await asyncio.sleep(COMMIT_DELAY_S)  # sleep: the bug is that it is stored later
        return await post(self, draft)

    async def acknowledge(self: EnvelopeIntake, draft: EnvelopeDraft) -> Receipt:
        task = asyncio.create_task(store(self, draft))
        storing.add(task)
        task.add_done_callback(storing.discard)
        return Receipt(envelope=draft.id, session=None, event_seq=0)

    _patched_intake.accept = acknowledge


def effect_before_intent() -> None:
    """Plant a bug: perform a tool call first, and store its intent afterwards."""
    tool_call = _patched_journal.tool_call

    @asynccontextmanager
    async def act_first(self: RunJournal, turn: int, index: int, call: Call, **kw: Any) -> AsyncGenerator[ToolStep]:
        performed = ToolStep()
        yield performed
        async with tool_call(self, turn, index, call, **kw) as step:
            if step.result is None:
                step.record(performed.result)

    _patched_journal.tool_call = act_first


def epoch_not_checked() -> None:
    """Plant a bug: write to a session without checking whether another worker has claimed it."""
    guard, guard_step = sessions.update_fenced, sessions.update_step_fenced

    def unguarded(conn: sa.Connection, id_: str, *, epoch: int, new_epoch: int | None = None, **kw: Any) -> None:
        session = sessions.get(conn, id_)
        assert session is not None
        raised = 0 if new_epoch is None else new_epoch - epoch
        guard(conn, id_, epoch=session.epoch, new_epoch=session.epoch + raised, **kw)

    def unguarded_step(conn: sa.Connection, id_: str, *, epoch: int, **kw: Any) -> None:
        session = sessions.get(conn, id_)
        assert session is not None
        guard_step(conn, id_, epoch=session.epoch, **kw)

    def where_it_stands(self: RecordAppender) -> int:
        if self.records:
            return self.records[-1].seq
        session = sessions.get(self.tx.conn, self.session.id)
        assert session is not None
        return session.record_seq

    _patched_sessions.update_fenced = unguarded
    _patched_sessions.update_step_fenced = unguarded_step
    _patched_appender.last_seq = property(where_it_stands)


def answer_read_twice() -> None:
    """Plant a bug: give a waiting call the answer to its delegation, and leave the answer in the queue as well."""

    def collect(tx: Transaction, delegation: Delegation) -> DelegationStatus:
        delegations.release_delegation(tx.conn, delegation.id)
        return DelegationStatus(delegation=delegation, answer=envelopes.get(tx.conn, delegation.result or ""))

    _patched_engine_delegations._collect = collect


def answer_to_another_call() -> None:
    """Plant a bug: treat all delegations of one run as the same delegation."""

    def same_for_all(run: str, call: str) -> EnvelopeId:
        del call
        return EnvelopeId(derive_id(run, "delegation"))

    _patched_engine_delegations.delegation_id = same_for_all


def failure_not_told() -> None:
    """Plant a bug: do not record that a delegation failed, so that the requester keeps waiting."""
    end = delegations.end

    def only_good_ends(conn: sa.Connection, id_: str, state: DelegationState, **kw: Any) -> bool:
        return state is DelegationState.DONE and end(conn, id_, state, **kw)

    _patched_store_delegations.end = only_good_ends


def slot_fired_twice() -> None:
    """Plant a bug: send the envelope of a schedule twice."""
    let_go = _patched_scheduler._release_envelope

    def twice(tx: Transaction, schedule: Schedule, occurrence: Occurrence, **kw: Any) -> tuple[Wake, ...]:
        wakes = let_go(tx, schedule, occurrence, **kw)
        sent = envelopes.get(tx.conn, occurrence.envelope or "")
        if sent is None or sent.session is None:
            return wakes
        again = EnvelopeDraft(
            id=EnvelopeId(derive_id(sent.id, "again")),
            sender=sent.sender,
            recipient=sent.recipient,
            text=sent.text,
            source=sent.source,
            idempotency_key=f"{sent.idempotency_key}/again",
        )
        return (*wakes, *accept_in_transaction(tx, again).wakes)

    _patched_scheduler._release_envelope = twice


def next_not_made() -> None:
    """Plant a bug: continue a schedule only if its envelope was answered."""
    go_on = _patched_schedules._continue_schedule

    def only_after_success(
        tx: Transaction, kept: StoredSchedule, occurrence: Occurrence, *, has_run: bool, because: str
    ) -> None:
        if not (has_run and because):
            go_on(tx, kept, occurrence, has_run=has_run, because=because)

    _patched_schedules._continue_schedule = only_after_success


def skip_not_told() -> None:
    """Plant a bug: do not record occurrences of a schedule that were missed while the server was down or busy."""

    def nothing(tx: Transaction, kept: StoredSchedule, since: datetime, until: datetime, *, because: str) -> None:
        del tx, kept, since, until, because

    _patched_schedules._record_skipped = nothing


def callback_heard_twice() -> None:
    """Plant a bug: treat a repeated callback of an external agent as a new callback."""
    hear = external_callbacks.accept_callback

    def always_new(conn: sa.Connection, *, callback: Callback, now_ms: int) -> Any:
        times = conn.execute(_CALLBACK_COUNT, {"key": callback.message}).scalar_one()
        new = replace(callback, message=f"{callback.message}+{times}") if times else callback
        return hear(conn, callback=new, now_ms=now_ms)

    _patched_callbacks.accept_callback = always_new


def callback_to_another_session() -> None:
    """Plant a bug: treat every callback as the answer to the oldest open request of any session."""

    def oldest_of_all(tx: Transaction, callback: Callback) -> Delegation | None:
        del callback
        found = tx.conn.execute(_OLDEST_REQUEST).one_or_none()
        return delegations.get(tx.conn, found.id) if found is not None else None

    _patched_callbacks._find_request = oldest_of_all


_e, _d = t.envelopes, t.delegations
_CALLBACK_COUNT = sa.select(sa.func.count()).where(
    _e.c.source.like("external:%"), _e.c.dedupe_key.like(sa.bindparam("key", type_=sa.String) + "%")
)
_OLDEST_REQUEST = (
    sa.select(_d.c.id)
    .where(_d.c.kind == DelegationKind.EXTERNAL.value, _d.c.state == DelegationState.OPEN.value)
    .order_by(_d.c.created_ms, _d.c.id)
    .limit(1)
)


def lock_not_held() -> None:
    """Plant a bug: serve a data directory that another process already serves.

    In reality, this happens if the locks of a network disk do not work.
    """

    @contextmanager
    def unlocked(data_dir: Path) -> Generator[None]:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield

    _patched_server.instance_lock = unlocked


BUGS: dict[str, Callable[[], None]] = {
    plant.__name__.replace("_", "-"): plant
    for plant in (
        acknowledge_before_commit,
        effect_before_intent,
        epoch_not_checked,
        answer_read_twice,
        answer_to_another_call,
        failure_not_told,
        slot_fired_twice,
        next_not_made,
        skip_not_told,
        callback_heard_twice,
        callback_to_another_session,
        lock_not_held,
    )
}
