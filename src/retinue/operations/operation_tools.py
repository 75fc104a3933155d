"""Expose operations as tools for agents, with the same declaration, permissions and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.decision import Decision, Verdict
from retinue.domain.errors import RetinueError
from retinue.domain.principal import LEVEL_OF, Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation, perform, without_secrets
from retinue.policy.access.permissions import least_level, reaches
from retinue.store.runs import runs
from retinue.store.runs.message_authors import descent
from retinue.store.runs.run_principal import whose
from retinue.tools.base import SCHEMAS_KEPT_MAX, Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files.instruction_guard import instructions_refused

_encode = msgspec.json.Encoder().encode

# Operations of these nouns return only the owner's settings, the server's own counts and heartbeat tasks, with no
# text from outside. All others may quote untrusted text: envelopes, histories, unapproved skills.
_OWN_WORDS = frozenset(
    {"agent", "model", "credential", "person", "token", "config", "usage", "tool", "grant", "heartbeat"}
)
_QUOTE_WITH_EFFECT = frozenset({"envelope.list", "inbox.list", "tool.invoke"})

_CHANGES_INSTRUCTIONS = frozenset({"heartbeat.add", "heartbeat.remove"})  # tasks it later performs unasked

_FOR_LATER = frozenset({"schedule", "reminder", "wakeup"})

_schema = lru_cache(SCHEMAS_KEPT_MAX)(schema_of)


class _Spec(ToolSpec, frozen=True, kw_only=True):
    """A tool spec that builds its schema on first use.

    Few operations are ever offered to an agent, and building all schemas would slow down every start.
    """

    arguments: type[msgspec.Struct]

    @property
    def parameters(self) -> dict[str, Any]:  # type: ignore[override]
        return _schema(self.arguments)


class OperationTool:
    """One operation as a tool.

    An agent can do no more than its permission level allows over HTTP. A subagent acts as the agent
    that started it, with no more rights. Neither can do more than the run principal. A run that is not
    on behalf of the owner reads only what the run principal may see.

    A call with an effect uses the call id as idempotency key, so a call repeated after a crash has its
    effect once.
    """

    def __init__(self, operation: Operation, desk: Callable[[], Desk]) -> None:
        self._operation = operation
        self._desk = desk
        self.arguments: type[msgspec.Struct] = operation.parameters
        self.spec: ToolSpec = _Spec(
            name=tool_name(operation),
            description=operation.summary,
            parameters={},
            arguments=operation.parameters,
            effects=_effects(operation),
            repeatable=not operation.effect,
            by_name=True,
        )

    def confirm(self, arguments: Any, scene: Scene) -> Decision | None:
        """Ask the owner about every call that only privileged callers may make.

        Such calls change agents, people and settings, so trusted context does not exempt them.
        """
        operation = self._operation
        if operation.effect and reaches(operation.permission, PermissionLevel.PRIVILEGED):
            return ask_owner(f"{operation.name} changes what agents or people may do here")
        return None

    async def perform(self, arguments: Any, scene: Scene) -> str:
        if scene.others and self._operation.name in _CHANGES_INSTRUCTIONS:
            raise instructions_refused(f"{self._operation.name} is not done", scene)
        trust = Trust.UNTRUSTED if scene.trust is Trust.UNTRUSTED else Trust.AGENT
        principal = await self._desk().store.read(partial(self._who, scene=scene, trust=trust))
        if self._operation.effect and self._operation.name.partition(".")[0] in _FOR_LATER:
            principal = sets_for_later(scene, level=principal.level) or principal
        key = f"{scene.session}/{scene.call}" if self._operation.effect else ""
        try:
            answer = await perform(self._desk(), principal, self._operation, _encode(arguments), key=key)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return without_secrets(answer, self._operation).decode()  # it becomes a record and part of later prompts

    def _who(self, conn: sa.Connection, *, scene: Scene, trust: Trust) -> Principal:
        level = least_level(each.permission_level for each in (scene.agent, *scene.senders))
        asks = address.agent(scene.acts_as.name)
        run = runs.get(conn, scene.run)
        if run is None:
            return Principal(address=asks, level=level, trust=trust)
        behalf = whose(conn, run)
        if behalf is not None:
            level = least_level((level, behalf.level))
            if not behalf.sees_all and not self._operation.effect:
                asks = behalf.address
        return Principal(address=asks, level=level, trust=trust, descent=descent(conn, run))


def sets_for_later(scene: Scene, *, level: PermissionLevel) -> Principal | None:
    """Return the principal that owns schedules, reminders and wake-ups set by this run.

    A run on behalf of a person other than the owner sets them as that person, so they later run with
    that person's rights. Returns None if the run acts for the owner alone.
    """
    if not scene.others:
        return None
    one, *more = scene.others
    if more or one.role is None or one.address.kind is not AddressKind.PERSON:
        raise ToolFailed(
            f"nothing is set for later on behalf of {', '.join(str(each.address) for each in scene.others)[:200]}",
            because="it has to belong to one person of this server, whose rights it has when its time comes",
            try_this="ask the owner, or a member in a conversation of their own, to set it",
            code="schedule.for-nobody",
        )
    trust = Trust.UNTRUSTED if scene.trust is Trust.UNTRUSTED else Trust.PERSON
    return Principal(address=one.address, level=least_level((level, LEVEL_OF[one.role])), trust=trust)


def ask_owner(because: str) -> Decision:
    return Decision(Verdict.ASK, because)


def _effects(operation: Operation) -> frozenset[Effect]:
    own = frozenset({Effect.WRITES}) if operation.effect else frozenset({Effect.READS_PRIVATE})
    reads = not operation.effect and operation.name.partition(".")[0] not in _OWN_WORDS
    quotes = reads or operation.name in _QUOTE_WITH_EFFECT
    return own | {Effect.READS_UNTRUSTED} if quotes else own


def tool_name(operation: Operation) -> str:
    return operation.name.replace(".", "_").replace("-", "_")


def tools_of(operations: Iterable[Operation], desk: Callable[[], Desk]) -> list[OperationTool]:
    return [OperationTool(operation, desk) for operation in operations]
