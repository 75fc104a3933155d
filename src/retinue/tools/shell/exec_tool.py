"""The tool `exec`: runs a command and waits for it. After a while, the command continues in the background."""

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
from retinue.config.sandbox import check_allowed_host
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.errors import Invalid
from retinue.domain.ids import short_id
from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind
from retinue.domain.ports import Clock
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX, ToolEffect, ToolSpec
from retinue.policy.tools import exec_allowlist, exec_placement
from retinue.policy.tools.exec_placement import (
    CommandAsk,
    CommandLocation,
    CommandSecurity,
    ElevationGates,
    ExecPlacement,
    ExecPolicy,
    ExecRequest,
)
from retinue.sandbox.base import Confinement, NetworkAccess, ResourceLimits, RunningCommand, Sandbox, SandboxFailed
from retinue.store.core.connection import Store
from retinue.text.shell_parser import parse_command_line
from retinue.tools.base import ToolContext, ToolOutput, as_tool_failed, schema_of
from retinue.tools.files.errors import PathNotFolder
from retinue.tools.files.instruction_guard import list_guarded_paths
from retinue.tools.files.path_access import find_reachable_paths, locate, missing_permissions
from retinue.tools.shell import job_output
from retinue.tools.shell.argv import build_argv, build_environment, find_program, find_programs
from retinue.tools.shell.errors import (
    CommandDenied,
    CommandHostInvalid,
    CommandNotApproved,
    CommandNotEnded,
    CommandRulesChanged,
    CommandWebDenied,
)
from retinue.tools.shell.job_store import describe_end
from retinue.tools.shell.jobs import Job, JobRequest, JobRunner
from retinue.tools.shell.sandbox_choice import PlacedCommand, assess_output_trust, build_path_guard

YIELD_MS, YIELD_MS_MIN, YIELD_MS_MAX = 10_000, 10, 120_000
TIMEOUT_S, TIMEOUT_S_MAX = 1_800, 86_400
RESULT_TIMEOUT_S = YIELD_MS_MAX / 1000 + 60  # start, wait, and end a command that may not run on
FOREGROUND_S_MAX = YIELD_MS_MAX / 1000  # for a command that must end in the foreground, if the agent lacks `process`
LIMIT_MARGIN_S = 30.0  # after the timeout, in case the command has not ended by then
OUTPUT_PER_LOG_MAX = 16  # a command is ended when its output exceeds the log limit by this factor
HOSTS_MAX = 32
TAIL_CHARS = 2_000
RESERVED_CHARS = 1_000  # reserved for text besides the output
DECISIONS_CACHED_MAX = 1_000
PROCESS_TOOL = "process"  # the tool for background commands

_ALLOWLIST_NOT_USED = Decision(DecisionKind.ASK, "the allowlist of commands does not apply")


class ExecArguments(msgspec.Struct, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The command line.")]
    workdir: Annotated[str, Meta(description="Folder to run the command in. Default: your workspace.")] = ""
    env: Annotated[dict[str, str], Meta(description="Environment variables to set for the command.")] = {}
    yield_ms: Annotated[
        int,
        Meta(
            ge=YIELD_MS_MIN,
            le=YIELD_MS_MAX,
            description="Time in milliseconds to wait before the command continues in the background.",
        ),
    ] = YIELD_MS
    background: Annotated[bool, Meta(description="Whether to start the command in the background without waiting.")] = (
        False
    )
    timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=TIMEOUT_S_MAX,
            description="Time in seconds after which the command is ended, also in the background.",
        ),
    ] = TIMEOUT_S
    pty: Annotated[bool, Meta(description="Whether to give the command a terminal, for interactive programs.")] = False
    hosts: Annotated[
        list[str],
        Meta(
            max_length=HOSTS_MAX,
            description="Hosts that the command may reach, as HOST, *.HOST or HOST:PORT. Default: none.",
        ),
    ] = []
    elevated: Annotated[
        bool, Meta(description="Whether to run outside of the sandbox. Needs the owner's permission.")
    ] = False
    host: Annotated[
        Literal["sandbox", "host"] | None,
        Meta(description="Where to run the command. Only a stricter value than the settings has an effect."),
    ] = None
    security: Annotated[
        Literal["deny", "allowlist", "full"] | None,
        Meta(description="Which commands may run. Only a stricter value than the settings has an effect."),
    ] = None
    ask: Annotated[
        Literal["always", "on-miss", "off"] | None,
        Meta(description="When a person is asked. Only a stricter value than the settings has an effect."),
    ] = None


class CommandPlacer(Protocol):
    """Chooses the sandbox of a command, and may tighten the confinement.

    The confinement is never loosened: if it cannot be applied, `SandboxFailed` is raised. `program`
    is the real path of the program, or empty if a shell runs the command.
    """

    async def __call__(
        self, context: ToolContext, confinement: Confinement, where: CommandLocation, program: str
    ) -> PlacedCommand: ...


class ExecRules(Struct, frozen=True, kw_only=True):
    """The rules for commands. Each function is called again for each call."""

    policy: Callable[[ToolContext], ExecPolicy]
    gates: Callable[[ToolContext], ElevationGates]
    sandbox_works: Callable[[ToolContext], bool]
    prepare_sandbox: Callable[[], Awaitable[None]] | None = (
        None  # probes the sandbox; before that, none is known to work
    )
    with_settings: Callable[[Settings], ExecRules] | None = None  # the rules under other settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecTool:
    """The tool `exec`: runs a command."""

    jobs: JobRunner
    store: Store
    clock: Clock
    place_command: CommandPlacer
    rules: ExecRules
    withheld: ProtectedPaths
    arguments: type[msgspec.Struct] = ExecArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="exec",
            description=(
                "Run a command in your workspace. Returns its exit code and output. After `yield_ms` it continues in "
                "the background: use `process` to read and control it; you get a message when it ends."
            ),
            parameters=schema_of(ExecArguments),
            effects=frozenset(
                {
                    ToolEffect.RUNS_CODE,
                    ToolEffect.WRITES,
                    ToolEffect.READS_PRIVATE,
                    ToolEffect.READS_UNTRUSTED,
                    ToolEffect.SENDS_OUT,
                }
            ),
            capabilities=frozenset({"terminal.exec"}),
            timeout_s=RESULT_TIMEOUT_S,
        )
    )
    _judged: dict[tuple[str, str, str], tuple[CommandLocation, DecisionKind]] = field(
        default_factory=dict[tuple[str, str, str], tuple[CommandLocation, DecisionKind]], repr=False
    )

    def with_settings(self, settings: Settings) -> ExecTool:
        return replace(
            self, rules=self.rules.with_settings(settings) if self.rules.with_settings else self.rules, _judged={}
        )

    def required_permissions(self, arguments: ExecArguments, context: ToolContext) -> Sequence[Permission]:
        needed: list[Permission] = []
        if arguments.workdir:
            needed += missing_permissions(arguments.workdir, context, PermissionKind.WRITE, self.withheld)
        if arguments.hosts:
            needed.append(WEB_PERMISSION)
        return needed

    async def prepare_sandbox(self) -> None:
        if self.rules.prepare_sandbox is not None:
            await self.rules.prepare_sandbox()

    def decide_sandbox(self, arguments: ExecArguments, context: ToolContext) -> Decision:
        """Decide whether a command may run where it was placed, in a sandbox or on the host.

        Called before `perform`.
        """
        resolved, decision = self._decide(arguments, context)
        while len(self._judged) >= DECISIONS_CACHED_MAX:
            del self._judged[next(iter(self._judged))]
        self._judged[_call_key(context)] = (resolved.where, decision.kind)
        return decision

    async def perform(self, arguments: ExecArguments, context: ToolContext) -> ToolOutput:
        where = self._require_decision(arguments, context)
        in_foreground = not context.can_use(PROCESS_TOOL)
        job_request = await self._build_job_request(
            _limit_to_foreground(arguments) if in_foreground else arguments, context, where
        )
        try:
            job = await self.jobs.start(job_request, context)
        except SandboxFailed as error:
            raise as_tool_failed(error) from error
        try:
            if in_foreground:
                return await self._wait_to_end(job, arguments)
            ended = False if arguments.background else await self.jobs.wait(job, arguments.yield_ms / 1000)
            if not ended and not arguments.background:
                ended = not await self.jobs.leave_running(job)
            return await (self._build_finished_output(job) if ended else self._build_running_output(job))
        except BaseException:  # the run was stopped, or the background state could not be stored
            await self.jobs.kill(job, "its run was stopped", by_session=True)
            raise

    async def _wait_to_end(self, job: Job, arguments: ExecArguments) -> ToolOutput:
        """Wait until a command ends or is killed at its time limit.

        Used if the agent has no tool for background commands.
        """
        in_time = not arguments.background and await self.jobs.wait(job, arguments.yield_ms / 1000)
        if not in_time and not await self.jobs.wait(job, FOREGROUND_S_MAX + LIMIT_MARGIN_S):
            raise CommandNotEnded
        output = await self._build_finished_output(job, in_foreground=True)
        if in_time:
            return output
        notice = (
            f"[run in the foreground, for at most {FOREGROUND_S_MAX:g} s: background commands need the tool `process`]"
        )
        return replace(output, text=f"{notice}\n{output.text}")

    # Decision and placement

    def _decide(self, arguments: ExecArguments, context: ToolContext) -> tuple[ExecPlacement, Decision]:
        policy = self.rules.policy(context)
        request = ExecRequest(
            host=CommandLocation(arguments.host) if arguments.host else None,
            security=CommandSecurity(arguments.security) if arguments.security else None,
            ask=CommandAsk(arguments.ask) if arguments.ask else None,
            elevated=arguments.elevated,
        )
        resolved = exec_placement.resolve_placement(
            policy, request, self.rules.gates(context), sandbox_works=self.rules.sandbox_works(context)
        )
        listed = (
            self._decide_by_allowlist(arguments, context, policy)
            if resolved.security is CommandSecurity.ALLOWLIST
            else _ALLOWLIST_NOT_USED
        )
        return resolved, exec_placement.decide_exec(resolved, listed)

    def _decide_by_allowlist(self, arguments: ExecArguments, context: ToolContext, policy: ExecPolicy) -> Decision:
        if arguments.env:
            return Decision(
                DecisionKind.ASK, "it sets variables, which the allowlist cannot check", exec_allowlist.ALLOWLIST_KEY
            )
        try:
            line = parse_command_line(arguments.command)
        except Invalid as error:
            return Decision(DecisionKind.ASK, f"{error.sentence}: {error.because}", exec_allowlist.ALLOWLIST_KEY)
        programs = find_programs(exec_allowlist.list_program_names(line, policy.allow))
        writable = [Path(real) for _, real in find_reachable_paths(context, self.withheld).writable]
        return exec_allowlist.decide_by_allowlist(policy.allow, line, programs, writable=writable)

    def _require_decision(self, arguments: ExecArguments, context: ToolContext) -> CommandLocation:
        """Return whether a command runs in a sandbox or on the host.

        A command is refused if the decision on it has changed since the command was approved or
        allowed.
        """
        resolved, decision = self._decide(arguments, context)
        if decision.is_denied:
            raise CommandDenied(because=decision.because)
        judged = self._judged.pop(_call_key(context), None)
        if judged is None and decision.kind is DecisionKind.ASK:
            raise CommandNotApproved(because=decision.because)
        # A person approved exactly what was asked, and the rules allowed exactly what they decided on.
        # Neither covers a change.
        if judged is not None and judged != (resolved.where, decision.kind):
            raise CommandRulesChanged(because=decision.because)
        return resolved.where

    # Building the job

    async def _build_job_request(
        self, arguments: ExecArguments, context: ToolContext, where: CommandLocation
    ) -> JobRequest:
        folder = self._find_folder(arguments, context)
        reach = find_reachable_paths(context, self.withheld)
        writable = tuple(dict.fromkeys(Path(real) for _, real in reach.writable))
        readable = tuple(dict.fromkeys(Path(real) for _, real in reach.readable))
        asked = Confinement(
            folder=folder,
            writable=writable,
            readable=tuple(each for each in readable if each not in writable),
            protected=list_guarded_paths(context),
            network=_build_network(arguments.hosts, context),
            limits=ResourceLimits(
                seconds=arguments.timeout_s + LIMIT_MARGIN_S,
                output_bytes=self.jobs.store.limits.log_bytes_max * OUTPUT_PER_LOG_MAX,
            ),
        )
        try:
            placed = await self.place_command(context, asked, where, find_program(arguments.command))
        except (SandboxFailed, Invalid) as error:  # it cannot be confined this way, or a secret is missing
            raise as_tool_failed(error) from error
        variables = build_environment(
            reach.workspace,
            folder,
            arguments.env,
            server_variables=context.environment,
            pty=arguments.pty,
            is_confined=placed.is_confined,
        )
        argv = build_argv(arguments.command, folder, is_confined=placed.is_confined)
        # A call must not override a variable that a rule set, such as a secret.
        confinement = replace(placed.confinement, environment={**variables, **placed.confinement.environment})
        return JobRequest(
            start=partial(_start, placed.sandbox, argv, confinement, pty=arguments.pty),
            command=arguments.command,
            folder=folder,
            timeout_s=arguments.timeout_s,
            assess_trust=lambda untrusted: assess_output_trust(
                self.store, self.clock, context, placed, run=context.run, untrusted=untrusted
            ),
            path_guard=build_path_guard(placed, store=self.store, now=self.clock.now(), run=context.run),
            pty=arguments.pty,
            background=arguments.background,
        )

    def _find_folder(self, arguments: ExecArguments, context: ToolContext) -> Path:
        named = arguments.workdir or str(context.rights.workspace)
        folder = Path(locate(named, context, PermissionKind.WRITE, self.withheld).real)
        if not folder.is_dir():
            raise PathNotFolder(named)
        return folder

    # Output

    async def _build_finished_output(self, job: Job, *, in_foreground: bool = False) -> ToolOutput:
        """Return the output of a finished command.

        With `in_foreground`, the agent cannot read the log later, so the log is deleted and the
        result may contain more of the output.
        """
        job_store = self.jobs.store
        chars_max = (
            job_store.limits.shown_chars_max
            if in_foreground
            else min(job_store.limits.shown_chars_max, RESULT_CHARS_MAX - RESERVED_CHARS)
        )
        shown = await asyncio.to_thread(
            job_output.read_with_middle_cut, job_store.log_path(job.id), chars_max=chars_max, mask=job_store.redact
        )
        lines = [describe_end(job.process)]
        if shown.omitted_bytes and not in_foreground:
            lines.append(f"[for the full output, use `process` with the action `log` and the id {short_id(job.id)}]")
        else:
            await job_store.remove(job.id)
        lines.append(shown.text or "[no output]")
        return ToolOutput(text="\n".join(lines), trust=job.process.trust, failed=job.process.exit_code != 0)

    async def _build_running_output(self, job: Job) -> ToolOutput:
        tail = await asyncio.to_thread(self.jobs.store.tail, job.id, chars_max=TAIL_CHARS)
        trust = await self.jobs.update_trust(job)
        text = (
            f"It continues in the background: id {short_id(job.id)}, pid {job.process.pid}. You get a message when it "
            f"ends; until then, use `process` to read its output.\n{tail or '[no output yet]'}"
        )
        return ToolOutput(text=text, trust=trust)


async def _start(sandbox: Sandbox, argv: Sequence[str], confinement: Confinement, *, pty: bool) -> RunningCommand:
    return await sandbox.start(argv, confinement, pty=pty)


def _limit_to_foreground(arguments: ExecArguments) -> ExecArguments:
    """Return the arguments for running a command in the foreground, with a limited timeout."""
    return msgspec.structs.replace(arguments, background=False, timeout_s=min(arguments.timeout_s, FOREGROUND_S_MAX))


def _call_key(context: ToolContext) -> tuple[str, str, str]:
    return context.session, context.run, context.call


def _build_network(hosts: Sequence[str], context: ToolContext) -> NetworkAccess | None:
    if not hosts:
        return None
    if not context.rights.web:
        raise CommandWebDenied
    for host in hosts:
        if wrong := check_allowed_host(host):
            raise CommandHostInvalid(host, because=f"it {wrong}")
    return NetworkAccess(hosts=tuple(hosts))
