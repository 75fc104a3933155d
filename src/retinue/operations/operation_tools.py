"""Exposes operations as tools for agents, with the same declaration, permissions and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.errors import RetinueError
from retinue.domain.principal import LEVEL_BY_ROLE, Principal
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services, perform_operation, remove_secret_fields
from retinue.operations.schedule.errors import ScheduleOwnerUnclear
from retinue.policy.access.operation_permissions import is_at_least, lowest_level
from retinue.store.runs import runs
from retinue.store.runs.message_authors import get_lineage
from retinue.store.runs.run_principal import get_run_principal
from retinue.tools.base import CACHED_SCHEMAS_MAX, ToolContext, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files.instruction_guard import build_instructions_error

_encode = msgspec.json.Encoder().encode

# Operations of these nouns return only the owner's settings, the server's own counts and heartbeat tasks, with no
# text from outside. All others may quote untrusted text: envelopes, histories, unapproved skills.
_TRUSTED_NOUNS = frozenset(
    {"agent", "model", "credential", "person", "token", "config", "usage", "tool", "grant", "heartbeat"}
)
_UNTRUSTED_WITH_EFFECT = frozenset({"envelope.list", "inbox.list", "tool.invoke"})

_CHANGES_INSTRUCTIONS = frozenset({"heartbeat.add", "heartbeat.remove"})  # tasks that the agent performs by itself

_SCHEDULING_NOUNS = frozenset({"schedule", "reminder", "wakeup"})

_cached_schema = lru_cache(CACHED_SCHEMAS_MAX)(schema_of)


class _LazyToolSpec(ToolSpec, frozen=True, kw_only=True):
    """The declaration of an operation as a tool. Its JSON schema is built on first use.

    Agents get only a few operations as tools, and building all schemas would slow down every start.
    """

    arguments: type[msgspec.Struct]

    @property
    def parameters(self) -> dict[str, Any]:  # type: ignore[override]
        return _cached_schema(self.arguments)


class OperationTool:
    """Lets agents call one operation as a tool.

    An agent has the same permission level in a tool call as over HTTP. A subagent acts as the agent that
    started it, and has no more rights than that agent. No run has more rights than its run principal. A
    run that is not on behalf of the owner reads only what its run principal may see.

    A call with an effect uses the session and the call id as its idempotency key. If the call is repeated
    after a crash, its effect happens only once.
    """

    def __init__(self, operation: Operation, services: Callable[[], Services]) -> None:
        self._operation = operation
        self._services = services
        self.arguments: type[msgspec.Struct] = operation.parameters
        self.spec: ToolSpec = _LazyToolSpec(
            name=tool_name(operation),
            description=operation.summary,
            parameters={},
            arguments=operation.parameters,
            effects=_tool_effects(operation),
            is_repeatable=not operation.has_effect,
            must_be_named=True,
        )

    def decide_confirmation(self, arguments: Any, context: ToolContext) -> Decision | None:
        """Require the owner's approval for each call with an effect that needs the level privileged.

        These calls change agents, people and settings. They need the approval even if the agent has read
        only trusted content.
        """
        operation = self._operation
        if operation.has_effect and is_at_least(operation.permission, PermissionLevel.PRIVILEGED):
            return ask_owner_decision(f"{operation.name} changes what agents or people may do on this server")
        return None

    async def perform(self, arguments: Any, context: ToolContext) -> str:
        if context.non_owner_requesters and self._operation.name in _CHANGES_INSTRUCTIONS:
            raise build_instructions_error(f"call {self._operation.name}", context)
        trust = Trust.UNTRUSTED if context.trust is Trust.UNTRUSTED else Trust.AGENT
        principal = await self._services().store.read(partial(self._read_principal, context=context, trust=trust))
        if self._operation.has_effect and self._operation.name.partition(".")[0] in _SCHEDULING_NOUNS:
            principal = scheduling_principal(context, level=principal.level) or principal
        key = f"{context.session}/{context.call}" if self._operation.has_effect else ""
        try:
            answer = await perform_operation(self._services(), principal, self._operation, _encode(arguments), key=key)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return remove_secret_fields(answer, self._operation).decode()  # it becomes a record and part of later prompts

    def _read_principal(self, conn: sa.Connection, *, context: ToolContext, trust: Trust) -> Principal:
        level = lowest_level(each.permission_level for each in (context.agent, *context.parent_agents))
        asks = address.agent_address(context.effective_agent.name)
        run = runs.get(conn, context.run)
        if run is None:
            return Principal(address=asks, level=level, trust=trust)
        behalf = get_run_principal(conn, run)
        if behalf is not None:
            level = lowest_level((level, behalf.level))
            if not behalf.sees_everything and not self._operation.has_effect:
                asks = behalf.address
        return Principal(address=asks, level=level, trust=trust, lineage=get_lineage(conn, run))


def scheduling_principal(context: ToolContext, *, level: PermissionLevel) -> Principal | None:
    """Return the principal that owns schedules, reminders and wake-ups set by this run.

    A run on behalf of a person other than the owner sets them as that person, so they later run with
    that person's rights. Returns None if the run acts for the owner alone.
    """
    if not context.non_owner_requesters:
        return None
    one, *more = context.non_owner_requesters
    if more or one.role is None or one.address.kind is not AddressKind.PERSON:
        raise ScheduleOwnerUnclear(", ".join(str(each.address) for each in context.non_owner_requesters))
    trust = Trust.UNTRUSTED if context.trust is Trust.UNTRUSTED else Trust.PERSON
    return Principal(address=one.address, level=lowest_level((level, LEVEL_BY_ROLE[one.role])), trust=trust)


def ask_owner_decision(because: str) -> Decision:
    return Decision(DecisionKind.ASK, because)


def _tool_effects(operation: Operation) -> frozenset[ToolEffect]:
    own = frozenset({ToolEffect.WRITES}) if operation.has_effect else frozenset({ToolEffect.READS_PRIVATE})
    reads = not operation.has_effect and operation.name.partition(".")[0] not in _TRUSTED_NOUNS
    quotes = reads or operation.name in _UNTRUSTED_WITH_EFFECT
    return own | {ToolEffect.READS_UNTRUSTED} if quotes else own


def tool_name(operation: Operation) -> str:
    return operation.name.replace(".", "_").replace("-", "_")


def build_operation_tools(operations: Iterable[Operation], services: Callable[[], Services]) -> list[OperationTool]:
    return [OperationTool(operation, services) for operation in operations]
