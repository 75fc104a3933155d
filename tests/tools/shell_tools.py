"""A setup with `exec` and `process` on a real store, a real intake and a fake clock. Processes are real."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.app.clock_and_ids import RandomIds
from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.intake.accept import EnvelopeIntake
from retinue.policy.tools.exec_placement import CommandLocation, ElevationGates, ExecPolicy
from retinue.sandbox.base import Confinement, RunningCommand, Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.host import HostSandbox
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.open_store import open_store
from retinue.store.runs import processes
from retinue.store.runs.processes import CommandProcess as Written
from retinue.store.sessions import sessions
from retinue.testing.fake_clock import FakeClock
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import ToolContext, ToolOutput
from retinue.tools.shell.exec_tool import ExecArguments, ExecRules, ExecTool
from retinue.tools.shell.job_store import JobLimits, JobStore
from retinue.tools.shell.jobs import JobRunner
from retinue.tools.shell.process_tool import ProcessArguments, ProcessTool
from retinue.tools.shell.sandbox_choice import PlacedCommand

SESSION = SessionId("5e" * 16)
OTHER_SESSION = SessionId("0f" * 16)
ON_HOST = ExecPolicy(host=CommandLocation.HOST)

# Shared by all tests: it probes itself only once.
_shared_sandboxes: list[BubblewrapSandbox] = []


def shared_sandbox() -> BubblewrapSandbox:
    if not _shared_sandboxes:
        _shared_sandboxes.append(BubblewrapSandbox(folder=Path(tempfile.mkdtemp(prefix="retinue-shell-sandbox-"))))
    return _shared_sandboxes[0]


async def until(holds: Callable[[], Any]) -> Any:
    """Wait until `holds` returns something, and return it."""
    return await wait_until(holds, "it holds")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class DelayedSandbox:
    """A sandbox that starts a command only after it was released."""

    name = "slow"

    def __init__(self, inside: Sandbox) -> None:
        self.inside = inside
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self.children: list[RunningCommand] = []

    async def probe(self) -> Any:
        return await self.inside.probe()

    async def start(self, argv: Any, confinement: Confinement, *, pty: bool = False) -> RunningCommand:
        self.asked.set()
        await self.released.wait()
        self.children.append(await self.inside.start(argv, confinement, pty=pty))
        return self.children[-1]


@dataclass
class ToolSetup:
    store: Store
    folder: Path
    clock: FakeClock
    inbox: EnvelopeIntake
    jobs: JobRunner
    policy: ExecPolicy = field(default_factory=ExecPolicy)
    gates: ElevationGates = field(default_factory=ElevationGates)
    sandbox_works: bool = True
    sandbox: Sandbox | None = None  # replaces the usual one
    withheld: ProtectedPaths = field(default_factory=ProtectedPaths)
    calls: int = 0

    def __post_init__(self) -> None:
        rules = ExecRules(
            policy=lambda _: self.policy, gates=lambda _: self.gates, sandbox_works=lambda _: self.sandbox_works
        )
        self.exec = ExecTool(
            jobs=self.jobs,
            store=self.store,
            clock=self.clock,
            place_command=self.confine,
            rules=rules,
            withheld=self.withheld,
        )
        self.process = ProcessTool(jobs=self.jobs)

    async def confine(
        self, context: ToolContext, confinement: Confinement, where: CommandLocation, program: str
    ) -> PlacedCommand:
        if where is CommandLocation.HOST:
            return PlacedCommand(self.sandbox or HostSandbox(), confinement, False)
        return PlacedCommand(self.sandbox or shared_sandbox(), confinement, True)

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def tool_context(self, **changes: Any) -> ToolContext:
        self.calls += 1
        tool_context = ToolContext(
            agent=Agent(name="ada", model="scripted"),
            session=SESSION,
            run=RunId("ab" * 16),
            call=f"call-{self.calls}",
            agent_directory=self.folder / "home",
            rights=AgentRights(workspace=self.workspace),
        )
        return replace(tool_context, **changes)

    async def run(self, command: str, *, tool_context: ToolContext | None = None, **arguments: Any) -> ToolOutput:
        """Run a command as the toolbox does: decide first, and approve whatever is asked."""
        tool_context = tool_context or self.tool_context()
        parsed = msgspec.convert({"command": command, **arguments}, ExecArguments)
        self.exec.decide_sandbox(parsed, tool_context)
        return await self.exec.perform(parsed, tool_context)

    async def call_process(
        self, action: str, id_: str = "", *, tool_context: ToolContext | None = None, **arguments: Any
    ) -> ToolOutput:
        parsed = msgspec.convert({"action": action, "id": id_, **arguments}, ProcessArguments)
        return await self.process.perform(parsed, tool_context or self.tool_context())

    async def background(self, command: str, **arguments: Any) -> str:
        """Start a command in the background and return its id."""
        output = await self.run(command, background=True, **arguments)
        return output.text.split("id ")[1].split(",")[0]

    async def ended_process(self, id_: str) -> Written:
        """Wait until a command has ended and its end was reported, and return its stored state."""

        async def reported() -> Written | None:
            found = [each for each in await self.written() if each.id.startswith(id_)]
            return found[0] if found and found[0].state is processes.ProcessState.REPORTED else None

        ended_process = await wait_until(reported, f"the command {id_} has ended")
        assert ended_process is not None
        return ended_process

    async def written(self) -> list[Written]:
        statement = sa.select(t.processes).order_by(t.processes.c.started_ms, t.processes.c.id)

        def body(conn: sa.Connection) -> list[Written]:
            ids = [row.id for row in conn.execute(statement)]
            return [found for id_ in ids if (found := processes.get(conn, id_))]

        return await self.store.scan(body)

    async def reported(self) -> list[Envelope]:
        statement = sa.select(t.envelopes).order_by(t.envelopes.c.seq)
        return await self.store.scan(lambda conn: [envelopes.envelope_from_row(row) for row in conn.execute(statement)])

    async def wait_for_output(self, id_: str, words: str) -> str:
        """Wait until the output of a command contains `words`, and return the output."""

        async def output() -> str:
            text = (await self.call_process("log", id_)).text
            return text if words in text else ""

        return await wait_until(output, f"the output contains {words!r}")


def _add_agent_and_sessions(conn: sa.Connection) -> None:
    agents.upsert(conn, Agent(name="ada", model="scripted"), source="test", at_ms=0)
    tx = Transaction(conn, 0)
    for id_, key in ((SESSION, "person:owner"), (OTHER_SESSION, "person:maria")):
        if sessions.get(conn, id_) is None:
            sessions.start(tx, id_, agent="ada", origin=Origin(OriginKind.TERMINAL, key))
    tx.close()


@asynccontextmanager
async def open_shell_tools(
    folder: Path, *, job_limits: JobLimits | None = None, clock: FakeClock | None = None
) -> AsyncGenerator[ToolSetup]:
    """Open the shell tools on a new store in this folder, and close them in order."""
    for name in ("workspace", "home"):
        os.makedirs(folder / name, exist_ok=True)
    clock = clock or FakeClock()
    store = await open_store(folder / "retinue.db")
    try:
        await store.write(_add_agent_and_sessions, point="setup")
        inbox = EnvelopeIntake(store, clock, lambda _: None)
        book = JobStore(store, clock, inbox, folder / "logs", limits=job_limits)
        jobs = JobRunner(book, clock, RandomIds())
        await jobs.open()
        try:
            yield ToolSetup(store, folder, clock, inbox, jobs)
        finally:
            await jobs.close()
    finally:
        await store.close()
