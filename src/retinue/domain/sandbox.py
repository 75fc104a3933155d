"""Options of the sandbox in which commands run. The server's settings define them; an agent may be stricter."""

from __future__ import annotations

from enum import StrEnum


class SandboxMode(StrEnum):
    """In which sessions commands are confined to the sandbox."""

    OFF = "off"
    NON_MAIN = "non-main"  # all sessions except those of the owner in a terminal or the web app
    ALL = "all"


class SandboxScope(StrEnum):
    """Which commands share one container. With bubblewrap, each command has a separate sandbox."""

    SESSION = "session"
    AGENT = "agent"
    SHARED = "shared"


class WorkspaceAccess(StrEnum):
    """How a sandboxed command can access the agent's workspace."""

    WRITE = "rw"
    READ = "ro"
    NONE = "none"


class SandboxVisibleSessions(StrEnum):
    """Which sessions the tools of a sandboxed session can see."""

    SPAWNED = "spawned"
    ALL = "all"
