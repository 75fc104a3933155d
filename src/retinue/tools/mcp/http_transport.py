"""A server at an address: streamable HTTP, with a bound on what one answer may bring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from retinue.tools.mcp.stdio_transport import MESSAGE_BYTES_MAX

STREAM = "text/event-stream"
CONNECT_S = 30.0
GOODBYE_S = 2.0  # how long a server may take to hear that we leave


class _Counted(httpx2.AsyncByteStream):
    """A body of which no more is taken than the bound."""

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
    """Answers are taken as they are sent, not unpacked: a small one that is packed may be of any size. A stream of
    events goes on for as long as it likes; how large one event may be is for its reader to say.
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
    """A client for one server, which takes no proxy from the air. `refused` is told the status of an answer that was an
    error."""
    return httpx2.AsyncClient(
        transport=Bounded(refused=refused),
        headers=dict(headers),
        timeout=httpx2.Timeout(CONNECT_S, read=read_s),
        follow_redirects=False,
        trust_env=False,
    )
