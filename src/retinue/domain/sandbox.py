"""Choices of how commands are confined: set for the server, and possibly stricter for an agent."""

from __future__ import annotations

from enum import StrEnum


class SandboxMode(StrEnum):
    """Which sessions' commands are confined."""

    OFF = "off"
    NON_MAIN = "non-main"  # all sessions except those of the owner in a terminal or the web app
    ALL = "all"


class SandboxScope(StrEnum):
    """What shares one container. With bubblewrap nothing is shared: each command has its own
    sandbox."""

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
