"""The rim of every model that is reached over HTTP: one request out, one stream in, every end of it in our words.

What is said is the business of a `Wire`, one for each format. Nothing here knows what a token is.
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
STALE_S = 1.0  # a line that was gone before it was used is found to be so at once

_WORDS = (Text, Thinking)
_BOM = b"\xef\xbb\xbf"
_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where one model is asked, and how. `quirks` are what this server does its own way, by name."""

    facts: ModelFacts
    url: str  # without the path of the operation: https://api.openai.com/v1
    auth: Auth | None = None  # how it is shown a key; None: as its format has it
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # may hold a secret
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
    """One request. The headers may hold a key, so they are in no `repr`."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Sequence[bytes] = field(repr=False)


def _asked(wire: Wire, prompt: Prompt, target: Target, key: str) -> Request:
    """The request with its key where this provider looks for it."""
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


@runtime_checkable
class Repairs(Protocol):
    """A format whose providers refuse some requests for a part of them that can be left out."""

    def repair(self, said: Said, prompt: Prompt, target: Target) -> Repair | None:
        """What to leave out after this refusal, so that the same can be asked again; None where nothing helps."""
        ...


class Link:
    """The connections of the whole house to its providers. Made when first used, and used again."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.learned = Learned()

    async def close(self) -> None:
        await self.lines.close()


class HttpModel:
    """A model behind a URL. Asks once: whoever wants to ask again decides that, and pays for it, itself.

    The exception is a request that was refused for a part that its format can leave out: nothing was made of it, so it
    is repaired once and asked again within the same call.
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
            told = error_messages.masked(failed, (key, *target.headers.values()))
            if told.code == "model.not-found":
                told = gone(told, target.facts.ref)
            if told is not failed:
                raise told from None  # not even as the cause of it
            raise
        finally:
            exchange.close()

    def _known(self, prompt: Prompt, target: Target, key: str) -> Target:
        now_s = asyncio.get_running_loop().time()
        omitted = self._link.learned.of(provider=target.provider, session=prompt.session, key=key, now_s=now_s)
        return target if omitted == target.omitted else replace(target, omitted=omitted)

    def _repaired(self, prompt: Prompt, target: Target, key: str, status: int, refusal: bytes) -> Request | None:
        """The request without what was refused in it, if that can be left out; it is from now on."""
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

    def __init__(
        self,
        lines: Lines,
        request: Request,
        target: Target,
        repaired: Callable[[int, bytes], Request | None] = lambda status, refusal: None,
    ) -> None:
        """`repaired` makes another request out of a refusal, where that can help. It is asked once."""
        self._lines = lines
        self._request = request
        self._target = target
        self._repaired = repaired
        self._line: Line | None = None
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
        line = self._line
        assert line is not None
        if line.at_end:  # a short reply comes whole, and nobody waits for it
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
        """Asked once. A line that is kept open may be closed by the other side while we send: it never read that, and
        we ask again on another one. Only where nothing came back, at once, and on a line that was used before."""
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
        """None for what has nothing to do with the line."""
        provider, begun = self._target.provider, self._size_bytes > 0
        match error:
            case TimeoutError():
                return error_messages.too_slow(provider, begun=begun, patience_s=patience_s)
            case LineFailed():
                return error_messages.unreachable(provider, error, begun=begun)
            case _:
                return None


class _Silence:
    """How long nothing has come while we listened. One timer for a whole stream: a timeout around each piece would cost
    as much as reading it."""

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


async def _refusal(line: Line) -> bytes:
    """What is said with a refusal, or the beginning of it: the status alone says enough to go on."""
    said = b""
    try:
        async with asyncio.timeout(REFUSAL_S):
            while len(said) < ERROR_BYTES_MAX and (piece := await line.piece()):
                said += piece
    except (TimeoutError, LineFailed):
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
