"""Permissions: what an agent may access beyond its workspace, written as tags: `web`, `read:/path`, `write:/path`.

This module compares paths as strings and reads no files. Code that opens files resolves both paths first (see
`tools/files/path_access`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from retinue.domain.value_errors import PermissionInvalid, PermissionPathInvalid

PERMISSION_PATH_BYTES_MAX = 4096
TOOL_GLOB_LENGTH_MAX = 128
# Control, bidirectional, invisible and surrogate characters. A person sees a path before it is
# permitted, and must be able to see every character of it.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)

# What an agent may write in its agent directory without a grant. The rest belongs to the server.
WRITABLE_IN_AGENT_DIRECTORY = ("SOUL.md", "USER.md", "internal_space", "heartbeat", "skills")


class PermissionKind(StrEnum):
    WEB = "web"
    READ = "read"
    WRITE = "write"
    TOOL = "tool"  # calls of tools whose name matches the glob


class Permission(Struct, frozen=True):
    """One permission. `target` is a path for files, a glob for tools, and empty for the web."""

    kind: PermissionKind
    target: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.target else self.kind.value

    def covers(self, other: Permission) -> bool:
        """Whether this permission includes the other. Write includes read; a folder includes everything in it."""
        if self.kind is other.kind and self.target == other.target:
            return True
        if other.kind is PermissionKind.READ and self.kind in (PermissionKind.READ, PermissionKind.WRITE):
            return is_within(other.target, self.target)
        if other.kind is PermissionKind.WRITE and self.kind is PermissionKind.WRITE:
            return is_within(other.target, self.target)
        return False


WEB_PERMISSION = Permission(PermissionKind.WEB)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is the folder or is inside it.

    Both paths must be absolute, without `..` and without a trailing `/`, because they are compared as strings.
    """
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


def is_fully_visible(text: str) -> bool:
    """Whether a person can see every character of the text."""
    return _INVISIBLE.search(text) is None


def parse_permission(tag: str) -> Permission:
    """Parse a permission tag, with or without a leading `@`. Surrounding whitespace is ignored."""
    access, colon, what = tag.strip().removeprefix("@").partition(":")
    if access == PermissionKind.WEB and not colon:
        return WEB_PERMISSION
    if access in (PermissionKind.READ, PermissionKind.WRITE) and colon:
        return Permission(PermissionKind(access), str(parse_absolute_path(what)))
    if access == PermissionKind.TOOL and what and is_fully_visible(what) and len(what) <= TOOL_GLOB_LENGTH_MAX:
        return Permission(PermissionKind.TOOL, what)
    raise PermissionInvalid(tag)


def parse_absolute_path(text: str) -> PurePosixPath:
    """Parse a path that a permission may name. Raises Invalid for any other path.

    The path must be absolute, fully visible and not too long.
    """
    because = ""
    if not text.startswith("/"):
        because = "it must be absolute"
    elif not is_fully_visible(text):
        because = "it has invisible characters"
    elif text != text.rstrip():
        because = "it ends with whitespace, which is easy to overlook"
    elif len(text.encode()) > PERMISSION_PATH_BYTES_MAX:
        because = f"it is longer than {PERMISSION_PATH_BYTES_MAX} bytes"
    elif ".." in PurePosixPath(text).parts:
        because = "it must not contain '..'"
    if because:
        raise PermissionPathInvalid(text, because=because)
    return PurePosixPath("/" + text.lstrip("/"))  # PurePosixPath keeps `//x`, which is a different path from `/x`


class AgentRights(Struct, frozen=True, kw_only=True):
    """Where an agent may read and write, and whether it may use the web.

    These are the rights to its workspace plus its grants. Relative paths start at `workspace`, which may be read and
    written.
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


@lru_cache(maxsize=1024)
def default_rights(agent_directory: Path, workspace: Path) -> AgentRights:
    """Return the rights of an agent that has no grants.

    They include its workspace and some paths of its agent directory, but not the web.
    """
    return AgentRights(workspace=workspace, write=tuple(agent_directory / name for name in WRITABLE_IN_AGENT_DIRECTORY))


def add_permissions(rights: AgentRights, granted: Iterable[Permission]) -> AgentRights:
    read, write, web = list(rights.read), list(rights.write), rights.web
    for permission in granted:
        match permission.kind:
            case PermissionKind.READ:
                read.append(Path(permission.target))
            case PermissionKind.WRITE:
                write.append(Path(permission.target))
            case PermissionKind.WEB:
                web = True
            case PermissionKind.TOOL:
                pass
    return AgentRights(workspace=rights.workspace, write=tuple(write), read=tuple(read), web=web)
