"""The tool `session_status`: reports the state of the current session to its agent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain.ids import short_id
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.shared_errors import SessionNotFound
from retinue.domain.times import format_time, format_time_12h, load_zone, to_ms
from retinue.domain.tool import ToolSpec
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions
from retinue.tools.base import ToolContext, as_tool_failed, schema_of


class SessionStatusArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class SessionStatusTool(Struct, frozen=True):
    """The tool `session_status`. It only reads, so a call interrupted by a crash can run again."""

    store: Store
    clock: Clock
    zone_name: str = "UTC"
    uses_12_hour_clock: Callable[[], bool] = bool  # whether the owner uses a 12-hour clock
    arguments: type[msgspec.Struct] = SessionStatusArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="session_status",
            description="Return the state of this conversation: time, agent, model, records, waiting messages.",
            parameters=schema_of(SessionStatusArguments),
            is_repeatable=True,
            is_read_only=True,
        )
    )

    async def perform(self, arguments: SessionStatusArguments, context: ToolContext) -> str:
        now = self.clock.now()

        def read(conn: sa.Connection) -> tuple[Session | None, int]:
            return sessions.get(conn, context.session), envelopes.count_due(conn, context.session, to_ms(now))

        session, waiting = await self.store.read(read)
        if session is None:
            missing = SessionNotFound(short_id(context.session), because="it was deleted during this run")
            raise as_tool_failed(missing, try_this="end your turn")
        lines = {
            "now": (format_time_12h if self.uses_12_hour_clock() else format_time)(now, load_zone(self.zone_name)),
            "agent": context.agent.name,
            "model": context.agent.model,
            "session": short_id(session.id),
            "origin": f"{session.origin.kind}:{session.origin.key}",
            "records": session.record_seq,
            "waiting_envelopes": waiting,
            "queue_mode": session.queue.apply_to(context.agent.queue).mode,
        }
        return "\n".join(f"{key}: {value}" for key, value in lines.items())
