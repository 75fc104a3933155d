"""Attempts to reach files outside of an agent's rights, each with a control where the same access is allowed."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from tools.file_tools import ToolSetup, open_file_tools

from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind
from retinue.tools.base import ToolFailed
from retinue.tools.files import read_file_inside, resolve_permission
from retinue.tools.files.atomic_write import write_atomically
from retinue.tools.files.file_snapshot import read_snapshot
from retinue.tools.files.path_access import locate

TOOL_ARGUMENTS: dict[str, dict[str, Any]] = {
    "read": {},
    "write": {"content": "overwritten"},
    "edit": {"old": "secret", "new": "overwritten"},
}


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncGenerator[ToolSetup]:
    async with open_file_tools(tmp_path) as opened:
        yield opened


def link(setup: ToolSetup, name: str, to: Path | str) -> str:
    (setup.work / name).symlink_to(to)
    return name


def _chain(setup: ToolSetup) -> str:
    link(setup, "one", setup.root / "outside" / "secret.txt")
    return link(setup, "two", setup.work / "one")


def _in_the_middle(setup: ToolSetup) -> str:
    link(setup, "folder", setup.root / "outside")
    return "folder/secret.txt"


def _relative(setup: ToolSetup) -> str:
    return link(setup, "relative", "../../outside/secret.txt")


def _back_out(setup: ToolSetup) -> str:
    (setup.work / "deep").mkdir()
    return "deep/../../../outside/secret.txt"


LINKS_OUTSIDE: dict[str, Callable[[ToolSetup], str]] = {
    "a link to a file": lambda setup: link(setup, "file", setup.root / "outside" / "secret.txt"),
    "a link to a link": _chain,
    "a link in the middle": _in_the_middle,
    "a relative link": _relative,
    "a link to a link in another folder": lambda setup: link(setup, "x", "/proc/self/cwd/../../etc/hostname"),
}
PATHS_OUTSIDE: dict[str, Callable[[ToolSetup], str]] = {
    "two dots": lambda setup: "../../outside/secret.txt",
    "two dots behind a folder": _back_out,
    "an absolute path": lambda setup: str(setup.root / "outside" / "secret.txt"),
    "an absolute path with dots": lambda setup: f"{setup.work}/../../outside/./secret.txt",
    "two slashes": lambda setup: f"/{setup.root / 'outside' / 'secret.txt'}",
    "the rest of the home": lambda setup: "~/state.json",
    "beside the workspace": lambda setup: f"{setup.work}-of-others/secret.txt",
}


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", TOOL_ARGUMENTS)
@pytest.mark.parametrize("way", LINKS_OUTSIDE)
async def test_file_tools_refuse_a_symlink_that_leads_outside_and_ask_for_no_permission(
    setup: ToolSetup, tool: str, way: str
) -> None:
    path = LINKS_OUTSIDE[way](setup)
    assert await setup.refusal_code(tool, path=path, **TOOL_ARGUMENTS[tool]) in ("path.link_outside", "path.protected")
    assert (
        setup.needed_permissions(tool, path=path, **TOOL_ARGUMENTS[tool]) == []
    )  # the call is refused without asking for approval: the path looks like another one
    assert (setup.root / "outside" / "secret.txt").read_text() == "secret"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", TOOL_ARGUMENTS)
async def test_file_tools_follow_a_symlink_inside_the_workspace_or_to_a_granted_folder(
    setup: ToolSetup, tool: str
) -> None:
    (setup.work / "deep").mkdir()
    (setup.work / "deep" / "a").write_text("secret")
    inside = link(setup, "inside", "deep/a")
    assert not (await setup.call(tool, path=inside, **TOOL_ARGUMENTS[tool])).failed
    assert (setup.work / "inside").is_symlink()  # the write goes to its target, and the link stays
    outside = link(setup, "outside", setup.root / "outside" / "secret.txt")
    granted = setup.with_rights(write=(setup.root / "outside",))
    assert not (await setup.call(tool, granted, path=outside, **TOOL_ARGUMENTS[tool])).failed
    if tool != "read":
        assert (setup.work / "deep" / "a").read_text() == "overwritten"
        assert (setup.root / "outside" / "secret.txt").read_text() == "overwritten"


@pytest.mark.parametrize("tool", TOOL_ARGUMENTS)
@pytest.mark.parametrize("way", PATHS_OUTSIDE)
async def test_file_tools_refuse_a_path_outside_the_workspace_until_its_permission_is_granted(
    setup: ToolSetup, tool: str, way: str
) -> None:
    folder = setup.work.with_name("work-of-others")
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    path = PATHS_OUTSIDE[way](setup)
    assert await setup.refusal_code(tool, path=path, **TOOL_ARGUMENTS[tool]) == "path.outside"
    [need] = setup.needed_permissions(tool, path=path, **TOOL_ARGUMENTS[tool])
    access, _, real = need.partition(":")
    assert access == ("read" if tool == "read" else "write")
    assert Path(real).read_text() == "secret"
    # It works with exactly the permission that was requested.
    granted = setup.with_rights(**{access: (Path(real),)})
    assert setup.needed_permissions(tool, granted, path=path, **TOOL_ARGUMENTS[tool]) == []
    assert not (await setup.call(tool, granted, path=path, **TOOL_ARGUMENTS[tool])).failed


async def test_a_read_grant_for_a_folder_does_not_allow_writing_its_files(setup: ToolSetup) -> None:
    granted = setup.with_rights(read=(setup.root / "outside",))
    path = str(setup.root / "outside" / "secret.txt")
    assert await setup.text("read", granted, path=path) == "secret"
    assert await setup.text("ls", granted, path=str(setup.root / "outside")) == "secret.txt  6 bytes"
    assert await setup.refusal_code("write", granted, path=path, content="x") == "path.outside"
    assert setup.needed_permissions("write", granted, path=path, content="x") == [f"write:{path}"]
    assert await setup.refusal_code("edit", granted, path=path, old="secret", new="x") == "path.outside"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", ["ls", "find"])
async def test_ls_and_find_are_refused_outside_the_workspace(setup: ToolSetup, tool: str) -> None:
    (setup.work / "folder").symlink_to(setup.root / "outside")
    assert await setup.refusal_code(tool, path="folder") == "path.link_outside"
    assert await setup.refusal_code(tool, path="../..") == "path.outside"
    assert setup.needed_permissions(tool, path="../../outside") == [f"read:{setup.root / 'outside'}"]
    assert "secret" not in await setup.text("find", glob="**/*")  # it follows no link
    assert await setup.text("find", text="secret", hidden=True) == "[nothing found]"


@pytest.mark.spec("D29")
async def test_only_the_named_files_of_the_agent_directory_are_accessible_with_file_tools(setup: ToolSetup) -> None:
    assert await setup.text("read", path="~/SOUL.md") == "secret"
    assert await setup.text("ls", path="~/internal_space") == "[the folder is empty]"
    for path in ("~/state.json", "~/new.md", "~/../bo/SOUL.md", "~/../../owner-token"):
        assert await setup.refusal_code("read", path=path) in ("path.outside", "path.protected")
        assert await setup.refusal_code("write", path=path, content="x") in ("path.outside", "path.protected")
    assert await setup.refusal_code("ls", path="~") == "path.outside"


@pytest.mark.parametrize("tool", TOOL_ARGUMENTS)
@pytest.mark.parametrize("path", ["data/owner-token", "data/retinue.db", "data/agents/bo/SOUL.md", "maria/.ssh/id"])
async def test_a_wide_grant_never_opens_the_data_directory_or_keys(setup: ToolSetup, tool: str, path: str) -> None:
    before = (setup.root / path).read_bytes()
    target = str(setup.root / path)
    for tool_context in (setup.tool_context, setup.with_rights(write=(setup.root, Path("/")))):
        assert await setup.refusal_code(tool, tool_context, path=target, **TOOL_ARGUMENTS[tool]) == "path.protected"
        assert setup.needed_permissions(tool, tool_context, path=target, **TOOL_ARGUMENTS[tool]) == []
        (setup.work / "link").unlink(missing_ok=True)
        assert (
            await setup.refusal_code(tool, tool_context, path=link(setup, "link", target), **TOOL_ARGUMENTS[tool])
            == "path.protected"
        )
    assert (setup.root / path).read_bytes() == before


async def test_a_grant_that_names_a_key_opens_its_file_but_no_grant_opens_the_data_directory(setup: ToolSetup) -> None:
    keys = setup.person / ".ssh"
    assert await setup.text("read", setup.with_rights(read=(keys / "id",)), path=str(keys / "id")) == "secret"
    for path in (setup.server / "owner-token", setup.server / "agents" / "bo"):
        named = setup.with_rights(write=(path,))
        assert await setup.refusal_code("read", named, path=str(path)) == "path.protected"


async def test_ls_and_find_do_not_show_protected_files(setup: ToolSetup) -> None:
    wide = setup.with_rights(workspace=setup.person, read=(setup.root,))
    assert await setup.text("ls", wide, path=".") == "work/"
    assert await setup.text("ls", wide, path=str(setup.root)) == "maria/\noutside/"
    found = await setup.text("find", wide, path=str(setup.root), text="secret", hidden=True)
    assert found == "outside/secret.txt:1: secret"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/version", "/sys/kernel/uevent_seqnum", "/dev/zero"])
async def test_system_files_are_protected_even_with_a_grant(setup: ToolSetup, path: str) -> None:
    everything = setup.with_rights(read=(Path("/"), Path(path)))
    assert await setup.refusal_code("read", everything, path=path) == "path.protected"
    assert await setup.refusal_code("read", everything, path=link(setup, "x", path)) == "path.protected"


@pytest.mark.parametrize("tool", TOOL_ARGUMENTS)
async def test_file_tools_refuse_a_path_that_is_not_a_regular_file_without_waiting(setup: ToolSetup, tool: str) -> None:
    os.mkfifo(setup.work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(setup.work / "socket"))
        for name in ("pipe", "socket"):
            assert await setup.refusal_code(tool, path=name, **TOOL_ARGUMENTS[tool]) == "path.not_regular_file"
    (setup.work / "folder").mkdir()
    assert await setup.refusal_code(tool, path="folder", **TOOL_ARGUMENTS[tool]) == "path.is_folder"
    if os.geteuid() == 0:
        os.mknod(setup.work / "zero", 0o020666, os.makedev(1, 5))
        assert await setup.refusal_code(tool, path="zero", **TOOL_ARGUMENTS[tool]) == "path.not_regular_file"


@pytest.mark.parametrize(
    "path", ["", "a\x00b", "a\nb", "a\x1b[0m", "a\u202egpj.exe", "a\u200bb", "a\ud800", "x" * 5_000, "/" + "y/" * 3_000]
)
async def test_file_tools_refuse_a_path_with_invalid_characters_or_excessive_length(
    setup: ToolSetup, path: str
) -> None:
    if path:  # an empty path is already an invalid argument
        assert await setup.refusal_code("write", path=path, content="x") == "path.invalid"
        assert await setup.refusal_code("read", path=path) == "path.invalid"
        assert setup.needed_permissions("read", path=path) == []
    assert os.listdir(setup.work) == []


async def test_the_write_tool_refuses_a_file_name_that_is_too_long(setup: ToolSetup) -> None:
    assert await setup.refusal_code("write", path="x" * 300, content="x") == "path.unusable"


@pytest.mark.spec("D31")
async def test_file_tools_do_not_follow_a_symlink_inserted_after_the_path_check(setup: ToolSetup) -> None:
    """A race between the check and the open, made as wide as possible here."""
    work, outside = setup.work, setup.root / "else"
    for folder in (work / "folder", outside):
        folder.mkdir()
        (folder / "a").write_text(folder.name)
    place = locate("folder/a", setup.tool_context, PermissionKind.WRITE, setup.file_services.withheld)
    assert read_snapshot(place.real, text="a", bytes_max=100).data == b"folder"
    (work / "folder").rename(work / "was")
    (work / "folder").symlink_to(outside)
    assert Path(place.real).read_text() == "else"  # opening the path again would lead outside
    with pytest.raises(ToolFailed) as refused:
        read_snapshot(place.real, text="a", bytes_max=100)
    assert refused.value.code == "path.not_found"  # O_DIRECTORY reports a link so
    with pytest.raises(ToolFailed):
        write_atomically(place, b"overwritten", text="a")
    (work / "folder").unlink()
    (work / "folder").mkdir()
    (work / "folder" / "a").symlink_to(outside / "a")
    with pytest.raises(ToolFailed) as refused:
        read_snapshot(place.real, text="a", bytes_max=100)
    assert refused.value.code == "path.link"
    with pytest.raises(ToolFailed):
        write_atomically(place, b"overwritten", text="a")
    assert (outside / "a").read_text() == "else"
    assert os.listdir(outside) == ["a"]


@pytest.mark.spec("D31")
async def test_file_tools_refuse_a_granted_folder_that_was_replaced_by_a_symlink(setup: ToolSetup) -> None:
    """Otherwise a grant inside the workspace could become a grant for any folder."""
    granted = setup.with_rights(read=(setup.work / "shared",), write=(setup.work / "out",))
    (setup.work / "shared").mkdir()
    (setup.work / "shared" / "secret.txt").write_text("mine")
    assert await setup.text("read", granted, path="shared/secret.txt") == "mine"
    (setup.work / "shared" / "secret.txt").unlink()
    (setup.work / "shared").rmdir()
    for name in ("shared", "out"):
        (setup.work / name).symlink_to(setup.root / "outside")
        assert await setup.refusal_code("read", granted, path=f"{name}/secret.txt") == "path.link_outside"
        assert (
            await setup.refusal_code("read", granted, path=str(setup.root / "outside" / "secret.txt")) == "path.outside"
        )
    assert await setup.refusal_code("write", granted, path="out/secret.txt", content="x") == "path.link_outside"


@pytest.mark.spec("D31")
async def test_a_file_grant_applies_to_the_resolved_path_and_cannot_be_widened_by_a_symlink(setup: ToolSetup) -> None:
    """Another agent may be able to write to the folder that contains the granted one."""
    shared = setup.root / "shared"
    shared.mkdir()
    (setup.root / "by-link").symlink_to(shared)
    asked = Permission(PermissionKind.READ, str(setup.root / "by-link"))
    assert resolve_permission(asked) == Permission(PermissionKind.READ, str(shared))
    assert resolve_permission(WEB_PERMISSION) == WEB_PERMISSION
    granted = setup.with_rights(read=(shared,))
    (shared / "secret.txt").write_text("theirs")
    assert await setup.text("read", granted, path=str(shared / "secret.txt")) == "theirs"
    (shared / "secret.txt").unlink()
    shared.rmdir()
    shared.symlink_to(setup.root / "outside")
    assert await setup.refusal_code("read", granted, path=str(shared / "secret.txt")) == "path.outside"
    assert await setup.refusal_code("read", granted, path=str(setup.root / "outside" / "secret.txt")) == "path.outside"


async def test_file_tools_refuse_a_symlink_to_a_file_name_that_is_not_utf8(setup: ToolSetup) -> None:
    odd = setup.work / os.fsdecode(b"\xff")
    odd.write_text("x")
    (setup.work / "link").symlink_to(odd)
    assert await setup.refusal_code("read", path="link") == "path.invalid"
    assert await setup.refusal_code("write", path="link", content="x") == "path.invalid"
    assert await setup.text("ls") == "link  (link)\n\\udcff  1 bytes"
    assert await setup.text("find", text="x") == "\\udcff:1: x"


@pytest.mark.spec("D31")
async def test_file_tools_refuse_a_named_folder_or_workspace_that_was_replaced_by_a_symlink(setup: ToolSetup) -> None:
    at_home = setup.with_rights(workspace=setup.home)  # so that it may change files in its own directory
    (setup.home / "skills").symlink_to(setup.root / "outside")
    assert await setup.refusal_code("read", at_home, path="skills/secret.txt") == "path.link_outside"
    assert await setup.refusal_code("read", at_home, path=str(setup.root / "outside" / "secret.txt")) == "path.outside"
    above = setup.with_rights(write=(setup.person,))
    setup.work.rmdir()
    setup.work.symlink_to(setup.root / "outside")
    assert await setup.refusal_code("read", above, path="secret.txt") == "path.link_outside"
    assert await setup.refusal_code("write", above, path="secret.txt", content="x") == "path.link_outside"


async def test_file_tools_work_in_a_workspace_configured_through_a_symlink(setup: ToolSetup) -> None:
    (setup.root / "shortcut").symlink_to(setup.work)
    tool_context = setup.with_rights(workspace=setup.root / "shortcut")
    await setup.call("write", tool_context, path="a", content="x")
    assert (setup.work / "a").read_text() == "x"
    assert await setup.text("read", tool_context, path=str(setup.work / "a")) == "x"
    assert await setup.text("read", tool_context, path=str(setup.root / "shortcut" / "a")) == "x"


async def test_the_write_tool_does_not_replace_a_file_without_write_permission(setup: ToolSetup) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write every file")
    (setup.work / "a").write_text("secret")
    (setup.work / "a").chmod(0o444)
    assert await setup.refusal_code("write", path="a", content="x") == "path.unusable"


def test_read_file_inside_refuses_paths_outside_its_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a").write_text("inside")
    (tmp_path / "b").write_text("outside")
    (home / "link").symlink_to(tmp_path / "b")
    assert read_file_inside(home, "a") == b"inside"
    for path in ("../b", "/etc/hostname", "link", "", ".", "a\x00b", str(home / "a")):
        with pytest.raises(ToolFailed) as refused:
            read_file_inside(home, path)
        assert refused.value.code == "path.not_relative"
