"""All sandboxes of the house: where a command runs, what it may touch there, and with which secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retinue.config.sandbox import SandboxKind, SandboxSettings
from retinue.domain.ports import Clock
from retinue.sandbox.base import Confinement, Probe, Sandbox, SandboxFailed
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.choosing import Facts, choose, tightened
from retinue.sandbox.container import Containers
from retinue.sandbox.host import Host
from retinue.sandbox.secrets import applicable, with_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where one command runs. `confined` is false for one that runs bare."""

    sandbox: Sandbox
    confinement: Confinement
    confined: bool
    because: str


class Rooms:
    """Built once for a house; asks for the settings anew with each command.

    `state` is the house's own folder, `homes` the one in it that holds the homes of agents.
    """

    def __init__(
        self,
        settings: Callable[[], SandboxSettings],
        *,
        state: Path,
        homes: Path,
        user_home: Path,
        clock: Clock,
        environment: Mapping[str, str],
        bubblewrap: Bubblewrap | None = None,
        containers: Containers | None = None,
    ) -> None:
        self._settings = settings
        self._environment = environment
        now = settings()
        hidden: Sequence[Path] = (state, *now.hidden)
        folder = state / "sandbox"
        self._host = Host()
        self._bubblewrap = bubblewrap or Bubblewrap(folder=folder, state=hidden, homes=(homes,), user_home=user_home)
        self.containers = containers or Containers(
            now.docker, folder=folder, clock=clock, state=hidden, homes=(homes,), user_home=user_home
        )
        self._probes: dict[SandboxKind, Probe] = {}

    async def probe(self) -> Probe:
        """Try the one that is set. Asked when the house opens, and before the first command after a change."""
        kind = self._settings().kind
        if kind not in self._probes:
            self._probes[kind] = await self._of(kind, "shared").probe()
        return self._probes[kind]

    def works(self, facts: Facts) -> bool:
        """Whether a command of theirs runs where the settings say it should, without anyone being asked."""
        return choose(self._settings(), facts, self._probes).decision.allowed

    async def place(self, facts: Facts, asked: Confinement, *, program: Path | None, bare: bool = False) -> Room:
        """The room for one command: with the settings' bounds, and the secrets that it may use.

        `bare` is a decision that was made elsewhere: a person or a rule lets this command leave the sandbox.
        """
        settings = self._settings()
        await self.probe()
        choice = choose(settings, facts, self._probes)
        if not bare and not choice.decision.allowed:
            raise SandboxFailed(
                "the command was not begun",
                because=choice.decision.because,
                try_this="have it approved to run bare, or make the sandbox work: `retinue doctor`",
            )
        kind = SandboxKind.OFF if bare else choice.kind
        confinement = tightened(settings, facts, asked)
        if kind is SandboxKind.OFF:  # it has the network of the house itself: there are no rules to hold it to
            confinement = replace(confinement, network=None)
        given = applicable(settings, facts.agent, program or Path(), confinement)
        return Room(
            sandbox=self._of(kind, choice.key),
            confinement=with_secrets(confinement, given, self._environment),
            confined=kind is not SandboxKind.OFF,
            because="it was let out of the sandbox" if bare else choice.decision.because,
        )

    async def prune(self) -> Sequence[str]:
        """Remove containers that nobody uses. Nothing to do where there are none."""
        if self._settings().kind is SandboxKind.DOCKER and (await self.probe()).works:
            return await self.containers.prune()
        return ()

    async def close(self) -> None:
        await self.containers.settle()

    def _of(self, kind: SandboxKind, key: str) -> Sandbox:
        match kind:
            case SandboxKind.BUBBLEWRAP:
                return self._bubblewrap
            case SandboxKind.DOCKER:
                return self.containers.for_scope(key)
            case SandboxKind.OFF:
                return self._host
