"""HTTP transport of all provider models: one request, one streamed response, every failure as `ModelFailed`.

The content is the business of a `ProviderFormat`, one per wire format. Nothing here knows what a
token is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import msgspec

from retinue.config.models import Auth
from retinue.domain.model import Failure, ModelFacts, ModelFailed
from retinue.domain.structs import replace
from retinue.models import error_messages
from retinue.models.base import Chunk, Ended, Prompt, Text, Thinking
from retinue.models.error_classification import Said, said_in
from retinue.models.request_repairs import NOTHING, REPAIRABLE, Learned, Omitted, Repair
from retinue.models.retired_models import gone
from retinue.models.sse import Events
from retinue.net.http1_client import Line, LineFailed, Lines, place_of

log = logging.getLogger(__name__)

FIRST_BYTE_S = 120.0
SILENCE_S = 120.0
REPLY_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
REFUSAL_S = 10.0
LINE_END_S = 0.2
STALE_S = 1.0  # a stale connection fails within this time

_WORDS = (Text, Thinking)
_BOM = b"\xef\xbb\xbf"
_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one model is reached, and how. `quirks` names the peculiarities of this server."""

    facts: ModelFacts
    url: str  # without the path of the operation: https://api.openai.com/v1
    auth: Auth | None = None  # how the key is sent; None: the default of its format
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # may contain a secret
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    quirks: frozenset[str] = frozenset()
    omitted: Omitted = NOTHING  # what this provider has refused before
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
    """One request. The headers may contain a key, so they are in no `repr`."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Sequence[bytes] = field(repr=False)


def _asked(wire: Wire, prompt: Prompt, target: Target, key: str) -> Request:
    """Build the request, with the key where this provider expects it."""
    if target.auth is None:
        return wire.request(prompt, target, key)
    request = wire.request(prompt, target, "")
    match target.auth:
        case Auth.BEARER:
            shown = {"authorization": f"Bearer {key}"}
        case Auth.API_KEY:
            shown = {"x-api-key": key}
        case Auth.NONE:
            shown = dict[str, str]()
    return replace(request, headers={**(shown if key else {}), **request.headers})


class Reader(Protocol):
    """Reads one reply. A new one is made for each."""

    @property
    def done(self) -> bool:
        """Whether the provider has sent its last event. A connection that stays open after it is not waited for."""
        ...

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        """Read one event of the stream. Raises `ModelFailed` if it reports an error."""
        ...

    def whole(self, body: bytes) -> Iterable[Chunk]:
        """Read a reply that came as one JSON body; yields no `EndChunk`. Raises if it is an error."""
        ...

    def end(self) -> Ended:
        """End the stream. Raises `ModelFailed` if it broke off in the middle."""
        ...


@runtime_checkable
class HoldsBack(Protocol):
    """A reader for a format whose servers do not always send an end event."""

    def rest(self) -> Iterable[Chunk]:
        """Return what was held back, if it is complete.

        Called before `finish`, after a stream that ended without an error.
        """
        ...


class Wire(Protocol):
    """One wire format: how a prompt is encoded, and how a reply is read."""

    def request(self, prompt: Prompt, target: Target, key: str) -> Request: ...

    def reader(self, target: Target) -> Reader: ...


@runtime_checkable
class Repairs(Protocol):
    """A format that can repair some refused requests by omitting a part."""

    def repair(self, said: Said, prompt: Prompt, target: Target) -> Repair | None:
        """Return what to omit after this refusal, so that the call can be repeated; None if nothing helps."""
        ...


class Link:
    """The connections of the server to all providers. Opened at first use, and reused."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.learned = Learned()

    async def close(self) -> None:
        await self.lines.close()


class HttpModel:
    """A model behind a URL.

    It makes one attempt: retries are the caller's decision, and cost.

    The exception is a request refused for a part that its format can omit. Nothing was generated
    for it, so it is repaired and repeated once within the same call.
    """

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
        if self._link.learned:
            target = self._known(prompt, target, key)
        request = _asked(self._wire, prompt, target, key)
        reader = self._wire.reader(target)
        exchange = _Exchange(self._link.lines, request, target, partial(self._repaired, prompt, target, key))
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
                    # What follows the end event is not part of the reply, not even a broken connection.
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
            # Nested too deeply for the decoder, or not text where text is expected.
            raise malformed(target.provider, "it sent something that cannot be read") from None
        except ModelFailed as failed:
            told = error_messages.masked(failed, (key, *target.headers.values()))
            if told.code == "model.not-found":
                told = gone(told, target.facts.ref)
            if told is not failed:
                raise told from None  # without the cause, which contains the secret
            raise
        finally:
            exchange.close()

    def _known(self, prompt: Prompt, target: Target, key: str) -> Target:
        now_s = asyncio.get_running_loop().time()
        omitted = self._link.learned.of(provider=target.provider, session=prompt.session, key=key, now_s=now_s)
        return target if omitted == target.omitted else replace(target, omitted=omitted)

    def _repaired(self, prompt: Prompt, target: Target, key: str, status: int, refusal: bytes) -> Request | None:
        """Return the request without the refused part, if that can be omitted. Later requests omit it too."""
        if status not in REPAIRABLE or not isinstance(self._wire, Repairs):
            return None
        repair = self._wire.repair(said_in(refusal), prompt, target)
        if repair is None:
            return None
        now_s = asyncio.get_running_loop().time()
        self._link.learned.keep(repair, provider=target.provider, session=prompt.session, key=key, now_s=now_s)
        log.info(
            "request repaired", extra={"model": target.facts.ref, "scope": repair.scope, "session": prompt.session}
        )
        return _asked(self._wire, prompt, replace(target, omitted=target.omitted.joined(repair.omitted)), key)


def _said(reader: Reader, events: Iterable[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    """Yield the chunks of one piece of a stream.

    Adjacent text is merged: each chunk costs work downstream, and a fast provider sends dozens at
    once.
    """
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
        if words:  # text before the failure still counts
            yield kind("".join(words))
        raise
    if words:
        yield kind("".join(words))


class _Exchange:
    """One request and its response, in pieces.

    Every failure is raised as `ModelFailed`.

    Timeouts cover only our own waiting, never the time the consumer spends on a piece.
    """

    def __init__(
        self,
        lines: Lines,
        request: Request,
        target: Target,
        repaired: Callable[[int, bytes], Request | None] = lambda status, refusal: None,
    ) -> None:
        """`repair` builds another request from a refusal, if that can help. It is called once."""
        self._lines = lines
        self._request = request
        self._target = target
        self._repaired = repaired
        self._line: Line | None = None
        self._silence: _Silence | None = None
        self._patience_s = target.silence_s
        self._size_bytes = 0

    async def begin(self) -> bytes:
        """Send the request, and wait until the kind of response is known. Raises if the request was refused."""
        try:
            async with asyncio.timeout(self._target.first_byte_s):
                first = await self._begin()
        except Exception as error:
            if told := self._told(error, self._target.first_byte_s):
                raise told from error
            raise
        return first

    async def more(self) -> bytes:
        """Return the next piece; empty at the end."""
        line = self._line
        assert line is not None
        if line.at_end:  # a short reply arrives whole, so there is nothing to wait for
            return b""
        silence = self._silence
        if silence is None:
            silence = self._silence = _Silence(line, self._patience_s)
        silence.listens()
        try:
            piece = await line.piece()
        except Exception as error:
            if told := self._told(error, silence.patience_s):
                raise told from error
            raise
        silence.heard()
        self._count(piece)
        return piece

    async def rest(self, first: bytes) -> bytes:
        """Return the whole body of a response that is not a stream."""
        pieces = [first]
        while piece := await self.more():
            pieces.append(piece)
        return b"".join(pieces)

    def said_all(self) -> None:
        """No more content is expected.

        Wait briefly for the end of the response, so that the connection can be reused.
        """
        self._patience_s = min(self._patience_s, LINE_END_S)
        if self._silence is not None:
            self._silence.at_most(LINE_END_S)

    def close(self) -> None:
        if self._silence is not None:
            self._silence.over()
        self._leave()

    def _leave(self) -> None:
        if self._line is not None:
            self._lines.leave(self._line)
            self._line = None

    async def _begin(self) -> bytes:
        line = await self._answered()
        if line.status >= 300:
            refusal = await _refusal(line)
            request = self._repaired(line.status, refusal)
            if request is None:
                raise error_messages.refused(self._target.provider, line.status, line.headers, refusal)
            self._leave()
            self._request = request
            line = await self._answered()
            if line.status >= 300:
                raise error_messages.refused(self._target.provider, line.status, line.headers, await _refusal(line))
        first = b""
        while is_stream(first) is None and (piece := await line.piece()):
            self._count(piece)
            first += piece
        return first

    async def _answered(self) -> Line:
        """Send the request once.

        The other side may close a kept-alive connection while we send, without reading the request.
        Then it is sent again on a new connection. This happens only if no byte came back, at once,
        and the connection was used before.
        """
        place, begin = place_of(self._request.url)
        line = self._line = await self._lines.take(place)
        now = asyncio.get_running_loop().time
        sent_at = now()
        try:
            await line.ask(begin, self._request.headers, self._request.body)
            return line
        except LineFailed:
            if not line.used or line.begun or now() - sent_at > STALE_S:
                raise
        self._leave()
        line = self._line = await self._lines.take(place, anew=True)
        await line.ask(begin, self._request.headers, self._request.body)
        return line

    def _count(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > REPLY_BYTES_MAX:
            raise error_messages.too_long(self._target.provider, REPLY_BYTES_MAX)

    def _told(self, error: Exception, patience_s: float) -> ModelFailed | None:
        """Convert an error to `ModelFailed`; None if it has nothing to do with the connection."""
        provider, begun = self._target.provider, self._size_bytes > 0
        match error:
            case TimeoutError():
                return error_messages.too_slow(provider, begun=begun, patience_s=patience_s)
            case LineFailed():
                return error_messages.unreachable(provider, error, begun=begun)
            case _:
                return None


class _Silence:
    """Idle timeout while waiting for data.

    One timer for a whole stream: a timeout per piece would cost as much as reading it.
    """

    __slots__ = ("_line", "_loop", "_since", "_timer", "patience_s")

    def __init__(self, line: Line, patience_s: float) -> None:
        self._line = line
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
            self._line.fail(TimeoutError())
        else:
            self._timer = self._loop.call_at(ends, self._look)


def is_stream(beginning: bytes) -> bool | None:
    """Whether a body with this beginning is an event stream; None if undecided. The content type is often wrong."""
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


async def _refusal(line: Line) -> bytes:
    """Return the body of an error response, or its beginning: the status alone suffices to continue."""
    said = b""
    try:
        async with asyncio.timeout(REFUSAL_S):
            while len(said) < ERROR_BYTES_MAX and (piece := await line.piece()):
                said += piece
    except (TimeoutError, LineFailed):
        pass
    return said[:ERROR_BYTES_MAX]


def malformed(provider: str, because: str) -> ModelFailed:
    """Build the error for data that cannot be a reply, for readers."""
    return ModelFailed(
        f"{provider} answered with something that is no reply",
        because=because,
        try_this="ask again; if it stays so, check the provider's `url` and `format`",
        code="model.malformed",
        failure=Failure.MALFORMED,
        begun=True,
    )
