"""Resolves paths and checks whether an agent may access them.

A path is resolved first, including links, and the result is compared with what the agent may
access. Then exactly that path is opened, name by name from the root, without following links. If a
link has been put into the path in the meantime, that is an error. Thus a link can lead only from one
permitted path to another.

A hard link cannot be distinguished from the file itself, so a file that was hard-linked into the
workspace can be read. A write creates a new file under the name, so the other name keeps its
content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from retinue.domain.errors import Invalid
from retinue.domain.permission import (
    PERMISSION_PATH_BYTES_MAX,
    Permission,
    PermissionKind,
    is_fully_visible,
    is_within,
    parse_absolute_path,
)
from retinue.domain.protected_paths import CREATED_AGENTS_FOLDER, ProtectedPaths
from retinue.domain.storable_text import is_storable
from retinue.tools.base import ToolContext, ToolFailed
from retinue.tools.files.errors import (
    PathDiskFull,
    PathInvalid,
    PathIsFolder,
    PathLinksOutside,
    PathNotFound,
    PathNotRegularFile,
    PathOutside,
    PathProtected,
    PathThroughLink,
    PathUnusable,
)
from retinue.tools.files.errors import format_path as format_path  # re-exported

HOME_PREFIX = "~/"

# O_PATH allows walking through a folder that may be entered but not listed. Other systems lack it.
_ENTER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO must be refused, not waited for.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ResolvedPath(Struct, frozen=True):
    """A resolved path, and the resolved root folder by which the agent may access it."""

    real: str
    root: str


def locate(text: str, context: ToolContext, access: PermissionKind, withheld: ProtectedPaths) -> ResolvedPath:
    """Return the resolved path if the agent may access it. Otherwise raises `ToolFailed` with the reason."""
    found = _resolve(text, context, access, withheld)
    if isinstance(found, ResolvedPath):
        return found
    raise found.failure


def missing_permissions(
    text: str, context: ToolContext, access: PermissionKind, withheld: ProtectedPaths
) -> Sequence[Permission]:
    """Return the permissions that would make `locate` succeed.

    Empty if no permission is missing, or if none would help.
    """
    try:
        found = _resolve(text, context, access, withheld)
    except ToolFailed:
        return ()
    return () if isinstance(found, ResolvedPath) else found.missing_permissions


class ReachablePaths(Struct, frozen=True, kw_only=True):
    """The paths an agent may access, as they are on disk now.

    Each root is a pair of paths: the named path, and the same path with all links resolved. A
    granted root that is now reached through a link is left out; see `resolve_permission`.
    """

    agent_directory: Path
    workspace: Path
    readable: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...]
    withheld: ProtectedPaths

    def why_withheld(self, real: str) -> str:
        granted = (Path(root) for _, root in self.readable)
        return self.withheld.denied_because(
            real, agent_directory=self.agent_directory, workspace=self.workspace, granted=granted
        )


def find_reachable_paths(context: ToolContext, withheld: ProtectedPaths) -> ReachablePaths:
    rights = context.rights
    # Resolve each root once per call of this function.
    resolved = {path: os.path.realpath(path) for path in {context.agent_directory, *rights.readable}}
    roots = {path: (_normalize(path), real) for path, real in resolved.items()}
    # A workspace inside another agent's workspace counts only at its own path: that agent could have made a link there.
    own = rights.workspace if CREATED_AGENTS_FOLDER not in rights.workspace.parts else None
    given = {path for path in rights.readable if path == own or path.is_relative_to(context.agent_directory)}
    changeable = [roots[path] for path in rights.writable]

    def counting(paths: Iterable[Path]) -> tuple[tuple[str, str], ...]:
        return tuple(
            roots[path]
            for path in paths
            if (_is_still_inside(roots[path], changeable) if path in given else roots[path][0] == roots[path][1])
        )

    return ReachablePaths(
        agent_directory=Path(resolved[context.agent_directory]),
        workspace=Path(resolved[rights.workspace]),
        readable=counting(rights.readable),
        writable=counting(rights.writable),
        withheld=withheld,
    )


def resolve_permission(permission: Permission) -> Permission:
    """Return the permission with all links in its path resolved.

    A grant for a path through a link would change with the link, so anyone able to change the link
    could widen the grant.
    """
    if permission.kind in (PermissionKind.READ, PermissionKind.WRITE):
        return Permission(permission.kind, str(parse_absolute_path(os.path.realpath(permission.target))))
    return permission


class _RefusedPath(Struct, frozen=True):
    failure: ToolFailed
    missing_permissions: tuple[Permission, ...] = ()


def _resolve(
    text: str, context: ToolContext, access: PermissionKind, withheld: ProtectedPaths
) -> ResolvedPath | _RefusedPath:
    written = _make_absolute(text, context)
    real = os.path.realpath(written)
    if not is_storable(real):
        return _RefusedPath(PathInvalid(text, because="it leads to a name that is not valid text"))
    reach = find_reachable_paths(context, withheld)
    roots = reach.readable if access is PermissionKind.READ else reach.writable
    if because := reach.why_withheld(real):
        return _RefusedPath(PathProtected(text, because=because))
    for _, root in roots:
        if is_within(real, root):
            return ResolvedPath(real, root)
    if real != written and any(is_within(written, root) for each in roots for root in each):
        return _RefusedPath(PathLinksOutside(text))
    try:
        needs = (Permission(access, str(parse_absolute_path(real))),)
    except Invalid:  # never ask a person about a path that cannot be shown
        needs = ()
    return _RefusedPath(PathOutside(text, access=access, real=real), needs)


def _make_absolute(text: str, context: ToolContext) -> str:
    """Return the path as an absolute path. `..` removes the name before it, even if that name is a link."""
    because = ""
    if not text:
        because = "it is empty"
    elif not is_fully_visible(text):
        because = "it has invisible characters"
    elif len(text.encode()) > PERMISSION_PATH_BYTES_MAX:
        because = f"it has more than {PERMISSION_PATH_BYTES_MAX:,} bytes"
    if because:
        raise PathInvalid(text, because=because)
    if text == "~" or text.startswith(HOME_PREFIX):
        joined = os.path.join(context.agent_directory, text[len(HOME_PREFIX) :])
    else:
        joined = os.path.join(context.rights.workspace, text)
    return "/" + os.path.normpath(joined).lstrip("/")


def _is_still_inside(root: tuple[str, str], writable: Iterable[tuple[str, str]]) -> bool:
    """Return whether a folder is still inside the writable folders that contain its path, once links are resolved.

    The owner may use links for the workspace and the agent's folders. But a link inside a writable
    folder could have been placed by the agent, so the folder must not leave them through a link.
    """
    named, real = root
    return all(
        is_within(real, folder_real)
        for folder_named, folder_real in writable
        if (named != folder_named and is_within(named, folder_named))
        or (named != folder_real and is_within(named, folder_real))
    )


def _normalize(path: Path) -> str:
    return "/" + os.path.normpath(path).lstrip("/")


# --- opening ---


@contextmanager
def enter_folder(folder: str, *, text: str) -> Generator[int]:
    """Open a resolved folder by walking from the root without following links."""
    with _convert_os_errors(text):
        opened = os.open("/", _ENTER_FLAGS)
    try:
        for part in folder.split("/"):
            if part:
                with _convert_os_errors(text):
                    deeper = os.open(part, _ENTER_FLAGS, dir_fd=opened)
                os.close(opened)
                opened = deeper
        yield opened
    finally:
        os.close(opened)


@contextmanager
def open_folder_for_listing(folder: str, *, text: str) -> Generator[int]:
    """Open a resolved folder for listing, without following links."""
    with enter_folder(folder, text=text) as entry:
        with _convert_os_errors(text):
            opened = os.open(".", _LIST_FLAGS, dir_fd=entry)
        try:
            yield opened
        finally:
            os.close(opened)


@contextmanager
def open_file(real: str, *, text: str) -> Generator[BinaryIO]:
    """Open a regular file at a resolved path for reading."""
    folder, name = os.path.split(real)
    with enter_folder(folder, text=text) as parent:
        with _convert_os_errors(text):
            file = open_regular_file(name or ".", parent, text=text)
        with os.fdopen(file, "rb") as reading:
            yield reading


def open_regular_file(name: str, folder: int, *, text: str, flags: int = _READ_FLAGS) -> int:
    """Open a regular file. The type of the file is checked before opening, because opening a device can have effects.

    The type is checked again afterwards.
    """
    _require_regular_file(os.stat(name, dir_fd=folder, follow_symlinks=False), text)
    file = os.open(name, flags, dir_fd=folder)
    try:
        _require_regular_file(os.fstat(file), text)
    except BaseException:
        os.close(file)
        raise
    return file


def enter_or_create_folder(name: str, folder: int) -> int:
    """Open a folder inside a folder, and create it if it is missing."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass
    return os.open(name, _ENTER_FLAGS, dir_fd=folder)


def open_folder(name: str, folder: int) -> int:
    return os.open(name, _LIST_FLAGS, dir_fd=folder)


def _require_regular_file(status: os.stat_result, text: str) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if stat.S_ISDIR(mode):
        raise PathIsFolder(text)
    raise PathNotRegularFile(text)


@contextmanager
def _convert_os_errors(text: str) -> Generator[None]:
    """Convert an `OSError` to a `ToolFailed`."""
    try:
        yield
    except OSError as error:
        raise convert_os_error(text, error) from error


def convert_os_error(text: str, error: OSError) -> ToolFailed:
    match error.errno:
        case errno.ENOENT:
            return PathNotFound(text)
        case errno.ELOOP | errno.EMLINK:
            return PathThroughLink(text)
        case errno.ENOTDIR:
            return PathNotFound(text, through_file=True)
        case errno.ENOSPC | errno.EDQUOT:
            return PathDiskFull(text)
        case _:
            return PathUnusable(text, because=os.strerror(error.errno) if error.errno else "")
