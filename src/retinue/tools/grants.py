"""Looks up the grants of agents for each call, so that a new or revoked grant applies at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from retinue.domain.grant import Grant
from retinue.domain.ids import SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind
from retinue.domain.times import to_ms
from retinue.policy.tools.grants import list_active_permissions
from retinue.store.agents import grants
from retinue.store.core import tables
from retinue.store.core.connection import Store

CACHE_TTL = timedelta(seconds=1)
CACHED_AGENTS_MAX = 1_000


class GrantCache:
    """Caches the grants of each agent until a grant is written.

    The entries expire quickly, because other processes may also write grants.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cache: dict[str, tuple[datetime, list[Grant]]] = {}
        self._change_count = 0
        store.on_commit(self._invalidate, tables.grants)

    async def active_permissions(self, agent: str, session: SessionId, origin: OriginKind) -> tuple[Permission, ...]:
        now = self._clock.now()
        known = self._cache.get(agent)
        found = known[1] if known is not None and now - known[0] < CACHE_TTL else await self._read(agent, now)
        return list_active_permissions(found, agent=agent, session=session, origin=origin, now=now)

    async def _read(self, agent: str, now: datetime) -> list[Grant]:
        changes = self._change_count
        found = await self._store.read(partial(grants.list_of_agent, agent=agent, now_ms=to_ms(now)))
        if changes == self._change_count:  # a commit during the read may have revoked one
            if len(self._cache) >= CACHED_AGENTS_MAX:
                self._cache.clear()
            self._cache[agent] = (now, found)
        return found

    def _invalidate(self) -> None:
        self._change_count += 1
        self._cache.clear()
