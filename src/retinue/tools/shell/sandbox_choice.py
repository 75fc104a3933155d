"""Builds the sandbox for a command of `exec`. `sandbox/sandbox_selection` makes the choice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import DockerSettings, SandboxKind, SandboxSettings, WorkspaceAccess
from retinue.domain.ids import RunId
from retinue.domain.permission import STAFF_FOLDER, Rights
from retinue.domain.ports import Clock
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.policy.tools.exec_placement import ExecPolicy, Where
from retinue.policy.tools.sandbox_settings import sandbox_of
from retinue.sandbox.base import Confinement, Network, Probe, Sandbox, SandboxFailed
from retinue.sandbox.mounts import is_guardable
from retinue.sandbox.sandbox_selection import Asked, Choice, Facts, choose
from retinue.sandbox.secret_mounts import applicable, with_secrets
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.tools.base import Scene


class Placed(Struct, frozen=True):
    """Where a command runs. `is_confined` means that it has a sandbox, so a shell may run in it."""

    sandbox: Sandbox
    confinement: Confinement
    confined: bool


class PathGuard(Struct, frozen=True):
    """Paths that one command may not change, because of the run principal.

    The sandbox mounts existing folders read-only. A missing file could be created, and a file loses
    its mount when another process replaces it. Files of `unguarded` that change meanwhile become
    untrusted.
    """

    store: Store
    paths: tuple[str, ...]
    unguarded: Mapping[str, int | None]  # ctime of each path, None if it does not exist
    since_ms: int
    run: RunId

    async def begin(self) -> None:
        body = partial(file_trust.doubt_changes, paths=self.unguarded, since_ms=self.since_ms, run=self.run)
        await self.store.write(body, point="label")

    async def settle(self, paths: Sequence[str]) -> None:
        await settle(self.store, paths)


def guard_of(placed: Placed, *, store: Store, now: datetime, run: RunId) -> PathGuard | None:
    """Return the protected paths of a command, or None if it has none."""
    protected = placed.confinement.protected
    left = [str(each) for each in protected if not (placed.confined and each.is_dir() and is_guardable(each))]
    if not protected:
        return None
    return PathGuard(store, tuple(map(str, protected)), {path: _ctime_ms(path) for path in left}, to_ms(now), run)


async def settle(store: Store, paths: Sequence[str]) -> None:
    """Clear the doubt about unchanged paths after the last command that could change them has
    ended.
    """
    changed = await asyncio.to_thread(lambda: {path: _ctime_ms(path) for path in paths})
    await store.write(partial(file_trust.settle_changes, changed=changed), point="label")


def _ctime_ms(path: str) -> int | None:
    try:
        return file_trust.ctime_ms(os.lstat(path))
    except OSError:
        return None


async def believed(
    store: Store, clock: Clock, scene: Scene, placed: Placed, *, run: RunId | None, untrusted: bool
) -> Trust:
    """Return the trust of a command's output.

    Output is untrusted if the command has a network or untrusted input. A command without a sandbox
    is treated as if it had a network.
    """
    networked = placed.confinement.network is not None or not placed.confined
    doubted = untrusted or networked or scene.trust is Trust.UNTRUSTED
    # Usually no file is untrusted: then a read is enough, without a commit.
    if not doubted and not await store.read(partial(file_trust.is_needed, path="")):
        return Trust.PRIVATE
    body = partial(
        file_trust.begin_command,
        readable=[str(each) for each in placed.confinement.readable],
        writable=[str(each) for each in placed.confinement.writable],
        untrusted=doubted,
        at_ms=to_ms(clock.now()),
        run=run,
    )
    return await store.write(body, point="label")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confining:
    """Chooses and builds sandboxes for commands.

    `container` returns the sandbox of a scope for its settings, or for the instance's settings
    without any. `environment` is the server's own, for secrets stored in it.
    """

    settings: Callable[[], SandboxSettings]
    host: Sandbox
    bubblewrap: Sandbox
    container: Callable[[str, DockerSettings | None], Sandbox]
    homes: Path
    is_owner: Callable[[Scene], bool]
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    _trying: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _probes: dict[SandboxKind, Probe] = field(default_factory=dict[SandboxKind, Probe], repr=False)

    async def probe(self) -> Probe:
        """Probe the configured sandbox once. Before that, no sandbox counts as working."""
        async with self._trying:
            kind = self.settings().kind
            if kind not in self._probes:
                self._probes[kind] = await self._probe(kind)
            return self._probes[kind]

    async def _probe(self, kind: SandboxKind) -> Probe:
        match kind:
            case SandboxKind.BUBBLEWRAP:
                return await self.bubblewrap.probe()
            case SandboxKind.DOCKER:
                return await self.container("", None).probe()
            case SandboxKind.OFF:
                return await self.host.probe()

    async def ready(self) -> None:
        """Wait until the configured sandbox was probed."""
        if self.settings().kind not in self._probes:
            await self.probe()

    def policy(self, scene: Scene, policy: ExecPolicy) -> ExecPolicy:
        """Return the policy for the host if the owner disabled the sandbox for this session."""
        choice = self._choose(scene, Confinement(folder=scene.rights.workspace))
        bare = choice.kind is SandboxKind.OFF and choice.decision.allowed
        return replace(policy, host=Where.HOST) if bare else policy

    def works(self, scene: Scene) -> bool:
        return self._choose(scene, Confinement(folder=scene.rights.workspace)).decision.allowed

    async def __call__(self, scene: Scene, confinement: Confinement, where: Where, program: str) -> Placed:
        """Choose the sandbox. `program` is the real path of what runs, or empty if a shell runs the
        command.
        """
        _make_sure_of_place(scene.rights.workspace)
        choice = self._choose(scene, confinement)
        _make_sure_of_hosts(confinement.network, choice.confinement.network)
        if where is Where.HOST:
            chosen, sandbox = replace(choice.confinement, network=None), self.host
        else:
            chosen, sandbox = choice.confinement, self._sandbox(choice, self._settings_of(scene))
        names = (scene.agent.name, *(sender.name for sender in scene.senders))
        first, *others = (applicable(self.settings(), name, Path(program), chosen) for name in names)
        given = tuple(each for each in first if all(each in other for other in others))
        chosen = replace(chosen, protected=confinement.protected)
        return Placed(sandbox, with_secrets(chosen, given, self.environment), where is Where.SANDBOX)

    def _settings_of(self, scene: Scene) -> SandboxSettings:
        return sandbox_of(self.settings(), scene.agent, *scene.senders)

    def _sandbox(self, choice: Choice, settings: SandboxSettings) -> Sandbox:
        match choice.kind:
            case SandboxKind.BUBBLEWRAP:
                return self.bubblewrap
            case SandboxKind.DOCKER:
                return self.container(choice.key, settings.docker)
            case SandboxKind.OFF:
                raise SandboxFailed("the command was not begun", because=choice.decision.because)

    def _choose(self, scene: Scene, confinement: Confinement) -> Choice:
        settings = self._settings_of(scene)
        workspace = Path(os.path.realpath(scene.rights.workspace))
        rights = Rights(
            workspace=workspace,
            write=tuple(each for each in confinement.writable if each != workspace),
            read=confinement.readable,
            web=scene.rights.web,
        )
        facts = Facts(
            agent=scene.acts_as.name,
            session=scene.session,
            origin=scene.origin,
            owner=self.is_owner(scene),
            rights=rights,
            home=Path(os.path.realpath(scene.home)),
            homes=Path(os.path.realpath(self.homes)),
        )
        hidden = settings.workspace is WorkspaceAccess.NONE and confinement.folder.is_relative_to(workspace)
        asked = Asked(
            folder=None if hidden else confinement.folder,
            hosts=confinement.network.hosts if confinement.network else (),
            seconds=confinement.limits.seconds,
        )
        return choose(settings, facts, self._probes, asked)


def _make_sure_of_place(workspace: Path) -> None:
    """Refuse a nested workspace that was replaced by a link, because the outer agent could have
    made it.
    """
    if STAFF_FOLDER in workspace.parts and os.path.realpath(workspace) != str(workspace):
        raise SandboxFailed(
            "the command was not begun",
            because=f"the workspace {workspace} has become a link to somewhere else",
            try_this="tell the owner of this house",
            code="sandbox.workspace-moved",
        )


def _make_sure_of_hosts(asked: Network | None, chosen: Network | None) -> None:
    """Refuse to run without a requested host, because the command would fail without a clear
    reason.
    """
    left: Sequence[str] = chosen.hosts if chosen else ()
    missing = [host for host in (asked.hosts if asked else ()) if host not in left]
    if missing:
        raise SandboxFailed(
            f"no command may reach {', '.join(missing)[:200]}",
            because="`sandbox.hosts` does not name it",
            try_this="ask the owner to add it there, or leave it out",
            code="sandbox.host-not-allowed",
        )
