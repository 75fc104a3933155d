"""Permissions: what an agent may access beyond its workspace, written as tags: `web`, `read:/path`, `write:/path`.

This module compares paths as strings and reads no files. Code that opens files resolves both paths first (see
`tools/files/paths`).
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
CREATED_AGENTS_FOLDER = "staff"  # in an agent directory: workspaces of the agents that it created
WRITABLE_IN_AGENT_DIRECTORY = ("SOUL.md", "USER.md", "internal_space", "heartbeat", "skills")

# Kernel files, which expose the memory and environment of every process.
KERNEL_FOLDERS = ("/proc", "/sys", "/dev")

# Where keys are stored, in a user's home directory and in the system. A grant of a parent folder does not include them.
USER_KEY_PATHS = (
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
SYSTEM_KEY_PATHS = (
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
    """Whether a person can see every character of a text."""
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
    """Return the rights of an agent without any grant.

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


class ProtectedPaths(Struct, frozen=True, kw_only=True):
    """Paths that no agent may access, and paths of keys, which need a grant that names them.

    No agent may access the server's data, other agents' directories and kernel files, even with a grant. The keys are
    those of the system and of the user who runs the server. `data_directory` is RETINUE_HOME. All paths, in fields and
    arguments, must be resolved.
    """

    data_directory: Path | None = None
    user_home: Path | None = None

    def denied_because(self, path: str, *, agent_directory: Path, workspace: Path, granted: Iterable[Path]) -> str:
        """Return why access to a path is denied, or an empty string if it is not denied.

        A grant gives access to keys only if it names their folder or a path in that folder. A grant of `~/.ssh` does,
        and a grant of `~` does not.
        """
        if any(is_within(path, folder) for folder in KERNEL_FOLDERS):
            return "no agent may access files of the operating system"
        if (
            self.data_directory is not None
            and is_within(path, str(self.data_directory))
            and not self._is_agent_path(path, agent_directory, workspace)
        ):
            return "agents may not access the server's own state"
        for keys in self._key_paths():
            if is_within(path, keys) and not any(is_within(str(root), keys) for root in granted):
                return f"{keys} contains keys; only a grant that names it gives access"
        return ""

    def _key_paths(self) -> tuple[str, ...]:
        return (
            SYSTEM_KEY_PATHS if self.user_home is None else (*SYSTEM_KEY_PATHS, *_user_key_paths(str(self.user_home)))
        )

    def _is_agent_path(self, path: str, agent_directory: Path, workspace: Path) -> bool:
        if is_within(path, str(agent_directory)):
            return True
        # A workspace inside the data directory counts as the agent's own, unless it contains other agent directories.
        agents, own = str(agent_directory.parent), str(workspace)
        return (
            is_within(path, own)
            and own != str(self.data_directory)
            and is_within(own, str(self.data_directory))
            and (is_lent_workspace(own, agents) if is_within(own, agents) else not is_within(agents, own))
        )


def is_lent_workspace(workspace: str, agent_directories: str) -> bool:
    """Whether a workspace inside another agent's directory belongs to an agent that the other agent created.

    Such a workspace is `AGENTS/ADA/staff/BERT`, or below it.
    """
    parts = (
        PurePosixPath(workspace).relative_to(agent_directories).parts if is_within(workspace, agent_directories) else ()
    )
    return len(parts) >= 3 and parts[1] == CREATED_AGENTS_FOLDER


@lru_cache(maxsize=8)
def _user_key_paths(user_home: str) -> tuple[str, ...]:
    return tuple(f"{user_home.rstrip('/')}/{name}" for name in USER_KEY_PATHS)
