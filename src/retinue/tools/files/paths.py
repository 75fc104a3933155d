"""Resolves paths and checks whether an agent may access them.

A path is resolved first, including links, and the result is compared with what the agent may
access. Then exactly that path is opened, name by name from the root, without following links. A
link put in the way meanwhile causes an error. So a link can lead only from one permitted path to
another.

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
    PATH_LENGTH_MAX,
    STAFF_FOLDER,
    Access,
    Permission,
    Withheld,
    absolute,
    is_seen,
    within,
)
from retinue.domain.storable_text import is_storable
from retinue.tools.base import Scene, ToolFailed

HOME = "~/"
PATH_SHOWN_MAX = 200  # characters

# O_PATH allows walking through a folder that may be entered but not listed. Other systems lack it.
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO must be refused, not waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """A resolved path, and the resolved root folder by which the agent may access it."""

    real: str
    root: str


def locate(text: str, scene: Scene, access: Access, withheld: Withheld) -> Place:
    """Return the resolved path if the agent may access it. Raises `ToolFailed` with the reason
    otherwise.
    """
    found = _find(text, scene, access, withheld)
    if isinstance(found, Place):
        return found
    raise found.failure


def lacking(text: str, scene: Scene, access: Access, withheld: Withheld) -> Sequence[Permission]:
    """Return the permissions that would make `locate` succeed; empty if none are missing or none
    would help.
    """
    try:
        found = _find(text, scene, access, withheld)
    except ToolFailed:
        return ()
    return () if isinstance(found, Place) else found.needs


def seen(text: str) -> str:
    """Format a path for an error: shortened, and with invisible characters escaped."""
    shown = text if len(text) <= PATH_SHOWN_MAX else text[:PATH_SHOWN_MAX] + "..."
    return shown if is_seen(shown) else repr(shown)[1:-1]


class Reach(Struct, frozen=True, kw_only=True):
    """The paths an agent may access, as they are on disk now.

    Each root is a pair: as named, and resolved. A granted root that is now reached through a link
    does not count; see `resolve_permission`.
    """

    home: Path
    workspace: Path
    readable: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...]
    withheld: Withheld

    def why_withheld(self, real: str) -> str:
        granted = (Path(root) for _, root in self.readable)
        return self.withheld.because(real, home=self.home, workspace=self.workspace, granted=granted)


def reach_of(scene: Scene, withheld: Withheld) -> Reach:
    rights = scene.rights
    # Resolve each root once per call of this function.
    resolved = {path: os.path.realpath(path) for path in {scene.home, *rights.readable}}
    roots = {path: (_plain(path), real) for path, real in resolved.items()}
    # A workspace inside another agent's workspace counts only at its own path: that agent could have made a link there.
    own = rights.workspace if STAFF_FOLDER not in rights.workspace.parts else None
    given = {path for path in rights.readable if path == own or path.is_relative_to(scene.home)}
    changeable = [roots[path] for path in rights.writable]

    def counting(paths: Iterable[Path]) -> tuple[tuple[str, str], ...]:
        return tuple(
            roots[path]
            for path in paths
            if (_still_lies(roots[path], changeable) if path in given else roots[path][0] == roots[path][1])
        )

    return Reach(
        home=Path(resolved[scene.home]),
        workspace=Path(resolved[rights.workspace]),
        readable=counting(rights.readable),
        writable=counting(rights.writable),
        withheld=withheld,
    )


def as_granted(permission: Permission) -> Permission:
    """Return the permission with its path resolved now.

    A grant for a path through a link would change with the link, so anyone able to change the link
    could widen the grant.
    """
    if permission.access in (Access.READ, Access.WRITE):
        return Permission(permission.access, str(absolute(os.path.realpath(permission.what))))
    return permission


class _Refused(Struct, frozen=True):
    failure: ToolFailed
    needs: tuple[Permission, ...] = ()


def _find(text: str, scene: Scene, access: Access, withheld: Withheld) -> Place | _Refused:
    written = _written(text, scene)
    real = os.path.realpath(written)
    if not is_storable(real):
        return _Refused(_no_path(text, "it leads to a name that is no text"))
    reach = reach_of(scene, withheld)
    roots = reach.readable if access is Access.READ else reach.writable
    if because := reach.why_withheld(real):
        return _Refused(ToolFailed(f"'{seen(text)}' is withheld", because=because, code="path.withheld"))
    for _, root in roots:
        if within(real, root):
            return Place(real, root)
    if real != written and any(within(written, root) for each in roots for root in each):
        return _Refused(
            ToolFailed(
                f"'{seen(text)}' is a link that leads outside",
                because="a link is followed only to where you may go anyway",
                try_this="name the file by its own path; then somebody can be asked for it",
                code="path.link",
            )
        )
    try:
        needs = (Permission(access, str(absolute(real))),)
    except Invalid:  # never ask a person about a path that cannot be shown
        needs = ()
    return _Refused(_outside(text, access, real), needs)


def _written(text: str, scene: Scene) -> str:
    """Return the path as an absolute path. `..` is resolved by name, before any link."""
    because = ""
    if not text:
        because = "it is empty"
    elif not is_seen(text):
        because = "it has characters that cannot be seen"
    elif len(text.encode()) > PATH_LENGTH_MAX:
        because = f"it is longer than {PATH_LENGTH_MAX} bytes"
    if because:
        raise _no_path(text, because)
    if text == "~" or text.startswith(HOME):
        joined = os.path.join(scene.home, text[len(HOME) :])
    else:
        joined = os.path.join(scene.rights.workspace, text)
    return "/" + os.path.normpath(joined).lstrip("/")


def _no_path(text: str, because: str) -> ToolFailed:
    return ToolFailed(
        f"'{seen(text)}' is not a path", because=because, try_this="for example notes/today.md", code="path.invalid"
    )


def _still_lies(root: tuple[str, str], changeable: Iterable[tuple[str, str]]) -> bool:
    """Return whether a root still lies inside each writable folder that contains it.

    The owner may use links for the workspace and the agent's folders. A link inside a writable
    folder could have been placed by the agent, so such a root counts only while it stays inside.
    """
    named, real = root
    return all(
        within(real, folder_real)
        for folder_named, folder_real in changeable
        if (named != folder_named and within(named, folder_named))
        or (named != folder_real and within(named, folder_real))
    )


def _plain(path: Path) -> str:
    return "/" + os.path.normpath(path).lstrip("/")


def _outside(text: str, access: Access, real: str) -> ToolFailed:
    return ToolFailed(
        f"'{seen(text)}' lies outside of what you may {access}",
        because="you have your workspace and what was granted to you",
        try_this=f"ask for {access}:{seen(real)} with request_permission, or use a path in your workspace",
        code="path.outside",
    )


# --- opening ---


@contextmanager
def entered(folder: str, *, text: str) -> Generator[int]:
    """Open a resolved folder by walking from the root without following links."""
    with _explained(text):
        opened = os.open("/", _ENTER)
    try:
        for part in folder.split("/"):
            if part:
                with _explained(text):
                    deeper = os.open(part, _ENTER, dir_fd=opened)
                os.close(opened)
                opened = deeper
        yield opened
    finally:
        os.close(opened)


@contextmanager
def listed(folder: str, *, text: str) -> Generator[int]:
    """Open a resolved folder for listing, without following links."""
    with entered(folder, text=text) as entry:
        with _explained(text):
            opened = os.open(".", _LIST, dir_fd=entry)
        try:
            yield opened
        finally:
            os.close(opened)


@contextmanager
def opened(real: str, *, text: str) -> Generator[BinaryIO]:
    """Open a regular file at a resolved path for reading."""
    folder, name = os.path.split(real)
    with entered(folder, text=text) as parent:
        with _explained(text):
            file = open_plain(name or ".", parent, text=text)
        with os.fdopen(file, "rb") as reading:
            yield reading


def open_plain(name: str, folder: int, *, text: str, flags: int = _READ) -> int:
    """Open a regular file. Its type is checked before opening, because opening a device can have
    effects.

    It is checked again afterwards.
    """
    _need_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), text)
    file = os.open(name, flags, dir_fd=folder)
    try:
        _need_plain(os.fstat(file), text)
    except BaseException:
        os.close(file)
        raise
    return file


def enter_or_make(name: str, folder: int) -> int:
    """Open a folder inside a folder, and create it if it is missing."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass
    return os.open(name, _ENTER, dir_fd=folder)


def open_folder(name: str, folder: int) -> int:
    return os.open(name, _LIST, dir_fd=folder)


def _need_plain(status: os.stat_result, text: str) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if stat.S_ISDIR(mode):
        raise ToolFailed(
            f"'{seen(text)}' is a folder", because="only files can be read", try_this="use ls", code="path.no-file"
        )
    raise ToolFailed(
        f"'{seen(text)}' is not a file", because="only plain files can be read or written", code="path.no-file"
    )


@contextmanager
def _explained(text: str) -> Generator[None]:
    """Convert an `OSError` to a `ToolFailed`."""
    try:
        yield
    except OSError as error:
        raise explain(text, error) from error


def explain(text: str, error: OSError) -> ToolFailed:
    shown = seen(text)
    match error.errno:
        case errno.ENOENT:
            return ToolFailed(
                f"there is no '{shown}'",
                because="no such file or folder",
                try_this="use ls or find to see what is there",
                code="path.not-found",
            )
        case errno.ELOOP | errno.EMLINK:
            return ToolFailed(
                f"'{shown}' leads through a link",
                because="it was put there while the path was followed",
                code="path.link",
            )
        case errno.ENOTDIR:
            return ToolFailed(
                f"'{shown}' leads through a file", because="a part of it is not a folder", code="path.not-found"
            )
        case errno.ENOSPC | errno.EDQUOT:
            return ToolFailed(
                f"there is no room for '{shown}'", because="the disk is full; nothing was changed", code="path.full"
            )
        case _:
            return ToolFailed(
                f"'{shown}' cannot be used",
                because=os.strerror(error.errno) if error.errno else "the disk did not say why",
                code="path.unusable",
            )
