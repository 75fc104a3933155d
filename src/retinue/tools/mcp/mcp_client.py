"""One open connection to one MCP server, and everything that belongs to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from retinue.config.mcp import McpServer
from retinue.domain.errors import RetinueError
from retinue.sandbox.base import MIB, Confinement, Limits, Network
from retinue.tools.mcp.server_status import Needs
from retinue.tools.mcp.stdio_transport import LOG, MESSAGE_BYTES_MAX, apart, speaking
from retinue.tools.mcp.tool_list import Hints, Said

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.client import Client, IncomingMessage, Transport

PAGES_MAX = 50
LISTED_MAX = 1_000  # tools read from a list; the number used has its own limit
LIFE_S = 30 * 24 * 3600.0  # maximum lifetime of a server command
LIFE_OUTPUT_BYTES = 64 * 1024 * MIB
READ_S = 3600.0  # maximum silence of an event stream
LISTEN_AGAIN_S = 30.0


class Missing(RetinueError):
    """The package `mcp` is not installed."""

    code = "mcp.not-installed"

    def __init__(self) -> None:
        super().__init__(
            "this house cannot speak to MCP servers",
            because="the package `mcp` is not installed",
            try_this="pip install 'retinue[mcp]'",
        )


async def load() -> None:
    """Import the package in a thread, because the import takes most of a second."""
    try:
        await asyncio.to_thread(__import__, "mcp.client")
    except ImportError:
        raise Missing from None
    # Their logs contain server output and full URLs, which may include secrets.
    for name in ("mcp", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Line(Struct):
    """The state of one connection.

    `closed` and `tools_changed` are set by the other side. After `wake` was called, the owner of
    the connection reads them.
    """

    stir: Callable[[], None]
    changed: bool = False
    status: int = 0  # of the last HTTP error response
    gone: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _client: Client | None = None

    @property
    def lost(self) -> bool:
        return self.gone.is_set()

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def begin(self, client: Client) -> None:
        self._client = client
        self.status = 0  # a server may answer an unknown newer protocol version with an error

    def ended(self) -> None:
        self.gone.set()
        self.stir()

    async def hear(self, message: IncomingMessage) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self.changed = True
            self.stir()

    # --- requests ---

    async def tools(self) -> list[Said]:
        """Return all tools of the server, page by page."""
        found: list[Said] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self.client.list_tools(cursor=cursor)
            found += [_said(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) > LISTED_MAX:
                break
        return found[:LISTED_MAX]

    @property
    def has_resources(self) -> bool:
        return self.client.server_capabilities.resources is not None

    async def call(self, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool.

        The client's own method is not used: it would validate the result against the server's
        schema, whose patterns could take unbounded time.
        """
        import mcp_types as types

        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        return await self.client.session.send_request(request, types.CallToolResult)


@asynccontextmanager
async def opened(line: Line, name: str, settings: McpServer, needs: Needs) -> AsyncGenerator[None]:
    """Open the connection. On exit, everything it started has ended."""
    from mcp.client import Client
    from mcp_types import Implementation

    async with AsyncExitStack() as stack:
        transport = await _transport(name, settings, needs, line, stack)
        us = Implementation(name="retinue", version="1")
        client = Client(transport, client_info=us, message_handler=line.hear, cache=None)
        line.begin(await stack.enter_async_context(client))
        listening = asyncio.create_task(_listen(line))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _transport(name: str, settings: McpServer, needs: Needs, line: Line, stack: AsyncExitStack) -> Transport:
    if settings.url is None:
        folder = await asyncio.to_thread(_own_folder, needs.folder / name)
        sandbox = await needs.sandbox(name)
        child = await sandbox.start(apart(settings.command), confinement(settings, folder, needs))
        stack.push_async_callback(child.kill)  # runs even if another cleanup fails
        return speaking(child, ended=line.ended)
    from mcp.client.streamable_http import streamable_http_client

    from retinue.tools.mcp.http_transport import caller

    def refused(status: int) -> None:
        line.status = status

    headers = {key: value.read(needs.environment) for key, value in settings.headers.items()}
    client = await stack.enter_async_context(caller(headers, read_s=READ_S, refused=refused))
    return streamable_http_client(settings.url, http_client=client, max_sse_event_size=MESSAGE_BYTES_MAX)


def _own_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / LOG).unlink(missing_ok=True)
    return folder.resolve()


def confinement(settings: McpServer, folder: Path, needs: Needs) -> Confinement:
    """Return what the command of a server may access: its own folder and what the owner configured."""
    return Confinement(
        folder=folder,
        writable=(folder, *(needs.home / path for path in settings.writable)),
        readable=tuple(needs.home / path for path in settings.readable),
        network=Network(hosts=settings.hosts, private_hosts=settings.private_hosts) if settings.hosts else None,
        limits=Limits(seconds=LIFE_S, memory_bytes=settings.memory_mib * MIB, output_bytes=LIFE_OUTPUT_BYTES),
        environment={key: value.read(needs.environment) for key, value in settings.env.items()},
    )


async def _listen(line: Line) -> None:
    """Subscribe to tool list changes, which newer protocol versions report only to subscribers.

    If this fails, the list is still read again from time to time.
    """
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    if line.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    while True:
        try:
            async with line.client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    line.changed = True
                    line.stir()
        except Exception:  # noqa: BLE001 - it need not be able to tell
            pass
        await asyncio.sleep(LISTEN_AGAIN_S)


def _said(tool: types.Tool) -> Said:
    hints = tool.annotations
    return Said(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        hints=Hints(
            read_only=hints.read_only_hint,
            destructive=hints.destructive_hint,
            idempotent=hints.idempotent_hint,
            open_world=hints.open_world_hint,
        )
        if hints is not None
        else Hints(),
    )
