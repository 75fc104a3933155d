"""Permissions: what an agent may reach beyond its workspace, written as tags: `web`, `read:/path`, `write:/path`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from retinue.domain.errors import Invalid

PATH_LENGTH_MAX = 4096
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Access(StrEnum):
    WEB = "web"
    READ = "read"
    WRITE = "write"
    TOOL = "tool"  # calls of the tools whose name the glob fits


@dataclass(frozen=True, slots=True)
class Permission:
    """One thing that may be reached. `what` is a path for files, a glob for tools, and empty for the web."""

    access: Access
    what: str = ""

    def __str__(self) -> str:
        return f"{self.access}:{self.what}" if self.what else self.access.value

    def covers(self, other: Permission) -> bool:
        """Whether who has this needs no other. To write is to read; a folder is all that is in it."""
        if self.access is other.access and self.what == other.what:
            return True
        if other.access is Access.READ and self.access in (Access.READ, Access.WRITE):
            return PurePosixPath(other.what).is_relative_to(self.what)
        if other.access is Access.WRITE and self.access is Access.WRITE:
            return PurePosixPath(other.what).is_relative_to(self.what)
        return False


WEB = Permission(Access.WEB)


def parse(tag: str) -> Permission:
    """Read a tag, with or without an `@` before it."""
    access, colon, what = tag.strip().removeprefix("@").partition(":")
    if access == Access.WEB and not colon:
        return WEB
    if access in (Access.READ, Access.WRITE) and colon:
        return Permission(Access(access), str(absolute(what)))
    if access == Access.TOOL and what and not _UNPRINTABLE.search(what) and len(what) <= 128:
        return Permission(Access.TOOL, what)
    raise Invalid(
        f"{tag[:200]!r} is not a permission",
        because="a permission is `web`, `read:PATH`, `write:PATH` or `tool:NAME`",
        try_this="for example read:/home/maria/notes",
        code="permission.invalid",
    )


def absolute(text: str) -> PurePosixPath:
    """A path as a permission can name it: absolute, printable, and not too long."""
    because = ""
    if not text.startswith("/"):
        because = "a path in a permission is absolute"
    elif _UNPRINTABLE.search(text):
        because = "it has characters that cannot be seen"
    elif len(text.encode()) > PATH_LENGTH_MAX:
        because = f"it is longer than {PATH_LENGTH_MAX} bytes"
    elif ".." in PurePosixPath(text).parts:
        because = "a path in a permission has no '..'"
    if because:
        raise Invalid(
            f"{text[:200]!r} cannot be permitted", because=because, try_this="name the folder", code="permission.path"
        )
    return PurePosixPath(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Where an agent may read and write, and whether it may reach the web: its workspace, and what was granted.

    Relative paths begin at `workspace`, which may be read and written.
    """

    workspace: Path
    write: tuple[Path, ...] = ()
    read: tuple[Path, ...] = ()
    web: bool = False

    @property
    def writable(self) -> tuple[Path, ...]:
        return (self.workspace, *self.write)

    @property
    def readable(self) -> tuple[Path, ...]:
        return (self.workspace, *self.write, *self.read)


def with_granted(rights: Rights, granted: Iterable[Permission]) -> Rights:
    read, write, web = list(rights.read), list(rights.write), rights.web
    for permission in granted:
        match permission.access:
            case Access.READ:
                read.append(Path(permission.what))
            case Access.WRITE:
                write.append(Path(permission.what))
            case Access.WEB:
                web = True
            case Access.TOOL:
                pass
    return Rights(workspace=rights.workspace, write=tuple(write), read=tuple(read), web=web)
