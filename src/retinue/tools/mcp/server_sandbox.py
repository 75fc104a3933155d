"""Chooses the sandbox for commands of MCP servers. If the owner disabled sandboxing, commands run on the host."""

from __future__ import annotations

from retinue.config.sandbox import SandboxKind, SandboxMode
from retinue.sandbox.base import Sandbox
from retinue.tools.mcp.errors import McpSandboxUnavailable
from retinue.tools.mcp.server_status import FindServerSandbox
from retinue.tools.shell.sandbox_choice import SandboxChooser


def build_server_sandbox(chooser: SandboxChooser) -> FindServerSandbox:
    """Return a function that chooses the sandbox for the command of an MCP server.

    The choice is made as for the tool `exec`, except that no person can be asked, and that the mode
    `non-main` never disables the sandbox.
    """

    async def find_sandbox(server: str) -> Sandbox:
        settings = chooser.settings()
        if settings.kind is SandboxKind.OFF or settings.mode is SandboxMode.OFF:
            return chooser.host
        probe = await chooser.probe()
        if not probe.works:
            raise McpSandboxUnavailable(server, sandbox=settings.kind, because=probe.because, try_this=probe.try_this)
        docker = settings.kind is SandboxKind.DOCKER
        return chooser.container(f"mcp:{server}", None) if docker else chooser.bubblewrap

    return find_sandbox
