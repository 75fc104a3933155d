"""The tools `sessions_spawn` and `start_background_agent`: start a subagent in a separate session.

Both return at once. The subagent's result or failure arrives as an envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from retinue.config.agent_defaults import AgentDefaults
from retinue.domain.agent import Agent
from retinue.domain.delegation import DelegationKind, SubagentCleanup, make_label
from retinue.domain.delegation_request import DelegateWork, DelegationRequest, DelegationStatus
from retinue.domain.errors import RetinueError
from retinue.domain.run import RunRequest
from retinue.domain.session import SessionOptions
from retinue.domain.shared_errors import DelegationRefused
from retinue.domain.slash_command import EFFORT_WORDS
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.models.model_selection import ModelSelector
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.tools.base import ToolContext, ToolOutput, schema_of
from retinue.tools.delegate.errors import ThinkingLevelUnknown

RUN_TIMEOUT_S_MAX = 86_400.0
_STARTED_TEXT = "It works in the background. You will get its result or its failure as a message: do not wait or poll."
_TASK_DESCRIPTION = (
    "The task, with everything that the subagent needs to know, and when it should report to you before it is done."
)

_encode = msgspec.json.Encoder().encode


class SessionsSpawnArguments(msgspec.Struct, forbid_unknown_fields=True):
    task: Annotated[str, msgspec.Meta(min_length=1, description=_TASK_DESCRIPTION)]
    label: Annotated[str, msgspec.Meta(description="Short name of the subagent")] = ""
    agentId: Annotated[str, msgspec.Meta(description="Agent to run as the subagent. Default: you")] = ""
    model: Annotated[str, msgspec.Meta(description="Model to use. Default: as configured")] = ""
    thinking: Annotated[
        str, msgspec.Meta(description="Thinking level, such as low or high. Default: as configured")
    ] = ""
    runTimeoutSeconds: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=RUN_TIMEOUT_S_MAX,
            description="Time in seconds after which the subagent is ended; 0 is the default limit",
        ),
    ] = 0
    timeoutSeconds: Annotated[
        float, msgspec.Meta(ge=0, le=RUN_TIMEOUT_S_MAX, description="The same as runTimeoutSeconds")
    ] = 0
    cleanup: Annotated[
        SubagentCleanup,
        msgspec.Meta(
            description="keep: keep the subagent's session for a while. delete: delete it after you have the result"
        ),
    ] = SubagentCleanup.KEEP


class StartBackgroundAgentArguments(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[str, msgspec.Meta(min_length=1, description=_TASK_DESCRIPTION)]
    name: Annotated[str, msgspec.Meta(description="Short name of the subagent")] = ""


class _SpawnRequest(Struct, frozen=True, kw_only=True):
    """The parameters of a new subagent, independent of the tool that was called."""

    task: str
    label: str = ""
    target: str = ""
    model: str = ""
    thinking: str = ""
    timeout_s: float = 0
    cleanup: SubagentCleanup = SubagentCleanup.KEEP


class SubagentSpawner(Struct, frozen=True):
    """Starts subagents for the two spawn tools.

    `catalog` lists the models; `defaults` has the settings for subagents.
    """

    delegate: DelegateWork
    store: Store
    catalog: Callable[[], ModelSelector]
    defaults: Callable[[], AgentDefaults]

    async def spawn(
        self, spawn_request: _SpawnRequest, context: ToolContext
    ) -> tuple[DelegationStatus, dict[str, Any]]:
        """Start a subagent, or return the status of the one that this call has already started.

        Also returns notes about the model of the subagent, for the tool result.
        """
        target = spawn_request.target.removeprefix("agent:")
        request, notes = await self._build_run_request(spawn_request, context, target)
        delegation_request = DelegationRequest(
            kind=DelegationKind.SPAWN,
            run=context.run,
            call=context.call,
            target=target,
            text=spawn_request.task,
            trust=context.trust,
            label=make_label(spawn_request.label, spawn_request.task),
            cleanup=spawn_request.cleanup,
            request=request,
        )
        return await self.delegate(delegation_request), notes

    async def _build_run_request(
        self, spawn_request: _SpawnRequest, context: ToolContext, target: str
    ) -> tuple[RunRequest, dict[str, Any]]:
        """Return the parameters of the subagent's run.

        Parameters that the call does not give come from the agent's subagent settings, or else from
        the defaults.
        """
        defaults = self.defaults().subagents_of(context.agent)
        notes: dict[str, Any] = {}
        model, warning = self._resolve_model(spawn_request.model or defaults.model)
        if spawn_request.model:
            notes["modelApplied"] = model is not None
        if warning:
            notes["warning"] = warning
        effort = defaults.effort
        if spawn_request.thinking:
            found = await self.store.read(lambda conn: agents.find(conn, target)) if target else context.agent
            effort = self._resolve_effort(spawn_request.thinking, found, model)
        seconds = spawn_request.timeout_s or defaults.run_seconds_max
        return RunRequest(model=model, effort=effort, seconds_max=seconds), notes

    def _resolve_model(self, text: str) -> tuple[str | None, str]:
        """Return the model that a name stands for.

        If the model is not available, the subagent uses its usual model, and a warning is returned.
        """
        if not text:
            return None, ""
        try:
            chosen = self.catalog().parse_selection(text).ref
        except RetinueError as error:
            return None, f"{error.sentence}; it uses its own model instead"
        return (str(chosen) if chosen is not None else None), ""

    def _resolve_effort(self, text: str, target: Agent | None, model: str | None) -> str:
        effort = EFFORT_WORDS.get(text.strip().casefold())
        if effort is None:
            raise ThinkingLevelUnknown(text, levels=dict.fromkeys(EFFORT_WORDS))
        if target is not None:
            catalog = self.catalog()
            catalog.check_effort(
                catalog.build_chain(agent=target, session_options=SessionOptions(), override=model)[0], effort
            )
        return effort


def _build_error_output(error: RetinueError) -> ToolOutput:
    status = "forbidden" if error.code == DelegationRefused.code else "error"
    body = {"status": status, "error": error.sentence, "because": error.because, "try": error.try_this}
    return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE, failed=True)


def _build_rejection(status: DelegationStatus) -> ToolOutput | None:
    """Return the error output if a delegation was refused at once, or None."""
    if status.delegation.state.is_open or status.answer is None:
        return None
    body = {"status": "error", "error": status.delegation.because}
    return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE, failed=True)


class SessionsSpawnTool(Struct, frozen=True):
    """The tool `sessions_spawn`: starts a subagent with a label, model, timeout and cleanup rule."""

    spawner: SubagentSpawner
    arguments: type[msgspec.Struct] = SessionsSpawnArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_spawn",
            description=(
                "Start a subagent that works in the background. It has your permissions and does not know this "
                "conversation. Returns at once; you get its result as a message. For an answer in this turn, use "
                "agents_message."
            ),
            parameters=schema_of(SessionsSpawnArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SessionsSpawnArguments, context: ToolContext) -> ToolOutput:
        request = _SpawnRequest(
            task=arguments.task,
            label=arguments.label,
            target=arguments.agentId,
            model=arguments.model,
            thinking=arguments.thinking,
            timeout_s=arguments.runTimeoutSeconds or arguments.timeoutSeconds,
            cleanup=arguments.cleanup,
        )
        try:
            status, notes = await self.spawner.spawn(request, context)
        except RetinueError as error:
            return _build_error_output(error)
        if (failed := _build_rejection(status)) is not None:
            return failed
        made = status.delegation
        body = {
            "status": "accepted",
            "childSessionKey": made.worker_session_key,
            "sessionId": made.target_session,
            "runId": made.worker_run_id,
            "label": made.label,
            **notes,
            "message": _STARTED_TEXT,
        }
        return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE)


class StartBackgroundAgentTool(Struct, frozen=True):
    """The tool `start_background_agent`: starts a subagent with only a prompt and a name."""

    spawner: SubagentSpawner
    arguments: type[msgspec.Struct] = StartBackgroundAgentArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="start_background_agent",
            description=(
                "Start a subagent that works in the background. It has your permissions and does not know this "
                "conversation. Returns its id at once; you get its result as a message. Each call starts a new one."
            ),
            parameters=schema_of(StartBackgroundAgentArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: StartBackgroundAgentArguments, context: ToolContext) -> ToolOutput:
        try:
            status, notes = await self.spawner.spawn(
                _SpawnRequest(task=arguments.prompt, label=arguments.name), context
            )
        except RetinueError as error:
            return _build_error_output(error)
        if (failed := _build_rejection(status)) is not None:
            return failed
        made = status.delegation
        body = {
            "status": "started",
            "agentId": made.target_session,
            "name": made.label,
            "sessionKey": made.worker_session_key,
            "runId": made.worker_run_id,
            **notes,
            "message": _STARTED_TEXT,
        }
        return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE)
