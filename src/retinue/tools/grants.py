"""What agents were granted, read each time a call depends on it: what is granted or revoked counts at once."""

from __future__ import annotations

from functools import partial

from retinue.domain.ids import SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind
from retinue.domain.times import to_ms
from retinue.policy.grants import in_force
from retinue.store import grants
from retinue.store.connection import Store


class Grants:
    """The grants of each agent. Read by key, at the price of one statement; nothing is remembered."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def held(self, agent: str, session: SessionId, origin: OriginKind) -> tuple[Permission, ...]:
        now = self._clock.now()
        found = await self._store.read(partial(grants.of_agent, agent=agent, now_ms=to_ms(now)))
        return in_force(found, agent=agent, session=session, origin=origin, now=now)
