"""Chooses the sandbox for commands of MCP servers, or the host if the owner disabled sandboxing."""

from __future__ import annotations

from retinue.config.sandbox import SandboxKind, SandboxMode
from retinue.sandbox.base import Sandbox, SandboxFailed
from retinue.tools.mcp.server_status import SandboxOf
from retinue.tools.shell.sandbox_choice import Confining


def placed_by(confining: Confining) -> SandboxOf:
    """Choose as for `exec`, except that no person can be asked and there is no owner session."""

    async def place(server: str) -> Sandbox:
        settings = confining.settings()
        if settings.kind is SandboxKind.OFF or settings.mode is SandboxMode.OFF:
            return confining.host
        probe = await confining.probe()
        if not probe.works:
            raise SandboxFailed(
                f"the MCP server '{server}' was not begun",
                because=f"{settings.kind} does not work here, so it would run bare: {probe.because}",
                try_this=probe.try_this or "make the sandbox work: `retinue doctor`",
            )
        docker = settings.kind is SandboxKind.DOCKER
        return confining.container(f"mcp:{server}", None) if docker else confining.bubblewrap

    return place
