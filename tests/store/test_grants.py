"""Grants in the store: listed while valid, found by a short id, and ended with the approval that made them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retinue.domain.grant import Grant
from retinue.domain.ids import ApprovalId, GrantId, SessionId
from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind
from retinue.domain.times import from_ms
from retinue.store.agents import grants
from retinue.store.open_store import prepare_sqlite

NOW_MS = 1_767_614_400_000
NOW = from_ms(NOW_MS)
MUSIC_PERMISSION, SONGS_PERMISSION = (
    Permission(PermissionKind.READ, "/srv/music"),
    Permission(PermissionKind.READ, "/srv/music/songs"),
)


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sa.Connection]:
    path = tmp_path / "retinue.db"
    prepare_sqlite(path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as conn:
        yield conn
    engine.dispose()


def grant(number: int, **kw: Any) -> Grant:
    given = dict[str, Any](
        id=GrantId(f"{number:08x}" + "0" * 24),
        agent="ada",
        session=None,
        permission=MUSIC_PERMISSION,
        granted_by="owner",
        because="songs",
        at=NOW,
    )
    return Grant(**{**given, **kw})


def list_active_grants(conn: sa.Connection) -> list[str]:
    return [each.id[:8] for each in grants.list_grants(conn, now_ms=NOW_MS)]


def test_a_stored_grant_is_read_back_unchanged(conn: sa.Connection) -> None:
    kept = grant(
        1,
        session=SessionId("5" * 32),
        permission=WEB_PERMISSION,
        approval=ApprovalId("a" * 32),
        expires_at=NOW + timedelta(seconds=1),
    )
    grants.add(conn, kept)
    assert grants.list_of_agent(conn, "ada", now_ms=NOW_MS) == [kept]
    assert grants.list_of_agent(conn, "bob", now_ms=NOW_MS) == []
    assert grants.find_by_prefix(conn, kept.id[:8]) == [kept]


def test_an_expired_or_revoked_grant_is_not_listed_by_the_store(conn: sa.Connection) -> None:
    grants.add(conn, grant(1, expires_at=NOW))
    grants.add(conn, grant(2, expires_at=NOW + timedelta(milliseconds=1)))
    grants.add(conn, grant(3))
    assert list_active_grants(conn) == ["00000002", "00000003"]
    assert grants.revoke(conn, grant(3).id, by="owner", at_ms=NOW_MS)
    assert not grants.revoke(conn, grant(3).id, by="owner", at_ms=NOW_MS), "once"
    assert list_active_grants(conn) == ["00000002"]


def test_a_grant_added_twice_is_stored_once_even_after_its_revocation(conn: sa.Connection) -> None:
    assert grants.add_once(conn, grant(1))
    assert not grants.add_once(conn, grant(1))
    grants.revoke(conn, grant(1).id, by="owner", at_ms=NOW_MS)
    assert not grants.add_once(conn, grant(1)), "and a revoked grant stays revoked"
    assert list_active_grants(conn) == []


def test_a_passed_on_grant_ends_with_the_last_grant_that_covers_it(conn: sa.Connection) -> None:
    delegated = {"granted_by": grants.granted_by_agent("ada"), "permission": SONGS_PERMISSION}
    grants.add(conn, grant(1))
    grants.add(conn, grant(2, permission=Permission(PermissionKind.WRITE, "/srv")))
    grants.add(conn, grant(3, agent="cleo", **delegated))
    grants.add(conn, grant(4, agent="cleo", granted_by="owner", permission=SONGS_PERMISSION))
    grants.add(conn, grant(5, agent="cleo", granted_by=grants.granted_by_agent("bo"), permission=SONGS_PERMISSION))
    grants.revoke(conn, grant(1).id, by="owner", at_ms=NOW_MS)
    assert grants.revoke_passed_on(conn, "ada", by="owner", at_ms=NOW_MS) == [], "the other grant covers it"
    grants.revoke(conn, grant(2).id, by="owner", at_ms=NOW_MS)
    ended = grants.revoke_passed_on(conn, "ada", by="owner", at_ms=NOW_MS)
    assert [each.id[:8] for each in ended] == ["00000003"]
    assert list_active_grants(conn) == ["00000004", "00000005"]


def test_a_received_grant_does_not_keep_a_passed_on_grant_alive(conn: sa.Connection) -> None:
    grants.add(conn, grant(1, granted_by=grants.granted_by_agent("bo")))
    grants.add(conn, grant(2, agent="cleo", granted_by=grants.granted_by_agent("ada")))
    assert [each.agent for each in grants.revoke_passed_on(conn, "ada", by="owner", at_ms=NOW_MS)] == ["cleo"]


def test_revoking_all_grants_of_an_agent_includes_those_it_passed_on(conn: sa.Connection) -> None:
    grants.add(conn, grant(1))
    grants.add(conn, grant(2, agent="cleo", granted_by=grants.granted_by_agent("ada")))
    grants.add(conn, grant(3, agent="cleo"))
    assert len(grants.revoke_all(conn, "ada", by="owner", at_ms=NOW_MS)) == 2
    assert list_active_grants(conn) == ["00000003"]
