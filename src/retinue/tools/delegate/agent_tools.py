"""The tools `agents_list` and `agents_message`: list other agents, and delegate work to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from retinue.config.external_agents import ExternalAgentSettings
from retinue.domain.delegation import LATEST_OR_NEW_SESSION, DelegationKind, NotifyMode
from retinue.domain.delegation_request import DelegateWork, DelegationRequest
from retinue.domain.errors import RetinueError
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.webhook import Webhook
from retinue.policy.access.agent_visibility import list_visible_agents
from retinue.policy.access.webhooks import check_webhook
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.tools.base import CallPending, ToolContext, ToolOutput, as_tool_failed, schema_of
from retinue.tools.delegate.delegation_result import build_delegation_output
from retinue.tools.delegate.errors import WebhookNeedsAsync
from retinue.tools.web.url_guard import missing_web_permission, require_web

WAIT_DEFAULT_S = 300.0
WAIT_S_MAX = 3_600.0

_encode = msgspec.json.Encoder().encode


class AgentsListArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class AgentsListTool(Struct, frozen=True):
    """The tool `agents_list`: lists the agents to which this agent may delegate."""

    store: Store
    arguments: type[msgspec.Struct] = AgentsListArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_list",
            description="List the other agents that you can delegate to. Returns id, description and runner of each.",
            parameters=schema_of(AgentsListArguments),
            capabilities=frozenset({"agents.read"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: AgentsListArguments, context: ToolContext) -> ToolOutput:
        del arguments
        known = await self.store.read(agents.list_all)
        listed = [
            {"id": agent.name, "description": agent.description, "runner": agent.runner}
            for agent in list_visible_agents(context.agent, known)
        ]
        return ToolOutput(text=_encode({"agents": listed}).decode())


class AgentsMessageArguments(msgspec.Struct, forbid_unknown_fields=True):
    agentId: Annotated[str, msgspec.Meta(description="Agent, as returned by agents_list")]
    content: Annotated[str, msgspec.Meta(min_length=1, description="The task, with everything the agent needs to know")]
    session: Annotated[
        str, msgspec.Meta(description="latest-or-create, latest, create, or the id of one of its sessions with you")
    ] = LATEST_OR_NEW_SESSION
    mode: Annotated[
        Literal["sync", "async"],
        msgspec.Meta(description="sync: wait for the answer. async: get it later as a message"),
    ] = "sync"
    timeout: Annotated[float, msgspec.Meta(gt=0, le=WAIT_S_MAX, description="Seconds to wait in mode sync")] = (
        WAIT_DEFAULT_S
    )
    notify: Annotated[
        NotifyMode,
        msgspec.Meta(
            description="In mode async: whether the answer starts a run, waits for your next turn, or is not sent"
        ),
    ] = NotifyMode.WAKE
    webhook: Annotated[
        Webhook | None,
        msgspec.Meta(description="In mode async: URL (and headers) to notify when the work is done"),
    ] = None


class AgentsMessageTool(Struct, frozen=True):
    """The tool `agents_message`: delegates work. In mode sync the run is suspended until there is an answer.

    A suspended run holds no slot and survives a restart.
    """

    delegate: DelegateWork
    store: Store
    clock: Clock
    external_settings: Callable[[], ExternalAgentSettings] = ExternalAgentSettings
    is_confined: Callable[[ToolContext], bool] = lambda _context: False  # to sessions started from its own
    arguments: type[msgspec.Struct] = AgentsMessageArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_message",
            description=(
                "Delegate work to another agent. It uses its own tools and does not know this conversation, so include "
                "everything it needs. Returns its answer, or in mode async the id of the work. Several calls in one "
                "turn are worked on at the same time."
            ),
            parameters=schema_of(AgentsMessageArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            is_repeatable=True,
        )
    )

    def required_permissions(self, arguments: AgentsMessageArguments, context: ToolContext) -> Sequence[Permission]:
        return missing_web_permission(context) if arguments.webhook is not None else ()

    async def perform(self, arguments: AgentsMessageArguments, context: ToolContext) -> ToolOutput:
        waits = arguments.mode == "sync"
        if arguments.webhook is not None:
            self._check_webhook(arguments.webhook, context, is_sync=waits)
        request = DelegationRequest(
            kind=DelegationKind.MESSAGE,
            run=context.run,
            call=context.call,
            target=arguments.agentId.removeprefix("agent:"),
            text=arguments.content,
            trust=context.trust,
            session=arguments.session,
            wait_s=arguments.timeout if waits else None,
            notify=arguments.notify,
            webhook=arguments.webhook,
            own_sessions_only=self.is_confined(context),
        )
        try:
            status = await self.delegate(request)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if status.is_pending and status.delegation.wait_until is not None:
            raise CallPending(status.delegation.wait_until)
        return await build_delegation_output(
            self.store, status, mode=arguments.mode, wait_s=arguments.timeout, now=self.clock.now()
        )

    def _check_webhook(self, webhook: Webhook, context: ToolContext, *, is_sync: bool) -> None:
        if is_sync:
            raise WebhookNeedsAsync
        require_web(context)
        try:
            check_webhook(self.external_settings(), webhook)
        except RetinueError as error:
            raise as_tool_failed(error) from error
