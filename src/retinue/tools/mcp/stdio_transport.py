"""The stdio transport of an MCP server: newline-delimited JSON-RPC with a child process in its
sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from retinue.domain.errors import RetinueError
from retinue.sandbox.base import RunningCommand

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of one message. A longer message is dropped, and the request that it answers fails."""
EXIT_TIMEOUT_S = 2.0  # time for a server to exit by itself
PREFIX_BYTES = 512  # of an oversized message, searched for its request id
STDERR_LOG = "stderr.log"
LOG_PARTS_MAX = 1_000  # of at most LOG_PART_BYTES each; further output is dropped
LOG_PART_BYTES = 1024

_ID = re.compile(rb'^\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15})\s*[,}]')
_ID_LATER = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
# A child has one stream for stdout and stderr. Stderr would corrupt messages, so it is written to a file.
_KEEP_STDERR = f"dd bs={LOG_PART_BYTES} count={LOG_PARTS_MAX} of={STDERR_LOG} 2>/dev/null; cat >/dev/null"
_REDIRECT_STDERR = f'{{ "$@" 2>&1 >&3 3>&- | {{ {_KEEP_STDERR}; }} 3>&-; }} 3>&1'


def redirect_stderr(command: Sequence[str]) -> list[str]:
    """Return the command with its stderr redirected to a file in its working directory."""
    return ["/bin/sh", "-c", _REDIRECT_STDERR, "sh", *command]


class LineBuffer:
    """Splits a byte stream into lines, and buffers at most one message."""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._is_dropping = False

    def feed(self, chunk: bytes) -> list[bytes | int | None]:
        """Return the lines completed by this chunk.

        An oversized line is replaced by the id of the request it answers, or by None if that is
        unknown.
        """
        complete: list[bytes | int | None] = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if (line := self._append(end)) is not None:
                complete.append(line)
            elif self._is_dropping:
                complete.append(_find_request_id(self._buffer))
            self._buffer.clear()
            self._is_dropping = False
        self._append(rest)
        return complete

    def _append(self, part: bytes) -> bytes | None:
        """Return the line so far, or None if the line is too long. In that case, only its beginning is kept."""
        if self._is_dropping:
            return None
        if len(self._buffer) + len(part) > self._bytes_max:
            self._buffer = (self._buffer + part[:PREFIX_BYTES])[:PREFIX_BYTES]
            self._is_dropping = True
            return None
        self._buffer += part
        return bytes(self._buffer)


def _find_request_id(prefix: bytearray) -> int | None:
    found = _ID.search(prefix) or _ID_LATER.search(prefix)
    return int(found[1]) if found else None


@asynccontextmanager
async def open_stdio_streams(
    child: RunningCommand, *, on_end: Callable[[], None], bytes_max: int = MESSAGE_BYTES_MAX
) -> AsyncGenerator[Streams]:
    """Yield the two message streams that the `mcp` package expects, connected to an MCP server in a child process.

    On exit from the context, the child process gets time to exit, and is then killed. `on_end` is
    called when the output of the child process ends, for whatever reason.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    to_us, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_us = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        lines = LineBuffer(bytes_max)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with to_us:
                while chunk := await child.read():
                    for line in lines.feed(chunk):
                        if (message := _parse_message(line, bytes_max)) is not None:
                            await to_us.send(message)
        on_end()
        while await child.read():  # drain the output: a child blocked on a full pipe cannot exit
            pass

    async def write() -> None:
        with contextlib.suppress(RetinueError, anyio.ClosedResourceError):
            async with from_us:
                async for message in from_us:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await child.write(text.encode() + b"\n")
        await to_us.aclose()  # pending requests fail instead of waiting

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(write)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    incoming.close()
                    await outgoing.aclose()
                    child.close_input()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(EXIT_TIMEOUT_S):
                            await child.wait()
                    await child.kill()
                group.cancel_scope.cancel()
    finally:
        for stream in (to_us, incoming, outgoing, from_us):
            stream.close()


def _parse_message(line: bytes | int | None, bytes_max: int) -> SessionMessage | None:
    """Parse a line. A line that is not a message is ignored, because some servers print a greeting."""
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    if line is None:
        return None
    if isinstance(line, int):
        error = ErrorData(code=INTERNAL_ERROR, message=f"the response has more than {bytes_max:,} bytes")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=line, error=error))
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None
