"""The HTTP transport of an MCP server: streamable HTTP with a size limit on responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from retinue.tools.mcp.stdio_transport import MESSAGE_BYTES_MAX

STREAM = "text/event-stream"
CONNECT_S = 30.0
GOODBYE_S = 2.0  # timeout of the DELETE request that ends a session


class _Counted(httpx2.AsyncByteStream):
    """A response body that raises an error beyond the size limit."""

    def __init__(self, inside: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._inside = inside
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for chunk in self._inside:
            taken += len(chunk)
            if taken > self._bytes_max:
                raise httpx2.StreamError(f"its answer has more than {self._bytes_max:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inside.aclose()


class Bounded(httpx2.AsyncBaseTransport):
    """Limits the size of responses and refuses compressed ones, which could decompress to any size.

    An event stream has no total limit. Its reader limits the size of one event.
    """

    def __init__(self, *, refused: Callable[[int], None], bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._inside = httpx2.AsyncHTTPTransport(trust_env=False)
        self._refused = refused
        self._bytes_max = bytes_max

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(GOODBYE_S).as_dict()
        response = await self._inside.handle_async_request(request)
        if response.status_code >= 400:
            self._refused(response.status_code)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("its answer is packed, which was not asked for")
        if not response.headers.get("content-type", "").lower().startswith(STREAM):
            stream: Any = response.stream
            response.stream = _Counted(stream, self._bytes_max)
        return response

    async def aclose(self) -> None:
        await self._inside.aclose()


def caller(headers: Mapping[str, str], *, read_s: float, refused: Callable[[int], None]) -> httpx2.AsyncClient:
    """Return a client for one server. It ignores proxy settings of the environment.

    `on_error_status` is called with the status of each error response.
    """
    return httpx2.AsyncClient(
        transport=Bounded(refused=refused),
        headers=dict(headers),
        timeout=httpx2.Timeout(CONNECT_S, read=read_s),
        follow_redirects=False,
        trust_env=False,
    )
