"""Offers the tools of MCP servers to agents. They follow the same rules as other tools, and their
output is untrusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec

from retinue.config.mcp import McpServerSettings
from retinue.domain.ports import IdSource
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.text.glob_match import matches_glob
from retinue.tools.base import ToolContext, ToolOutput, schema_of
from retinue.tools.mcp import mcp_results
from retinue.tools.mcp.errors import McpAccessDenied, McpArgumentsInvalid, McpToolChanged
from retinue.tools.mcp.mcp_server import McpServerSupervisor, build_unusable_error
from retinue.tools.mcp.schemas import find_argument_error
from retinue.tools.mcp.tool_list import READ_CAPABILITY, RESOURCES, OfferedTool
from retinue.tools.mcp.tool_names import tool_name

TIMEOUT_MARGIN_S = 10.0  # the server's own timeout applies first, then the toolbox's
URI_CHARS_MAX = 2_000

FindServerSettings = Callable[[str], McpServerSettings | None]


class _McpServerTool:
    """Base class of the tools of one MCP server. `settings` returns the current settings of a server by name."""

    def __init__(
        self, server: McpServerSupervisor, settings: FindServerSettings, ids: IdSource, files: AttachmentFiles | None
    ) -> None:
        self._server = server
        self._settings = settings
        self._ids = ids
        self._files = files

    def _check_access(self, context: ToolContext) -> None:
        """Refuse an agent that may not use the server. The rules check this earlier; this is a second check."""
        server, settings = self._server, self._settings(self._server.name)
        for agent in (context.agent.name, *(sender.name for sender in context.parent_agents)):
            if settings is not None and any(matches_glob(glob, agent) for glob in settings.agents):
                continue
            raise McpAccessDenied(agent, server.name)
        if not server.status.is_usable:
            raise build_unusable_error(server.status)

    def _build_source(self, tool: str) -> mcp_results.ResultSource:
        return mcp_results.ResultSource(server=self._server.name, tool=tool, id=self._ids.new())


class McpTool(_McpServerTool):
    """One tool of an MCP server, as agents call it."""

    # The arguments are checked against the server's schema, so there is no struct for them.
    arguments: type[msgspec.Struct] = cast("type[msgspec.Struct]", dict[str, Any])

    def __init__(
        self,
        server: McpServerSupervisor,
        tool: OfferedTool,
        settings: FindServerSettings,
        ids: IdSource,
        files: AttachmentFiles | None,
    ) -> None:
        super().__init__(server, settings, ids, files)
        self._tool = tool
        self.spec = ToolSpec(
            name=tool.name,
            description=f"[MCP server {server.name}] {tool.description}".rstrip(),
            parameters=tool.parameters,
            effects=tool.effects,
            is_repeatable=tool.repeatable,
            capabilities=tool.capabilities,
            source=f"mcp:{server.name}",
            timeout_s=server.settings.call_timeout_s + TIMEOUT_MARGIN_S,
        )

    async def perform(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        self._check_access(context)
        approved = self._server.approved_tools
        if approved is None or self._tool not in approved.tools:
            raise McpToolChanged(self.spec.name)
        if wrong := find_argument_error(self._tool.parameters, arguments):
            raise McpArgumentsInvalid(self.spec.name, because=wrong)
        from mcp.shared.exceptions import MCPError

        named = self._build_source(self._tool.server_tool_name)
        try:
            result = await self._server.call_tool(self._tool.server_tool_name, arguments)
        except MCPError as error:
            return mcp_results.build_text_output(error.error.message, failed=True, source=named)
        return await mcp_results.convert_result(result, files=self._files, source=named)


class McpResourceArguments(msgspec.Struct, forbid_unknown_fields=True):
    uri: Annotated[
        str,
        msgspec.Meta(description="URI of the resource to read. Default: list all resources.", max_length=URI_CHARS_MAX),
    ] = ""


class McpResourcesTool(_McpServerTool):
    """Lists and reads the resources of an MCP server. The server decides what a URI means."""

    arguments: type[msgspec.Struct] = McpResourceArguments

    def __init__(
        self, server: McpServerSupervisor, settings: FindServerSettings, ids: IdSource, files: AttachmentFiles | None
    ) -> None:
        super().__init__(server, settings, ids, files)
        self.spec = ToolSpec(
            name=tool_name(server.name, RESOURCES),
            description=f"[MCP server {server.name}] List the resources of the server, or read one of them.",
            parameters=schema_of(McpResourceArguments),
            effects=frozenset({ToolEffect.READS_UNTRUSTED, ToolEffect.SENDS_OUT}),
            is_repeatable=True,
            capabilities=frozenset({READ_CAPABILITY}),
            source=f"mcp:{server.name}",
            timeout_s=server.settings.call_timeout_s + TIMEOUT_MARGIN_S,
        )

    async def perform(self, arguments: McpResourceArguments, context: ToolContext) -> ToolOutput:
        self._check_access(context)
        from mcp.shared.exceptions import MCPError

        named = self._build_source(RESOURCES)
        try:
            if arguments.uri:
                found = await self._server.read_resource(arguments.uri)
                return await mcp_results.convert_resource(found.contents, files=self._files, source=named)
            listed = await self._server.list_resources()
        except MCPError as error:
            return mcp_results.build_text_output(error.error.message, failed=True, source=named)
        lines = [
            json.dumps(
                {"uri": each.uri, "name": each.name, "type": each.mime_type or "", "about": each.description or ""},
                ensure_ascii=False,
            )
            for each in listed
        ]
        return mcp_results.build_text_output("\n".join(lines) or "The server has no resources.", source=named)
