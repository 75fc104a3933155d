"""Operations on subagents: list, show, stop, read the log of one and send it a message."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import Cleanup, Delegation
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.ids import prefix, short
from retinue.domain.principal import Principal
from retinue.domain.times import show, to_ms
from retinue.intake.subagent_results import one_line, outcome_of
from retinue.operations.base import Desk, Operation
from retinue.operations.envelope.envelopes import Send, Sent, send
from retinue.operations.pagination import check_limit, no_cursor
from retinue.operations.session.sessions import History, SessionHistory, history
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, spend_report, subagents
from retinue.store.runs.subagents import Place
from retinue.store.sessions import sessions

LIST_MIN, LIST_MAX = 1, 100
STOPPED_AT_ONCE_MAX = 1_000


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """`cursor` is the `next` of the previous page."""

    session: Annotated[str, msgspec.Meta(description="only those that were sent out from this one")] = ""
    all: Annotated[bool, msgspec.Meta(description="also those whose session was put away or deleted")] = False
    limit: int = 20
    cursor: str = ""


class OfSubagent(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Stop(msgspec.Struct, forbid_unknown_fields=True):
    """Stop one subagent by `id`, or all that were started from `session`."""

    id: str = ""
    session: Annotated[str, msgspec.Meta(description="all that were sent out from this one")] = ""
    why: str = "asked to"


class Log(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    limit: int = 50
    before: int | None = None


class Say(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    text: str
    key: str = ""


class SubagentListed(msgspec.Struct, frozen=True, rename="kebab"):
    """One subagent. `outcome` is open, ok, error, timeout or stopped.

    `session` is its own session; `requester` is the agent and session that started it.
    """

    id: str
    label: str
    agent: str
    outcome: str
    session: str | None
    session_key: str
    requester: str
    run: str
    task: str
    cleanup: Cleanup
    created_at: str
    started_at: str | None
    ended_at: str | None
    archived_at: str | None


class SubagentShown(SubagentListed, frozen=True, rename="kebab"):
    """One subagent with its full task, its result and its usage."""

    because: str
    result: str | None
    result_text: str
    input_tokens: int
    output_tokens: int
    cost_microusd: int


class SubagentsListed(msgspec.Struct, frozen=True):
    subagents: list[SubagentListed]
    next: str | None


class SubagentsStopped(msgspec.Struct, frozen=True, rename="kebab"):
    stopped: int
    subagents: list[str]
    cancelled_runs: list[str]
    cleared_pending_count: int


async def listed(desk: Desk, caller: Principal, asked: Listing) -> SubagentsListed:
    check_limit(asked.limit, least=LIST_MIN, most=LIST_MAX)
    after = _place(asked.cursor)

    def body(conn: sa.Connection) -> SubagentsListed:
        session = sessions.resolve(conn, asked.session, seen_by=caller).id if asked.session else ""
        found = subagents.listed(
            conn, after=after, limit=asked.limit + 1, session=session, everyone=asked.all, seen_by=caller
        )
        more = _cursor(found[asked.limit - 1]) if len(found) > asked.limit else None
        return SubagentsListed([_listed(desk, conn, each) for each in found[: asked.limit]], more)

    return await desk.store.scan(body)


async def shown(desk: Desk, caller: Principal, asked: OfSubagent) -> SubagentShown:
    def body(conn: sa.Connection) -> SubagentShown:
        found = subagents.resolve(conn, asked.id, seen_by=caller)
        result = envelopes.get(conn, found.result) if found.result else None
        used = spend_report.of_session(conn, found.to or "")
        listed = msgspec.structs.replace(_listed(desk, conn, found), task=found.task)
        return SubagentShown(
            **msgspec.structs.asdict(listed),
            because=found.because,
            result=found.result,
            result_text=result.text if result is not None else "",
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_microusd=used.cost_microusd,
        )

    return await desk.store.scan(body)


async def stop(desk: Desk, caller: Principal, asked: Stop) -> SubagentsStopped:
    """Stop subagents and those they started. The starting session is notified once per subagent."""
    if bool(asked.id) == bool(asked.session):
        raise Invalid(
            "it is not clear which subagents are to be stopped",
            because="either one is named by its id, or all of a session",
            try_this="retinue subagent stop ID, or retinue subagent stop --session SESSION",
            code="subagent.unclear",
        )

    def body(conn: sa.Connection) -> list[Delegation]:
        if asked.id:
            return [subagents.resolve(conn, asked.id, seen_by=caller)]
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        return subagents.open_of(conn, session.id, limit=STOPPED_AT_ONCE_MAX)

    stopped: list[str] = []
    runs: list[str] = []
    cleared = 0
    for each in await desk.store.read(body):
        if not each.state.open or each.to is None:
            continue
        done = await desk.engine.cancel(each.to, by=str(caller.address), why=asked.why[:200], clear_due=True)
        runs += map(short, done.runs)
        cleared += done.cleared
        now = await desk.store.read(partial(delegations.get, id_=each.id))
        if now is not None and not now.state.open:
            stopped.append(each.id)
    return SubagentsStopped(len(stopped), stopped, runs, cleared)


async def log(desk: Desk, caller: Principal, asked: Log) -> SessionHistory:
    session = await _session(desk, caller, asked.id)
    return await history(desk, caller, History(session=session, limit=asked.limit, before=asked.before))


async def say(desk: Desk, caller: Principal, asked: Say) -> Sent:
    """Send a message to a subagent. Its answer goes to the caller, not to the agent that started it."""
    found = await desk.store.read(partial(subagents.resolve, text=asked.id, seen_by=caller))
    session = await _session(desk, caller, asked.id)
    return await send(
        desk, caller, Send(to=str(address.agent(found.target)), session=session, text=asked.text, key=asked.key)
    )


async def _session(desk: Desk, caller: Principal, id_: str) -> str:
    """Return the id of the subagent's session. Raise if it was deleted."""
    found = await desk.store.read(partial(subagents.resolve, text=id_, seen_by=caller))
    session = await desk.store.read(lambda conn: sessions.get(conn, found.to or ""))
    if session is None or session.deleted_at is not None:
        raise NotFound(
            f"the session of subagent {short(found.id)} is gone",
            because="it was deleted when all was said" if found.cleanup is Cleanup.DELETE else "it was deleted",
            try_this="look at `retinue subagent show` for what came of it",
            code="subagent.session-gone",
        )
    return session.id


def _listed(desk: Desk, conn: sa.Connection, found: Delegation) -> SubagentListed:
    return SubagentListed(
        id=found.id,
        label=found.label,
        agent=found.target,
        outcome=outcome_of(conn, found, found.state),
        session=found.to,
        session_key=found.child_key,
        requester=str(address.agent(found.agent, found.session)),
        run=found.run_id,
        task=one_line(found.task),
        cleanup=found.cleanup,
        created_at=show(found.created_at, desk.zone),
        started_at=show(found.started_at, desk.zone) if found.started_at else None,
        ended_at=show(found.ended_at, desk.zone) if found.ended_at else None,
        archived_at=show(found.archived_at, desk.zone) if found.archived_at else None,
    )


def _cursor(found: Delegation) -> str:
    return f"{to_ms(found.created_at)}.{found.id}"


def _place(cursor: str) -> Place:
    if not cursor:
        return Place()
    created, _, id_ = cursor.partition(".")
    try:
        return Place(int(created[:18]), prefix(id_))
    except (ValueError, Invalid):
        raise no_cursor(cursor) from None


OPERATIONS = (
    Operation(
        name="subagent.list",
        summary="List subagents that were sent out.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=SubagentsListed,
    ),
    Operation(
        name="subagent.show",
        summary="Show a subagent, and what came of it.",
        parameters=OfSubagent,
        handler=shown,
        permission=PermissionLevel.RESTRICTED,
        result=SubagentShown,
    ),
    Operation(
        name="subagent.stop",
        summary="Stop a subagent, or all of a session.",
        parameters=Stop,
        handler=stop,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SubagentsStopped,
    ),
    Operation(
        name="subagent.log",
        summary="Show what a subagent has read, said and done.",
        parameters=Log,
        handler=log,
        permission=PermissionLevel.RESTRICTED,
        result=SessionHistory,
    ),
    Operation(
        name="subagent.send",
        summary="Write to a subagent.",
        parameters=Say,
        handler=say,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=Sent,
    ),
)
