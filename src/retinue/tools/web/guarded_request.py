"""One guarded HTTP request: every redirect is checked and pinned, and every response is limited."""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin

from retinue.tools.web.url_guard import Guard, Target, WebFailed, WebRefused

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

REDIRECTS_MAX = 3
BODY_BYTES_MAX = 5 * 1024 * 1024
PACKED_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = 16 * 1024  # of one header; aiohttp limits their number
CONNECT_S = 15.0
USER_AGENT = "Mozilla/5.0 (compatible; retinue)"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response after the last redirect. `is_truncated` means that the body was longer than what
    was read.
    """

    url: str
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes = field(repr=False)
    cut: bool = False


class Http:
    """Sends requests without a connection pool, cookies or proxy settings of the environment."""

    def __init__(self, guard: Guard, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls` defaults to the certificate authorities of the system."""
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
    ) -> Answer:
        """Raises `WebRefused` and `WebFailed`.

        `headers` are sent with every redirect, so with a secret in them allow no redirects. Errors
        name only the requested host: their text counts as trusted, and a server chooses the
        redirect.
        """
        target = self._guard.target(url)
        asked = target.host
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._hop(target, headers or {}, bytes_max)
                for _ in range(redirects_max):
                    if not (next_url := _redirect(answer)):
                        return answer
                    try:
                        answer = await self._hop(self._guard.target(next_url), headers or {}, bytes_max)
                    except (WebRefused, WebFailed) as error:
                        sentence = f"'{asked}' redirects to where nothing could be read"
                        raise type(error)(sentence, because=error.because, try_this="try another page") from None
        except TimeoutError:
            raise WebFailed(
                f"'{asked}' took too long",
                because=f"it did not answer in full within {timeout_s:g} seconds",
                try_this="try again later, or another page",
                code="web.timeout",
            ) from None
        if not _redirect(answer):
            return answer
        raise WebFailed(
            f"'{asked}' redirects too often",
            because=f"at most {redirects_max} redirects are followed",
            try_this="ask for the page that it leads to",
            code="web.redirects",
        )

    async def post(
        self, url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float, bytes_max: int
    ) -> Answer:
        """Send content to one URL. A redirect is returned, not followed.

        Raises `WebRefused` if the request surely did not arrive, and `WebFailed` if that is
        unknown.
        """
        target = self._guard.target(url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._hop(target, headers, bytes_max, content=content)
        except TimeoutError:
            raise WebFailed(
                f"'{target.host}' took too long",
                because=f"it did not answer in full within {timeout_s:g} seconds",
                try_this="try again later",
                code="web.timeout",
            ) from None

    async def _hop(
        self, target: Target, headers: Mapping[str, str], bytes_max: int, *, content: bytes | None = None
    ) -> Answer:
        import aiohttp
        from yarl import URL

        found = await self._guard.addresses(target.host, target.port)
        connector = aiohttp.TCPConnector(
            resolver=_pinned(target.host, found),
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
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                    trust_env=False,
                    auto_decompress=False,  # we decompress with a limit ourselves
                    max_line_size=HEADER_BYTES_MAX,
                    max_field_size=HEADER_BYTES_MAX,
                ) as session,
                session.request(
                    "GET" if content is None else "POST",
                    URL(target.url),
                    data=content,
                    headers=_sent(headers),
                    allow_redirects=False,
                ) as response,
            ):
                received: dict[str, str] = {}
                for name, value in response.headers.items():
                    received.setdefault(name.lower(), value)
                if response.status in _REDIRECTS and "location" in received:
                    response.close()  # the body of a redirect is not needed
                    return Answer(url=target.url, status=response.status, headers=received, body=b"")
                body, cut = await _body(response, received.get("content-encoding", ""), bytes_max)
                if cut:
                    response.close()
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _failed(target.host, error) from None
        return Answer(url=target.url, status=response.status, headers=received, body=body, cut=cut)


def _redirect(answer: Answer) -> str:
    """Return the redirect URL, or an empty string. An invalid one is returned unchanged, to be
    refused.
    """
    if answer.status not in _REDIRECTS or not (location := answer.headers.get("location", "").strip()):
        return ""
    try:
        return urljoin(answer.url, location)
    except ValueError:
        return location


def _sent(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        "User-Agent": USER_AGENT,
        "Accept": "text/html,application/xhtml+xml,text/plain,application/json;q=0.9,*/*;q=0.5",
        "Accept-Language": "en,*;q=0.5",
        **headers,
        "Accept-Encoding": "gzip, deflate",
    }


def _pinned(checked: str, found: Sequence[str]) -> AbstractResolver:
    """Return a resolver that knows only the checked host and its checked addresses."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            if host != checked:
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
                for address in found
            ]

        async def close(self) -> None:
            pass

    return Pinned()


async def _body(response: aiohttp.ClientResponse, encoding: str, bytes_max: int) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether there was more."""
    unpack = _unpacking(encoding)
    pieces: list[bytes] = []
    size = packed = 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        packed += len(chunk)
        piece = unpack.feed(chunk, bytes_max + 1 - size)
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max or packed > PACKED_BYTES_MAX:
            return b"".join(pieces)[:bytes_max], True
    return b"".join(pieces), False


class _Unpackable(ValueError):
    """A body that cannot be decompressed. The message is the reason."""


class _Unpacking(Protocol):
    def feed(self, chunk: bytes, most: int) -> bytes: ...


class _Plain:
    def feed(self, chunk: bytes, most: int) -> bytes:
        return chunk[:most]


class _Deflated:
    """Decompresses gzip and deflate, up to the requested number of bytes."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=47)  # detects gzip or zlib by the header
        self._first = True

    def feed(self, chunk: bytes, most: int) -> bytes:
        try:
            piece = self._decoder.decompress(chunk, most)
        except zlib.error as error:
            if not self._first:
                raise _Unpackable("its body is not packed as it says") from error
            self._decoder = zlib.decompressobj(wbits=-15)  # some servers send a raw deflate stream
            try:
                piece = self._decoder.decompress(chunk, most)
            except zlib.error:
                raise _Unpackable("its body is not packed as it says") from error
        self._first = False
        return piece


def _unpacking(encoding: str) -> _Unpacking:
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip" | "deflate":
            return _Deflated()
        case _:
            raise _Unpackable("its body is packed in a way that was not asked for")


def _failed(host: str, error: Exception) -> WebFailed:
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            because = "its certificate cannot be trusted for that name"
        case aiohttp.ConnectionTimeoutError():
            because = f"no connection within {CONNECT_S:g} seconds"
        case aiohttp.ClientConnectorError():
            because = error.os_error.strerror or "no connection"
        case aiohttp.ClientResponseError():
            because = "its answer is not HTTP, or has too much in its head"
        case _Unpackable():
            because = str(error)
        case _:
            because = "the connection broke off"
    return WebFailed(f"'{host}' could not be read", because=because, try_this="try again later, or another page")
