"""`agents_list` and `agents_message`: list other agents, and delegate work to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from retinue.config.external_agents import ExternalSettings
from retinue.domain.delegation import LATEST_OR_CREATE, DelegationKind, Notify
from retinue.domain.delegation_request import Handing, HandOver
from retinue.domain.errors import RetinueError
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.webhook import Webhook
from retinue.policy.access.agent_visibility import visible_to
from retinue.policy.access.webhooks import check
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.tools.base import Output, Pending, Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.delegate.delegation_result import told
from retinue.tools.web.url_guard import missing, require_web

WAIT_S = 300.0
WAIT_S_MAX = 3_600.0

_encode = msgspec.json.Encoder().encode


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


class AgentsList(Struct, frozen=True):
    """Lists the agents that this agent may delegate to."""

    store: Store
    arguments: type[msgspec.Struct] = ListArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_list",
            description="The other agents of this house whom you can write to.",
            parameters=schema_of(ListArguments),
            capabilities=frozenset({"agents.read"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: ListArguments, scene: Scene) -> Output:
        del arguments
        staff = await self.store.read(agents.everyone)
        listed = [
            {"id": agent.name, "description": agent.description, "runner": agent.runner}
            for agent in visible_to(scene.agent, staff)
        ]
        return Output(text=_encode({"agents": listed}).decode())


class MessageArguments(msgspec.Struct, forbid_unknown_fields=True):
    agentId: Annotated[str, msgspec.Meta(description="Whom to ask, as agents_list names them")]
    content: Annotated[str, msgspec.Meta(min_length=1, description="What to ask, with all they need to know")]
    session: Annotated[
        str, msgspec.Meta(description="latest-or-create, latest, create, or the id of one of their sessions with you")
    ] = LATEST_OR_CREATE
    mode: Annotated[
        Literal["sync", "async"], msgspec.Meta(description="Wait for the answer, or get it as a message later")
    ] = "sync"
    timeout: Annotated[float, msgspec.Meta(gt=0, le=WAIT_S_MAX, description="Seconds to wait, in mode sync")] = WAIT_S
    notify: Annotated[
        Notify,
        msgspec.Meta(description="In mode async: be woken by the answer, have it noted for your next turn, or neither"),
    ] = Notify.WAKE
    webhook: Annotated[
        Webhook | None,
        msgspec.Meta(description="In mode async: an address outside that is told what came of it, and headers for it"),
    ] = None


class AgentsMessage(Struct, frozen=True):
    """Delegates work. In mode sync the run is suspended until there is an answer.

    A suspended run holds no slot and survives a restart.
    """

    hand_over: HandOver
    store: Store
    clock: Clock
    external: Callable[[], ExternalSettings] = ExternalSettings
    confined: Callable[[Scene], bool] = lambda _scene: False  # to sessions started from its own
    arguments: type[msgspec.Struct] = MessageArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_message",
            description=(
                "Ask another agent for something. They work with their own tools and know nothing of this "
                "conversation, so say all that they need. Several calls at once are worked on at once."
            ),
            parameters=schema_of(MessageArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            repeatable=True,
        )
    )

    def needs(self, arguments: MessageArguments, scene: Scene) -> Sequence[Permission]:
        return missing(scene) if arguments.webhook is not None else ()

    async def perform(self, arguments: MessageArguments, scene: Scene) -> Output:
        waits = arguments.mode == "sync"
        if arguments.webhook is not None:
            self._check(arguments.webhook, scene, waits=waits)
        handing = Handing(
            kind=DelegationKind.MESSAGE,
            run=scene.run,
            call=scene.call,
            target=arguments.agentId.removeprefix("agent:"),
            text=arguments.content,
            trust=scene.trust,
            session=arguments.session,
            wait_s=arguments.timeout if waits else None,
            notify=arguments.notify,
            webhook=arguments.webhook,
            confined=self.confined(scene),
        )
        try:
            handed = await self.hand_over(handing)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if handed.pending and handed.delegation.wait_until is not None:
            raise Pending(handed.delegation.wait_until)
        return await told(self.store, handed, mode=arguments.mode, wait_s=arguments.timeout, now=self.clock.now())

    def _check(self, webhook: Webhook, scene: Scene, *, waits: bool) -> None:
        if waits:
            raise ToolFailed(
                "a webhook goes with mode async",
                because="in mode sync the answer comes back into this call",
                try_this="leave one of the two out",
                code="webhook.not-async",
            )
        require_web(scene)
        try:
            check(self.external(), webhook)
        except RetinueError as error:
            raise as_tool_failed(error) from error
