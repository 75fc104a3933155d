"""The tools `send_agent_message` and `agents_switch`: send an agent message to another session without waiting.

With `agents_switch` the person also moves to that session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.agent_message import AgentMessage, DeliverAgentMessage
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short_id
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.tools.base import ToolContext, ToolOutput, as_tool_failed, schema_of


class SendAgentMessageArguments(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(min_length=1, description="The message, with everything the agent needs to know")]
    agentId: Annotated[
        str,
        msgspec.Meta(
            description="Agent, as returned by agents_list, or the id of a session. Default: the session that started "
            "you, otherwise the last conversation of the person you work for"
        ),
    ] = ""
    strategy: Annotated[
        str, msgspec.Meta(description="Use instead of agentId: most-recent-foreground or heartbeat")
    ] = ""
    silent: Annotated[
        bool,
        msgspec.Meta(description="Whether to store the message for the recipient's next turn, without starting a run"),
    ] = False


class SendAgentMessageTool(Struct, frozen=True):
    """The tool `send_agent_message`.

    The id of the message derives from the call, so a call repeated after a crash sends one message.
    """

    send_message: DeliverAgentMessage
    is_confined: Callable[[ToolContext], bool]
    arguments: type[msgspec.Struct] = SendAgentMessageArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="send_agent_message",
            description=(
                "Send a message to another agent, or report to the agent that started you, without waiting. The agent "
                "reads it as a system message from you. You get no answer; to get one, use agents_message."
            ),
            parameters=schema_of(SendAgentMessageArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SendAgentMessageArguments, context: ToolContext) -> ToolOutput:
        message = AgentMessage(
            run=context.run,
            call=context.call,
            text=arguments.text,
            trust=context.trust,
            recipient=arguments.agentId.strip(),
            strategy=arguments.strategy.strip(),
            silent=arguments.silent,
            own_sessions_only=self.is_confined(context),
        )
        try:
            sent = await self.send_message(message)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        where = f"agent:{sent.agent}/{short_id(sent.session)}"
        if sent.refused_because:
            return ToolOutput(text=f"Not delivered to {where}: {sent.refused_because}.", failed=True)
        done = "Stored for" if arguments.silent else "Sent to"
        return ToolOutput(text=f"{done} {where} (envelope {short_id(sent.envelope)}).")


class AgentsSwitchArguments(msgspec.Struct, forbid_unknown_fields=True):
    agentId: Annotated[
        str, msgspec.Meta(min_length=1, description="Agent to switch to; `back` returns to the previous one")
    ]
    message: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="What the person wants to discuss with the agent; with `back`, a summary of the decisions here",
        ),
    ]


class AgentsSwitchTool(Struct, frozen=True):
    """The tool `agents_switch`: moves the person to another session.

    The message to that session is sent in the name of the agent, not of the person.
    """

    send_message: DeliverAgentMessage
    arguments: type[msgspec.Struct] = AgentsSwitchArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_switch",
            description=(
                "Move the person you talk with to another agent, who continues from your message, or back to the "
                "previous one. Use it only if the person asks for it; to delegate work, use agents_message."
            ),
            parameters=schema_of(AgentsSwitchArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: AgentsSwitchArguments, context: ToolContext) -> ToolOutput:
        message = AgentMessage(
            run=context.run,
            call=context.call,
            text=arguments.message,
            trust=context.trust,
            recipient=arguments.agentId.strip(),
            is_switch=True,
        )
        try:
            sent = await self.send_message(message)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        where = f"agent:{sent.agent}/{short_id(sent.session)}"
        if sent.refused_because:
            return ToolOutput(text=f"Not delivered to {where}: {sent.refused_because}.", failed=True)
        return ToolOutput(
            text=f"The person now talks to {sent.agent} in {where}, who has your message. End your turn now."
        )
