"""One open connection to one MCP server: it lists the tools and calls them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from retinue.config.mcp import McpServerSettings
from retinue.sandbox.base import MIB, Confinement, NetworkAccess, ResourceLimits
from retinue.tools.mcp.errors import McpNotInstalled
from retinue.tools.mcp.server_status import McpServerDependencies
from retinue.tools.mcp.stdio_transport import MESSAGE_BYTES_MAX, STDERR_LOG, open_stdio_streams, redirect_stderr
from retinue.tools.mcp.tool_list import ListedTool, ToolHints

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.client import Client, IncomingMessage, Transport

PAGES_MAX = 50
TOOLS_READ_MAX = 1_000  # tools read from a list; the number used has its own limit
COMMAND_LIFETIME_S = 30 * 24 * 3600.0  # maximum lifetime of a server command
COMMAND_OUTPUT_BYTES_MAX = 64 * 1024 * MIB
STREAM_IDLE_S = 3600.0  # maximum silence of an event stream
LISTEN_RETRY_S = 30.0


async def import_mcp() -> None:
    """Import the package `mcp` in a thread, because the import takes most of a second."""
    try:
        await asyncio.to_thread(__import__, "mcp.client")
    except ImportError:
        raise McpNotInstalled from None
    # Their logs contain server output and full URLs, which may include secrets.
    for name in ("mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class McpConnection(Struct):
    """The state of one connection to an MCP server.

    The handlers of the connection set `closed` and `tools_changed`, and then call `wake`, so that
    the supervisor reads them.
    """

    wake: Callable[[], None]
    tools_changed: bool = False
    error_status: int = 0  # of the last HTTP error response
    closed: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _client: Client | None = None

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def attach_client(self, client: Client) -> None:
        self._client = client
        self.error_status = 0  # a server may answer an unknown newer protocol version with an error

    def mark_closed(self) -> None:
        self.closed.set()
        self.wake()

    async def handle_message(self, message: IncomingMessage) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.tools_changed = True
            self.wake()

    # --- requests ---

    async def list_tools(self) -> list[ListedTool]:
        """Return all tools of the MCP server, read page by page."""
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self.client.list_tools(cursor=cursor)
            found += [_convert_tool(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) > TOOLS_READ_MAX:
                break
        return found[:TOOLS_READ_MAX]

    @property
    def has_resources(self) -> bool:
        return self.client.server_capabilities.resources is not None

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool of the MCP server.

        The package's own method `call_tool` is not used: it would validate the result against the
        server's schema, whose regular expressions could take any amount of time.
        """
        import mcp_types as types

        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        return await self.client.session.send_request(request, types.CallToolResult)


@asynccontextmanager
async def open_connection(
    connection: McpConnection, name: str, settings: McpServerSettings, dependencies: McpServerDependencies
) -> AsyncGenerator[None]:
    """Open a connection to an MCP server. When the context exits, its processes and tasks are ended."""
    from mcp.client import Client
    from mcp_types import Implementation

    async with AsyncExitStack() as stack:
        transport = await _open_transport(name, settings, dependencies, connection, stack)
        us = Implementation(name="retinue", version="1")
        client = Client(transport, client_info=us, message_handler=connection.handle_message, cache=None)
        connection.attach_client(await stack.enter_async_context(client))
        listening = asyncio.create_task(_watch_tool_changes(connection))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _open_transport(
    name: str,
    settings: McpServerSettings,
    dependencies: McpServerDependencies,
    connection: McpConnection,
    stack: AsyncExitStack,
) -> Transport:
    if settings.url is None:
        folder = await asyncio.to_thread(_prepare_folder, dependencies.folder / name)
        sandbox = await dependencies.sandbox(name)
        child = await sandbox.start(
            redirect_stderr(settings.command), build_server_confinement(settings, folder, dependencies)
        )
        stack.push_async_callback(child.kill)  # runs even if another cleanup fails
        return open_stdio_streams(child, on_end=connection.mark_closed)
    from mcp.client.streamable_http import streamable_http_client

    from retinue.tools.mcp.http_transport import build_http_client

    def refused(status: int) -> None:
        connection.error_status = status

    headers = {key: value.read(dependencies.environment) for key, value in settings.headers.items()}
    client = await stack.enter_async_context(
        build_http_client(headers, read_timeout_s=STREAM_IDLE_S, on_error_status=refused)
    )
    return streamable_http_client(settings.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX)


def _prepare_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / STDERR_LOG).unlink(missing_ok=True)
    return folder.resolve()


def build_server_confinement(
    settings: McpServerSettings, folder: Path, dependencies: McpServerDependencies
) -> Confinement:
    """Return what the command of an MCP server may access: its own folder and what the owner configured."""
    return Confinement(
        folder=folder,
        writable=(folder, *(dependencies.data_directory / path for path in settings.writable)),
        readable=tuple(dependencies.data_directory / path for path in settings.readable),
        network=NetworkAccess(hosts=settings.hosts, private_hosts=settings.private_hosts) if settings.hosts else None,
        limits=ResourceLimits(
            seconds=COMMAND_LIFETIME_S, memory_bytes=settings.memory_mib * MIB, output_bytes=COMMAND_OUTPUT_BYTES_MAX
        ),
        environment={key: value.read(dependencies.environment) for key, value in settings.env.items()},
    )


async def _watch_tool_changes(connection: McpConnection) -> None:
    """Subscribe to tool list changes, which newer protocol versions report only to subscribers.

    If this fails, the list is still read again from time to time.
    """
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    if connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    while True:
        try:
            async with connection.client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    connection.tools_changed = True
                    connection.wake()
        except Exception:  # noqa: BLE001 - a server need not support this
            pass
        await asyncio.sleep(LISTEN_RETRY_S)


def _convert_tool(tool: types.Tool) -> ListedTool:
    hints = tool.annotations
    return ListedTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        hints=ToolHints(
            read_only=hints.read_only_hint,
            destructive=hints.destructive_hint,
            idempotent=hints.idempotent_hint,
            open_world=hints.open_world_hint,
        )
        if hints is not None
        else ToolHints(),
    )
