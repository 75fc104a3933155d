"""Errors of MCP servers and their tools: one class for each error code."""

from __future__ import annotations

from retinue.domain.errors import RetinueError
from retinue.sandbox.base import SandboxFailed
from retinue.tools.base import ToolFailed


class McpNotInstalled(RetinueError):
    """The package `mcp` is not installed."""

    code = "mcp.not_installed"

    def __init__(self) -> None:
        super().__init__(
            "this server has no MCP support",
            because="the extra `mcp` is not installed",
            try_this="pip install 'retinue[mcp]'",
        )


class McpConnectionLost(RetinueError):
    """The connection to an MCP server was lost."""

    code = "mcp.connection_lost"

    def __init__(self, *, because: str = "") -> None:
        super().__init__(
            "the connection to the MCP server was lost",
            because=because,
            try_this="wait until the MCP server has been restarted, or see: retinue mcp list",
        )


class McpSandboxUnavailable(SandboxFailed):
    """The configured sandbox does not work, so the command of an MCP server was not started."""

    code = "mcp.sandbox_unavailable"

    def __init__(self, server: str, *, sandbox: str, because: str, try_this: str) -> None:
        super().__init__(
            f"the MCP server '{server}' was not started",
            because=f"it must run in the sandbox {sandbox}, which does not work on this machine: {because}",
            try_this=try_this or "fix the sandbox: retinue doctor",
        )


class McpServerUnavailable(ToolFailed):
    """The MCP server is not connected, or its tools are not approved."""

    code = "mcp.unavailable"

    def __init__(self, server: str, *, state: str, because: str) -> None:
        super().__init__(
            f"you cannot use the MCP server '{server}' now",
            because=f"its state is {state}: {because}" if because else "it has just stopped",
            try_this="continue without it; the owner can see more with: retinue mcp list",
        )


class McpServerBusy(ToolFailed):
    """Too many calls are waiting for the MCP server."""

    code = "mcp.busy"

    def __init__(self, server: str, *, calls_max: int) -> None:
        super().__init__(
            f"too many calls to the MCP server '{server}'",
            because=f"{calls_max} calls are waiting, which is the limit",
            try_this="try again later",
        )


class McpCallTimeout(ToolFailed):
    """The MCP server did not answer a call in time. It is unknown whether the call was performed."""

    code = "mcp.timeout"

    def __init__(self, server: str, *, timeout_s: float) -> None:
        super().__init__(
            f"the MCP server '{server}' did not answer",
            because=f"it timed out after {timeout_s:g} s; it is unknown whether the call was performed",
            try_this="check whether the call had an effect before you repeat it",
        )


class McpQueueTimeout(ToolFailed):
    """A call waited too long for other calls of the same MCP server, and was not sent."""

    code = "mcp.queue_timeout"

    def __init__(self, server: str, *, timeout_s: float) -> None:
        super().__init__(
            f"the MCP server '{server}' was busy for {timeout_s:g} s",
            because="it was answering earlier calls, so this call was not sent",
            try_this="try again later",
        )


class McpCallInterrupted(ToolFailed):
    """The MCP server stopped during a call. It is unknown whether the call was performed."""

    code = "mcp.call_interrupted"

    def __init__(self, server: str) -> None:
        super().__init__(
            f"the MCP server '{server}' stopped during the call",
            because="the connection was lost; it is unknown whether the call was performed",
            try_this="check whether the call had an effect, then try again later",
        )


class McpAccessDenied(ToolFailed):
    """The agent is not among those that may use the MCP server."""

    code = "mcp.not_for_agent"

    def __init__(self, agent: str, server: str) -> None:
        super().__init__(
            f"{agent} cannot use the MCP server '{server}'",
            because=f"`mcp.{server}.agents` does not include it",
            try_this="ask the owner",
        )


class McpToolChanged(ToolFailed):
    """The MCP server changed the tool after the list of tools was sent to the model."""

    code = "mcp.tool_changed"

    def __init__(self, tool: str) -> None:
        super().__init__(
            f"the tool '{tool}' has changed",
            because="its MCP server has changed it since you got your list of tools",
            try_this="continue without it; your next turn has the new list of tools",
        )


class McpArgumentsInvalid(ToolFailed):
    """The arguments do not match the schema of the tool."""

    code = "mcp.arguments_invalid"

    def __init__(self, tool: str, *, because: str) -> None:
        super().__init__(
            f"invalid arguments for '{tool}'",
            because=because,
            try_this="call it again with arguments that match its parameters",
        )
