"""What agents were granted, read when a call depends on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

from retinue.domain.grant import Grant
from retinue.domain.ids import SessionId
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind
from retinue.domain.times import to_ms
from retinue.policy.grants import in_force
from retinue.store import grants
from retinue.store.connection import Store

KNOWN_FOR_S = 1.0  # how long what was read is believed: another process may write too
AGENTS_KNOWN_MAX = 1_000


class Grants:
    """The grants of each agent, as of a moment ago. `forget` when one was made or revoked here: it counts at once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, tuple[datetime, Sequence[Grant]]] = OrderedDict()

    async def held(self, agent: str, session: SessionId, origin: OriginKind) -> tuple[Permission, ...]:
        now = self._clock.now()
        known = self._known.get(agent)
        if known is None or not 0 <= (now - known[0]).total_seconds() < KNOWN_FOR_S:
            found = await self._store.read(lambda conn: grants.of_agent(conn, agent, now_ms=to_ms(now)))
            known = self._known[agent] = (now, found)
            if len(self._known) > AGENTS_KNOWN_MAX:
                self._known.popitem(last=False)
        return in_force(known[1], agent=agent, session=session, origin=origin, now=now)

    def forget(self) -> None:
        self._known.clear()
