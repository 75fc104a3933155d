"""Test permissions: their tags, which permission covers which, and paths that stay protected despite a grant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain import permission
from retinue.domain.errors import Invalid
from retinue.domain.permission import (
    PERMISSION_PATH_BYTES_MAX,
    WEB_PERMISSION,
    WRITABLE_IN_AGENT_DIRECTORY,
    AgentRights,
    Permission,
    PermissionKind,
    add_permissions,
    default_rights,
    parse_permission,
)
from retinue.domain.protected_paths import ProtectedPaths

SERVER = Path("/srv/retinue")
AGENT_DIRECTORY = SERVER / "agents" / "ada"
WORKSPACE = Path("/home/maria/work")
PROTECTED_PATHS = ProtectedPaths(data_directory=SERVER, user_home=Path("/home/maria"))


@pytest.mark.spec("D30")
@pytest.mark.parametrize(
    ("tag", "meant"),
    [
        ("web", WEB_PERMISSION),
        ("@web", WEB_PERMISSION),
        (" read:/srv/notes ", Permission(PermissionKind.READ, "/srv/notes")),
        ("@write:/srv/notes/", Permission(PermissionKind.WRITE, "/srv/notes")),
        ("read://srv//notes/./x", Permission(PermissionKind.READ, "/srv/notes/x")),
        ("read:/", Permission(PermissionKind.READ, "/")),
        ("read:/srv/a:b c", Permission(PermissionKind.READ, "/srv/a:b c")),
        ("tool:mcp_*", Permission(PermissionKind.TOOL, "mcp_*")),
    ],
)
def test_a_permission_tag_is_parsed_into_kind_and_target(tag: str, meant: Permission) -> None:
    assert parse_permission(tag) == meant
    assert parse_permission(str(meant)) == meant


@pytest.mark.spec("D30")
@pytest.mark.parametrize(
    "tag",
    [
        "",
        "@",
        "webs",
        "web:",
        "web:/x",
        "read",
        "read:",
        "read:notes",
        "read:./notes",
        "read:~/notes",
        "write:../x",
        "read:/srv/../etc",
        "read:/srv/..",
        "read:/a\x00b",
        "read:/a\nb",
        "read:/a\x1bb",
        "read:/a\x7fb",
        "read:/a\x85b",
        "read:/a\u202eb",
        "read:/a\u2066b",
        "read:/a\u200bb",
        "read:/a\ufeffb",
        "read:/a\u2028b",
        "read:/a\U000e0041b",
        "read:/a\ud800b",
        "exec:/bin/sh",
        "Read:/x",
        "tool:",
        "tool:" + "x" * 129,
        "tool:a\nb",
    ],
)
def test_an_invalid_permission_tag_is_refused_with_a_reason(tag: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_permission(tag)
    assert refused.value.because and refused.value.try_this
    assert refused.value.code in ("permission.invalid", "permission.path_invalid")


@pytest.mark.spec("D30")
def test_a_permission_path_is_limited_in_bytes() -> None:
    assert parse_permission("read:/" + "a" * (PERMISSION_PATH_BYTES_MAX - 1)).target
    with pytest.raises(Invalid, match="invalid path in a permission"):
        parse_permission("read:/" + "a" * PERMISSION_PATH_BYTES_MAX)
    with pytest.raises(Invalid):  # counted in bytes, as the operating system does
        parse_permission("read:/" + "é" * (PERMISSION_PATH_BYTES_MAX // 2))


def test_a_permission_path_that_ends_in_a_space_is_invalid() -> None:
    """Stored as a tag, it would be read back as another path."""
    with pytest.raises(Invalid):
        permission.parse_absolute_path("/srv/notes ")


@given(st.text(max_size=60))
def test_every_valid_permission_tag_round_trips(text: str) -> None:
    for tag in (text, f"read:/{text}", f"write:{text}"):
        try:
            meant = parse_permission(tag)
        except Invalid:
            continue
        assert parse_permission(str(meant)) == meant


def test_a_directory_permission_covers_its_contents_and_write_covers_read() -> None:
    read, write = parse_permission("read:/srv/notes"), parse_permission("write:/srv/notes")
    assert read.covers(parse_permission("read:/srv/notes/a/b"))
    assert write.covers(parse_permission("read:/srv/notes/a"))
    assert write.covers(parse_permission("write:/srv/notes"))
    assert parse_permission("read:/").covers(read)
    assert not read.covers(parse_permission("write:/srv/notes/a"))
    assert not read.covers(parse_permission("read:/srv/notes-of-others"))
    assert not read.covers(parse_permission("read:/srv"))
    assert not read.covers(WEB_PERMISSION)
    assert not WEB_PERMISSION.covers(read)


@pytest.mark.spec("D29")
def test_default_permissions_are_the_workspace_and_listed_paths_of_the_agent_directory() -> None:
    rights = default_rights(AGENT_DIRECTORY, WORKSPACE)
    assert rights.readable == (WORKSPACE, *(AGENT_DIRECTORY / name for name in WRITABLE_IN_AGENT_DIRECTORY))
    assert rights.writable == rights.readable
    assert not rights.web
    assert AGENT_DIRECTORY not in rights.readable


def test_granted_permissions_add_to_rights_except_tool_permissions() -> None:
    granted = [parse_permission("read:/a"), parse_permission("write:/b"), WEB_PERMISSION, parse_permission("tool:exec")]
    assert add_permissions(AgentRights(workspace=WORKSPACE), granted) == AgentRights(
        workspace=WORKSPACE, read=(Path("/a"),), write=(Path("/b"),), web=True
    )


def get_denial_reason(path: str, *granted: str, workspace: Path = WORKSPACE) -> str:
    roots = [workspace, *(Path(each) for each in granted)]
    return PROTECTED_PATHS.denied_because(path, agent_directory=AGENT_DIRECTORY, workspace=workspace, granted=roots)


@pytest.mark.parametrize(
    "path",
    [
        "/srv/retinue",
        "/srv/retinue/retinue.db",
        "/srv/retinue/owner-token",
        "/srv/retinue/keys/acme",
        "/srv/retinue/logs/server.log",
        "/srv/retinue/agents",
        "/srv/retinue/agents/bo/SOUL.md",
        "/proc/self/environ",
        "/sys/kernel",
        "/dev/sda",
    ],
)
def test_no_granted_permission_opens_the_data_directory_or_system_paths(path: str) -> None:
    assert get_denial_reason(path)
    assert get_denial_reason(path, path)
    assert get_denial_reason(path, "/")
    assert get_denial_reason(path, workspace=SERVER / "agents")
    assert get_denial_reason(path, workspace=SERVER)


def test_an_agent_needs_no_granted_permission_for_its_own_directory_and_workspace() -> None:
    assert not get_denial_reason("/srv/retinue/agents/ada/SOUL.md")
    assert not get_denial_reason("/srv/retinue/agents/ada/workspace/x", workspace=AGENT_DIRECTORY / "workspace")
    assert not get_denial_reason("/srv/retinue/workspaces/ada/x", workspace=SERVER / "workspaces" / "ada")
    assert get_denial_reason("/srv/retinue/workspaces/bo/x", workspace=SERVER / "workspaces" / "ada")
    assert get_denial_reason("/srv/retinue/agents/bo/workspace/x", workspace=SERVER / "agents" / "bo" / "workspace")
    assert not get_denial_reason("/srv/retinue-notes/x")


@pytest.mark.parametrize("name", [".ssh", ".aws", ".gnupg", ".config/gh", ".netrc"])
def test_key_directories_are_opened_only_by_a_permission_that_names_them(name: str) -> None:
    keys = f"/home/maria/{name}"
    assert get_denial_reason(keys, "/home/maria")
    assert get_denial_reason(f"{keys}/id", "/")
    assert get_denial_reason(f"{keys}/id", workspace=Path("/home/maria"))
    assert not get_denial_reason(f"{keys}/id", keys)
    assert not get_denial_reason(f"{keys}/id", f"{keys}/id")
    assert not get_denial_reason(f"{keys}-backup", "/home/maria")


def test_system_key_files_are_opened_only_by_a_permission_that_names_them() -> None:
    assert get_denial_reason("/etc/shadow", "/etc")
    assert not get_denial_reason("/etc/shadow", "/etc/shadow")
    assert not get_denial_reason("/etc/hosts", "/etc")
