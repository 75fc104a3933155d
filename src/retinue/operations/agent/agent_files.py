"""Operations that let people read and write the files that define an agent: instructions, memory and skills.

The operations use the code of the file tools, so they never access files outside the agent directory,
even through links. Agents cannot call these operations. They use the file tools, which record how far
the content of a file is trusted.
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

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.agents.skill_discovery import SKILLS_FOLDER as SKILLS
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.event import EventKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import PermissionKind, default_rights, is_fully_visible
from retinue.domain.principal import Principal
from retinue.domain.times import format_time, from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.operations.agent.agents import require_visible_agent
from retinue.operations.agent.errors import (
    AgentFileChanged,
    AgentFileNotShown,
    AgentFileNotText,
    AgentFilesPeopleOnly,
    AgentFilesUnavailable,
    AgentFileTooLarge,
)
from retinue.operations.base import Operation, Services
from retinue.store.core.transaction import Transaction
from retinue.tools.base import ToolContext, ToolFailed
from retinue.tools.files.atomic_write import write_atomically
from retinue.tools.files.errors import FileChanged, FileTooLarge, PathNotFound
from retinue.tools.files.file_services import FileServices, finish_in_thread
from retinue.tools.files.file_snapshot import FileSnapshot, read_snapshot, read_snapshot_if_exists
from retinue.tools.files.file_types import detect_binary_type
from retinue.tools.files.path_access import ResolvedPath, locate, open_folder_for_listing
from retinue.tools.files.write_tool import encode_text, write_changed

FILES_LISTED_MAX = 200
DIRECTORY_ENTRIES_MAX = 2_000  # per directory
DIRECTORY_DEPTH_MAX = 6
FILE_BYTES_MAX = 262_144
MEMORY_DIRECTORY = "internal_space"


class AgentFilesRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class AgentFileRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    path: Annotated[str, msgspec.Meta(description="path in the agent directory, such as SOUL.md")]


class AgentFileWriteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Write a file of an agent. `hash` is the hash of the file as you last read it, or empty for a new file."""

    name: str
    path: Annotated[str, msgspec.Meta(description="path in the agent directory, such as SOUL.md")]
    content: Annotated[str, msgspec.Meta(description="complete new text of the file")]
    hash: Annotated[
        str,
        msgspec.Meta(
            description="hash from your last read, empty for a new file; nothing is written if the file has changed"
        ),
    ]
    mark_trusted: Annotated[
        bool, msgspec.Meta(description="mark the file as trusted, even if its text came from an untrusted source")
    ] = False


class AgentFileRow(msgspec.Struct, frozen=True):
    """One file of an agent. `hash` is null if the file is too large to be shown."""

    path: str
    size_bytes: int
    modified_at: str
    hash: str | None


class AgentFileList(msgspec.Struct, frozen=True):
    name: str
    files: list[AgentFileRow]
    has_more: bool


class AgentFileDetails(msgspec.Struct, frozen=True):
    """One file of an agent, with its content. `trust` is `untrusted` if the content came from untrusted text."""

    name: str
    path: str
    content: str
    size_bytes: int
    modified_at: str
    hash: str
    trust: Trust


class AgentFileWritten(msgspec.Struct, frozen=True):
    name: str
    path: str
    size_bytes: int
    hash: str
    created: bool


async def list_files(services: Services, caller: Principal, request: AgentFilesRequest) -> AgentFileList:
    context = await _build_tool_context(services, caller, request.name)
    found, more = await asyncio.to_thread(_find_files, services, context)
    return AgentFileList(context.agent.name, found, has_more=more)


async def show_file(services: Services, caller: Principal, request: AgentFileRequest) -> AgentFileDetails:
    file_services = _require_file_services(services)
    context = await _build_tool_context(services, caller, request.name)
    with _as_api_errors():
        location = await asyncio.to_thread(_resolve_path, request.path, context, PermissionKind.READ, file_services)
        async with file_services.lock_file(location.real):
            snapshot = await asyncio.to_thread(
                partial(read_snapshot, location.real, text=request.path, bytes_max=FILE_BYTES_MAX)
            )
            trust = await file_services.trust_of(location.real, snapshot)
        return AgentFileDetails(
            context.agent.name,
            path=_relative_path(location, context),
            content=_decode_text(snapshot, request.path),
            size_bytes=len(snapshot.data),
            modified_at=_changed_at(services, snapshot.status),
            hash=_hash(snapshot.data),
            trust=trust,
        )


async def write_file(services: Services, caller: Principal, request: AgentFileWriteRequest) -> AgentFileWritten:
    """Write a file atomically, and only if it is unchanged since the caller read it."""
    file_services = _require_file_services(services)
    context = await _build_tool_context(services, caller, request.name)
    with _as_api_errors():
        data = encode_text(request.content, request.path)
        if len(data) > FILE_BYTES_MAX:
            raise AgentFileTooLarge(request.path, size_bytes=len(data), bytes_max=FILE_BYTES_MAX)
        location = await asyncio.to_thread(_resolve_path, request.path, context, PermissionKind.WRITE, file_services)
        async with file_services.lock_file(location.real):
            old = await asyncio.to_thread(
                partial(read_snapshot_if_exists, location.real, text=request.path, bytes_max=FILE_BYTES_MAX)
            )
            _check_unchanged(old, request)
            if old is None or request.mark_trusted:
                was = old.status if old is not None else None
                placed = await finish_in_thread(partial(write_atomically, location, data, text=request.path, was=was))
                await file_services.mark_clean(location.real, context, ctime_ms=placed.ctime_ms)
            else:  # keep the trust of the file: most of its text may be unchanged
                await write_changed(file_services, location, old, data, text=request.path, context=context)
    path = _relative_path(location, context)
    await _emit_agent_changed(services, caller, context.agent, path)
    return AgentFileWritten(context.agent.name, path, size_bytes=len(data), hash=_hash(data), created=old is None)


async def _emit_agent_changed(services: Services, caller: Principal, agent: Agent, path: str) -> None:
    def body(conn: sa.Connection) -> None:
        tx = Transaction(conn, to_ms(services.clock.now()))
        tx.emit(EventKind.AGENT_CHANGED, agent=agent.name, version=agent.version, file=path, by=str(caller.address))
        tx.close()

    await services.store.write(body, point="agent")


async def _build_tool_context(services: Services, caller: Principal, name: str) -> ToolContext:
    """Return a tool context for the agent's file tools. It has no grants, and its workspace is the agent directory."""
    if caller.address.kind is not AddressKind.PERSON:
        raise AgentFilesPeopleOnly
    agent = await services.store.read(partial(require_visible_agent, caller=caller, name=name))
    directory = await asyncio.to_thread(ensure_agent_directory, services.data_dir, agent.name)
    id_ = services.ids.new()
    return ToolContext(
        agent=agent,
        session=SessionId(id_),
        run=RunId(id_),
        call="",
        agent_directory=directory,
        rights=default_rights(directory, directory),
        sender=caller.address,
        trust=caller.trust,
    )


def _require_file_services(services: Services) -> FileServices:
    if services.file_services is None:
        raise AgentFilesUnavailable
    return services.file_services


def _resolve_path(path: str, context: ToolContext, access: PermissionKind, file_services: FileServices) -> ResolvedPath:
    """Return the file for a path in the agent directory. Raise for absolute paths, and for files not shown to people.

    If absolute paths were accepted, callers could find out where the data directory is.
    """
    location = locate(path, context, access, file_services.withheld)
    if path.startswith(("/", "~")) or not defines_agent(_relative_path(location, context)):
        raise AgentFileNotShown(path, memory_folder=MEMORY_DIRECTORY, skills_folder=SKILLS)
    return location


def _relative_path(location: ResolvedPath, context: ToolContext) -> str:
    return os.path.relpath(location.real, os.path.realpath(context.agent_directory))


def defines_agent(path: str) -> bool:
    """Return whether the file at this path, relative to the agent directory, is one of those that define an agent."""
    parts = PurePosixPath(path).parts
    if not parts or not is_fully_visible(path) or any(part.startswith(".") for part in parts):
        return False
    if len(parts) == 1 or parts[0] == MEMORY_DIRECTORY:
        return path.endswith(".md")
    return parts[0] == SKILLS


def _find_files(services: Services, context: ToolContext) -> tuple[list[AgentFileRow], bool]:
    directory = os.path.realpath(context.agent_directory)
    paths = sorted(
        islice(_walk_directory(directory, ""), FILES_LISTED_MAX + 1), key=lambda path: (path.count("/"), path)
    )
    found = [_to_file_row(services, directory, path) for path in paths[:FILES_LISTED_MAX]]
    return [row for row in found if row is not None], len(paths) > FILES_LISTED_MAX


def _walk_directory(directory: str, folder: str, *, depth: int = 1) -> Iterator[str]:
    """Yield the paths of the files that define the agent. Skip links and unreadable directories."""
    try:
        with (
            open_folder_for_listing(os.path.join(directory, folder), text=folder) as opened,
            os.scandir(opened) as entries,
        ):
            found = [
                (entry.name, os.stat(entry.name, dir_fd=opened, follow_symlinks=False).st_mode)
                for entry in islice(entries, DIRECTORY_ENTRIES_MAX)
            ]
    except (OSError, ToolFailed):
        return
    for name, mode in sorted(found):
        path = os.path.join(folder, name)
        if stat.S_ISREG(mode) and defines_agent(path):
            yield path
        elif stat.S_ISDIR(mode) and depth < DIRECTORY_DEPTH_MAX and (folder or name in (MEMORY_DIRECTORY, SKILLS)):
            yield from _walk_directory(directory, path, depth=depth + 1)


def _to_file_row(services: Services, directory: str, path: str) -> AgentFileRow | None:
    """Return the list row of a file, or None if it is not text or no longer exists."""
    real = os.path.join(directory, path)
    try:
        snapshot = read_snapshot(real, text=path, bytes_max=FILE_BYTES_MAX)
    except ToolFailed as failure:
        if not isinstance(failure, FileTooLarge):
            return None
        status = os.lstat(real)
        return AgentFileRow(path, status.st_size, _changed_at(services, status), hash=None)
    if detect_binary_type(snapshot.data) is not None:
        return None
    return AgentFileRow(path, len(snapshot.data), _changed_at(services, snapshot.status), hash=_hash(snapshot.data))


def _check_unchanged(current: FileSnapshot | None, request: AgentFileWriteRequest) -> None:
    if request.hash == (_hash(current.data) if current is not None else ""):
        return
    raise AgentFileChanged(request.path, expected=bool(request.hash))


def _decode_text(snapshot: FileSnapshot, path: str) -> str:
    try:
        if detect_binary_type(snapshot.data) is None:
            return snapshot.data.decode()
    except UnicodeDecodeError:
        pass
    raise AgentFileNotText(path)


@contextmanager
def _as_api_errors() -> Generator[None]:
    """Convert each error of the file tools into an API error with the same code and texts."""
    try:
        yield
    except ToolFailed as failure:
        kind = (
            NotFound if isinstance(failure, PathNotFound) else Conflict if isinstance(failure, FileChanged) else Invalid
        )
        raise kind(failure.sentence, because=failure.because, try_this=failure.try_this, code=failure.code) from failure


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changed_at(services: Services, status: os.stat_result) -> str:
    return format_time(from_ms(status.st_mtime_ns // 1_000_000), services.zone)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="agent.files",
        summary="List the files that define an agent.",
        parameters=AgentFilesRequest,
        handler=list_files,
        permission=PermissionLevel.PRIVILEGED,
        result=AgentFileList,
    ),
    Operation(
        name="agent.file",
        summary="Show one file that defines an agent.",
        parameters=AgentFileRequest,
        handler=show_file,
        permission=PermissionLevel.PRIVILEGED,
        result=AgentFileDetails,
    ),
    Operation(
        name="agent.write_file",
        summary="Write one file that defines an agent.",
        parameters=AgentFileWriteRequest,
        handler=write_file,
        permission=PermissionLevel.PRIVILEGED,
        has_effect=True,
        result=AgentFileWritten,
    ),
)
