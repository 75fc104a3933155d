"""Operations for people on the files in an agent's directory that define it: instructions, memory, skills.

Access goes through the code of the file tools, is confined to the agent directory and follows no link
out of it. Agents are refused here: they have the file tools, which track the trust of what they read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import PurePosixPath
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.agents.agent_directory import ensure_home
from retinue.agents.skill_discovery import FOLDER as SKILLS
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import Access, default_rights, is_seen
from retinue.domain.principal import Principal
from retinue.domain.times import from_ms, show, to_ms
from retinue.domain.trust import Trust
from retinue.operations.agent.agents import find_agent
from retinue.operations.base import Desk, Operation
from retinue.store.core.transaction import Page
from retinue.tools.base import Scene, ToolFailed
from retinue.tools.files.atomic_write import put
from retinue.tools.files.file_access import Ground, done_in_thread
from retinue.tools.files.file_snapshot import Looked, look, look_if_there
from retinue.tools.files.file_types import binary_type
from retinue.tools.files.paths import Place, listed, locate, seen
from retinue.tools.files.write_tool import encoded, put_changed

FILES_LISTED_MAX = 200
ENTRIES_LOOKED_AT_MAX = 2_000  # per directory
FOLDERS_DEEP_MAX = 6
FILE_BYTES_MAX = 262_144
MEMORY = "internal_space"


class Of(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class OneFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    path: Annotated[str, msgspec.Meta(description="its path in the home, such as SOUL.md")]


class WriteFile(msgspec.Struct, forbid_unknown_fields=True):
    """`hash` is the hash of the file as you read it, or empty for a new file."""

    name: str
    path: Annotated[str, msgspec.Meta(description="its path in the home, such as SOUL.md")]
    content: Annotated[str, msgspec.Meta(description="all of its new text")]
    hash: Annotated[str, msgspec.Meta(description="of the file as you read it; empty where there is none yet")]
    believe: Annotated[
        bool, msgspec.Meta(description="its words can be believed from now on, wherever they came from")
    ] = False


class AgentFile(msgspec.Struct, frozen=True, rename="kebab"):
    """One file. `hash` is null if the file is too large to be shown."""

    path: str
    size_bytes: int
    changed_at: str
    hash: str | None


class AgentFiles(msgspec.Struct, frozen=True):
    name: str
    files: list[AgentFile]
    more: bool


class AgentFileShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One file with its content. `trust` is untrusted if the file was made from untrusted text."""

    name: str
    path: str
    content: str
    size_bytes: int
    changed_at: str
    hash: str
    trust: Trust


class AgentFileWritten(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    path: str
    size_bytes: int
    hash: str
    created: bool


async def files(desk: Desk, caller: Principal, asked: Of) -> AgentFiles:
    scene = await _scene(desk, caller, asked.name)
    found, more = await asyncio.to_thread(_look_around, desk, scene)
    return AgentFiles(scene.agent.name, found, more=more)


async def show_file(desk: Desk, caller: Principal, asked: OneFile) -> AgentFileShown:
    ground = _ground(desk)
    scene = await _scene(desk, caller, asked.name)
    with _told():
        place = await asyncio.to_thread(_locate, asked.path, scene, Access.READ, ground)
        async with ground.alone_with(place.real):
            looked = await asyncio.to_thread(partial(look, place.real, text=asked.path, bytes_max=FILE_BYTES_MAX))
            trust = await ground.trust_of(place.real, looked)
        return AgentFileShown(
            scene.agent.name,
            path=_in_home(place, scene),
            content=_text(looked, asked.path),
            size_bytes=len(looked.data),
            changed_at=_changed_at(desk, looked.status),
            hash=_hash(looked.data),
            trust=trust,
        )


async def write_file(desk: Desk, caller: Principal, asked: WriteFile) -> AgentFileWritten:
    """Write a file atomically, and only if it is unchanged since the caller read it."""
    ground = _ground(desk)
    scene = await _scene(desk, caller, asked.name)
    with _told():
        data = encoded(asked.content, asked.path)
        if len(data) > FILE_BYTES_MAX:
            raise TooLarge(
                f"'{seen(asked.path)}' would be too large",
                because=f"it would have {len(data):,} bytes, and may have {FILE_BYTES_MAX:,}",
                try_this="make several files of it",
                code="file.too-large",
            )
        place = await asyncio.to_thread(_locate, asked.path, scene, Access.WRITE, ground)
        async with ground.alone_with(place.real):
            old = await asyncio.to_thread(partial(look_if_there, place.real, text=asked.path, bytes_max=FILE_BYTES_MAX))
            _check_unchanged(old, asked)
            if old is None or asked.believe:
                was = old.status if old is not None else None
                placed = await done_in_thread(partial(put, place, data, text=asked.path, was=was))
                await ground.mark_clean(place.real, scene, ctime_ms=placed.ctime_ms)
            else:  # keep its trust: most of the text may be the old one
                await put_changed(ground, place, old, data, text=asked.path, scene=scene)
    path = _in_home(place, scene)
    await _tell(desk, caller, scene.agent, path)
    return AgentFileWritten(scene.agent.name, path, size_bytes=len(data), hash=_hash(data), created=old is None)


async def _tell(desk: Desk, caller: Principal, agent: Agent, path: str) -> None:
    def body(conn: sa.Connection) -> None:
        page = Page(conn, to_ms(desk.clock.now()))
        page.tell(NewsKind.AGENT_CHANGED, agent=agent.name, version=agent.version, file=path, by=str(caller.address))
        page.close()

    await desk.store.write(body, point="agent")


async def _scene(desk: Desk, caller: Principal, name: str) -> Scene:
    """Return a tool context like that of the agent's own call: no grants, its directory as the workspace."""
    if caller.address.kind is not AddressKind.PERSON:
        raise NotAllowed(
            "only people are answered about the files of a home",
            because="what an agent reads is labelled, and the file tools do that",
            try_this="use read, write and ls in your own home",
            code="agent.files-for-people",
        )
    agent = await desk.store.read(partial(find_agent, caller=caller, name=name))
    home = await asyncio.to_thread(ensure_home, desk.home, agent.name)
    id_ = desk.ids.new()
    return Scene(
        agent=agent,
        session=SessionId(id_),
        run=RunId(id_),
        call="",
        home=home,
        rights=default_rights(home, home),
        sender=caller.address,
        trust=caller.trust,
    )


def _ground(desk: Desk) -> Ground:
    if desk.ground is None:
        raise NotFound("this house has no files", because="it was opened without any", code="tool.none")
    return desk.ground


def _locate(path: str, scene: Scene, access: Access, ground: Ground) -> Place:
    """Resolve a path in the agent directory. Absolute paths are refused: they would reveal the data directory."""
    place = locate(path, scene, access, ground.withheld)
    if path.startswith(("/", "~")) or not shapes(_in_home(place, scene)):
        raise Invalid(
            f"'{seen(path)}' is none of the files that make an agent what it is",
            because=f"those are *.md in its home and in {MEMORY}, and what lies in {SKILLS}",
            try_this="look at `agent.files`",
            code="agent.file-not-shown",
        )
    return place


def _in_home(place: Place, scene: Scene) -> str:
    return os.path.relpath(place.real, os.path.realpath(scene.home))


def shapes(path: str) -> bool:
    """Return whether a file at this path of an agent directory defines the agent."""
    parts = PurePosixPath(path).parts
    if not parts or not is_seen(path) or any(part.startswith(".") for part in parts):
        return False
    if len(parts) == 1 or parts[0] == MEMORY:
        return path.endswith(".md")
    return parts[0] == SKILLS


def _look_around(desk: Desk, scene: Scene) -> tuple[list[AgentFile], bool]:
    home = os.path.realpath(scene.home)
    paths = sorted(islice(_walk(home, ""), FILES_LISTED_MAX + 1), key=lambda path: (path.count("/"), path))
    found = [_form(desk, home, path) for path in paths[:FILES_LISTED_MAX]]
    return [form for form in found if form is not None], len(paths) > FILES_LISTED_MAX


def _walk(home: str, folder: str, *, deep: int = 1) -> Iterator[str]:
    """Yield the paths of the files that define the agent. Links and unreadable directories are skipped."""
    try:
        with listed(os.path.join(home, folder), text=folder) as opened, os.scandir(opened) as entries:
            found = [
                (entry.name, os.stat(entry.name, dir_fd=opened, follow_symlinks=False).st_mode)
                for entry in islice(entries, ENTRIES_LOOKED_AT_MAX)
            ]
    except (OSError, ToolFailed):
        return
    for name, mode in sorted(found):
        path = os.path.join(folder, name)
        if stat.S_ISREG(mode) and shapes(path):
            yield path
        elif stat.S_ISDIR(mode) and deep < FOLDERS_DEEP_MAX and (folder or name in (MEMORY, SKILLS)):
            yield from _walk(home, path, deep=deep + 1)


def _form(desk: Desk, home: str, path: str) -> AgentFile | None:
    """Return the list row of a file, or None if it is not text or no longer exists."""
    real = os.path.join(home, path)
    try:
        looked = look(real, text=path, bytes_max=FILE_BYTES_MAX)
    except ToolFailed as failure:
        if failure.code != "file.too-large":
            return None
        status = os.lstat(real)
        return AgentFile(path, status.st_size, _changed_at(desk, status), hash=None)
    if binary_type(looked.data) is not None:
        return None
    return AgentFile(path, len(looked.data), _changed_at(desk, looked.status), hash=_hash(looked.data))


def _check_unchanged(old: Looked | None, asked: WriteFile) -> None:
    if asked.hash == (_hash(old.data) if old is not None else ""):
        return
    raise Conflict(
        f"'{seen(asked.path)}' is no longer what you have read",
        because="somebody has written it since" if asked.hash else "there is such a file already",
        try_this="read it again, and bring the two together",
        code="agent.file-changed",
    )


def _text(looked: Looked, path: str) -> str:
    try:
        if binary_type(looked.data) is None:
            return looked.data.decode()
    except UnicodeDecodeError:
        pass
    raise Invalid(
        f"'{seen(path)}' is no text",
        because="it is not UTF-8, or has a NUL in it",
        try_this="open it where it lies",
        code="file.not-text",
    )


@contextmanager
def _told() -> Generator[None]:
    """Turn errors of the file tools, which address a model, into API errors."""
    try:
        yield
    except ToolFailed as failure:
        kind = NotFound if failure.code == "path.not-found" else Conflict if failure.code == "file.changed" else Invalid
        raise kind(failure.sentence, because=failure.because, try_this=failure.try_this, code=failure.code) from failure


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changed_at(desk: Desk, status: os.stat_result) -> str:
    return show(from_ms(status.st_mtime_ns // 1_000_000), desk.zone)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.files",
        summary="List the files that make an agent what it is.",
        parameters=Of,
        handler=files,
        permission=PermissionLevel.PRIVILEGED,
        result=AgentFiles,
    ),
    Operation(
        name="agent.file",
        summary="Show one of these files.",
        parameters=OneFile,
        handler=show_file,
        permission=PermissionLevel.PRIVILEGED,
        result=AgentFileShown,
    ),
    Operation(
        name="agent.write-file",
        summary="Write one of these files.",
        parameters=WriteFile,
        handler=write_file,
        permission=PermissionLevel.PRIVILEGED,
        effect=True,
        result=AgentFileWritten,
    ),
)
