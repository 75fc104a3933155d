"""Show a session's reset rules, reset its context after the current run, and set whether its replies are sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.config.sessions import PLAIN
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.reset_rules import BECAUSE_LENGTH_MAX
from retinue.domain.session import Session
from retinue.domain.times import from_ms, show, to_ms
from retinue.engine.context_reset import refresh as begin_afresh
from retinue.engine.context_reset import rules_in
from retinue.engine.session_commands import keep_sending
from retinue.operations.base import Desk, Operation
from retinue.operations.session.sessions import OfSession
from retinue.policy.limits.reset_policy import ahead
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.sessions import sessions


class Refresh(msgspec.Struct, forbid_unknown_fields=True):
    """`why` is stored with the record that starts the new context."""

    session: str
    why: Annotated[str, msgspec.Meta(max_length=BECAUSE_LENGTH_MAX // 2)] = ""


class Sending(StrEnum):
    ON = "on"
    OFF = "off"
    INHERIT = "inherit"


_SENDS = {Sending.ON: True, Sending.OFF: False, Sending.INHERIT: None}
_SENDING = {sends: sending for sending, sends in _SENDS.items()}


class Send(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    send: Sending


class SessionRefreshed(msgspec.Struct, frozen=True):
    """`refreshed`: the context was reset immediately.

    Otherwise a run is working or envelopes wait. The next run then starts with a new context, for
    the reasons in `refresh`.
    """

    session: str
    refreshed: bool
    refresh: str | None


class SessionSends(msgspec.Struct, frozen=True):
    session: str
    send: Sending


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The reset rules of a session, and its next reset.

    Without `next_at`, no rule resets the context at a known time. With `refresh`, the next run
    starts with a new context, for these reasons.
    """

    session: str
    daily_at: str | None
    idle_minutes: float | None
    context_tokens_max: int | None
    began_at: str
    active_at: str
    next_at: str | None
    next_because: str
    refresh: str | None
    send: Sending


async def show_policy(desk: Desk, caller: Principal, asked: OfSession) -> SessionPolicy:
    now_ms = to_ms(desk.clock.now())
    settings = desk.settings().sessions if desk.settings is not None else PLAIN

    def body(conn: sa.Connection) -> SessionPolicy:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        agent = agents.find(conn, session.agent)
        rules = rules_in(session, agent, settings) if agent is not None else settings.reset
        found = ahead(rules, session, now_ms=now_ms, zone=desk.zone)
        return SessionPolicy(
            session=session.id,
            daily_at=rules.daily_at,
            idle_minutes=rules.idle_minutes,
            context_tokens_max=rules.context_tokens_max,
            began_at=show(from_ms(session.began_ms), desk.zone),
            active_at=show(from_ms(session.active_ms), desk.zone),
            next_at=show(found.at, desk.zone) if found is not None else None,
            next_because=found.because if found is not None else "",
            refresh=session.refresh,
            send=_SENDING[session.mind.send],
        )

    return await desk.store.scan(body)


async def refresh(desk: Desk, caller: Principal, asked: Refresh) -> SessionRefreshed:
    """Reset the context without stopping a run.

    The reset happens immediately if nothing runs or waits, otherwise when the next run starts.
    """
    said = f": {asked.why}" if asked.why else ""

    def body(conn: sa.Connection) -> SessionRefreshed:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        at_once = begin_afresh(page, session, because=f"{caller.address} asked for it{said}")
        now = sessions.get(conn, session.id) or session
        page.close()
        return SessionRefreshed(session=session.id, refreshed=at_once, refresh=now.refresh)

    return await desk.store.write(body, point="refresh")


async def set_send(desk: Desk, caller: Principal, asked: Send) -> SessionSends:
    """Set whether replies of this session are sent. Overrides all rules."""

    def body(conn: sa.Connection) -> Session:
        page = Page(conn, to_ms(desk.clock.now()))
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        keep_sending(page, session, _SENDS[asked.send])
        page.close()
        return session

    session = await desk.store.write(body, point="send-policy")
    return SessionSends(session=session.id, send=asked.send)


OPERATIONS = (
    Operation(
        name="session.policy",
        summary="Show when a context begins anew.",
        parameters=OfSession,
        handler=show_policy,
        permission=PermissionLevel.RESTRICTED,
        result=SessionPolicy,
    ),
    Operation(
        name="session.refresh",
        summary="Begin a fresh context after what runs.",
        parameters=Refresh,
        handler=refresh,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=SessionRefreshed,
    ),
    Operation(
        name="session.sending",
        summary="Set whether a session's words go out.",
        parameters=Send,
        handler=set_send,
        permission=PermissionLevel.BOSS,
        effect=True,
        result=SessionSends,
    ),
)
