"""Retinue's own MCP server, which offers operations and the tools of one agent to MCP clients.

The caller's permission level decides which operations are offered, and the agent's rules decide which
tools are. A client can call only what is listed.
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
from retinue.domain.principal import Principal
from retinue.domain.session import OriginKind
from retinue.domain.shared_errors import PermissionDenied, shorten_name
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services, perform_operation, perform_with_key, remove_secret_fields
from retinue.operations.operation_tools import tool_name
from retinue.operations.plugin.plugins import get_plugin_manager
from retinue.operations.tool.errors import ToolNotFound
from retinue.operations.tool.tool_invoke import ToolInvokeRequest, ToolInvokeResult, call_tool_directly
from retinue.operations.tool_context import require_agent
from retinue.policy.access import operation_permissions
from retinue.policy.tools.tool_policy import CallSource, ToolPolicyContext
from retinue.store.runs.run_requesters import get_requesters_at
from retinue.tools.base import schema_of

SEND_OPERATION = "envelope.send"
INVOKE_OPERATION = "tool.invoke"

_encode = msgspec.json.Encoder().encode


class McpEndpointTool(Struct, frozen=True, kw_only=True):
    """One tool that an MCP client can call.

    `has_effect` says whether a call can change something, and `reaches_outside` whether it can reach
    other systems.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    has_effect: bool
    reaches_outside: bool = False


class McpCallResult(Struct, frozen=True):
    text: str
    is_error: bool = False
    is_json: bool = False  # the text is JSON


class McpEndpoint(Struct, frozen=True, kw_only=True):
    """The endpoint for one MCP client.

    `agent` is the agent whose tools the client can call in addition to operations. If it is empty, the
    client can call only operations.

    `check_send_limit` is called before an envelope is sent. It raises if the rate limit is exceeded.
    """

    services: Services
    caller: Principal
    agent: str = ""
    check_send_limit: Callable[[], None] = lambda: None

    async def list_tools(self) -> list[McpEndpointTool]:
        tools = await self._agent_tools()
        return [*map(_operation_to_tool, self._permitted_operations().values()), *map(_spec_to_tool, tools)]

    async def call_tool(self, name: str, arguments: Mapping[str, Any], *, key: str = "") -> McpCallResult:
        operation = self._permitted_operations().get(name)
        if operation is not None:
            if operation.name == SEND_OPERATION:
                self.check_send_limit()
            answer = await perform_operation(self.services, self.caller, operation, _encode(arguments), key=key)
            return McpCallResult(
                remove_secret_fields(answer, operation).decode(), is_json=True
            )  # a model reads the result
        if not any(spec.name == name for spec in await self._agent_tools()):
            raise ToolNotFound(name, because="no tool that you may use has this name")
        request, caller = ToolInvokeRequest(tool=name, args=dict(arguments), agent=self.agent), self._tool_caller()
        if key:
            answer = await perform_with_key(self.services, caller, _INVOKE_TOOL, _encode(request), request, key)
            done = msgspec.json.decode(answer, type=ToolInvokeResult)
        else:
            done = await _invoke_tool(self.services, caller, request)
        return McpCallResult(done.output, is_error=done.failed)

    def _all_operations(self) -> list[Operation]:
        from retinue.operations.catalog import OPERATIONS  # lazy: import cycle

        plugins = get_plugin_manager(self.services)
        return [*OPERATIONS.values(), *(plugins.operations().values() if plugins is not None else ())]

    def _permitted_operations(self) -> dict[str, Operation]:
        """Return the operations that the caller's level permits, by tool name."""
        level, policy = self.caller.level, self.services.permission_policy
        reached = [
            each
            for each in self._all_operations()
            if operation_permissions.decide_operation(each.name, level, policy).is_allowed
        ]
        return {tool_name(each): each for each in reached}

    async def _agent_tools(self) -> list[ToolSpec]:
        """Return the tools that the agent's rules allow, except operations.

        A client calls operations with its own permissions, not with those of the agent.
        """
        if not self.agent or self.services.toolbox is None:
            return []
        agent = await self._require_agent()
        caller = self.caller.address
        asked_by = await self.services.store.read(partial(get_requesters_at, addresses=(caller,)))
        where = ToolPolicyContext(
            origin=OriginKind.EXTERNAL, sender=caller, requesters=asked_by, call_source=CallSource.MCP
        )
        operations = {tool_name(each) for each in self._all_operations()}
        return [spec for spec in self.services.toolbox.offered_specs(agent, where) if spec.name not in operations]

    async def _require_agent(self) -> Agent:
        """Return the agent. Raise an error unless the caller is the agent, or may call the operation `tool.invoke`."""
        own = self.caller.address.kind is AddressKind.AGENT and self.caller.address.name == self.agent
        permission = operation_permissions.decide_operation(
            INVOKE_OPERATION, self.caller.level, self.services.permission_policy
        )
        if not own and not permission.is_allowed:
            raise PermissionDenied(f"use the tools of '{shorten_name(self.agent)}'", because=permission.because)
        return await self.services.store.read(partial(require_agent, name=self.agent))

    def _tool_caller(self) -> Principal:
        """Return the principal for tool calls: the caller, marked as untrusted if it is an agent.

        The server cannot know what an agent has read before it makes a request.
        """
        if self.caller.address.kind is AddressKind.AGENT:
            return replace(self.caller, trust=Trust.UNTRUSTED)
        return self.caller


async def _invoke_tool(services: Services, caller: Principal, request: ToolInvokeRequest) -> ToolInvokeResult:
    return await call_tool_directly(services, caller, request, call_source=CallSource.MCP)


# Not in the catalog: `McpEndpoint` decides who may call the tools of an agent, not just the permission level.
_INVOKE_TOOL = Operation(
    name="mcp.call",
    summary="Call a tool of an agent.",
    parameters=ToolInvokeRequest,
    handler=_invoke_tool,
    permission=PermissionLevel.RESTRICTED,
    has_effect=True,
    claims_key=True,
    result=ToolInvokeResult,
)


def _operation_to_tool(operation: Operation) -> McpEndpointTool:
    return McpEndpointTool(
        name=tool_name(operation),
        description=operation.summary,
        parameters=schema_of(operation.parameters),
        has_effect=operation.has_effect,
    )


def _spec_to_tool(spec: ToolSpec) -> McpEndpointTool:
    return McpEndpointTool(
        name=spec.name,
        description=spec.description,
        parameters=spec.parameters,
        has_effect=bool(spec.effects - {ToolEffect.READS_PRIVATE, ToolEffect.READS_UNTRUSTED}),
        reaches_outside=bool(spec.effects & {ToolEffect.READS_UNTRUSTED, ToolEffect.SENDS_OUT}),
    )
