"""What was granted is remembered, and what is granted or revoked counts at once."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, SessionId
from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.session import OriginKind
from retinue.domain.times import to_ms
from retinue.store.agents import grants
from retinue.store.core.connection import TransactionBody
from retinue.store.core.sqlite import SqliteStore
from retinue.store.open_store import prepare_sqlite
from retinue.testing.fake_clock import FakeClock
from retinue.tools.grants import CACHE_TTL, GrantCache

T = TypeVar("T")
MUSIC = Permission(PermissionKind.READ, "/srv/music")
SESSION = SessionId("5" * 32)


class CountsLooks(SqliteStore):
    looks = 0

    async def read(self, body: TransactionBody[T]) -> T:
        self.looks += 1
        return await super().read(body)


async def test_grants_are_read_once_until_one_is_given_or_taken_back(tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "house.db")
    clock, store = FakeClock(), CountsLooks(tmp_path / "house.db")
    known = GrantCache(store, clock)
    grant = Grant(
        id=GrantId("1" * 32),
        agent="ada",
        session=None,
        permission=MUSIC,
        granted_by="owner",
        because="songs",
        at=clock.now(),
        expires_at=clock.now() + timedelta(minutes=5),
    )

    async def held() -> tuple[Permission, ...]:
        return await known.active_permissions("ada", SESSION, OriginKind.CHAT)

    await store.write(lambda _: None, point="test")
    for _ in range(3):
        assert await held() == ()
    assert store.looks == 1
    await store.write(lambda conn: grants.add(conn, grant), point="test")
    for _ in range(3):
        assert await held() == (MUSIC,)
    assert store.looks == 2
    await clock.advance(CACHE_TTL)  # another process may have written
    assert await held() == (MUSIC,)
    assert store.looks == 3
    revoke = partial(grants.revoke, id_=grant.id, by="owner", at_ms=to_ms(clock.now()))
    await store.write(revoke, point="test")
    assert await held() == ()
    await store.close()
