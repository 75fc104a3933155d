"""Errors of the operations on MCP servers."""

from __future__ import annotations

from retinue.domain.errors import Conflict


class McpToolsUnknown(Conflict):
    """An MCP server has not listed its tools yet, so they cannot be approved."""

    code = "mcp.tools_unknown"

    def __init__(self, server: str, *, because: str, try_this: str = "") -> None:
        super().__init__(
            f"the MCP server '{server}' has not listed its tools",
            because=because,
            try_this=try_this or f"wait a moment, then: retinue mcp show {server}",
        )


class McpHashMismatch(Conflict):
    """The given hash is not the hash of the tools that the MCP server offers now."""

    code = "mcp.hash_mismatch"

    def __init__(self, server: str) -> None:
        super().__init__(
            f"the current tools of the MCP server '{server}' are not the ones that you read",
            because="they have changed, or the hash was mistyped",
            try_this=f"read them again: retinue mcp approve {server}",
        )
