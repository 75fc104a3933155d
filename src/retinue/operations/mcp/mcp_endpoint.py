"""The server's own MCP endpoint: operations allowed by the caller's level, and the tools of one agent by its rules.

A client can call exactly what is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.principal import Principal
from retinue.domain.session import OriginKind
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation, once, perform, without_secrets
from retinue.operations.operation_tools import tool_name
from retinue.operations.plugin.plugins import guests_of
from retinue.operations.tool.tool_invoke import Invoke, Invoked, call_directly
from retinue.operations.tool_context import named_agent
from retinue.policy.access import permissions
from retinue.policy.tools.tools import Circumstances, Door
from retinue.store.runs.run_requesters import requesters_at
from retinue.tools.base import schema_of

SEND = "envelope.send"
INVOKE = "tool.invoke"

_encode = msgspec.json.Encoder().encode


class Offered(Struct, frozen=True, kw_only=True):
    """One callable tool. `has_effect`: it changes something. `reaches_outside`: it interacts with the outside world."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: bool
    outside: bool = False


class Called(Struct, frozen=True):
    text: str
    failed: bool = False
    structured: bool = False  # the text is JSON


class Visitor(Struct, frozen=True, kw_only=True):
    """The endpoint for one client. `agent` is the agent whose tools it uses besides operations, or empty.

    `check_send_limit` is called before an envelope is sent, and raises if the rate limit is exceeded.
    """

    desk: Desk
    caller: Principal
    agent: str = ""
    sending: Callable[[], None] = lambda: None

    async def offered(self) -> list[Offered]:
        tools = await self._tools()
        return [*map(_of_operation, self._operations().values()), *map(_of_tool, tools)]

    async def call(self, name: str, arguments: Mapping[str, Any], *, key: str = "") -> Called:
        operation = self._operations().get(name)
        if operation is not None:
            if operation.name == SEND:
                self.sending()
            answer = await perform(self.desk, self.caller, operation, _encode(arguments), key=key)
            return Called(without_secrets(answer, operation).decode(), structured=True)  # a model reads the result
        if not any(spec.name == name for spec in await self._tools()):
            raise NotFound(
                f"there is no tool '{name[:64]}' here",
                because="none that you may use has that name",
                try_this="ask for the list of tools",
                code="tool.not-found",
            )
        asked, caller = Invoke(tool=name, args=dict(arguments), agent=self.agent), self._as_heard()
        if key:
            answer = await once(self.desk, caller, _CALL, _encode(asked), asked, key)
            done = msgspec.json.decode(answer, type=Invoked)
        else:
            done = await _call(self.desk, caller, asked)
        return Called(done.output, failed=done.failed)

    def _every(self) -> list[Operation]:
        from retinue.operations.catalog import OPERATIONS  # lazy: import cycle

        guests = guests_of(self.desk)
        return [*OPERATIONS.values(), *(guests.operations().values() if guests is not None else ())]

    def _operations(self) -> dict[str, Operation]:
        """Return the operations that the caller's level permits, by tool name."""
        level, policy = self.caller.level, self.desk.policy
        reached = [each for each in self._every() if permissions.decide(each.name, level, policy).allowed]
        return {tool_name(each): each for each in reached}

    async def _tools(self) -> list[ToolSpec]:
        """Return the agent's tools by its rules, without operations: the caller performs those as itself."""
        if not self.agent or self.desk.toolbox is None:
            return []
        agent = await self._named()
        caller = self.caller.address
        asked_by = await self.desk.store.read(partial(requesters_at, addresses=(caller,)))
        where = Circumstances(origin=OriginKind.EXTERNAL, sender=caller, requesters=asked_by, door=Door.MCP)
        operations = {tool_name(each) for each in self._every()}
        return [spec for spec in self.desk.toolbox.offered(agent, where) if spec.name not in operations]

    async def _named(self) -> Agent:
        """Return the agent. Other callers than the agent itself need the permission for `tool.invoke`."""
        own = self.caller.address.kind is AddressKind.AGENT and self.caller.address.name == self.agent
        permission = permissions.decide(INVOKE, self.caller.level, self.desk.policy)
        if not own and not permission.allowed:
            raise NotAllowed(
                f"you may not use the tools of '{self.agent[:64]}'",
                because=permission.because,
                try_this="ask the owner of this house, or leave the agent out",
                code="permission.denied",
            )
        return await self.desk.store.read(partial(named_agent, name=self.agent))

    def _as_heard(self) -> Principal:
        """Return the caller, untrusted if it is an agent: its request may stem from anything that it has read."""
        if self.caller.address.kind is AddressKind.AGENT:
            return replace(self.caller, trust=Trust.UNTRUSTED)
        return self.caller


async def _call(desk: Desk, caller: Principal, asked: Invoke) -> Invoked:
    return await call_directly(desk, caller, asked, door=Door.MCP)


# Not in the catalog: `McpEndpoint` decides who may call the tools of an agent, not a level alone.
_CALL = Operation(
    name="mcp.call",
    summary="Call a tool of an agent.",
    parameters=Invoke,
    handler=_call,
    permission=PermissionLevel.RESTRICTED,
    effect=True,
    claims_key=True,
    result=Invoked,
)


def _of_operation(operation: Operation) -> Offered:
    return Offered(
        name=tool_name(operation),
        description=operation.summary,
        parameters=schema_of(operation.parameters),
        effect=operation.effect,
    )


def _of_tool(spec: ToolSpec) -> Offered:
    return Offered(
        name=spec.name,
        description=spec.description,
        parameters=spec.parameters,
        effect=bool(spec.effects - {Effect.READS_PRIVATE, Effect.READS_UNTRUSTED}),
        outside=bool(spec.effects & {Effect.READS_UNTRUSTED, Effect.SENDS_OUT}),
    )
