"""Permissions: what an agent may access beyond its workspace, written as tags: `web`, `read:/path`,
`write:/path`.

This module is pure: it compares paths as strings. Code that opens files resolves both sides first
(see `tools/files/paths`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from retinue.domain.errors import Invalid

PATH_LENGTH_MAX = 4096
TOOL_GLOB_LENGTH_MAX = 128
# Control, bidirectional, invisible and surrogate characters. A person is shown a path before it is
# permitted, and must see all of it.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)

# What an agent may write in its agent directory without a grant. The rest belongs to the server.
STAFF_FOLDER = "staff"  # in an agent directory: workspaces of the agents that it created
NAMED_IN_HOME = ("SOUL.md", "USER.md", "internal_space", "heartbeat", "skills")

# Kernel files, which expose the memory and environment of every process.
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")

# Where keys are stored, in a user's home directory and in the system. A grant for a folder above does not include them.
KEYS_IN_HOME = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".oci",
    ".netrc",
    ".pgpass",
    ".my.cnf",
    ".npmrc",
    ".pypirc",
    ".boto",
    ".s3cfg",
    ".git-credentials",
    ".vault-token",
    ".password-store",
    ".pki",
    ".mozilla",
    ".thunderbird",
    ".terraform.d/credentials.tfrc.json",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/google-chrome",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".local/share/keyrings",
    ".local/share/kwalletd",
)
KEYS_OF_SYSTEM = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/run/credentials",
    "/run/secrets",
    "/run/user",
    "/var/run/secrets",
)


class Access(StrEnum):
    WEB = "web"
    READ = "read"
    WRITE = "write"
    TOOL = "tool"  # calls of tools whose name matches the glob


class Permission(Struct, frozen=True):
    """One permission. `target` is a path for files, a glob for tools, and empty for the web."""

    access: Access
    what: str = ""

    def __str__(self) -> str:
        return f"{self.access}:{self.what}" if self.what else self.access.value

    def covers(self, other: Permission) -> bool:
        """Whether this permission includes the other. Write includes read; a folder includes
        everything in it."""
        if self.access is other.access and self.what == other.what:
            return True
        if other.access is Access.READ and self.access in (Access.READ, Access.WRITE):
            return within(other.what, self.what)
        if other.access is Access.WRITE and self.access is Access.WRITE:
            return within(other.what, self.what)
        return False


WEB = Permission(Access.WEB)


def within(path: str, folder: str) -> bool:
    """Whether a path is this folder or inside it.

    Both are compared as strings: absolute, without `..` and without a trailing `/`.
    """
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


def is_seen(text: str) -> bool:
    """Whether every character of a text is visible to a person."""
    return _UNSEEN.search(text) is None


def parse(tag: str) -> Permission:
    """Parse a permission tag, with or without a leading `@`. Surrounding whitespace is ignored."""
    access, colon, what = tag.strip().removeprefix("@").partition(":")
    if access == Access.WEB and not colon:
        return WEB
    if access in (Access.READ, Access.WRITE) and colon:
        return Permission(Access(access), str(absolute(what)))
    if access == Access.TOOL and what and is_seen(what) and len(what) <= TOOL_GLOB_LENGTH_MAX:
        return Permission(Access.TOOL, what)
    raise Invalid(
        f"{tag[:200]!r} is not a permission",
        because="a permission is `web`, `read:PATH`, `write:PATH` or `tool:NAME`",
        try_this="for example read:/home/maria/notes",
        code="permission.invalid",
    )


def absolute(text: str) -> PurePosixPath:
    """Return a path that a permission may name: absolute, fully visible and not too long. Raises
    Invalid otherwise."""
    because = ""
    if not text.startswith("/"):
        because = "a path in a permission is absolute"
    elif not is_seen(text):
        because = "it has characters that cannot be seen"
    elif text != text.rstrip():
        because = "it ends in white space, which nobody would notice"
    elif len(text.encode()) > PATH_LENGTH_MAX:
        because = f"it is longer than {PATH_LENGTH_MAX} bytes"
    elif ".." in PurePosixPath(text).parts:
        because = "a path in a permission has no '..'"
    if because:
        raise Invalid(
            f"{text[:200]!r} cannot be permitted", because=because, try_this="name the folder", code="permission.path"
        )
    return PurePosixPath("/" + text.lstrip("/"))  # PurePosixPath keeps `//x`, which is a different path from `/x`


class Rights(Struct, frozen=True, kw_only=True):
    """Where an agent may read and write, and whether it may use the web: its workspace plus its
    grants.

    Relative paths start at `workspace`, which may be read and written.
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
def default_rights(home: Path, workspace: Path) -> Rights:
    """Return the rights of an agent without any grant: its workspace and named parts of its agent
    directory. No web."""
    return Rights(workspace=workspace, write=tuple(home / name for name in NAMED_IN_HOME))


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


class Withheld(Struct, frozen=True, kw_only=True):
    """Paths that no agent may access, whatever was granted, and paths that need a grant of exactly
    that path.

    The first are the server's data, other agents' directories and kernel files. The second are the
    keys of the user who runs the server. `data_directory` is RETINUE_HOME. These and all paths
    below are resolved.
    """

    house: Path | None = None
    person: Path | None = None

    def because(self, path: str, *, home: Path, workspace: Path, granted: Iterable[Path]) -> str:
        """Return why access to a path is denied; empty if it is not.

        A grant includes keys only if it lies within their folder: a grant of `~/.ssh` does, a grant
        of `~` does not.
        """
        if any(within(path, folder) for folder in KERNEL_FOLDERS):
            return "the system's own files are for no agent"
        if self.house is not None and within(path, str(self.house)) and not self._is_own(path, home, workspace):
            return "the house keeps its own state from every agent"
        for keys in self._keys():
            if within(path, keys) and not any(within(str(root), keys) for root in granted):
                return f"keys lie in {keys}, and only a grant that names it opens it"
        return ""

    def _keys(self) -> tuple[str, ...]:
        return KEYS_OF_SYSTEM if self.person is None else (*KEYS_OF_SYSTEM, *_keys_of(str(self.person)))

    def _is_own(self, path: str, home: Path, workspace: Path) -> bool:
        if within(path, str(home)):
            return True
        # A workspace inside the data directory counts as the agent's own, unless it contains other agent directories.
        agents, own = str(home.parent), str(workspace)
        return (
            within(path, own)
            and own != str(self.house)
            and within(own, str(self.house))
            and (is_lent(own, agents) if within(own, agents) else not within(agents, own))
        )


def is_lent(workspace: str, homes: str) -> bool:
    """Whether a workspace inside another agent's directory belongs to an agent it created:
    `HOMES/ADA/staff/BERT`, or below."""
    parts = PurePosixPath(workspace).relative_to(homes).parts if within(workspace, homes) else ()
    return len(parts) >= 3 and parts[1] == STAFF_FOLDER


@lru_cache(maxsize=8)
def _keys_of(person: str) -> tuple[str, ...]:
    return tuple(f"{person.rstrip('/')}/{name}" for name in KEYS_IN_HOME)
