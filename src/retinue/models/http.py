"""The rim of every model that is reached over HTTP: one request out, one stream in, every end of it in our words.

What is said is the business of a `Wire`, one for each format. Nothing here knows what a token is.
"""

from __future__ import annotations

import asyncio
import errno
import io
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from retinue.domain.model import Failure, ModelFacts, ModelFailed
from retinue.models import failures
from retinue.models.base import Chunk, Ended, Prompt
from retinue.models.sse import Events

if TYPE_CHECKING:
    import aiohttp

FIRST_BYTE_S = 120.0
SILENCE_S = 120.0
CONNECT_S = 20.0
CONNECTIONS_MAX = 200
KEEP_ALIVE_S = 60.0
REPLY_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
LINE_END_S = 1.0
_RAW_BODY_BYTES_MAX = 1024 * 1024  # above, aiohttp wants something it can read in pieces

_DONE = b"[DONE]"
_BOM = b"\xef\xbb\xbf"
_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one model is asked, and how. `quirks` are what this server does its own way, by name."""

    facts: ModelFacts
    url: str  # without the path of the operation: https://api.openai.com/v1
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    quirks: frozenset[str] = frozenset()
    first_byte_s: float = FIRST_BYTE_S
    silence_s: float = SILENCE_S

    @property
    def provider(self) -> str:
        return self.facts.ref.provider

    @property
    def model(self) -> str:
        return self.facts.ref.model


@dataclass(frozen=True, slots=True)
class Request:
    """One request. The headers may hold a key, so they are in no `repr`."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Sequence[bytes] = field(repr=False)


class Reader(Protocol):
    """Reads one reply. Made anew for each."""

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        """One event of the stream. Raises `ModelFailed` where the provider says in it that it cannot go on."""
        ...

    def whole(self, body: bytes) -> Iterable[Chunk]:
        """A reply that came in one piece of JSON, without its `Ended`. An error in its place is raised."""
        ...

    def end(self) -> Ended:
        """The stream is over. Raises `ModelFailed` where it broke off in the middle."""
        ...


class Wire(Protocol):
    """One wire format: how a prompt is said, and how a reply is read."""

    def request(self, prompt: Prompt, target: Target, key: str) -> Request: ...

    def reader(self, target: Target) -> Reader: ...


class Link:
    """The connections of the whole house to its providers. Made when first used, and used again."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent",),
                auto_decompress=True,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class HttpModel:
    """A model behind a URL. Asks once: whoever wants to ask again decides that, and pays for it, itself."""

    def __init__(self, link: Link, wire: Wire, target: Target) -> None:
        self._link = link
        self._wire = wire
        self._target = target

    @property
    def name(self) -> str:
        return str(self._target.facts.ref)

    @property
    def facts(self) -> ModelFacts:
        return self._target.facts

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        target = self._target
        request = self._wire.request(prompt, target, key)
        reader = self._wire.reader(target)
        exchange = _Exchange(self._link.session(), request, target)
        try:
            piece = await exchange.begin()
            if not is_stream(piece):
                for chunk in reader.whole(await exchange.rest(piece)):
                    yield chunk
                yield reader.end()
                return
            events = Events()
            while piece:
                for name, data in events.feed(piece):
                    for chunk in reader.read(name, data):
                        yield chunk
                    if data == _DONE:
                        exchange.said_all()
                try:
                    piece = await exchange.more()
                except ModelFailed:
                    # What comes after its end is no part of a reply: not even that the line broke.
                    ended = _ended(reader)
                    if ended is None:
                        raise
                    yield ended
                    return
            for name, data in events.end():
                for chunk in reader.read(name, data):
                    yield chunk
            yield reader.end()
        finally:
            exchange.close()


class _Exchange:
    """One request and what comes back, in pieces; every way in which that can fail, in our words.

    Only our own waiting is measured, never what whoever listens does with a piece.
    """

    def __init__(self, session: aiohttp.ClientSession, request: Request, target: Target) -> None:
        self._session = session
        self._request = request
        self._target = target
        self._response: aiohttp.ClientResponse | None = None
        self._patience_s = target.first_byte_s
        self._size_bytes = 0
        self._begun = False

    async def begin(self) -> bytes:
        """Ask, and wait until it can be told what comes. A refusal is raised."""
        first = await self._patiently(self._begin())
        self._patience_s = self._target.silence_s
        return first

    async def more(self) -> bytes:
        """The next piece; nothing where that was all."""
        assert self._response is not None
        piece = await self._patiently(self._response.content.readany())
        self._count(piece)
        return piece

    async def rest(self, first: bytes) -> bytes:
        """A body that is no stream, whole."""
        pieces = [first]
        while piece := await self.more():
            pieces.append(piece)
        return b"".join(pieces)

    def said_all(self) -> None:
        """Nothing more will be said. A moment is left for the line to end, so that it can be used again."""
        self._patience_s = min(self._patience_s, LINE_END_S)

    def close(self) -> None:
        if self._response is not None:
            self._response.release()  # and closed, where something was left unread

    def _count(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > REPLY_BYTES_MAX:
            raise failures.too_long(self._target.provider, REPLY_BYTES_MAX)

    async def _begin(self) -> bytes:
        body = b"".join(self._request.body)
        response = self._response = await self._session.post(
            self._request.url,
            data=body if len(body) <= _RAW_BODY_BYTES_MAX else io.BytesIO(body),
            headers=self._request.headers,
            allow_redirects=False,  # a key goes to the host it is for, and to no other
        )
        if response.status >= 300:
            refusal = await _at_most(response.content, ERROR_BYTES_MAX)
            raise failures.refused(self._target.provider, response.status, response.headers, refusal)
        first = b""
        while is_stream(first) is None and (piece := await response.content.readany()):
            self._begun = True
            self._count(piece)
            first += piece
        return first

    async def _patiently(self, waited: Awaitable[bytes]) -> bytes:
        import aiohttp

        provider = self._target.provider
        try:
            async with asyncio.timeout(self._patience_s):
                return await waited
        except aiohttp.ConnectionTimeoutError as error:
            late = OSError(errno.ETIMEDOUT, f"no connection within {CONNECT_S:g} seconds")
            raise failures.unreachable(provider, late, begun=False) from error
        except TimeoutError as error:
            raise failures.too_slow(provider, begun=self._begun, patience_s=self._patience_s) from error
        except (aiohttp.ClientError, ssl.SSLError, OSError, asyncio.IncompleteReadError) as error:
            raise failures.unreachable(provider, error, begun=self._begun) from error


def is_stream(beginning: bytes) -> bool | None:
    """Whether a body that begins so has events in it; None where that cannot be said yet. Its type is often wrong."""
    said = beginning.removeprefix(_BOM).lstrip()
    if said.startswith(_STREAM_BEGINS):
        return True
    if _BOM.startswith(beginning) or any(field.startswith(said) for field in _STREAM_BEGINS):
        return None
    return False


def _ended(reader: Reader) -> Ended | None:
    try:
        return reader.end()
    except ModelFailed:
        return None


async def _at_most(content: aiohttp.StreamReader, bytes_max: int) -> bytes:
    found = b""
    while len(found) < bytes_max and (piece := await content.readany()):
        found += piece
    return found[:bytes_max]


def malformed(provider: str, because: str) -> ModelFailed:
    """For readers: what came cannot be a reply."""
    return ModelFailed(
        f"{provider} answered with something that is no reply",
        because=because,
        try_this="ask again; if it stays so, check the provider's `url` and `format`",
        code="model.malformed",
        failure=Failure.MALFORMED,
        begun=True,
    )
