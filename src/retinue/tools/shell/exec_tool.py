"""`exec`: runs a command, waits for it for a while, and leaves it running in the background after
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from retinue.config import Settings
from retinue.config.sandbox import allowed_host
from retinue.domain.decision import Decision, Verdict
from retinue.domain.errors import Invalid
from retinue.domain.ids import short
from retinue.domain.permission import WEB, Access, Permission, Withheld
from retinue.domain.ports import Clock
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, Effect, ToolSpec
from retinue.policy.tools import exec_allowlist, exec_placement
from retinue.policy.tools.exec_placement import Asking, ExecPolicy, Gates, Resolved, Security, Where, Wish
from retinue.sandbox.base import Child, Confinement, Limits, Network, Sandbox, SandboxFailed
from retinue.store.core.connection import Store
from retinue.text.shell_parser import parse
from retinue.tools.base import Output, Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files.instruction_guard import guarded_paths
from retinue.tools.files.paths import lacking, locate, reach_of
from retinue.tools.shell import job_output
from retinue.tools.shell.argv import argv_of, environment, find_programs, program_of
from retinue.tools.shell.job_store import ending
from retinue.tools.shell.jobs import Job, Jobs, Order
from retinue.tools.shell.sandbox_choice import Placed, believed, guard_of

YIELD_MS, YIELD_MS_MIN, YIELD_MS_MAX = 10_000, 10, 120_000
TIMEOUT_S, TIMEOUT_S_MAX = 1_800, 86_400
ANSWER_S = YIELD_MS_MAX / 1000 + 60  # start, wait, and end a command that may not run on
TOGETHER_S_MAX = YIELD_MS_MAX / 1000  # for a command that must end in the foreground, if the agent lacks `process`
LIMIT_SLACK_S = 30.0  # we end an overdue command; the sandbox does if we could not
SAID_PER_KEPT = 16  # a command is ended when its output exceeds the log limit by this factor
HOSTS_MAX = 32
TAIL_CHARS = 2_000
SAYING_CHARS = 1_000  # reserved for text besides the output
JUDGED_MAX = 1_000
PROCESS = "process"  # the tool for background commands

_NOT_LOOKED_AT = Decision(Verdict.ASK, "the list of commands has no say in it")


class ExecArguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The command line.")]
    workdir: Annotated[str, Meta(description="The folder to run it in. Without it, your workspace.")] = ""
    env: Annotated[dict[str, str], Meta(description="Variables to set for it.")] = {}
    yield_ms: Annotated[
        int,
        Meta(
            ge=YIELD_MS_MIN, le=YIELD_MS_MAX, description="How long to wait before it is left to run in the background."
        ),
    ] = YIELD_MS
    background: Annotated[bool, Meta(description="Do not wait for it at all.")] = False
    timeout_s: Annotated[
        float, Meta(ge=0.1, le=TIMEOUT_S_MAX, description="After how many seconds it is ended, wherever it runs.")
    ] = TIMEOUT_S
    pty: Annotated[bool, Meta(description="Give it a terminal: for programs that draw on one or ask at one.")] = False
    hosts: Annotated[
        list[str],
        Meta(
            max_length=HOSTS_MAX, description="Hosts it has to reach, as HOST, *.HOST or HOST:PORT. Without any, none."
        ),
    ] = []
    elevated: Annotated[bool, Meta(description="Ask to run outside the sandbox. Only where the owner allows it.")] = (
        False
    )
    host: Annotated[Literal["sandbox", "host"] | None, Meta(description="Where to run it, if stricter.")] = None
    security: Annotated[
        Literal["deny", "allowlist", "full"] | None, Meta(description="Which commands may run, if stricter.")
    ] = None
    ask: Annotated[
        Literal["always", "on-miss", "off"] | None, Meta(description="When a person is asked, if more often.")
    ] = None


class Confine(Protocol):
    """Chooses the sandbox of a command, and may tighten the confinement.

    Raises `SandboxFailed` rather than loosening it. `program` is the real path of what runs, or
    empty if a shell runs the command.
    """

    async def __call__(self, scene: Scene, confinement: Confinement, where: Where, program: str) -> Placed: ...


class Rules(Struct, frozen=True, kw_only=True):
    """The rules for commands. Each function is called again for each call."""

    policy: Callable[[Scene], ExecPolicy]
    gates: Callable[[Scene], Gates]
    sandbox_works: Callable[[Scene], bool]
    ready: Callable[[], Awaitable[None]] | None = None  # probes the sandbox; before that, none is known to work
    under: Callable[[Settings], Rules] | None = None  # the rules under other settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """Runs a command."""

    jobs: Jobs
    store: Store
    clock: Clock
    confine: Confine
    rules: Rules
    withheld: Withheld
    arguments: type[msgspec.Struct] = ExecArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="exec",
            description=(
                "Run a command in your workspace. It is waited for until yield_ms; then it runs on in the background, "
                "you use `process` to look at it, and you are told when it ends."
            ),
            parameters=schema_of(ExecArguments),
            effects=frozenset(
                {Effect.RUNS_CODE, Effect.WRITES, Effect.READS_PRIVATE, Effect.READS_UNTRUSTED, Effect.SENDS_OUT}
            ),
            capabilities=frozenset({"terminal.exec"}),
            timeout_s=ANSWER_S,
        )
    )
    _judged: dict[tuple[str, str, str], tuple[Where, Verdict]] = field(
        default_factory=dict[tuple[str, str, str], tuple[Where, Verdict]], repr=False
    )

    def under(self, settings: Settings) -> Exec:
        return replace(self, rules=self.rules.under(settings) if self.rules.under else self.rules, _judged={})

    def needs(self, arguments: ExecArguments, scene: Scene) -> Sequence[Permission]:
        needed: list[Permission] = []
        if arguments.workdir:
            needed += lacking(arguments.workdir, scene, Access.WRITE, self.withheld)
        if arguments.hosts:
            needed.append(WEB)
        return needed

    async def ready(self) -> None:
        if self.rules.ready is not None:
            await self.rules.ready()

    def sandbox(self, arguments: ExecArguments, scene: Scene) -> Decision:
        """Decide whether this command may run in its placement. Called before `perform`."""
        resolved, decision = self._judge(arguments, scene)
        while len(self._judged) >= JUDGED_MAX:
            del self._judged[next(iter(self._judged))]
        self._judged[_key(scene)] = (resolved.where, decision.verdict)
        return decision

    async def perform(self, arguments: ExecArguments, scene: Scene) -> Output:
        where = self._make_sure_it_was_judged(arguments, scene)
        together = not scene.can_use(PROCESS)
        order = await self._order(_in_sight(arguments) if together else arguments, scene, where)
        try:
            job = await self.jobs.begin(order, scene)
        except SandboxFailed as error:
            raise as_tool_failed(error) from error
        try:
            if together:
                return await self._waited_for(job, arguments)
            over = False if arguments.background else await self.jobs.wait(job, arguments.yield_ms / 1000)
            if not over and not arguments.background:
                over = not await self.jobs.leave(job)
            return await (self._finished(job) if over else self._running(job))
        except BaseException:  # the run was stopped, or the background state could not be stored
            await self.jobs.kill(job, "its run was stopped", by_session=True)
            raise

    async def _waited_for(self, job: Job, arguments: ExecArguments) -> Output:
        """Wait until the command ends or is ended, because the agent has no tool for background
        commands.
        """
        in_time = not arguments.background and await self.jobs.wait(job, arguments.yield_ms / 1000)
        if not in_time and not await self.jobs.wait(job, TOGETHER_S_MAX + LIMIT_SLACK_S):
            raise ToolFailed("this command has not ended", because="it was told to, and took longer")
        output = await self._finished(job, together=True)
        if in_time:
            return output
        said = (
            f"[waited for, at most {TOGETHER_S_MAX:g} s: without the tool `process`, nothing runs on in the background]"
        )
        return replace(output, text=f"{said}\n{output.text}")

    # Decision and placement

    def _judge(self, arguments: ExecArguments, scene: Scene) -> tuple[Resolved, Decision]:
        policy = self.rules.policy(scene)
        wish = Wish(
            host=Where(arguments.host) if arguments.host else None,
            security=Security(arguments.security) if arguments.security else None,
            ask=Asking(arguments.ask) if arguments.ask else None,
            elevated=arguments.elevated,
        )
        resolved = exec_placement.resolve(
            policy, wish, self.rules.gates(scene), sandbox_works=self.rules.sandbox_works(scene)
        )
        listed = self._listed(arguments, scene, policy) if resolved.security is Security.ALLOWLIST else _NOT_LOOKED_AT
        return resolved, exec_placement.decide(resolved, listed)

    def _listed(self, arguments: ExecArguments, scene: Scene, policy: ExecPolicy) -> Decision:
        if arguments.env:
            return Decision(Verdict.ASK, "it sets variables, and no rule can say what they do", exec_allowlist.KEY)
        try:
            line = parse(arguments.command)
        except Invalid as error:
            return Decision(Verdict.ASK, f"{error.sentence}: {error.because}", exec_allowlist.KEY)
        programs = find_programs(exec_allowlist.programs_named(line, policy.allow))
        writable = [Path(real) for _, real in reach_of(scene, self.withheld).writable]
        return exec_allowlist.allows(policy.allow, line, programs, writable=writable)

    def _make_sure_it_was_judged(self, arguments: ExecArguments, scene: Scene) -> Where:
        """Return the placement. A command that needs approval runs only in the placement that was
        decided on.
        """
        resolved, decision = self._judge(arguments, scene)
        if decision.denied:
            raise ToolFailed("this command may not run", because=decision.because, code="command.denied")
        judged = self._judged.pop(_key(scene), None)
        if judged is None and decision.verdict is Verdict.ASK:
            raise ToolFailed("nobody was asked about this command", because=decision.because, code="command.not-asked")
        # A person approved what was asked about, and the rules allowed what they decided. Neither covers a change.
        if judged is not None and judged != (resolved.where, decision.verdict):
            raise ToolFailed(
                "what holds for commands has changed since this one was decided on",
                because=decision.because,
                try_this="ask for it again",
                code="command.changed",
            )
        return resolved.where

    # Building the job

    async def _order(self, arguments: ExecArguments, scene: Scene, where: Where) -> Order:
        folder = self._folder(arguments, scene)
        reach = reach_of(scene, self.withheld)
        writable = tuple(dict.fromkeys(Path(real) for _, real in reach.writable))
        readable = tuple(dict.fromkeys(Path(real) for _, real in reach.readable))
        asked = Confinement(
            folder=folder,
            writable=writable,
            readable=tuple(each for each in readable if each not in writable),
            protected=guarded_paths(scene),
            network=_network(arguments.hosts, scene),
            limits=Limits(
                seconds=arguments.timeout_s + LIMIT_SLACK_S, output_bytes=self.jobs.book.caps.log_bytes * SAID_PER_KEPT
            ),
        )
        try:
            placed = await self.confine(scene, asked, where, program_of(arguments.command))
        except (SandboxFailed, Invalid) as error:  # it cannot be confined this way, or a secret is missing
            raise as_tool_failed(error) from error
        variables = environment(
            reach.workspace,
            folder,
            arguments.env,
            given=scene.environment,
            pty=arguments.pty,
            confined=placed.confined,
        )
        argv = argv_of(arguments.command, folder, confined=placed.confined)
        # A call must not override a variable that a rule set, such as a secret.
        confinement = replace(placed.confinement, environment={**variables, **placed.confinement.environment})
        return Order(
            start=partial(_start, placed.sandbox, argv, confinement, pty=arguments.pty),
            command=arguments.command,
            folder=folder,
            timeout_s=arguments.timeout_s,
            believed=lambda untrusted: believed(
                self.store, self.clock, scene, placed, run=scene.run, untrusted=untrusted
            ),
            guard=guard_of(placed, store=self.store, now=self.clock.now(), run=scene.run),
            pty=arguments.pty,
            background=arguments.background,
        )

    def _folder(self, arguments: ExecArguments, scene: Scene) -> Path:
        named = arguments.workdir or str(scene.rights.workspace)
        folder = Path(locate(named, scene, Access.WRITE, self.withheld).real)
        if not folder.is_dir():
            raise ToolFailed(
                f"'{named[:200]}' is not a folder", because="a command runs in a folder", code="path.no-folder"
            )
        return folder

    # Output

    async def _finished(self, job: Job, *, together: bool = False) -> Output:
        """Return the output of a finished command. With `in_foreground`, the agent cannot read the
        log later.
        """
        book = self.jobs.book
        chars_max = book.caps.shown_chars if together else min(book.caps.shown_chars, RESULT_CHARS_MAX - SAYING_CHARS)
        shown = await asyncio.to_thread(
            job_output.middle_cut, book.path_of(job.id), chars_max=chars_max, mask=book.mask
        )
        said = [ending(job.process)]
        if shown.cut_bytes and not together:
            said.append(f"[the whole output: `process` with the action log and the id {short(job.id)}]")
        else:
            await book.remove(job.id)
        said.append(shown.text or "[it said nothing]")
        return Output(text="\n".join(said), trust=job.process.trust, failed=job.process.exit_code != 0)

    async def _running(self, job: Job) -> Output:
        tail = await asyncio.to_thread(self.jobs.book.tail, job.id, chars_max=TAIL_CHARS)
        trust = await self.jobs.weigh(job)
        text = (
            f"It runs on in the background: id {short(job.id)}, pid {job.process.pid}. You are told when it ends; "
            f"until then, look at it with `process`.\n{tail or '[it has said nothing yet]'}"
        )
        return Output(text=text, trust=trust)


async def _start(sandbox: Sandbox, argv: Sequence[str], confinement: Confinement, *, pty: bool) -> Child:
    return await sandbox.start(argv, confinement, pty=pty)


def _in_sight(arguments: ExecArguments) -> ExecArguments:
    """Return the arguments limited to what can be waited for."""
    return msgspec.structs.replace(arguments, background=False, timeout_s=min(arguments.timeout_s, TOGETHER_S_MAX))


def _key(scene: Scene) -> tuple[str, str, str]:
    return scene.session, scene.run, scene.call


def _network(hosts: Sequence[str], scene: Scene) -> Network | None:
    if not hosts:
        return None
    if not scene.rights.web:
        raise ToolFailed(
            "this command may not reach the web",
            because="the permission `web` was not granted",
            try_this="ask for it with request_permission, or leave `hosts` out",
            code="command.no-web",
        )
    for host in hosts:
        if wrong := allowed_host(host):
            raise ToolFailed(f"{host[:100]!r} names no host", because=f"it {wrong}", code="command.host-invalid")
    return Network(hosts=tuple(hosts))
