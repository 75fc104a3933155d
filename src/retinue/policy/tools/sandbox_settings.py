"""Merges the server's sandbox settings with the settings of an agent, which can only be stricter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from retinue.config.sandbox import DockerSettings, SandboxKind, SandboxSettings
from retinue.domain.agent import Agent, SandboxRules
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace

T = TypeVar("T")

# Each list begins with the strictest value.
_MODES = (SandboxMode.ALL, SandboxMode.NON_MAIN, SandboxMode.OFF)
_SCOPES = (SandboxScope.SESSION, SandboxScope.AGENT, SandboxScope.SHARED)
_ACCESS = (WorkspaceAccess.NONE, WorkspaceAccess.READ, WorkspaceAccess.WRITE)
_SESSIONS = (SandboxVisibleSessions.SPAWNED, SandboxVisibleSessions.ALL)
_NO_RULES = SandboxRules()


def merge_sandbox_settings(server: SandboxSettings, agent: Agent, *parents: Agent) -> SandboxSettings:
    """Return the sandbox settings for an agent.

    Each setting has the strictest value that the server, the agent, or an agent that started it
    (`parents`) has set. Images cannot be compared in this way. If a parent has set an image, that
    image is used, otherwise the agent's image, otherwise the server's.
    """
    for each in (agent, *parents):
        server = _tighten(server, each.sandbox)
    return server


def _tighten(server: SandboxSettings, own: SandboxRules) -> SandboxSettings:
    if own == _NO_RULES:
        return server
    return replace(
        server,
        mode=_pick_stricter(_MODES, server.mode, own.mode),
        scope=_pick_stricter(_SCOPES, server.scope, own.scope),
        workspace=_pick_stricter(_ACCESS, server.workspace, own.workspace),
        visible_sessions=_pick_stricter(_SESSIONS, server.visible_sessions, own.visible_sessions),
        browser=server.browser and own.browser is not False,
        docker=_tighten_docker(server.docker, own),
    )


def _tighten_docker(server: DockerSettings, own: SandboxRules) -> DockerSettings:
    return replace(
        server,
        image=own.image or server.image,
        cpus=_pick_lower(server.cpus, own.cpus),
        idle_hours=_pick_lower(server.idle_hours, own.idle_hours),
        age_days=_pick_lower(server.age_days, own.age_days),
    )


def is_main_session(origin: Origin, owner: str) -> bool:
    """Whether the owner opened the session in a terminal or the web app.

    Sessions of channels do not count, because other people may write there.
    """
    return origin.kind in (OriginKind.TERMINAL, OriginKind.WEB) and origin.belongs_to(owner)


def is_confined(sandbox: SandboxSettings, *, is_main: bool) -> bool:
    """Whether the commands of a session must run in a sandbox.

    The answer does not depend on whether a sandbox works on this machine.
    """
    if sandbox.kind is SandboxKind.OFF or sandbox.mode is SandboxMode.OFF:
        return False
    return sandbox.mode is SandboxMode.ALL or not is_main


def _pick_stricter(strictest_first: Sequence[T], server: T, own: T | None) -> T:
    return min(server, server if own is None else own, key=strictest_first.index)


def _pick_lower(server: float, own: float | None) -> float:
    return server if own is None else min(server, own)
