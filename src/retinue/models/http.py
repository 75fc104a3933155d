"""The rim of every model that is reached over HTTP: one request out, one stream in, every end of it in our words.

What is said is the business of a `Wire`, one for each format. Nothing here knows what a token is.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from retinue.domain.model import Failure, ModelFacts, ModelFailed
from retinue.models import failures
from retinue.models.base import Chunk, Ended, Prompt, Text, Thinking
from retinue.models.sse import Events

if TYPE_CHECKING:
    import aiohttp

    from retinue.models.http_out import Slabs

FIRST_BYTE_S = 120.0
SILENCE_S = 120.0
CONNECT_S = 20.0
CONNECTIONS_MAX = 200
KEEP_ALIVE_S = 60.0
REPLY_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
REFUSAL_S = 10.0
LINE_END_S = 0.2
STALE_S = 1.0  # a line that was gone before it was used is found to be so at once
_RAW_BODY_BYTES_MAX = 64 * 1024  # above, it is sent in slabs

_WORDS = (Text, Thinking)
_BOM = b"\xef\xbb\xbf"
_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one model is asked, and how. `quirks` are what this server does its own way, by name."""

    facts: ModelFacts
    url: str  # without the path of the operation: https://api.openai.com/v1
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # may hold a secret
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

    @property
    def done(self) -> bool:
        """Whether the provider has said its last word: whatever keeps the line open after it is not waited for."""
        ...

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        """One event of the stream. Raises `ModelFailed` where the provider says in it that it cannot go on."""
        ...

    def whole(self, body: bytes) -> Iterable[Chunk]:
        """A reply that came in one piece of JSON, without its `Ended`. An error in its place is raised."""
        ...

    def end(self) -> Ended:
        """The stream is over. Raises `ModelFailed` where it broke off in the middle."""
        ...


@runtime_checkable
class HoldsBack(Protocol):
    """A reader of a format whose servers do not always say that they have ended."""

    def rest(self) -> Iterable[Chunk]:
        """The stream is over, and the line was not cut: what was held back, if that is whole. Asked before `end`."""
        ...


class Wire(Protocol):
    """One wire format: how a prompt is said, and how a reply is read."""

    def request(self, prompt: Prompt, target: Target, key: str) -> Request: ...

    def reader(self, target: Target) -> Reader: ...


class Link:
    """The connections of the whole house to its providers. Made when first used, and used again."""

    def __init__(self, *, loaded: Callable[[], None] = lambda: None) -> None:
        """`loaded` is called when what connections need was loaded, for whoever minds how much there is in memory."""
        self._loaded = loaded
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            import aiohttp

            from retinue.models.http_out import Lines

            self._loaded()
            self._session = aiohttp.ClientSession(
                connector=Lines(limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "retinue"},  # some turn away who does not say a name
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
                for chunk in _said(reader, events.feed(piece)):
                    yield chunk
                if reader.done:
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
            for chunk in _said(reader, events.end()):
                yield chunk
            if not reader.done and isinstance(reader, HoldsBack):
                for chunk in reader.rest():
                    yield chunk
            yield reader.end()
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            # Nested too deep for a decoder, or no text where there should be some.
            raise malformed(target.provider, "it sent something that cannot be read") from None
        except ModelFailed as failed:
            if (told := failures.masked(failed, (key, *target.headers.values()))) is not failed:
                raise told from None  # not even as the cause of it
            raise
        finally:
            exchange.close()


def _said(reader: Reader, events: Iterable[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    """What one piece of a stream says. Words that came together are told together: whoever listens does something with
    each chunk, and a quick provider sends dozens at once."""
    words: list[str] = []
    kind: type[Text | Thinking] = Text
    try:
        for name, data in events:
            for chunk in reader.read(name, data):
                if isinstance(chunk, _WORDS):
                    if words and type(chunk) is not kind:
                        yield kind("".join(words))
                        words.clear()
                    kind = type(chunk)
                    words.append(chunk.text)
                    continue
                if words:
                    yield kind("".join(words))
                    words.clear()
                yield chunk
    except ModelFailed:
        if words:  # what was said before it failed was said
            yield kind("".join(words))
        raise
    if words:
        yield kind("".join(words))


class _Exchange:
    """One request and what comes back, in pieces; every way in which that can fail, in our words.

    Only our own waiting is measured, never what whoever listens does with a piece.
    """

    def __init__(self, session: aiohttp.ClientSession, request: Request, target: Target) -> None:
        self._session = session
        self._request = request
        self._target = target
        self._response: aiohttp.ClientResponse | None = None
        self._silence: _Silence | None = None
        self._patience_s = target.silence_s
        self._size_bytes = 0

    async def begin(self) -> bytes:
        """Ask, and wait until it can be told what comes. A refusal is raised."""
        try:
            async with asyncio.timeout(self._target.first_byte_s):
                first = await self._begin()
        except Exception as error:
            if told := self._told(error, self._target.first_byte_s):
                raise told from error
            raise
        return first

    async def more(self) -> bytes:
        """The next piece; nothing where that was all."""
        assert self._response is not None
        content = self._response.content
        if content.at_eof():  # a short reply comes whole, and nobody waits for it
            return b""
        silence = self._silence
        if silence is None:
            silence = self._silence = _Silence(content, self._patience_s)
        silence.listens()
        try:
            piece = await content.readany()
        except Exception as error:
            if told := self._told(error, silence.patience_s):
                raise told from error
            raise
        silence.heard()
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
        if self._silence is not None:
            self._silence.at_most(LINE_END_S)

    def close(self) -> None:
        if self._silence is not None:
            self._silence.over()
        if self._response is None:
            return
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()  # a reply that nobody hears out is not made any longer

    async def _begin(self) -> bytes:
        response = self._response = await self._answered()
        if response.status >= 300:
            refusal = await _refusal(response)
            raise failures.refused(self._target.provider, response.status, response.headers, refusal)
        first = b""
        while is_stream(first) is None and (piece := await response.content.readany()):
            self._count(piece)
            first += piece
        return first

    async def _answered(self) -> aiohttp.ClientResponse:
        """Asked once. A line that is kept open may be closed by the other side while we send: it never read that, and
        we ask again on another one. Only where nothing came back, at once, and on a line that was used before."""
        import aiohttp

        from retinue.models.http_out import line_was_used

        now = asyncio.get_running_loop().time
        sent_at = now()
        try:
            return await self._post()
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError):
            if not line_was_used.get() or now() - sent_at > STALE_S:
                raise
        return await self._post()

    async def _post(self) -> aiohttp.ClientResponse:
        return await self._session.post(
            self._request.url,
            data=_sent(self._request.body),
            headers=self._request.headers,
            allow_redirects=False,  # a key goes to the host it is for, and to no other
        )

    def _count(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > REPLY_BYTES_MAX:
            raise failures.too_long(self._target.provider, REPLY_BYTES_MAX)

    def _told(self, error: Exception, patience_s: float) -> ModelFailed | None:
        """None for what has nothing to do with the line."""
        import aiohttp

        provider, begun = self._target.provider, self._size_bytes > 0
        match error:
            case aiohttp.ConnectionTimeoutError():
                late = OSError(errno.ETIMEDOUT, f"no connection within {CONNECT_S:g} seconds")
                return failures.unreachable(provider, late, begun=False)
            case TimeoutError():
                return failures.too_slow(provider, begun=begun, patience_s=patience_s)
            case aiohttp.ClientError() | OSError() | asyncio.IncompleteReadError():
                return failures.unreachable(provider, error, begun=begun)
            case _:
                return None


def _sent(body: Sequence[bytes]) -> bytes | Slabs:
    size_bytes = sum(map(len, body))
    if size_bytes <= _RAW_BODY_BYTES_MAX:
        return b"".join(body)
    from retinue.models.http_out import Slabs

    return Slabs(body, size_bytes)


class _Silence:
    """How long nothing has come while we listened. One timer for a whole stream: a timeout around each piece would cost
    as much as reading it."""

    __slots__ = ("_content", "_loop", "_since", "_timer", "patience_s")

    def __init__(self, content: aiohttp.StreamReader, patience_s: float) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self.patience_s = patience_s
        self._timer = self._loop.call_later(patience_s, self._look)

    def listens(self) -> None:
        self._since = self._loop.time()

    def heard(self) -> None:
        self._since = None

    def at_most(self, patience_s: float) -> None:
        if patience_s < self.patience_s:
            self.patience_s = patience_s
            self._timer.cancel()
            self._timer = self._loop.call_later(patience_s, self._look)

    def over(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        ends = (now if self._since is None else self._since) + self.patience_s
        if ends <= now:
            self._content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(ends, self._look)


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


async def _refusal(response: aiohttp.ClientResponse) -> bytes:
    """What is said with a refusal, or the beginning of it: the status alone says enough to go on."""
    import aiohttp

    said = b""
    try:
        async with asyncio.timeout(REFUSAL_S):
            while len(said) < ERROR_BYTES_MAX and (piece := await response.content.readany()):
                said += piece
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
    return said[:ERROR_BYTES_MAX]


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
