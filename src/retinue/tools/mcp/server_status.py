"""The types for status and dependencies of MCP servers. An instance without any MCP server loads only these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from retinue.config.mcp import McpServerSettings
from retinue.domain.structs import replace
from retinue.sandbox.base import Sandbox

if TYPE_CHECKING:
    from retinue.tools.mcp.tool_list import McpToolList

FindServerSandbox = Callable[[str], Awaitable[Sandbox]]
"""Returns the sandbox for the command of a server. If it does not work, raises `SandboxFailed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerDependencies:
    """What MCP servers need to run.

    `folder` contains a folder for each server, which is all that the server sees of the data
    directory.
    """

    sandbox: FindServerSandbox
    folder: Path
    data_directory: Path
    environment: Mapping[str, str] = field(repr=False)


class McpConnectionState(StrEnum):
    """The state of an MCP server."""

    OFF = "off"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # for the owner to approve its tools
    FAILED = "failed"  # retried after a back-off


class McpConnectionStatus(Struct, frozen=True, kw_only=True):
    """The status of an MCP server. `tool_list` is its last tool list, even if it is not approved."""

    name: str
    state: McpConnectionState
    because: str = ""
    try_this: str = ""
    tool_list: McpToolList | None = None
    retry_at: datetime | None = None

    @property
    def is_usable(self) -> bool:
        return self.state is McpConnectionState.READY


def is_same_connection(one: McpServerSettings, other: McpServerSettings) -> bool:
    """Return whether a connection can stay open under the new settings.

    A change of `agents` does not affect the connection.
    """
    return replace(one, agents=()) == replace(other, agents=())
