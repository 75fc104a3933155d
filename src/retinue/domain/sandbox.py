"""What can be chosen of how commands are confined: by the house, and more strictly by an agent."""

from __future__ import annotations

from enum import StrEnum


class SandboxMode(StrEnum):
    """Whose commands are confined."""

    OFF = "off"
    NON_MAIN = "non-main"  # of every session but those in which the owner sits at a terminal or a page
    ALL = "all"


class Scope(StrEnum):
    """Who shares one container. In bubblewrap nobody shares anything: each command has its own."""

    SESSION = "session"
    AGENT = "agent"
    SHARED = "shared"


class WorkspaceAccess(StrEnum):
    """What a sandboxed command has of the agent's workspace."""

    WRITE = "rw"
    READ = "ro"
    NONE = "none"


class SessionsSeen(StrEnum):
    """Of which sessions the tools of a sandboxed session tell."""

    SPAWNED = "spawned"
    ALL = "all"
