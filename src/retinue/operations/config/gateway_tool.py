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
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.operations.base import Operation, Services, perform_operation
from retinue.operations.config.errors import GatewayOwnerOnly
from retinue.operations.operation_tools import ask_owner_decision
from retinue.tools.base import ToolContext, as_tool_failed, schema_of

PATHS_SHOWN_MAX = 20  # paths of a change named in the approval
PATH_CHARS_MAX = 100
_CAPABILITY = "house.admin"  # must not change: settings and agents use this name to deny the capability

_encode = msgspec.json.Encoder().encode

# The operation for each action. A patch keeps the settings that it does not contain.
ACTION_OPERATIONS: Mapping[str, str] = {
    "status": "server.status",
    "doctor": "server.doctor",
    "config_show": "config.show",
    "config_check": "config.check",
    "config_patch": "config.patch",
    "config_reload": "config.reload",
}


class GatewayArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["status", "doctor", "config_show", "config_check", "config_patch", "config_reload"]
    parameters: Annotated[
        dict[str, Any],
        msgspec.Meta(description="For config_patch: changes (nested tables with new values) and expected_hash."),
    ] = {}


class GatewayTool(Struct, frozen=True):
    """The tool `gateway`, which lets an agent show and change settings with the owner's rights.

    Only runs on behalf of the owner can call it.
    """

    services: Callable[[], Services]
    operations: Mapping[str, Operation]
    arguments: type[msgspec.Struct] = GatewayArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="gateway",
            description=(
                "Show the status, the problems and the settings of the server, and change its settings. "
                "Returns JSON. Works only in runs on behalf of the owner, who must approve every change."
            ),
            parameters=schema_of(GatewayArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE, ToolEffect.WRITES}),
            capabilities=frozenset({_CAPABILITY}),
        )
    )

    def decide_confirmation(self, arguments: GatewayArguments, context: ToolContext) -> Decision | None:
        """Ask the owner about every change, because settings decide what agents may do.

        A change needs confirmation even if the context is trusted, because the agent's instruction files
        may contain text by another person.
        """
        match arguments.action:
            case "config_patch":
                changes = arguments.parameters.get("changes")
                return ask_owner_decision(f"it changes the settings{_format_paths(changes)}")
            case "config_reload":
                return ask_owner_decision("it reloads the settings file")
            case _:
                return None

    async def perform(self, arguments: GatewayArguments, context: ToolContext) -> str:
        if context.sender != OWNER:
            raise GatewayOwnerOnly(str(context.sender))
        principal = Principal(address=OWNER, level=PermissionLevel.BOSS, trust=Trust.OWNER)
        operation = self.operations[ACTION_OPERATIONS[arguments.action]]
        key = f"{context.session}/{context.call}" if operation.has_effect else ""
        try:
            answer = await perform_operation(
                self.services(), principal, operation, _encode(arguments.parameters), key=key
            )
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return answer.decode()


def _format_paths(changes: object) -> str:
    """Return a colon and the dotted paths that a patch changes, without values: `: sandbox.mode, tools.exec.ask`."""
    paths = sorted(_dotted_paths(changes, ""))
    shown = ", ".join(path[:PATH_CHARS_MAX] for path in paths[:PATHS_SHOWN_MAX])
    more = f" and {len(paths) - PATHS_SHOWN_MAX} more" if len(paths) > PATHS_SHOWN_MAX else ""
    return f": {shown}{more}" if shown else ""


def _dotted_paths(changes: object, prefix: str) -> Iterator[str]:
    if isinstance(changes, dict) and changes:
        for key, value in cast("dict[str, object]", changes).items():
            yield from _dotted_paths(value, f"{prefix}.{key}" if prefix else key)
    elif prefix:
        yield prefix
