"""Operations as tools: the same declaration, the same rights, the same validation, in an agent's hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation, perform, without_secrets
from retinue.policy.permissions import least_level
from retinue.store import runs
from retinue.store.behalf import whose
from retinue.store.wrote import descent
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of

_encode = msgspec.json.Encoder().encode

# What is answered about these are the owner's settings and the house's own counts, and tasks of heartbeats, of which
# nothing is shown that came from outside. All else may quote anybody: mail, histories, skills that nobody looked at.
_OWN_WORDS = frozenset(
    {"agent", "model", "credential", "person", "token", "config", "usage", "tool", "grant", "heartbeat"}
)
_QUOTE_WITH_EFFECT = frozenset({"envelope.list", "inbox.list", "tool.invoke"})

SCHEMAS_KEPT_MAX = 512
_schema = lru_cache(SCHEMAS_KEPT_MAX)(schema_of)


class _Spec(ToolSpec, frozen=True, kw_only=True):
    """Says what its operation takes when it is asked. Few of the operations are ever offered to an agent, and the
    schemas of all of them would be a large part of every start."""

    arguments: type[msgspec.Struct]

    @property
    def parameters(self) -> dict[str, Any]:  # type: ignore[override]
        return _schema(self.arguments)


class OperationTool:
    """One operation, asked by an agent for itself: it can do no more than its level lets it over HTTP, a subagent no
    more than whoever sent it out, as whom it asks, and neither more than the person for whom the run works. Whatever is
    not the owner's work reads what that person sees.

    An effect carries the call's id as its key, so that a call which is made again after a crash has its effect once.
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

    async def perform(self, arguments: Any, scene: Scene) -> str:
        trust = Trust.UNTRUSTED if scene.trust is Trust.UNTRUSTED else Trust.AGENT
        principal = await self._desk().store.read(partial(self._who, scene=scene, trust=trust))
        key = f"{scene.session}/{scene.call}" if self._operation.effect else ""
        try:
            answer = await perform(self._desk(), principal, self._operation, _encode(arguments), key=key)
        except ToolFailed:
            raise
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return without_secrets(answer, self._operation).decode()  # it becomes a record, and part of every prompt

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


def _effects(operation: Operation) -> frozenset[Effect]:
    own = frozenset({Effect.WRITES}) if operation.effect else frozenset({Effect.READS_PRIVATE})
    reads = not operation.effect and operation.name.partition(".")[0] not in _OWN_WORDS
    quotes = reads or operation.name in _QUOTE_WITH_EFFECT
    return own | {Effect.READS_UNTRUSTED} if quotes else own


def tool_name(operation: Operation) -> str:
    return operation.name.replace(".", "_").replace("-", "_")


def tools_of(operations: Iterable[Operation], desk: Callable[[], Desk]) -> list[OperationTool]:
    return [OperationTool(operation, desk) for operation in operations]
