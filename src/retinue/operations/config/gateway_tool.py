"""The `gateway` tool: server status and settings, for runs on behalf of the owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Struct, field

from retinue.domain.agent import PermissionLevel
from retinue.domain.decision import Decision
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.operations.base import Desk, Operation, perform
from retinue.operations.operation_tools import ask_owner
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of

PATHS_SHOWN_MAX = 20  # paths of a change named in the approval
PATH_CHARS_MAX = 100

_encode = msgspec.json.Encoder().encode

# The operation of each action. Settings are patched, never replaced: keys that are not named are kept.
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
    """For runs on behalf of the owner only. It acts with the owner's rights, not the agent's."""

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

    def confirm(self, arguments: GatewayArguments, scene: Scene) -> Decision | None:
        """Ask the owner about every change, because settings decide what agents may do.

        Trusted context does not exempt it: an instruction file may have been written by someone else.
        """
        match arguments.action:
            case "config_patch":
                changes = arguments.parameters.get("changes")
                return ask_owner(f"it changes the settings{_named(changes)}")
            case "config_reload":
                return ask_owner("it puts the settings file into effect as it is now")
            case _:
                return None

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


def _named(changes: object) -> str:
    """Return the dotted paths that a patch changes, without values: `: sandbox.mode, tools.exec.ask`."""
    paths = sorted(_paths(changes, ""))
    shown = ", ".join(path[:PATH_CHARS_MAX] for path in paths[:PATHS_SHOWN_MAX])
    more = f" and {len(paths) - PATHS_SHOWN_MAX} more" if len(paths) > PATHS_SHOWN_MAX else ""
    return f": {shown}{more}" if shown else ""


def _paths(changes: object, prefix: str) -> Iterator[str]:
    if isinstance(changes, dict) and changes:
        for key, value in cast("dict[str, object]", changes).items():
            yield from _paths(value, f"{prefix}.{key}" if prefix else key)
    elif prefix:
        yield prefix
