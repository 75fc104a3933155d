"""Bugs to plant in the server of the crash test, to check that its verdict detects them. For tests only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.app import server
from retinue.domain.delegation import Delegation, DelegationKind, DelegationState
from retinue.domain.delegation_request import Handed
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.ids import EnvelopeId, derived
from retinue.domain.schedule import Schedule, Slot
from retinue.domain.tool import Call, ToolResult
from retinue.engine import delegations as handing
from retinue.engine import scheduler
from retinue.engine.journal import RunJournal
from retinue.engine.run_context import Append
from retinue.intake import external_callbacks
from retinue.intake.accept import Inbox, Wake, enter
from retinue.intake.external_callbacks import Callback
from retinue.store.core import tables as t
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept
from retinue.store.sessions import sessions

COMMITS_AFTER_S = 0.1

# The patched objects, as Any, because no type allows this.
_inbox: Any = Inbox
_journal: Any = RunJournal
_append: Any = Append
_sessions: Any = sessions
_daemon: Any = server
_handing: Any = handing
_delegations: Any = delegations
_clockwork: Any = scheduler
_schedules: Any = schedules
_callbacks: Any = external_callbacks


def acknowledge_before_commit() -> None:
    """Return the receipt at once, and store the envelope a moment later."""
    post: Callable[[Inbox, Draft], Awaitable[Receipt]] = _inbox.post
    storing: set[asyncio.Task[Receipt]] = set()

    async def store(self: Inbox, draft: Draft) -> Receipt:
        await asyncio.sleep(COMMITS_AFTER_S)  # sleep: the bug is that it is stored later
        return await post(self, draft)

    async def acknowledge(self: Inbox, draft: Draft) -> Receipt:
        task = asyncio.create_task(store(self, draft))
        storing.add(task)
        task.add_done_callback(storing.discard)
        return Receipt(envelope=draft.id, session=None, news_seq=0)

    _inbox.post = acknowledge


def effect_before_intent() -> None:
    """Perform a call first, and store its intent afterwards."""
    perform = _journal.perform

    async def act_first(
        self: RunJournal, turn: int, index: int, call: Call, act: Callable[[], Awaitable[ToolResult]], **kw: Any
    ) -> ToolResult:
        result = await act()

        async def nothing_more() -> ToolResult:
            return result

        return await perform(self, turn, index, call, nothing_more, **kw)

    _journal.perform = act_first


def epoch_not_checked() -> None:
    """Write to a session without checking whether another worker has claimed it."""
    guard, guard_step = sessions.guard, sessions.guard_step

    def unguarded(conn: sa.Connection, id_: str, *, epoch: int, new_epoch: int | None = None, **kw: Any) -> None:
        session = sessions.get(conn, id_)
        assert session is not None
        raised = 0 if new_epoch is None else new_epoch - epoch
        guard(conn, id_, epoch=session.epoch, new_epoch=session.epoch + raised, **kw)

    def unguarded_step(conn: sa.Connection, id_: str, *, epoch: int, **kw: Any) -> None:
        session = sessions.get(conn, id_)
        assert session is not None
        guard_step(conn, id_, epoch=session.epoch, **kw)

    def where_it_stands(self: Append) -> int:
        if self.records:
            return self.records[-1].seq
        session = sessions.get(self.page.conn, self.session.id)
        assert session is not None
        return session.record_seq

    _sessions.guard = unguarded
    _sessions.guard_step = unguarded_step
    _append.seq = property(where_it_stands)


def answer_read_twice() -> None:
    """Give a waiting call its answer, and leave the answer in the queue as well."""

    def collect(page: Page, delegation: Delegation) -> Handed:
        delegations.release_one(page.conn, delegation.id)
        return Handed(delegation=delegation, answer=envelopes.get(page.conn, delegation.result or ""))

    _handing._collect = collect


def answer_to_another_call() -> None:
    """Treat all delegations of one run as the same one."""

    def same_for_all(run: str, call: str) -> EnvelopeId:
        del call
        return EnvelopeId(derived(run, "delegation"))

    _handing.delegation_id = same_for_all


def failure_not_told() -> None:
    """Do not record failed delegations, so that the requester keeps waiting."""
    end = delegations.end

    def only_good_ends(conn: sa.Connection, id_: str, state: DelegationState, **kw: Any) -> bool:
        return state is DelegationState.DONE and end(conn, id_, state, **kw)

    _delegations.end = only_good_ends


def slot_fired_twice() -> None:
    """Send the envelope of a schedule twice."""
    let_go = _clockwork._let_go

    def twice(page: Page, schedule: Schedule, slot: Slot, **kw: Any) -> tuple[Wake, ...]:
        wakes = let_go(page, schedule, slot, **kw)
        sent = envelopes.get(page.conn, slot.envelope or "")
        if sent is None or sent.session is None:
            return wakes
        again = Draft(
            id=EnvelopeId(derived(sent.id, "again")),
            sender=sent.sender,
            recipient=sent.recipient,
            text=sent.text,
            source=sent.source,
            key=f"{sent.key}/again",
        )
        return (*wakes, *enter(page, again).wakes)

    _clockwork._let_go = twice


def next_not_made() -> None:
    """Continue a schedule only if its envelope was answered."""
    go_on = _schedules._go_on

    def only_after_success(page: Page, kept: Kept, slot: Slot, *, worked: bool, because: str) -> None:
        if not (worked and because):
            go_on(page, kept, slot, worked=worked, because=because)

    _schedules._go_on = only_after_success


def skip_not_told() -> None:
    """Do not record occurrences that were missed while the server was down or busy."""

    def nothing(page: Page, kept: Kept, since: datetime, until: datetime, *, because: str) -> None:
        del page, kept, since, until, because

    _schedules._pass_by = nothing


def callback_heard_twice() -> None:
    """Treat a repeated callback of an external agent as a new one."""
    hear = external_callbacks.hear

    def always_new(conn: sa.Connection, *, callback: Callback, now_ms: int) -> Any:
        times = conn.execute(_TIMES, {"key": callback.message}).scalar_one()
        new = replace(callback, message=f"{callback.message}+{times}") if times else callback
        return hear(conn, callback=new, now_ms=now_ms)

    _callbacks.hear = always_new


def callback_to_another_session() -> None:
    """Treat every callback as the answer to the oldest open request, of whatever session."""

    def oldest_of_all(page: Page, callback: Callback) -> Delegation | None:
        del callback
        found = page.conn.execute(_OLDEST_OUT).one_or_none()
        return delegations.get(page.conn, found.id) if found is not None else None

    _callbacks._asked = oldest_of_all


_e, _d = t.envelopes, t.delegations
_TIMES = sa.select(sa.func.count()).where(
    _e.c.source.like("external:%"), _e.c.dedupe_key.like(sa.bindparam("key", type_=sa.String) + "%")
)
_OLDEST_OUT = (
    sa.select(_d.c.id)
    .where(_d.c.kind == DelegationKind.EXTERNAL.value, _d.c.state == DelegationState.OPEN.value)
    .order_by(_d.c.created_ms, _d.c.id)
    .limit(1)
)


def lock_not_held() -> None:
    """Serve a data directory that another process serves, as happens if a network disk has broken locks."""

    @contextmanager
    def unlocked(home: Path) -> Generator[None]:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield

    _daemon.instance_lock = unlocked


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
