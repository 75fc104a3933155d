"""Test the reach of grants: agent, session, kind of session and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, SessionId
from retinue.domain.permission import WEB_PERMISSION, AgentRights, Permission, PermissionKind
from retinue.domain.session import OriginKind
from retinue.policy.tools.grants import find_missing_permissions, find_tool_grant, list_active_permissions

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
HERE, THERE = SessionId("5" * 32), SessionId("6" * 32)
READ = Permission(PermissionKind.READ, "/srv/music")
WRITE = Permission(PermissionKind.WRITE, "/srv")


def grant(**kw: Any) -> Grant:
    given = dict[str, Any](
        id=GrantId("a" * 32),
        agent="ada",
        session=None,
        permission=WEB_PERMISSION,
        granted_by="owner",
        because="x",
        at=NOON,
    )
    return Grant(**{**given, **kw})


def list_held(*grants: Grant, agent: str = "ada", origin: OriginKind = OriginKind.TERMINAL) -> tuple[Permission, ...]:
    return list_active_permissions(grants, agent=agent, session=HERE, origin=origin, now=NOON)


@pytest.mark.parametrize("origin", list(OriginKind))
def test_a_permanent_grant_applies_only_in_sessions_opened_by_a_person(origin: OriginKind) -> None:
    assert list_held(grant(), origin=origin) == ((WEB_PERMISSION,) if origin in ("chat", "web", "terminal") else ())
    assert list_held(grant(session=HERE), origin=origin) == (WEB_PERMISSION,), "a grant of a session counts there"
    assert list_held(grant(session=THERE), origin=origin) == ()


def test_a_grant_applies_only_to_its_agent_and_until_it_expires_or_is_revoked() -> None:
    assert list_held(grant(), agent="bob") == ()
    assert list_held(grant(revoked_at=NOON)) == ()
    assert list_held(grant(expires_at=NOON)) == () and list_held(grant(expires_at=NOON + timedelta(seconds=1))) == (
        WEB_PERMISSION,
    )


def test_missing_permissions_are_those_not_covered_by_rights_or_grants() -> None:
    rights = AgentRights(workspace=Path("/w"))
    assert find_missing_permissions([READ, WEB_PERMISSION, READ], rights, []) == (READ, WEB_PERMISSION)
    assert find_missing_permissions([READ], rights, [WRITE]) == (), "permission to write a folder includes reading it"
    assert find_missing_permissions([WRITE], rights, [READ]) == (WRITE,)
    assert find_missing_permissions([Permission(PermissionKind.READ, "/srv/music2")], rights, [READ]) != ()
    assert find_missing_permissions([WEB_PERMISSION], AgentRights(workspace=Path("/w"), web=True), []) == ()


def test_a_tool_grant_is_found_by_tool_name_or_pattern() -> None:
    exec_, every_web_tool = Permission(PermissionKind.TOOL, "exec"), Permission(PermissionKind.TOOL, "web_*")
    assert find_tool_grant([WEB_PERMISSION, exec_], "exec") is exec_
    assert find_tool_grant([exec_], "execute") is None
    assert find_tool_grant([every_web_tool], "web_fetch") is every_web_tool
    assert find_tool_grant([READ, WEB_PERMISSION], "read") is None, "a permission for a path is none for a tool"
