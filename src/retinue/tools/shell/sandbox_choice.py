"""Builds the sandbox for a command of the tool `exec`. `sandbox/sandbox_selection` decides which kind to build."""

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
from retinue.domain.permission import AgentRights
from retinue.domain.ports import Clock
from retinue.domain.protected_paths import CREATED_AGENTS_FOLDER
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.policy.tools.exec_placement import CommandLocation, ExecPolicy
from retinue.policy.tools.sandbox_settings import merge_sandbox_settings
from retinue.sandbox.base import Confinement, NetworkAccess, Sandbox, SandboxProbe
from retinue.sandbox.confinement import CommandFacts, RequestedConfinement
from retinue.sandbox.mounts import is_guardable
from retinue.sandbox.sandbox_selection import SandboxChoice, choose_sandbox
from retinue.sandbox.secret_mounts import add_secrets, find_applicable_secrets
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.tools.base import ToolContext
from retinue.tools.shell.errors import SandboxHostsDenied, SandboxRequired, WorkspaceMoved


class PlacedCommand(Struct, frozen=True):
    """Where a command runs. `is_confined` means that it has a sandbox, so a shell may run in it."""

    sandbox: Sandbox
    confinement: Confinement
    is_confined: bool


class CommandPathGuard(Struct, frozen=True):
    """The paths that one command may not change, because of the person on whose behalf it runs.

    The sandbox mounts a path read-only if it is an existing folder. Other paths cannot be protected
    in this way: a missing file can be created, and a file loses its mount when another process
    replaces it. These paths are in `unguarded`. If one of them changes while the command runs, its
    content becomes untrusted.
    """

    store: Store
    paths: tuple[str, ...]
    unguarded: Mapping[str, int | None]  # ctime of each path, None if it does not exist
    since_ms: int
    run: RunId

    async def mark_doubtful(self) -> None:
        body = partial(file_trust.distrust_changes, paths=self.unguarded, since_ms=self.since_ms, run=self.run)
        await self.store.write(body, point="label")

    async def settle_changes(self, paths: Sequence[str]) -> None:
        await settle_changes(self.store, paths)


def build_path_guard(placed: PlacedCommand, *, store: Store, now: datetime, run: RunId) -> CommandPathGuard | None:
    """Return the protected paths of a command, or None if it has none."""
    protected = placed.confinement.protected
    left = [str(each) for each in protected if not (placed.is_confined and each.is_dir() and is_guardable(each))]
    if not protected:
        return None
    return CommandPathGuard(
        store, tuple(map(str, protected)), {path: _ctime_ms(path) for path in left}, to_ms(now), run
    )


async def settle_changes(store: Store, paths: Sequence[str]) -> None:
    """Remove the mark "may have changed" from paths that have not changed.

    Called when the last command that could change these paths has ended.
    """
    changed = await asyncio.to_thread(lambda: {path: _ctime_ms(path) for path in paths})
    await store.write(partial(file_trust.clear_unchanged, changed=changed), point="label")


def _ctime_ms(path: str) -> int | None:
    try:
        return file_trust.ctime_ms(os.lstat(path))
    except OSError:
        return None


async def assess_output_trust(
    store: Store, clock: Clock, context: ToolContext, placed: PlacedCommand, *, run: RunId | None, untrusted: bool
) -> Trust:
    """Return the trust of a command's output, and mark what the command can write as untrusted if necessary.

    Output is untrusted if the command has a network or untrusted input, or can read an untrusted
    file. A command without a sandbox is treated as if it had a network.
    """
    networked = placed.confinement.network is not None or not placed.is_confined
    doubted = untrusted or networked or context.trust is Trust.UNTRUSTED
    # Usually no file is untrusted: then a read is enough, without a commit.
    if not doubted and not await store.read(partial(file_trust.is_needed, path="")):
        return Trust.PRIVATE
    body = partial(
        file_trust.label_command,
        readable=[str(each) for each in placed.confinement.readable],
        writable=[str(each) for each in placed.confinement.writable],
        untrusted=doubted,
        at_ms=to_ms(clock.now()),
        run=run,
    )
    return await store.write(body, point="label")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxChooser:
    """Chooses and builds sandboxes for commands.

    `container` returns the container sandbox of a scope. Its second argument is the settings; None
    means those of the instance. `environment` is the server's own environment, which may contain
    secrets for commands.
    """

    settings: Callable[[], SandboxSettings]
    host: Sandbox
    bubblewrap: Sandbox
    container: Callable[[str, DockerSettings | None], Sandbox]
    agents_directory: Path
    is_owner: Callable[[ToolContext], bool]
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    _probe_lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _probes: dict[SandboxKind, SandboxProbe] = field(default_factory=dict[SandboxKind, SandboxProbe], repr=False)

    async def probe(self) -> SandboxProbe:
        """Test the configured sandbox once. Before this test, no sandbox counts as working."""
        async with self._probe_lock:
            kind = self.settings().kind
            if kind not in self._probes:
                self._probes[kind] = await self._probe(kind)
            return self._probes[kind]

    async def _probe(self, kind: SandboxKind) -> SandboxProbe:
        match kind:
            case SandboxKind.BUBBLEWRAP:
                return await self.bubblewrap.probe()
            case SandboxKind.DOCKER:
                return await self.container("", None).probe()
            case SandboxKind.OFF:
                return await self.host.probe()

    async def ensure_probed(self) -> None:
        """Wait until the configured sandbox has been probed."""
        if self.settings().kind not in self._probes:
            await self.probe()

    def adapt_policy(self, context: ToolContext, policy: ExecPolicy) -> ExecPolicy:
        """Return the policy for commands. If the owner disabled the sandbox for this session, they run on the host."""
        choice = self._choose(context, Confinement(folder=context.rights.workspace))
        bare = choice.kind is SandboxKind.OFF and choice.decision.is_allowed
        return replace(policy, host=CommandLocation.HOST) if bare else policy

    def has_sandbox(self, context: ToolContext) -> bool:
        return self._choose(context, Confinement(folder=context.rights.workspace)).decision.is_allowed

    async def __call__(
        self, context: ToolContext, confinement: Confinement, where: CommandLocation, program: str
    ) -> PlacedCommand:
        """Choose and build the sandbox of a command.

        `program` is the real path of the program, or empty if a shell runs the command.
        """
        _require_unmoved_workspace(context.rights.workspace)
        choice = self._choose(context, confinement)
        _require_hosts(confinement.network, choice.confinement.network)
        if where is CommandLocation.HOST:
            chosen, sandbox = replace(choice.confinement, network=None), self.host
        else:
            chosen, sandbox = choice.confinement, self._get_sandbox(choice, self._settings_of(context))
        names = (context.agent.name, *(sender.name for sender in context.parent_agents))
        first, *others = (find_applicable_secrets(self.settings(), name, Path(program), chosen) for name in names)
        given = tuple(each for each in first if all(each in other for other in others))
        chosen = replace(chosen, protected=confinement.protected)
        return PlacedCommand(sandbox, add_secrets(chosen, given, self.environment), where is CommandLocation.SANDBOX)

    def _settings_of(self, context: ToolContext) -> SandboxSettings:
        return merge_sandbox_settings(self.settings(), context.agent, *context.parent_agents)

    def _get_sandbox(self, choice: SandboxChoice, settings: SandboxSettings) -> Sandbox:
        match choice.kind:
            case SandboxKind.BUBBLEWRAP:
                return self.bubblewrap
            case SandboxKind.DOCKER:
                return self.container(choice.key, settings.docker)
            case SandboxKind.OFF:
                raise SandboxRequired(because=choice.decision.because)

    def _choose(self, context: ToolContext, confinement: Confinement) -> SandboxChoice:
        settings = self._settings_of(context)
        workspace = Path(os.path.realpath(context.rights.workspace))
        rights = AgentRights(
            workspace=workspace,
            write=tuple(each for each in confinement.writable if each != workspace),
            read=confinement.readable,
            web=context.rights.web,
        )
        facts = CommandFacts(
            agent=context.effective_agent.name,
            session=context.session,
            origin=context.origin,
            is_for_owner=self.is_owner(context),
            rights=rights,
            agent_directory=Path(os.path.realpath(context.agent_directory)),
            agents_directory=Path(os.path.realpath(self.agents_directory)),
        )
        hidden = settings.workspace is WorkspaceAccess.NONE and confinement.folder.is_relative_to(workspace)
        asked = RequestedConfinement(
            folder=None if hidden else confinement.folder,
            hosts=confinement.network.hosts if confinement.network else (),
            seconds=confinement.limits.seconds,
        )
        return choose_sandbox(settings, facts, self._probes, asked)


def _require_unmoved_workspace(workspace: Path) -> None:
    """Refuse a nested workspace that was replaced by a link.

    The agent that owns the outer workspace could have made the link.
    """
    if CREATED_AGENTS_FOLDER in workspace.parts and os.path.realpath(workspace) != str(workspace):
        raise WorkspaceMoved(workspace)


def _require_hosts(requested: NetworkAccess | None, chosen: NetworkAccess | None) -> None:
    """Refuse a command if the sandbox does not allow one of its requested hosts.

    The command would otherwise fail without a clear reason.
    """
    left: Sequence[str] = chosen.hosts if chosen else ()
    missing = [host for host in (requested.hosts if requested else ()) if host not in left]
    if missing:
        raise SandboxHostsDenied(missing)
