"""Permissions as tags, what covers what, and what is withheld whatever was granted."""

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
    ProtectedPaths,
    add_permissions,
    default_rights,
    parse_permission,
)

HOUSE = Path("/srv/retinue")
HOME = HOUSE / "agents" / "ada"
WORKSPACE = Path("/home/maria/work")
WITHHELD = ProtectedPaths(data_directory=HOUSE, user_home=Path("/home/maria"))


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
def test_a_tag_says_what_may_be_reached(tag: str, meant: Permission) -> None:
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
def test_what_is_no_tag_is_refused_with_a_reason(tag: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_permission(tag)
    assert refused.value.because and refused.value.try_this
    assert refused.value.code in ("permission.invalid", "permission.path_invalid")


@pytest.mark.spec("D30")
def test_a_path_is_as_long_as_the_system_takes_it_and_no_longer() -> None:
    assert parse_permission("read:/" + "a" * (PERMISSION_PATH_BYTES_MAX - 1)).target
    with pytest.raises(Invalid, match="invalid path in a permission"):
        parse_permission("read:/" + "a" * PERMISSION_PATH_BYTES_MAX)
    with pytest.raises(Invalid):  # counted in bytes, as the system does
        parse_permission("read:/" + "é" * (PERMISSION_PATH_BYTES_MAX // 2))


def test_a_path_that_ends_in_a_space_cannot_be_permitted() -> None:
    """It would be written down as a tag, and read back as another path."""
    with pytest.raises(Invalid):
        permission.parse_absolute_path("/srv/notes ")


@given(st.text(max_size=60))
def test_whatever_is_taken_for_a_tag_is_the_same_when_it_is_written_and_read_again(text: str) -> None:
    for tag in (text, f"read:/{text}", f"write:{text}"):
        try:
            meant = parse_permission(tag)
        except Invalid:
            continue
        assert parse_permission(str(meant)) == meant


def test_a_folder_covers_what_is_in_it_and_to_write_is_to_read() -> None:
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
def test_without_a_grant_there_is_the_workspace_and_what_is_named_in_the_home() -> None:
    rights = default_rights(HOME, WORKSPACE)
    assert rights.readable == (WORKSPACE, *(HOME / name for name in WRITABLE_IN_AGENT_DIRECTORY))
    assert rights.writable == rights.readable
    assert not rights.web
    assert HOME not in rights.readable


def test_grants_add_to_rights_and_a_tool_is_not_a_place() -> None:
    granted = [parse_permission("read:/a"), parse_permission("write:/b"), WEB_PERMISSION, parse_permission("tool:exec")]
    assert add_permissions(AgentRights(workspace=WORKSPACE), granted) == AgentRights(
        workspace=WORKSPACE, read=(Path("/a"),), write=(Path("/b"),), web=True
    )


def why(path: str, *granted: str, workspace: Path = WORKSPACE) -> str:
    roots = [workspace, *(Path(each) for each in granted)]
    return WITHHELD.denied_because(path, agent_directory=HOME, workspace=workspace, granted=roots)


@pytest.mark.parametrize(
    "path",
    [
        "/srv/retinue",
        "/srv/retinue/house.db",
        "/srv/retinue/owner-token",
        "/srv/retinue/keys/acme",
        "/srv/retinue/logs/house.log",
        "/srv/retinue/agents",
        "/srv/retinue/agents/bo/SOUL.md",
        "/proc/self/environ",
        "/sys/kernel",
        "/dev/sda",
    ],
)
def test_no_grant_opens_the_state_of_the_house_or_of_the_system(path: str) -> None:
    assert why(path)
    assert why(path, path)
    assert why(path, "/")
    assert why(path, workspace=HOUSE / "agents")
    assert why(path, workspace=HOUSE)


def test_the_own_home_and_workspace_are_not_withheld_wherever_they_lie() -> None:
    assert not why("/srv/retinue/agents/ada/SOUL.md")
    assert not why("/srv/retinue/agents/ada/workspace/x", workspace=HOME / "workspace")
    assert not why("/srv/retinue/workspaces/ada/x", workspace=HOUSE / "workspaces" / "ada")
    assert why("/srv/retinue/workspaces/bo/x", workspace=HOUSE / "workspaces" / "ada")
    assert why("/srv/retinue/agents/bo/workspace/x", workspace=HOUSE / "agents" / "bo" / "workspace")
    assert not why("/srv/retinue-notes/x")


@pytest.mark.parametrize("name", [".ssh", ".aws", ".gnupg", ".config/gh", ".netrc"])
def test_keys_are_opened_only_by_a_grant_that_names_them(name: str) -> None:
    keys = f"/home/maria/{name}"
    assert why(keys, "/home/maria")
    assert why(f"{keys}/id", "/")
    assert why(f"{keys}/id", workspace=Path("/home/maria"))
    assert not why(f"{keys}/id", keys)
    assert not why(f"{keys}/id", f"{keys}/id")
    assert not why(f"{keys}-of-the-house", "/home/maria")


def test_keys_of_the_system_are_withheld_too() -> None:
    assert why("/etc/shadow", "/etc")
    assert not why("/etc/shadow", "/etc/shadow")
    assert not why("/etc/hosts", "/etc")
