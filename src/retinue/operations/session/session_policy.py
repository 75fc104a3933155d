"""Operations that show a session's reset rules, reset it after its run, and set whether its replies are sent."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.config.sessions import BUILT_IN_SESSION_SETTINGS
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.reset_rules import REASONS_LENGTH_MAX
from retinue.domain.session import Session
from retinue.domain.times import format_time, from_ms, to_ms
from retinue.engine.context_reset import request_reset, reset_rules_of
from retinue.engine.session_setting_commands import store_sending
from retinue.operations.base import Operation, Services
from retinue.operations.session.sessions import SessionIdRequest
from retinue.policy.limits.reset_policy import find_next_reset
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import sessions


class SessionResetAfterRunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Reset a session's context after its current run.

    `reason` is stored with the record that starts the new context.
    """

    session: str
    reason: Annotated[str, msgspec.Meta(max_length=REASONS_LENGTH_MAX // 2)] = ""


class SendOverride(StrEnum):
    ON = "on"
    OFF = "off"
    INHERIT = "inherit"


_SENDS_BY_OVERRIDE = {SendOverride.ON: True, SendOverride.OFF: False, SendOverride.INHERIT: None}
_OVERRIDE_BY_SENDS = {sends: sending for sending, sends in _SENDS_BY_OVERRIDE.items()}


class SessionSendingRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    send: SendOverride


class SessionResetAfterRunResult(msgspec.Struct, frozen=True):
    """Result of a request to reset the context after the current run.

    `reset` is true if the context was reset at once. Otherwise a run is active or envelopes are waiting,
    and the next run starts with a new context. `pending_reset_because` has the reasons.
    """

    session: str
    reset: bool
    pending_reset_because: str | None


class SessionSendingSet(msgspec.Struct, frozen=True):
    session: str
    send: SendOverride


class SessionPolicyDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The reset rules of a session, and its next reset.

    If `next_reset_at` is null, no rule resets the context at a known time. If `pending_reset_because` is
    set, the next run starts with a new context, for these reasons.
    """

    session: str
    daily_at: str | None
    idle_minutes: float | None
    context_tokens_max: int | None
    context_started_at: str
    last_active_at: str
    next_reset_at: str | None
    next_reset_because: str
    pending_reset_because: str | None
    send: SendOverride


async def show_policy(services: Services, caller: Principal, request: SessionIdRequest) -> SessionPolicyDetails:
    now_ms = to_ms(services.clock.now())
    settings = services.settings().sessions if services.settings is not None else BUILT_IN_SESSION_SETTINGS

    def body(conn: sa.Connection) -> SessionPolicyDetails:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        agent = agents.find(conn, session.agent)
        rules = reset_rules_of(session, agent, settings) if agent is not None else settings.reset
        found = find_next_reset(rules, session, now_ms=now_ms, zone=services.zone)
        return SessionPolicyDetails(
            session=session.id,
            daily_at=rules.daily_at,
            idle_minutes=rules.idle_minutes,
            context_tokens_max=rules.context_tokens_max,
            context_started_at=format_time(from_ms(session.context_started_ms), services.zone),
            last_active_at=format_time(from_ms(session.last_active_ms), services.zone),
            next_reset_at=format_time(found.at, services.zone) if found is not None else None,
            next_reset_because=found.because if found is not None else "",
            pending_reset_because=session.reset_because,
            send=_OVERRIDE_BY_SENDS[session.options.send],
        )

    return await services.store.scan(body)


async def reset_session_after_run(
    services: Services, caller: Principal, request: SessionResetAfterRunRequest
) -> SessionResetAfterRunResult:
    """Reset the context of a session without stopping a run.

    If no run is active and no envelope is waiting, the context is reset at once. Otherwise it is reset
    when the next run starts.
    """
    reason = f": {request.reason}" if request.reason else ""

    def body(conn: sa.Connection) -> SessionResetAfterRunResult:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        at_once = request_reset(tx, session, because=f"requested by {caller.address}{reason}")
        now = sessions.get(conn, session.id) or session
        tx.close()
        return SessionResetAfterRunResult(session=session.id, reset=at_once, pending_reset_because=now.reset_because)

    return await services.store.write(body, point="refresh")


async def set_sending(services: Services, caller: Principal, request: SessionSendingRequest) -> SessionSendingSet:
    """Set whether replies of a session are sent to its channel. This overrides all rules in the settings."""

    def body(conn: sa.Connection) -> Session:
        tx = Transaction(conn, to_ms(services.clock.now()))
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        store_sending(tx, session, _SENDS_BY_OVERRIDE[request.send])
        tx.close()
        return session

    session = await services.store.write(body, point="send-policy")
    return SessionSendingSet(session=session.id, send=request.send)


OPERATIONS = (
    Operation(
        name="session.policy",
        summary="Show when a session's context is reset, and whether its replies are sent to its channel.",
        parameters=SessionIdRequest,
        handler=show_policy,
        permission=PermissionLevel.RESTRICTED,
        result=SessionPolicyDetails,
    ),
    Operation(
        name="session.reset_after_run",
        summary="Reset the context after the current run.",
        parameters=SessionResetAfterRunRequest,
        handler=reset_session_after_run,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=SessionResetAfterRunResult,
    ),
    Operation(
        name="session.set_sending",
        summary="Set whether a session's replies are sent to its channel.",
        parameters=SessionSendingRequest,
        handler=set_sending,
        permission=PermissionLevel.BOSS,
        has_effect=True,
        result=SessionSendingSet,
    ),
)
