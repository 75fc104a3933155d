"""Ways out of what an agent may reach, and that none of them is one. Beside each, that the same works where it may."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from tools.file_tools import Desk, open_desk

from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind
from retinue.tools.base import ToolFailed
from retinue.tools.files import read_file_inside, resolve_permission
from retinue.tools.files.atomic_write import write_atomically
from retinue.tools.files.file_snapshot import read_snapshot
from retinue.tools.files.paths import locate

CALLS: dict[str, dict[str, Any]] = {
    "read": {},
    "write": {"content": "overwritten"},
    "edit": {"old": "secret", "new": "overwritten"},
}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


def link(desk: Desk, name: str, to: Path | str) -> str:
    (desk.work / name).symlink_to(to)
    return name


def _chain(desk: Desk) -> str:
    link(desk, "one", desk.root / "outside" / "secret.txt")
    return link(desk, "two", desk.work / "one")


def _in_the_middle(desk: Desk) -> str:
    link(desk, "folder", desk.root / "outside")
    return "folder/secret.txt"


def _relative(desk: Desk) -> str:
    return link(desk, "relative", "../../outside/secret.txt")


def _back_out(desk: Desk) -> str:
    (desk.work / "deep").mkdir()
    return "deep/../../../outside/secret.txt"


LINKS: dict[str, Callable[[Desk], str]] = {
    "a link to a file": lambda desk: link(desk, "file", desk.root / "outside" / "secret.txt"),
    "a link to a link": _chain,
    "a link in the middle": _in_the_middle,
    "a relative link": _relative,
    "a link to a link in another folder": lambda desk: link(desk, "x", "/proc/self/cwd/../../etc/hostname"),
}
WAYS_OUT: dict[str, Callable[[Desk], str]] = {
    "two dots": lambda desk: "../../outside/secret.txt",
    "two dots behind a folder": _back_out,
    "an absolute path": lambda desk: str(desk.root / "outside" / "secret.txt"),
    "an absolute path with dots": lambda desk: f"{desk.work}/../../outside/./secret.txt",
    "two slashes": lambda desk: f"/{desk.root / 'outside' / 'secret.txt'}",
    "the rest of the home": lambda desk: "~/state.json",
    "beside the workspace": lambda desk: f"{desk.work}-of-others/secret.txt",
}


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("way", LINKS)
async def test_a_link_that_leads_outside_is_refused(desk: Desk, tool: str, way: str) -> None:
    path = LINKS[way](desk)
    assert await desk.refusal(tool, path=path, **CALLS[tool]) in ("path.link_outside", "path.protected")
    assert desk.needs(tool, path=path, **CALLS[tool]) == []  # and nobody is asked: it looks like something else
    assert (desk.root / "outside" / "secret.txt").read_text() == "secret"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", CALLS)
async def test_a_link_that_stays_inside_or_leads_to_what_was_granted_is_followed(desk: Desk, tool: str) -> None:
    (desk.work / "deep").mkdir()
    (desk.work / "deep" / "a").write_text("secret")
    inside = link(desk, "inside", "deep/a")
    assert not (await desk.call(tool, path=inside, **CALLS[tool])).failed
    assert (desk.work / "inside").is_symlink()  # it is written through, and stays
    outside = link(desk, "outside", desk.root / "outside" / "secret.txt")
    granted = desk.with_rights(write=(desk.root / "outside",))
    assert not (await desk.call(tool, granted, path=outside, **CALLS[tool])).failed
    if tool != "read":
        assert (desk.work / "deep" / "a").read_text() == "overwritten"
        assert (desk.root / "outside" / "secret.txt").read_text() == "overwritten"


@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("way", WAYS_OUT)
async def test_a_path_that_leads_outside_is_refused_and_somebody_can_be_asked(desk: Desk, tool: str, way: str) -> None:
    folder = desk.work.with_name("work-of-others")
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    path = WAYS_OUT[way](desk)
    assert await desk.refusal(tool, path=path, **CALLS[tool]) == "path.outside"
    [need] = desk.needs(tool, path=path, **CALLS[tool])
    access, _, real = need.partition(":")
    assert access == ("read" if tool == "read" else "write")
    assert Path(real).read_text() == "secret"
    # With what was asked for, and no more than that, it works.
    granted = desk.with_rights(**{access: (Path(real),)})
    assert desk.needs(tool, granted, path=path, **CALLS[tool]) == []
    assert not (await desk.call(tool, granted, path=path, **CALLS[tool])).failed


async def test_to_read_is_not_to_write(desk: Desk) -> None:
    granted = desk.with_rights(read=(desk.root / "outside",))
    path = str(desk.root / "outside" / "secret.txt")
    assert await desk.text("read", granted, path=path) == "secret"
    assert await desk.text("ls", granted, path=str(desk.root / "outside")) == "secret.txt  6 bytes"
    assert await desk.refusal("write", granted, path=path, content="x") == "path.outside"
    assert desk.needs("write", granted, path=path, content="x") == [f"write:{path}"]
    assert await desk.refusal("edit", granted, path=path, old="secret", new="x") == "path.outside"


@pytest.mark.spec("D31")
@pytest.mark.parametrize("tool", ["ls", "find"])
async def test_folders_are_listed_only_inside(desk: Desk, tool: str) -> None:
    (desk.work / "folder").symlink_to(desk.root / "outside")
    assert await desk.refusal(tool, path="folder") == "path.link_outside"
    assert await desk.refusal(tool, path="../..") == "path.outside"
    assert desk.needs(tool, path="../../outside") == [f"read:{desk.root / 'outside'}"]
    assert "secret" not in await desk.text("find", glob="**/*")  # it walks through no link
    assert await desk.text("find", text="secret", hidden=True) == "[nothing found]"


@pytest.mark.spec("D29")
async def test_of_the_home_only_what_is_named_can_be_read(desk: Desk) -> None:
    assert await desk.text("read", path="~/SOUL.md") == "secret"
    assert await desk.text("ls", path="~/internal_space") == "[the folder is empty]"
    for path in ("~/state.json", "~/new.md", "~/../bo/SOUL.md", "~/../../owner-token"):
        assert await desk.refusal("read", path=path) in ("path.outside", "path.protected")
        assert await desk.refusal("write", path=path, content="x") in ("path.outside", "path.protected")
    assert await desk.refusal("ls", path="~") == "path.outside"


@pytest.mark.parametrize("tool", CALLS)
@pytest.mark.parametrize("path", ["house/owner-token", "house/house.db", "house/agents/bo/SOUL.md", "maria/.ssh/id"])
async def test_no_wide_grant_opens_the_house_or_keys_and_nobody_is_asked(desk: Desk, tool: str, path: str) -> None:
    before = (desk.root / path).read_bytes()
    target = str(desk.root / path)
    for scene in (desk.scene, desk.with_rights(write=(desk.root, Path("/")))):
        assert await desk.refusal(tool, scene, path=target, **CALLS[tool]) == "path.protected"
        assert desk.needs(tool, scene, path=target, **CALLS[tool]) == []
        (desk.work / "link").unlink(missing_ok=True)
        assert await desk.refusal(tool, scene, path=link(desk, "link", target), **CALLS[tool]) == "path.protected"
    assert (desk.root / path).read_bytes() == before


async def test_a_grant_that_names_the_keys_opens_them_and_the_house_never(desk: Desk) -> None:
    keys = desk.person / ".ssh"
    assert await desk.text("read", desk.with_rights(read=(keys / "id",)), path=str(keys / "id")) == "secret"
    for path in (desk.house / "owner-token", desk.house / "agents" / "bo"):
        named = desk.with_rights(write=(path,))
        assert await desk.refusal("read", named, path=str(path)) == "path.protected"


async def test_what_is_withheld_is_not_even_listed(desk: Desk) -> None:
    wide = desk.with_rights(workspace=desk.person, read=(desk.root,))
    assert await desk.text("ls", wide, path=".") == "work/"
    assert await desk.text("ls", wide, path=str(desk.root)) == "maria/\noutside/"
    found = await desk.text("find", wide, path=str(desk.root), text="secret", hidden=True)
    assert found == "outside/secret.txt:1: secret"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/version", "/sys/kernel/uevent_seqnum", "/dev/zero"])
async def test_the_systems_own_files_are_for_no_agent(desk: Desk, path: str) -> None:
    everything = desk.with_rights(read=(Path("/"), Path(path)))
    assert await desk.refusal("read", everything, path=path) == "path.protected"
    assert await desk.refusal("read", everything, path=link(desk, "x", path)) == "path.protected"


@pytest.mark.parametrize("tool", CALLS)
async def test_what_is_no_plain_file_is_refused_without_waiting_for_it(desk: Desk, tool: str) -> None:
    os.mkfifo(desk.work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(desk.work / "socket"))
        for name in ("pipe", "socket"):
            assert await desk.refusal(tool, path=name, **CALLS[tool]) == "path.not_regular_file"
    (desk.work / "folder").mkdir()
    assert await desk.refusal(tool, path="folder", **CALLS[tool]) == "path.is_folder"
    if os.geteuid() == 0:
        os.mknod(desk.work / "zero", 0o020666, os.makedev(1, 5))
        assert await desk.refusal(tool, path="zero", **CALLS[tool]) == "path.not_regular_file"


@pytest.mark.parametrize(
    "path", ["", "a\x00b", "a\nb", "a\x1b[0m", "a\u202egpj.exe", "a\u200bb", "a\ud800", "x" * 5_000, "/" + "y/" * 3_000]
)
async def test_a_path_that_nobody_could_read_is_refused(desk: Desk, path: str) -> None:
    if path:  # an empty one is already no argument
        assert await desk.refusal("write", path=path, content="x") == "path.invalid"
        assert await desk.refusal("read", path=path) == "path.invalid"
        assert desk.needs("read", path=path) == []
    assert os.listdir(desk.work) == []


async def test_a_name_that_is_too_long_for_the_disk_is_told(desk: Desk) -> None:
    assert await desk.refusal("write", path="x" * 300, content="x") == "path.unusable"


@pytest.mark.spec("D31")
async def test_a_link_put_in_the_way_after_the_look_is_not_followed(desk: Desk) -> None:
    """The gap between looking and opening: here it is as wide as can be."""
    work, outside = desk.work, desk.root / "else"
    for folder in (work / "folder", outside):
        folder.mkdir()
        (folder / "a").write_text(folder.name)
    place = locate("folder/a", desk.scene, PermissionKind.WRITE, desk.ground.withheld)
    assert read_snapshot(place.real, text="a", bytes_max=100).data == b"folder"
    (work / "folder").rename(work / "was")
    (work / "folder").symlink_to(outside)
    assert Path(place.real).read_text() == "else"  # whoever opens the path that was looked at is led outside
    with pytest.raises(ToolFailed) as refused:
        read_snapshot(place.real, text="a", bytes_max=100)
    assert refused.value.code == "path.not_found"  # O_DIRECTORY says so of a link
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
async def test_a_granted_folder_that_the_agent_replaced_by_a_link_is_no_longer_granted(desk: Desk) -> None:
    """Else a grant inside the workspace could be turned into one for anything."""
    granted = desk.with_rights(read=(desk.work / "shared",), write=(desk.work / "out",))
    (desk.work / "shared").mkdir()
    (desk.work / "shared" / "secret.txt").write_text("mine")
    assert await desk.text("read", granted, path="shared/secret.txt") == "mine"
    (desk.work / "shared" / "secret.txt").unlink()
    (desk.work / "shared").rmdir()
    for name in ("shared", "out"):
        (desk.work / name).symlink_to(desk.root / "outside")
        assert await desk.refusal("read", granted, path=f"{name}/secret.txt") == "path.link_outside"
        assert await desk.refusal("read", granted, path=str(desk.root / "outside" / "secret.txt")) == "path.outside"
    assert await desk.refusal("write", granted, path="out/secret.txt", content="x") == "path.link_outside"


@pytest.mark.spec("D31")
async def test_a_grant_is_for_the_place_as_it_was_and_no_link_can_widen_it(desk: Desk) -> None:
    """Another agent may be able to write where the granted folder lies."""
    shared = desk.root / "shared"
    shared.mkdir()
    (desk.root / "by-link").symlink_to(shared)
    asked = Permission(PermissionKind.READ, str(desk.root / "by-link"))
    assert resolve_permission(asked) == Permission(PermissionKind.READ, str(shared))
    assert resolve_permission(WEB_PERMISSION) == WEB_PERMISSION
    granted = desk.with_rights(read=(shared,))
    (shared / "secret.txt").write_text("theirs")
    assert await desk.text("read", granted, path=str(shared / "secret.txt")) == "theirs"
    (shared / "secret.txt").unlink()
    shared.rmdir()
    shared.symlink_to(desk.root / "outside")
    assert await desk.refusal("read", granted, path=str(shared / "secret.txt")) == "path.outside"
    assert await desk.refusal("read", granted, path=str(desk.root / "outside" / "secret.txt")) == "path.outside"


async def test_a_link_to_a_name_that_is_no_text_is_refused(desk: Desk) -> None:
    odd = desk.work / os.fsdecode(b"\xff")
    odd.write_text("x")
    (desk.work / "link").symlink_to(odd)
    assert await desk.refusal("read", path="link") == "path.invalid"
    assert await desk.refusal("write", path="link", content="x") == "path.invalid"
    assert await desk.text("ls") == "link  (link)\n\\udcff  1 bytes"
    assert await desk.text("find", text="x") == "\\udcff:1: x"


@pytest.mark.spec("D31")
async def test_a_named_file_or_a_workspace_that_the_agent_replaced_by_a_link_opens_nothing(desk: Desk) -> None:
    at_home = desk.with_rights(workspace=desk.home)  # so that it may change what lies in its home
    (desk.home / "skills").symlink_to(desk.root / "outside")
    assert await desk.refusal("read", at_home, path="skills/secret.txt") == "path.link_outside"
    assert await desk.refusal("read", at_home, path=str(desk.root / "outside" / "secret.txt")) == "path.outside"
    above = desk.with_rights(write=(desk.person,))
    desk.work.rmdir()
    desk.work.symlink_to(desk.root / "outside")
    assert await desk.refusal("read", above, path="secret.txt") == "path.link_outside"
    assert await desk.refusal("write", above, path="secret.txt", content="x") == "path.link_outside"


async def test_a_workspace_that_the_owner_reaches_by_a_link_works(desk: Desk) -> None:
    (desk.root / "shortcut").symlink_to(desk.work)
    scene = desk.with_rights(workspace=desk.root / "shortcut")
    await desk.call("write", scene, path="a", content="x")
    assert (desk.work / "a").read_text() == "x"
    assert await desk.text("read", scene, path=str(desk.work / "a")) == "x"
    assert await desk.text("read", scene, path=str(desk.root / "shortcut" / "a")) == "x"


async def test_a_file_that_must_not_be_written_is_not_replaced_either(desk: Desk) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write every file")
    (desk.work / "a").write_text("secret")
    (desk.work / "a").chmod(0o444)
    assert await desk.refusal("write", path="a", content="x") == "path.unusable"


def test_the_house_reads_inside_a_folder_alone(tmp_path: Path) -> None:
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
