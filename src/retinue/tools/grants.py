"""What agents were granted, asked each time a call depends on it: what is granted or revoked counts at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from retinue.domain.grant import Grant
from retinue.domain.ids import SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind
from retinue.domain.times import to_ms
from retinue.policy.tools.grants import in_force
from retinue.store.agents import grants
from retinue.store.core import tables
from retinue.store.core.connection import Store

REMEMBERED = timedelta(seconds=1)
AGENTS_REMEMBERED_MAX = 1_000


class Grants:
    """The grants of each agent: read by key, and remembered until one is written. Never for long: others may write."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[datetime, list[Grant]]] = {}
        self._changes = 0
        store.on_commit(self._forget, tables.grants)

    async def held(self, agent: str, session: SessionId, origin: OriginKind) -> tuple[Permission, ...]:
        now = self._clock.now()
        known = self._known.get(agent)
        found = known[1] if known is not None and now - known[0] < REMEMBERED else await self._read(agent, now)
        return in_force(found, agent=agent, session=session, origin=origin, now=now)

    async def _read(self, agent: str, now: datetime) -> list[Grant]:
        changes = self._changes
        found = await self._store.read(partial(grants.of_agent, agent=agent, now_ms=to_ms(now)))
        if changes == self._changes:  # what was committed while we looked may have revoked one
            if len(self._known) >= AGENTS_REMEMBERED_MAX:
                self._known.clear()
            self._known[agent] = (now, found)
        return found

    def _forget(self) -> None:
        self._changes += 1
        self._known.clear()
