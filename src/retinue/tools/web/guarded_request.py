"""Sends HTTP requests under the URL guard: checks each target and redirect, and limits each response.

The connection is made to exactly the addresses that were checked.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin

from retinue.tools.web.errors import (
    RedirectFailed,
    RedirectRefused,
    TooManyRedirects,
    WebFailed,
    WebRefused,
    WebRequestFailed,
    WebTimeout,
)
from retinue.tools.web.url_guard import UrlGuard, UrlTarget

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

REDIRECTS_MAX = 3
BODY_BYTES_MAX = 5 * 1024 * 1024
COMPRESSED_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 16 * 1024  # of one header; aiohttp limits their number
CONNECT_TIMEOUT_S = 15.0
USER_AGENT = "Mozilla/5.0 (compatible; retinue)"
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebResponse:
    """The response after the last redirect.

    `is_truncated` means that the body was longer than the part that was read.
    """

    url: str
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes = field(repr=False)
    is_truncated: bool = False


class GuardedHttpClient:
    """Sends HTTP requests to hosts that the guard allows. Uses no connection pool, no cookies and no system proxy."""

    def __init__(self, guard: UrlGuard, *, tls: ssl.SSLContext | None = None) -> None:
        """Create a client. `tls` defaults to the certificate authorities of the system."""
        self._guard = guard
        self._tls = tls

    async def get(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        bytes_max: int = BODY_BYTES_MAX,
        redirects_max: int = REDIRECTS_MAX,
    ) -> WebResponse:
        """Send a GET request, and follow redirects. Raises `WebRefused` or `WebFailed` if there is no response.

        `headers` are sent again after each redirect, so allow no redirects if they contain a
        secret. Errors name only the requested host: an error text counts as trusted, and a server
        chooses where it redirects to.
        """
        target = self._guard.parse_url(url)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._request_once(target, headers or {}, bytes_max)
                for _ in range(redirects_max):
                    if not (next_url := _find_redirect(answer)):
                        return answer
                    try:
                        answer = await self._request_once(self._guard.parse_url(next_url), headers or {}, bytes_max)
                    except WebRefused as error:
                        raise RedirectRefused(target.host, because=error.because) from None
                    except WebFailed as error:
                        raise RedirectFailed(target.host, because=error.because) from None
        except TimeoutError:
            raise WebTimeout(target.host, timeout_s=timeout_s) from None
        if not _find_redirect(answer):
            return answer
        raise TooManyRedirects(target.host, redirects_max=redirects_max)

    async def post(
        self, url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float, bytes_max: int
    ) -> WebResponse:
        """Send content to one URL. A redirect is returned, not followed.

        Raises `WebRefused` if the request certainly did not arrive, and `WebFailed` if that is
        unknown.
        """
        target = self._guard.parse_url(url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._request_once(target, headers, bytes_max, content=content)
        except TimeoutError:
            raise WebTimeout(target.host, timeout_s=timeout_s) from None

    async def _request_once(
        self, target: UrlTarget, headers: Mapping[str, str], bytes_max: int, *, content: bytes | None = None
    ) -> WebResponse:
        import aiohttp
        from yarl import URL

        found = await self._guard.resolve_addresses(target.host, target.port)
        connector = aiohttp.TCPConnector(
            resolver=_build_pinned_resolver(target.host, found),
            ssl=self._tls if self._tls is not None else True,
            use_dns_cache=False,
            force_close=True,
            limit=1,
        )
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                    trust_env=False,
                    auto_decompress=False,  # we decompress with a limit ourselves
                    max_line_size=HEADER_BYTES_MAX,
                    max_field_size=HEADER_BYTES_MAX,
                ) as session,
                session.request(
                    "GET" if content is None else "POST",
                    URL(target.url),
                    data=content,
                    headers=_build_headers(headers),
                    allow_redirects=False,
                ) as response,
            ):
                received: dict[str, str] = {}
                for name, value in response.headers.items():
                    received.setdefault(name.lower(), value)
                if response.status in _REDIRECT_STATUSES and "location" in received:
                    response.close()  # the body of a redirect is not needed
                    return WebResponse(url=target.url, status=response.status, headers=received, body=b"")
                body, cut = await _read_body(response, received.get("content-encoding", ""), bytes_max)
                if cut:
                    response.close()
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _build_failure(target.host, error) from None
        return WebResponse(url=target.url, status=response.status, headers=received, body=body, is_truncated=cut)


def _find_redirect(response: WebResponse) -> str:
    """Return the URL to which a response redirects. Returns an empty string if it does not redirect.

    An invalid URL is returned unchanged, because the guard refuses it before the next request.
    """
    if response.status not in _REDIRECT_STATUSES or not (location := response.headers.get("location", "").strip()):
        return ""
    try:
        return urljoin(response.url, location)
    except ValueError:
        return location


def _build_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        "User-Agent": USER_AGENT,
        "Accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.5",
        "Accept-Language": "en,*;q=0.5",
        **headers,
        "Accept-Encoding": "gzip, deflate",
    }


def _build_pinned_resolver(checked_host: str, addresses: Sequence[str]) -> AbstractResolver:
    """Return a resolver that knows only the checked host and its checked addresses."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            if host != checked_host:
                raise OSError(f"{host} was not checked")
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            pass

    return Pinned()


async def _read_body(response: aiohttp.ClientResponse, encoding: str, bytes_max: int) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether more was left unread."""
    unpack = _find_decompressor(encoding)
    pieces: list[bytes] = []
    size = packed = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        packed += len(chunk)
        piece = unpack.feed(chunk, bytes_max + 1 - size)
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max or packed > COMPRESSED_BYTES_MAX:
            return b"".join(pieces)[:bytes_max], True
    return b"".join(pieces), False


class _DecompressionFailed(ValueError):
    """The body of a response cannot be decompressed. The message is the reason."""


class _Decompressor(Protocol):
    def feed(self, chunk: bytes, most: int) -> bytes: ...


class _NoDecompressor:
    def feed(self, chunk: bytes, most: int) -> bytes:
        return chunk[:most]


class _DeflateDecompressor:
    """Decompresses gzip and deflate, up to the requested number of bytes."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=47)  # detects gzip or zlib by the header
        self._first = True

    def feed(self, chunk: bytes, most: int) -> bytes:
        try:
            piece = self._decoder.decompress(chunk, most)
        except zlib.error as error:
            if not self._first:
                raise _DecompressionFailed("the response is not compressed as its headers say") from error
            self._decoder = zlib.decompressobj(wbits=-15)  # some servers send a raw deflate stream
            try:
                piece = self._decoder.decompress(chunk, most)
            except zlib.error:
                raise _DecompressionFailed("the response is not compressed as its headers say") from error
        self._first = False
        return piece


def _find_decompressor(encoding: str) -> _Decompressor:
    match encoding.strip().lower():
        case "" | "identity":
            return _NoDecompressor()
        case "gzip" | "x-gzip" | "deflate":
            return _DeflateDecompressor()
        case _:
            raise _DecompressionFailed("the response is compressed in a way that was not requested")


def _build_failure(host: str, error: Exception) -> WebFailed:
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            because = "its certificate is not trusted for this name"
        case aiohttp.ConnectionTimeoutError():
            because = f"no connection within {CONNECT_TIMEOUT_S:g} seconds"
        case aiohttp.ClientConnectorError():
            because = error.os_error.strerror or "no connection"
        case aiohttp.ClientResponseError():
            because = "the response is not HTTP, or its headers are too large"
        case _DecompressionFailed():
            because = str(error)
        case _:
            because = "the connection was closed"
    return WebRequestFailed(host, because=because)
