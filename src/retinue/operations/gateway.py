"""`gateway`: the house itself, in the hand of an agent that works for the owner. Operations do the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct, field

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.mailroom.routing import OWNER
from retinue.operations.base import Desk, Operation, perform
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of

_encode = msgspec.json.Encoder().encode

# What each action asks of the house. Settings are patched, never replaced: nothing that was not named is lost.
ACTIONS: Mapping[str, str] = {
    "status": "house.status",
    "doctor": "house.doctor",
    "config_show": "config.show",
    "config_check": "config.check",
    "config_patch": "config.patch",
    "config_reload": "config.reload",
}


class GatewayArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["status", "doctor", "config_show", "config_check", "config_patch", "config_reload"]
    parameters: Annotated[
        dict[str, Any],
        msgspec.Meta(description="For config_patch: changes (dotted paths with new values) and expected_hash."),
    ] = {}


class Gateway(Struct, frozen=True):
    """For runs that work for the owner, and for no other: with their rights, not the agent's."""

    desk: Callable[[], Desk]
    operations: Mapping[str, Operation]
    arguments: type[msgspec.Struct] = GatewayArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="gateway",
            description="Look at the house and change its settings. Only while you work for its owner.",
            parameters=schema_of(GatewayArguments),
            effects=frozenset({Effect.READS_PRIVATE, Effect.WRITES}),
            capabilities=frozenset({"house.admin"}),
        )
    )

    async def perform(self, arguments: GatewayArguments, scene: Scene) -> str:
        if scene.sender != OWNER:
            raise ToolFailed(
                "this is for the owner's own runs",
                because=f"you work for {scene.sender}",
                try_this="ask the owner to tell you directly",
                code="gateway.not-owner",
            )
        principal = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)
        operation = self.operations[ACTIONS[arguments.action]]
        key = f"{scene.session}/{scene.call}" if operation.effect else ""
        try:
            answer = await perform(self.desk(), principal, operation, _encode(arguments.parameters), key=key)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return answer.decode()
