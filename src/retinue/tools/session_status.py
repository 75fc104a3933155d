"""`session_status`: reports the state of the current session to its agent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain.ids import short
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.times import show, show_by_12, to_ms, zone
from retinue.domain.tool import ToolSpec
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.sessions import sessions
from retinue.tools.base import Scene, ToolFailed, schema_of


class StatusArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class SessionStatus(Struct, frozen=True):
    """Reads only, so a call interrupted by a crash can simply run again."""

    store: Store
    clock: Clock
    zone_name: str = "UTC"
    by_12: Callable[[], bool] = bool  # whether the owner uses a 12-hour clock
    arguments: type[msgspec.Struct] = StatusArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="session_status",
            description="Show this conversation's state: time, agent, model, length of its history, mail that waits.",
            parameters=schema_of(StatusArguments),
            repeatable=True,
            looks=True,
        )
    )

    async def perform(self, arguments: StatusArguments, scene: Scene) -> str:
        now = self.clock.now()

        def look(conn: sa.Connection) -> tuple[Session | None, int]:
            return sessions.get(conn, scene.session), envelopes.count_due(conn, scene.session, to_ms(now))

        session, waiting = await self.store.read(look)
        if session is None:
            raise ToolFailed("this session is not in the store", because="it was removed meanwhile")
        lines = {
            "now": (show_by_12 if self.by_12() else show)(now, zone(self.zone_name)),
            "agent": scene.agent.name,
            "model": scene.agent.model,
            "session": short(session.id),
            "origin": f"{session.origin.kind}:{session.origin.key}",
            "records": session.record_seq,
            "waiting-envelopes": waiting,
            "queue-mode": session.queue.over(scene.agent.queue).mode,
        }
        return "\n".join(f"{key}: {value}" for key, value in lines.items())
