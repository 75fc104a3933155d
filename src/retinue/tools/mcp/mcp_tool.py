"""Tools of MCP servers. They follow the same rules as other tools, and their output is untrusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec

from retinue.config.mcp import McpServer
from retinue.domain.ports import Ids
from retinue.domain.tool import Effect, ToolSpec
from retinue.store.envelopes.attachment_files import Files
from retinue.text.glob_match import matches_glob
from retinue.tools.base import Output, Scene, ToolFailed, schema_of
from retinue.tools.mcp import mcp_results
from retinue.tools.mcp.mcp_server import Server, unusable
from retinue.tools.mcp.schemas import misfit
from retinue.tools.mcp.tool_list import READS, RESOURCES, Offer
from retinue.tools.mcp.tool_names import tool_name

SLACK_S = 10.0  # the server's own timeout applies first, then the toolbox's
URI_CHARS_MAX = 2_000

SettingsOf = Callable[[str], McpServer | None]


class _OfServer:
    """Base of the tools of one server. `settings` returns the current settings of a server by name."""

    def __init__(self, server: Server, settings: SettingsOf, ids: Ids, files: Files | None) -> None:
        self._server = server
        self._settings = settings
        self._ids = ids
        self._files = files

    def _check(self, scene: Scene) -> None:
        """Refuse an agent that may not use the server. Rules check this first; this is a second
        check.
        """
        server, settings = self._server, self._settings(self._server.name)
        for agent in (scene.agent.name, *(sender.name for sender in scene.senders)):
            if settings is not None and any(matches_glob(glob, agent) for glob in settings.agents):
                continue
            raise ToolFailed(
                f"{agent} may not use the MCP server '{server.name}'",
                because=f"mcp.{server.name}.agents does not name it",
                try_this="ask the owner for it",
                code="mcp.not-for-agent",
            )
        if not server.standing.usable:
            raise unusable(server.standing)

    def _named(self, tool: str) -> mcp_results.Of:
        return mcp_results.Of(server=self._server.name, tool=tool, id=self._ids.new())


class McpTool(_OfServer):
    """One tool of an MCP server."""

    # The arguments are checked against the server's schema, so there is no struct for them.
    arguments: type[msgspec.Struct] = cast("type[msgspec.Struct]", dict[str, Any])

    def __init__(self, server: Server, offer: Offer, settings: SettingsOf, ids: Ids, files: Files | None) -> None:
        super().__init__(server, settings, ids, files)
        self._offer = offer
        self.spec = ToolSpec(
            name=offer.name,
            description=f"[MCP server {server.name}] {offer.description}".rstrip(),
            parameters=offer.parameters,
            effects=offer.effects,
            repeatable=offer.repeatable,
            capabilities=offer.capabilities,
            source=f"mcp:{server.name}",
            timeout_s=server.settings.call_s + SLACK_S,
        )

    async def perform(self, arguments: dict[str, Any], scene: Scene) -> Output:
        self._check(scene)
        good = self._server.good
        if good is None or self._offer not in good.offers:
            raise ToolFailed(
                f"'{self.spec.name}' is not what it was",
                because="the server has changed it meanwhile",
                try_this="look at your tools again",
                code="mcp.changed",
            )
        if wrong := misfit(self._offer.parameters, arguments):
            raise ToolFailed(
                f"these arguments do not fit '{self.spec.name}'",
                because=wrong,
                try_this="look at what it takes",
                code="mcp.arguments",
            )
        from mcp.shared.exceptions import MCPError

        named = self._named(self._offer.theirs)
        try:
            result = await self._server.call(self._offer.theirs, arguments)
        except MCPError as error:
            return mcp_results.words(error.error.message, failed=True, of=named)
        return await mcp_results.read(result, files=self._files, of=named)


class ResourceArguments(msgspec.Struct, forbid_unknown_fields=True):
    uri: Annotated[
        str, msgspec.Meta(description="Which to read; left out, they are listed.", max_length=URI_CHARS_MAX)
    ] = ""


class McpResources(_OfServer):
    """Lists and reads the resources of a server. The server decides what a URI means."""

    arguments: type[msgspec.Struct] = ResourceArguments

    def __init__(self, server: Server, settings: SettingsOf, ids: Ids, files: Files | None) -> None:
        super().__init__(server, settings, ids, files)
        self.spec = ToolSpec(
            name=tool_name(server.name, RESOURCES),
            description=f"[MCP server {server.name}] List what the server has to read, or read one of them.",
            parameters=schema_of(ResourceArguments),
            effects=frozenset({Effect.READS_UNTRUSTED, Effect.SENDS_OUT}),
            repeatable=True,
            capabilities=frozenset({READS}),
            source=f"mcp:{server.name}",
            timeout_s=server.settings.call_s + SLACK_S,
        )

    async def perform(self, arguments: ResourceArguments, scene: Scene) -> Output:
        self._check(scene)
        from mcp.shared.exceptions import MCPError

        named = self._named(RESOURCES)
        try:
            if arguments.uri:
                found = await self._server.resource(arguments.uri)
                return await mcp_results.read_resource(found.contents, files=self._files, of=named)
            listed = await self._server.resources()
        except MCPError as error:
            return mcp_results.words(error.error.message, failed=True, of=named)
        lines = [
            json.dumps(
                {"uri": each.uri, "name": each.name, "type": each.mime_type or "", "about": each.description or ""},
                ensure_ascii=False,
            )
            for each in listed
        ]
        return mcp_results.words("\n".join(lines) or "It has nothing to read.", of=named)
