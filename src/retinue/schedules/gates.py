"""Runs the gate of a schedule: a command that decides whether an occurrence runs, before any model call.

It runs like a command of the agent: in the configured sandbox, from the agent directory, with the
grants of the occurrence's session and nothing else. Exit code 0 means yes. Any other exit code, a
missing permission, a timeout or a broken sandbox means no. The occurrence is then skipped, and its
history has the reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import allowed_host
from retinue.domain import permission
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import RunId, SessionId, short
from retinue.domain.permission import WEB, Access, Permission, Rights, Withheld, default_rights, with_granted
from retinue.domain.ports import Clock, Ids
from retinue.domain.schedule import Gate, GateSaid, Schedule
from retinue.domain.session import OriginKind
from retinue.domain.storable_text import clipped_bytes, storable
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.policy.tools.exec_placement import ExecPolicy, Where
from retinue.policy.tools.grants import missing
from retinue.sandbox.base import Child, Confinement, Ended, Limits, Network
from retinue.store.core.connection import Store
from retinue.text.untrusted_wrapper import wrap
from retinue.tools.base import Scene, ToolFailed
from retinue.tools.files.paths import locate, reach_of
from retinue.tools.grants import Grants
from retinue.tools.shell.argv import argv_of, environment, program_of
from retinue.tools.shell.sandbox_choice import Confining, Placed, believed

OUTPUT_BYTES_MAX = 1024 * 1024  # bytes of output that are read
SHOWN_BYTES_MAX = 32_768  # bytes of output that a model reads
LIMIT_SLACK_S = 5.0  # the server ends a slow gate; the sandbox does it later if the server could not


class Gates(Struct, frozen=True, kw_only=True):
    """Runs the gate of one occurrence at a time. Knows nothing else about schedules."""

    store: Store
    clock: Clock
    ids: Ids
    grants: Grants
    confining: Confining
    withheld: Withheld
    home_of: Callable[[str], Path]
    mask: Callable[[str], str] = str

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
        gate = schedule.gate
        if gate is None:
            return GateSaid(open=True)
        try:
            return await self._ask(gate, schedule, agent, session)
        except RetinueError as error:
            because = f"{error.sentence}: {error.because}" if error.because else error.sentence
            return GateSaid(open=False, because=f"gate: {because}")
        except OSError as error:
            return GateSaid(open=False, because=f"gate: it could not be run: {error.strerror or type(error).__name__}")

    async def _ask(self, gate: Gate, schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
        home = self.home_of(agent.name)
        held = await self.grants.held(agent.name, session, OriginKind.SCHEDULE)
        rights = default_rights(home, home)
        if lacks := missing([permission.parse(tag) for tag in gate.permissions], rights, _and_own(held, rights)):
            named = ", ".join(str(each) for each in lacks)
            return GateSaid(open=False, because=f"gate: it needs {named}, which was not granted to {short(session)}")
        scene = Scene(
            agent=agent,
            session=session,
            run=RunId(schedule.id),
            call="gate",
            home=home,
            rights=_asked_for(gate, rights, held),
            origin=OriginKind.SCHEDULE,
            trust=schedule.trust,
        )
        await self.confining.ready()
        placed, folder = await self._place(gate, scene)
        argv = argv_of(gate.command, folder, confined=placed.confined)
        trust = await believed(self.store, self.clock, scene, placed, run=None, untrusted=False)
        child = await placed.sandbox.start(argv, placed.confinement)
        return await self._hear(gate, child, schedule, trust)

    async def _place(self, gate: Gate, scene: Scene) -> tuple[Placed, Path]:
        folder = await asyncio.to_thread(self._folder, gate, scene)
        reach = await asyncio.to_thread(reach_of, scene, self.withheld)
        writable = tuple(dict.fromkeys(Path(real) for _, real in reach.writable))
        readable = tuple(dict.fromkeys(Path(real) for _, real in reach.readable))
        asked = Confinement(
            folder=folder,
            writable=writable,
            readable=tuple(each for each in readable if each not in writable),
            network=_network(gate, scene),
            limits=Limits(seconds=gate.timeout_ms / 1000 + LIMIT_SLACK_S, output_bytes=OUTPUT_BYTES_MAX),
        )
        where = self.confining.policy(scene, ExecPolicy()).host
        if where is Where.HOST and scene.trust is not Trust.OWNER:
            raise ToolFailed(
                "it was not run", because="there is no sandbox here, and only what the owner wrote runs without one"
            )
        placed = await self.confining(scene, asked, where, program_of(gate.command))
        variables = environment(
            reach.workspace, folder, gate.env, given=scene.environment, pty=False, confined=placed.confined
        )
        told = {**variables, **placed.confinement.environment}
        return replace(placed, confinement=replace(placed.confinement, environment=told)), folder

    def _folder(self, gate: Gate, scene: Scene) -> Path:
        named = gate.cwd or str(scene.rights.workspace)
        folder = Path(locate(named, scene, Access.READ, self.withheld).real)
        if not folder.is_dir():
            raise ToolFailed(f"'{named[:200]}' is not a folder", because="a command runs in a folder")
        return folder

    async def _hear(self, gate: Gate, child: Child, schedule: Schedule, trust: Trust) -> GateSaid:
        try:
            # In real seconds: a command runs in real time, whatever the server's clock shows.
            async with asyncio.timeout(gate.timeout_ms / 1000):
                child.close_input()
                output = await _read(child)
                ended = await child.wait()
        except TimeoutError:
            return GateSaid(open=False, because=f"gate: it took longer than {gate.timeout_ms:,} ms, and was ended")
        finally:
            await child.kill()
        if ended.code != 0:
            return GateSaid(open=False, because=f"gate: {_how_it_ended(ended)}")
        shown = clipped_bytes(storable(self.mask(output.decode(errors="replace"))).strip(), SHOWN_BYTES_MAX)
        if shown and trust is Trust.UNTRUSTED:
            shown = wrap(shown, id=self.ids.new(), source={"gate": schedule.name or short(schedule.id)})
        return GateSaid(open=True, output=shown, trust=trust)


async def _read(child: Child) -> bytes:
    """Read all output, and keep the first `OUTPUT_BYTES_MAX` bytes."""
    kept = bytearray()
    while data := await child.read():
        kept += data[: OUTPUT_BYTES_MAX - len(kept)]
    return bytes(kept)


def _how_it_ended(ended: Ended) -> str:
    if ended.because:
        return ended.because
    return f"exit {ended.code}" if ended.code is not None else f"signal {ended.signal}"


def _and_own(held: tuple[Permission, ...], rights: Rights) -> tuple[Permission, ...]:
    """Return the grants, and what the agent may write in its own directory without a grant."""
    own = [Permission(Access.WRITE, os.path.realpath(path)) for path in rights.writable]
    return (*held, *own, *(Permission(Access.WRITE, str(path)) for path in rights.writable))


def _asked_for(gate: Gate, rights: Rights, held: tuple[Permission, ...]) -> Rights:
    """Return the rights of the gate: what its `permissions` name, as far as it was granted."""
    wanted = [permission.parse(tag) for tag in gate.permissions]
    return with_granted(rights, [each for each in wanted if each == WEB or any(have.covers(each) for have in held)])


def _network(gate: Gate, scene: Scene) -> Network | None:
    if not gate.domains:
        return None
    if not scene.rights.web:
        raise ToolFailed("it may not reach the web", because="the permission `web` was not granted to it")
    for host in gate.domains:
        if wrong := allowed_host(host):
            raise Invalid(f"{host[:100]!r} names no host", because=f"it {wrong}", code="schedule.gate-invalid")
    return Network(hosts=gate.domains)
