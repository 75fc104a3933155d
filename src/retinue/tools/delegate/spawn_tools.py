"""`sessions_spawn` and `start_background_agent`: start a subagent in its own session.

Both return at once. The subagent's result or failure arrives as an envelope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from retinue.config.agent_defaults import Defaults
from retinue.domain.agent import Agent
from retinue.domain.delegation import Cleanup, DelegationKind, label_of
from retinue.domain.delegation_request import Handed, Handing, HandOver
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.run import RunRequest
from retinue.domain.session import Mind
from retinue.domain.slash_command import EFFORT_WORDS
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.models.model_selection import Catalog
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.tools.base import Output, Scene, schema_of

RUN_TIMEOUT_S_MAX = 86_400.0
FORBIDDEN = "delegation.refused"
_LATER = "It works on its own now. What it finds, or that it could not, will come as a message: do not wait or poll."
_TASK = "What to do, with all that it needs to know. Say when it is to report to you, if it is to before its end."

_encode = msgspec.json.Encoder().encode


class SpawnArguments(msgspec.Struct, forbid_unknown_fields=True):
    task: Annotated[str, msgspec.Meta(min_length=1, description=_TASK)]
    label: Annotated[str, msgspec.Meta(description="A short name for it")] = ""
    agentId: Annotated[str, msgspec.Meta(description="Which agent is sent; yourself if left out")] = ""
    model: Annotated[str, msgspec.Meta(description="Which model it thinks with")] = ""
    thinking: Annotated[str, msgspec.Meta(description="How hard that is to think, such as low or high")] = ""
    runTimeoutSeconds: Annotated[
        float, msgspec.Meta(ge=0, le=RUN_TIMEOUT_S_MAX, description="After so many seconds it is ended; 0 is as usual")
    ] = 0
    timeoutSeconds: Annotated[float, msgspec.Meta(ge=0, le=RUN_TIMEOUT_S_MAX, description="The same")] = 0
    cleanup: Annotated[
        Cleanup, msgspec.Meta(description="Keep its session for a while, or delete it once you have its result")
    ] = Cleanup.KEEP


class BackgroundArguments(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[str, msgspec.Meta(min_length=1, description=_TASK)]
    name: Annotated[str, msgspec.Meta(description="A short name for it")] = ""


class _Wish(Struct, frozen=True, kw_only=True):
    """The parameters of a new subagent, independent of the tool that was called."""

    task: str
    label: str = ""
    target: str = ""
    model: str = ""
    thinking: str = ""
    seconds: float = 0
    cleanup: Cleanup = Cleanup.KEEP


class Sending(Struct, frozen=True):
    """Starts subagents for both tools. `catalog` lists the models; `defaults` has the settings for
    subagents.
    """

    hand_over: HandOver
    store: Store
    catalog: Callable[[], Catalog]
    defaults: Callable[[], Defaults]

    async def send(self, wish: _Wish, scene: Scene) -> tuple[Handed, dict[str, Any]]:
        """Start a subagent, once per call. Also returns the notes about its model for the result."""
        target = wish.target.removeprefix("agent:")
        request, said = await self._request(wish, scene, target)
        handing = Handing(
            kind=DelegationKind.SPAWN,
            run=scene.run,
            call=scene.call,
            target=target,
            text=wish.task,
            trust=scene.trust,
            label=label_of(wish.label, wish.task),
            cleanup=wish.cleanup,
            request=request,
        )
        return await self.hand_over(handing), said

    async def _request(self, wish: _Wish, scene: Scene, target: str) -> tuple[RunRequest, dict[str, Any]]:
        """Return the run parameters: from the call, else from the agent's subagent settings, else
        the defaults.
        """
        terms = self.defaults().subagents_of(scene.agent)
        said: dict[str, Any] = {}
        model, warning = self._model(wish.model or terms.model)
        if wish.model:
            said["modelApplied"] = model is not None
        if warning:
            said["warning"] = warning
        effort = terms.effort
        if wish.thinking:
            found = await self.store.read(lambda conn: agents.find(conn, target)) if target else scene.agent
            effort = self._effort(wish.thinking, found, model)
        seconds = wish.seconds or terms.run_seconds_max
        return RunRequest(model=model, effort=effort, seconds_max=seconds), said

    def _model(self, text: str) -> tuple[str | None, str]:
        """Resolve a model name. An unavailable model is a warning: the subagent then uses its own
        model.
        """
        if not text:
            return None, ""
        try:
            chosen = self.catalog().choose(text).ref
        except RetinueError as error:
            return None, f"{error.sentence}; it thinks with its own model instead"
        return (str(chosen) if chosen is not None else None), ""

    def _effort(self, word: str, target: Agent | None, model: str | None) -> str:
        effort = EFFORT_WORDS.get(word.strip().casefold())
        if effort is None:
            raise Invalid(
                f"there is no thinking level '{word[:20]}'",
                because=f"it is one of: {', '.join(dict.fromkeys(EFFORT_WORDS))}",
                try_this="leave it out",
                code="effort.unknown",
            )
        if target is not None:
            catalog = self.catalog()
            catalog.check_effort(catalog.chain(agent=target, mind=Mind(), override=model)[0], effort)
        return effort


def _refused(error: RetinueError) -> Output:
    status = "forbidden" if error.code == FORBIDDEN else "error"
    body = {"status": status, "error": error.sentence, "because": error.because, "try": error.try_this}
    return Output(text=_encode(body).decode(), trust=Trust.PRIVATE, failed=True)


def _not_taken(handed: Handed) -> Output | None:
    """Return the error output of a delegation that was refused at once, or None."""
    if handed.delegation.state.open or handed.answer is None:
        return None
    body = {"status": "error", "error": handed.delegation.because}
    return Output(text=_encode(body).decode(), trust=Trust.PRIVATE, failed=True)


class SessionsSpawn(Struct, frozen=True):
    """Starts a subagent with a label, model, timeout and cleanup rule."""

    sending: Sending
    arguments: type[msgspec.Struct] = SpawnArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_spawn",
            description=(
                "Send out a subagent to do work of yours in the background. It has your rights, knows nothing of this "
                "conversation, and reports to you. Returns at once; its result comes as a message."
            ),
            parameters=schema_of(SpawnArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: SpawnArguments, scene: Scene) -> Output:
        wish = _Wish(
            task=arguments.task,
            label=arguments.label,
            target=arguments.agentId,
            model=arguments.model,
            thinking=arguments.thinking,
            seconds=arguments.runTimeoutSeconds or arguments.timeoutSeconds,
            cleanup=arguments.cleanup,
        )
        try:
            handed, said = await self.sending.send(wish, scene)
        except RetinueError as error:
            return _refused(error)
        if (failed := _not_taken(handed)) is not None:
            return failed
        made = handed.delegation
        body = {
            "status": "accepted",
            "childSessionKey": made.child_key,
            "sessionId": made.to,
            "runId": made.run_id,
            "label": made.label,
            **said,
            "message": _LATER,
        }
        return Output(text=_encode(body).decode(), trust=Trust.PRIVATE)


class StartBackgroundAgent(Struct, frozen=True):
    """Starts a subagent with a prompt and a name only."""

    sending: Sending
    arguments: type[msgspec.Struct] = BackgroundArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="start_background_agent",
            description=(
                "Start a subagent of yours that works in the background. It has your rights, knows nothing of this "
                "conversation, and reports to you. Returns its id at once; each call starts a new one."
            ),
            parameters=schema_of(BackgroundArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: BackgroundArguments, scene: Scene) -> Output:
        try:
            handed, said = await self.sending.send(_Wish(task=arguments.prompt, label=arguments.name), scene)
        except RetinueError as error:
            return _refused(error)
        if (failed := _not_taken(handed)) is not None:
            return failed
        made = handed.delegation
        body = {
            "status": "started",
            "agentId": made.to,
            "name": made.label,
            "sessionKey": made.child_key,
            "runId": made.run_id,
            **said,
            "message": _LATER,
        }
        return Output(text=_encode(body).decode(), trust=Trust.PRIVATE)
