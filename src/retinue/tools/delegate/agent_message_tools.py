"""`send_agent_message` and `agents_switch`: send an agent message to another session without
waiting.

With `agents_switch` the person also moves to that session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Struct, field

from retinue.domain.agent_message import PassOn, Word
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short
from retinue.domain.tool import Effect, ToolSpec
from retinue.tools.base import Output, Scene, as_tool_failed, schema_of


class SendArguments(msgspec.Struct, forbid_unknown_fields=True):
    text: Annotated[str, msgspec.Meta(min_length=1, description="What to say, with all they need to know")]
    agentId: Annotated[
        str,
        msgspec.Meta(
            description="An agent as agents_list names it, or a session by its id. Left out: whoever sent you out, "
            "and else the last conversation of the person you work for"
        ),
    ] = ""
    strategy: Annotated[str, msgspec.Meta(description="Instead of agentId: most-recent-foreground, or heartbeat")] = ""
    silent: Annotated[bool, msgspec.Meta(description="Noted there for the next turn, and nothing is started")] = False


class SendAgentMessage(Struct, frozen=True):
    """Sends an agent message. Its id derives from the call, so a call repeated after a crash sends
    one.
    """

    pass_on: PassOn
    confined: Callable[[Scene], bool]
    arguments: type[msgspec.Struct] = SendArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="send_agent_message",
            description=(
                "Tell another agent something, or report on what you were sent out for, without waiting. They read it "
                "as a system message with you as its origin. What they make of it is for whoever they talk to: no "
                "answer comes back to you."
            ),
            parameters=schema_of(SendArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: SendArguments, scene: Scene) -> Output:
        word = Word(
            run=scene.run,
            call=scene.call,
            text=arguments.text,
            trust=scene.trust,
            to=arguments.agentId.strip(),
            strategy=arguments.strategy.strip(),
            silent=arguments.silent,
            confined=self.confined(scene),
        )
        try:
            heard = await self.pass_on(word)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        where = f"agent:{heard.agent}/{short(heard.session)}"
        if heard.refused:
            return Output(text=f"Not taken by {where}: {heard.refused}.", failed=True)
        said = "Noted for" if arguments.silent else "Told"
        return Output(text=f"{said} {where} (envelope {short(heard.envelope)}).")


class SwitchArguments(msgspec.Struct, forbid_unknown_fields=True):
    agentId: Annotated[
        str, msgspec.Meta(min_length=1, description="Whom they want to go on with; `back` for where they came from")
    ]
    message: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="What they want to discuss there; going back, a summary of what was decided here",
        ),
    ]


class AgentsSwitch(Struct, frozen=True):
    """Moves the person to another session. The message there is sent in the agent's name, not the
    person's.
    """

    pass_on: PassOn
    arguments: type[msgspec.Struct] = SwitchArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="agents_switch",
            description=(
                "Take the person you talk to to another agent, who goes on from your message, or back to the one they "
                "came from. Only when they ask for it: to have something done for them, use agents_message."
            ),
            parameters=schema_of(SwitchArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"agents.write"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: SwitchArguments, scene: Scene) -> Output:
        word = Word(
            run=scene.run,
            call=scene.call,
            text=arguments.message,
            trust=scene.trust,
            to=arguments.agentId.strip(),
            switches=True,
        )
        try:
            heard = await self.pass_on(word)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        where = f"agent:{heard.agent}/{short(heard.session)}"
        if heard.refused:
            return Output(text=f"Not taken by {where}: {heard.refused}.", failed=True)
        return Output(
            text=f"They go on with {heard.agent} in {where}, who has your message. Nothing more is to be said here."
        )
