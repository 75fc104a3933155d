"""Determines how an agent's commands are confined: the server's settings, made stricter by the agent's own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from retinue.config.sandbox import DockerSettings, SandboxKind, SandboxSettings
from retinue.domain.agent import Agent, SandboxRules
from retinue.domain.sandbox import SandboxMode, Scope, SessionsSeen, WorkspaceAccess
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace

T = TypeVar("T")

# From strictest.
_MODES = (SandboxMode.ALL, SandboxMode.NON_MAIN, SandboxMode.OFF)
_SCOPES = (Scope.SESSION, Scope.AGENT, Scope.SHARED)
_ACCESS = (WorkspaceAccess.NONE, WorkspaceAccess.READ, WorkspaceAccess.WRITE)
_SEEN = (SessionsSeen.SPAWNED, SessionsSeen.ALL)
_PLAIN = SandboxRules()


def sandbox_of(house: SandboxSettings, agent: Agent, *senders: Agent) -> SandboxSettings:
    """Return the settings for an agent: the stricter value of each, including those of the agents that spawned it.

    An image is neither stricter nor looser. The agent's own is used, or that of the agent that
    spawned it.
    """
    for each in (agent, *senders):
        house = _stricter_by(house, each.sandbox)
    return house


def _stricter_by(house: SandboxSettings, own: SandboxRules) -> SandboxSettings:
    if own == _PLAIN:
        return house
    return replace(
        house,
        mode=_stricter(_MODES, house.mode, own.mode),
        scope=_stricter(_SCOPES, house.scope, own.scope),
        workspace=_stricter(_ACCESS, house.workspace, own.workspace),
        sessions=_stricter(_SEEN, house.sessions, own.sessions),
        browser=house.browser and own.browser is not False,
        docker=_docker_of(house.docker, own),
    )


def _docker_of(house: DockerSettings, own: SandboxRules) -> DockerSettings:
    return replace(
        house,
        image=own.image or house.image,
        cpus=_less(house.cpus, own.cpus),
        idle_hours=_less(house.idle_hours, own.idle_hours),
        age_days=_less(house.age_days, own.age_days),
    )


def is_main(origin: Origin, owner: str) -> bool:
    """Whether only the owner writes in a session. False for channels, where others may write."""
    return origin.kind in (OriginKind.TERMINAL, OriginKind.WEB) and origin.belongs_to(owner)


def is_confined(sandbox: SandboxSettings, *, main: bool) -> bool:
    """Whether a session's commands must run in a sandbox, even if none works on this machine."""
    if sandbox.kind is SandboxKind.OFF or sandbox.mode is SandboxMode.OFF:
        return False
    return sandbox.mode is SandboxMode.ALL or not main


def _stricter(strictest_first: Sequence[T], house: T, own: T | None) -> T:
    return min(house, house if own is None else own, key=strictest_first.index)


def _less(house: float, own: float | None) -> float:
    return house if own is None else min(house, own)
