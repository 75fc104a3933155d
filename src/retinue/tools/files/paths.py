"""Where a path leads, and whether an agent may go there.

A path is resolved first, links and all, and what comes out is compared with what the agent may reach. Then exactly that
path is walked, name by name from the top, following no link: whatever is put in its way meanwhile is refused rather
than followed. A link may thus lead from one place that the agent may reach to another, and nowhere else.

Hard links are the file itself under another name, and cannot be told from it: a file that was linked into the workspace
by somebody who may do so is read as what it is. A write makes a new file in the place of the name, so the other name
keeps its old content.
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

# O_PATH: a folder that may be entered but not listed can still be walked through. Other systems have no such thing.
_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: someone's FIFO must be refused, not waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Place(Struct, frozen=True):
    """Where a path really leads, and the folder by whose right the agent may go there. Both resolved."""

    real: str
    root: str


def locate(text: str, scene: Scene, access: Access, withheld: Withheld) -> Place:
    """The place that a path names, if the agent may go there; else `ToolFailed`, with the reason."""
    found = _find(text, scene, access, withheld)
    if isinstance(found, Place):
        return found
    raise found.failure


def lacking(text: str, scene: Scene, access: Access, withheld: Withheld) -> Sequence[Permission]:
    """What a person would have to grant for `locate` to succeed. Nothing, where no grant would help."""
    try:
        found = _find(text, scene, access, withheld)
    except ToolFailed:
        return ()
    return () if isinstance(found, Place) else found.needs


def seen(text: str) -> str:
    """A path as it is shown in an error: not all of a long one, and nothing that cannot be seen."""
    shown = text if len(text) <= PATH_SHOWN_MAX else text[:PATH_SHOWN_MAX] + "..."
    return shown if is_seen(shown) else repr(shown)[1:-1]


class Reach(Struct, frozen=True, kw_only=True):
    """What an agent may reach, as it is on the disk now: each root as it was named, and as it is.

    A granted root that is reached through a link does not count: see `as_granted`.
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
    # Each is resolved once for all that is asked of it here, and anew for the next call.
    resolved = {path: os.path.realpath(path) for path in {scene.home, *rights.readable}}
    roots = {path: (_plain(path), real) for path, real in resolved.items()}
    # A workspace inside another agent's is only good where it lies: a link there may be of that agent's making.
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
    """What is to be granted when somebody says yes to this: the place as it is now. A path that leads through a link
    would be another one as soon as the link is, and whoever may change the link could widen the grant."""
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
    except Invalid:  # what a person cannot be shown, nobody is asked about
        needs = ()
    return _Refused(_outside(text, access, real), needs)


def _written(text: str, scene: Scene) -> str:
    """A path as it was written, made absolute. `..` goes back by name, before any link is looked at."""
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
    """The workspace and what is named in the home may be reached by a link of the owner's. But one that lies in a
    folder where the agent may write could have been replaced by the agent: it counts only while it still lies there."""
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


# --- going there ---


@contextmanager
def entered(folder: str, *, text: str) -> Generator[int]:
    """A resolved folder, walked into from the top; following no link."""
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
    """The same, for whoever wants to know what is in it."""
    with entered(folder, text=text) as entry:
        with _explained(text):
            opened = os.open(".", _LIST, dir_fd=entry)
        try:
            yield opened
        finally:
            os.close(opened)


@contextmanager
def opened(real: str, *, text: str) -> Generator[BinaryIO]:
    """A plain file at a resolved path, to read."""
    folder, name = os.path.split(real)
    with entered(folder, text=text) as parent:
        with _explained(text):
            file = open_plain(name or ".", parent, text=text)
        with os.fdopen(file, "rb") as reading:
            yield reading


def open_plain(name: str, folder: int, *, text: str, flags: int = _READ) -> int:
    """Looked at before it is opened, because to open a device may already do something; and once more afterwards."""
    _need_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), text)
    file = os.open(name, flags, dir_fd=folder)
    try:
        _need_plain(os.fstat(file), text)
    except BaseException:
        os.close(file)
        raise
    return file


def enter_or_make(name: str, folder: int) -> int:
    """Open a folder in a folder; if there is none, make it."""
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
    """What the disk says, in words."""
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
