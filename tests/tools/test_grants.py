"""Grants are stored, and a new or revoked grant applies immediately."""

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
MUSIC_PERMISSION = Permission(PermissionKind.READ, "/srv/music")
SESSION = SessionId("5" * 32)


class CountingStore(SqliteStore):
    read_count = 0

    async def read(self, body: TransactionBody[T]) -> T:
        self.read_count += 1
        return await super().read(body)


async def test_the_grants_of_agents_are_cached_for_tools_until_one_is_added_or_revoked(tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "retinue.db")
    clock, store = FakeClock(), CountingStore(tmp_path / "retinue.db")
    known = GrantCache(store, clock)
    grant = Grant(
        id=GrantId("1" * 32),
        agent="ada",
        session=None,
        permission=MUSIC_PERMISSION,
        granted_by="owner",
        because="songs",
        at=clock.now(),
        expires_at=clock.now() + timedelta(minutes=5),
    )

    async def active() -> tuple[Permission, ...]:
        return await known.active_permissions("ada", SESSION, OriginKind.CHAT)

    await store.write(lambda _: None, point="test")
    for _ in range(3):
        assert await active() == ()
    assert store.read_count == 1
    await store.write(lambda conn: grants.add(conn, grant), point="test")
    for _ in range(3):
        assert await active() == (MUSIC_PERMISSION,)
    assert store.read_count == 2
    await clock.advance(CACHE_TTL)  # another process may have written
    assert await active() == (MUSIC_PERMISSION,)
    assert store.read_count == 3
    revoke = partial(grants.revoke, id_=grant.id, by="owner", at_ms=to_ms(clock.now()))
    await store.write(revoke, point="test")
    assert await active() == ()
    await store.close()
