"""The rim of every model that is reached over HTTP: one request out, one stream in, every end of it in our words.

What is said is the business of a `Wire`, one for each format. Nothing here knows what a token is.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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
_RAW_BODY_BYTES_MAX = 1024 * 1024  # above, aiohttp wants something it can read in pieces

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
        import aiohttp

        target = self._target
        request = self._wire.request(prompt, target, key)
        begun = False
        try:
            async with asyncio.timeout(target.first_byte_s) as patience:
                async with self._post(request) as response:
                    if response.status >= 300:
                        body = await response.content.read(ERROR_BYTES_MAX)
                        raise failures.refused(target.provider, response.status, response.headers, body)
                    reader = self._wire.reader(target)
                    async for chunk in self._chunks(response, reader, patience):
                        begun = True
                        yield chunk
        except TimeoutError as error:
            raise failures.too_slow(target.provider, begun=begun, patience_s=self._patience_s(begun)) from error
        except (aiohttp.ClientError, ssl.SSLError, OSError, asyncio.IncompleteReadError) as error:
            raise failures.unreachable(target.provider, error, begun=begun) from error

    def _patience_s(self, begun: bool) -> float:
        return self._target.silence_s if begun else self._target.first_byte_s

    def _post(self, request: Request) -> Any:
        body = b"".join(request.body)
        return self._link.session().post(
            request.url,
            data=body if len(body) <= _RAW_BODY_BYTES_MAX else io.BytesIO(body),
            headers=request.headers,
            allow_redirects=False,  # a key goes to the host it is for, and to no other
        )

    async def _chunks(
        self, response: aiohttp.ClientResponse, reader: Reader, patience: asyncio.Timeout
    ) -> AsyncIterator[Chunk]:
        loop = asyncio.get_running_loop()
        content = response.content
        first = b""
        while not first.strip() and not content.at_eof():
            first += await content.readany()
        if not first.lstrip().startswith(_STREAM_BEGINS):
            for chunk in reader.whole(await self._rest(first, content, patience)):
                yield chunk
            yield reader.end()
            return
        events = Events()
        size_bytes = 0
        piece = first
        while piece:
            size_bytes += len(piece)
            if size_bytes > REPLY_BYTES_MAX:
                raise failures.too_long(self._target.provider, REPLY_BYTES_MAX)
            patience.reschedule(loop.time() + self._target.silence_s)
            for name, data in events.feed(piece):
                for chunk in reader.read(name, data):
                    yield chunk
            piece = await content.readany()
        for name, data in events.end():
            for chunk in reader.read(name, data):
                yield chunk
        yield reader.end()

    async def _rest(self, first: bytes, content: aiohttp.StreamReader, patience: asyncio.Timeout) -> bytes:
        """A body that is no stream, whole."""
        loop = asyncio.get_running_loop()
        parts = [first]
        size_bytes = len(first)
        while piece := await content.readany():
            patience.reschedule(loop.time() + self._target.silence_s)
            parts.append(piece)
            size_bytes += len(piece)
            if size_bytes > REPLY_BYTES_MAX:
                raise failures.too_long(self._target.provider, REPLY_BYTES_MAX)
        return b"".join(parts)


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
