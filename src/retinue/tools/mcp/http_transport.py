"""The HTTP transport of an MCP server: streamable HTTP with a size limit on responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from retinue.tools.mcp.stdio_transport import MESSAGE_BYTES_MAX

EVENT_STREAM_TYPE = "text/event-stream"
CONNECT_TIMEOUT_S = 30.0
DELETE_TIMEOUT_S = 2.0  # timeout of the DELETE request that ends a session


class _LimitedStream(httpx2.AsyncByteStream):
    """A response body that raises an error when it exceeds the size limit."""

    def __init__(self, stream: httpx2.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for chunk in self._stream:
            taken += len(chunk)
            if taken > self._bytes_max:
                raise httpx2.StreamError(f"the response has more than {self._bytes_max:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class LimitedTransport(httpx2.AsyncBaseTransport):
    """Limits the size of responses and refuses compressed ones, which could decompress to any size.

    An event stream has no total limit. Its reader limits the size of each event.
    """

    def __init__(self, *, on_error_status: Callable[[int], None], bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._transport = httpx2.AsyncHTTPTransport(trust_env=False)
        self._on_error_status = on_error_status
        self._bytes_max = bytes_max

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(DELETE_TIMEOUT_S).as_dict()
        response = await self._transport.handle_async_request(request)
        if response.status_code >= 400:
            self._on_error_status(response.status_code)
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the response is compressed, which was not requested")
        if not response.headers.get("content-type", "").lower().startswith(EVENT_STREAM_TYPE):
            stream: Any = response.stream
            response.stream = _LimitedStream(stream, self._bytes_max)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


def build_http_client(
    headers: Mapping[str, str], *, read_timeout_s: float, on_error_status: Callable[[int], None]
) -> httpx2.AsyncClient:
    """Return an HTTP client for one MCP server. It ignores environment variables that set a proxy.

    `on_error_status` is called with the status of each error response.
    """
    return httpx2.AsyncClient(
        transport=LimitedTransport(on_error_status=on_error_status),
        headers=dict(headers),
        timeout=httpx2.Timeout(CONNECT_TIMEOUT_S, read=read_timeout_s),
        follow_redirects=False,
        trust_env=False,
    )
