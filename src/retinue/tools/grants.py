"""Grants of agents, looked up for each call, so that a new or revoked grant applies at once."""

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
    """Caches the grants of each agent until a grant is written.

    The TTL is short because other processes may write too.
    """

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
        if changes == self._changes:  # a commit during the read may have revoked one
            if len(self._known) >= AGENTS_REMEMBERED_MAX:
                self._known.clear()
            self._known[agent] = (now, found)
        return found

    def _forget(self) -> None:
        self._changes += 1
        self._known.clear()
