"""MCP servers whose tools agents may use."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config.rules import Effect, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """One server: a command that speaks on its own input and output, or an address."""

    command: tuple[str, ...] = setting((), "The command that starts it, word by word.", effect=Effect.MESSAGE)
