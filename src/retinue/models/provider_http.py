"""Calls provider models over HTTP: one request, one streamed response, every failure as `ModelFailed`.

The content is encoded and decoded by a `ProviderFormat`, one for each wire format.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import msgspec

from retinue.config.models import ProviderAuth
from retinue.domain.model import ModelFacts, ModelFailed
from retinue.domain.structs import replace
from retinue.models import error_messages
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk
from retinue.models.error_classification import ErrorBody, parse_error_body
from retinue.models.errors import ModelNotOffered, ModelTimedOut, ReplyMalformed, ReplyTooLarge
from retinue.models.request_repairs import (
    NOTHING_OMITTED,
    REPAIRABLE_STATUSES,
    LearnedRepairs,
    OmittedParts,
    RequestRepair,
)
from retinue.models.retired_models import add_replacement
from retinue.models.sse import SseParser
from retinue.net.http1_client import ConnectionFailed, ConnectionPool, Http1Connection, parse_endpoint

log = logging.getLogger(__name__)

FIRST_BYTE_S = 120.0
SILENCE_S = 120.0
REPLY_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
ERROR_BODY_TIMEOUT_S = 10.0
CONNECTION_END_S = 0.2
STALE_CONNECTION_S = 1.0  # a stale connection fails within this time

_TEXT_CHUNKS = (TextChunk, ThinkingChunk)
_BOM = b"\xef\xbb\xbf"
_STREAM_PREFIXES = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTarget:
    """The URL of one model, and the options with which it is called.

    `quirks` names the ways in which the provider's server differs from the wire format.
    """

    facts: ModelFacts
    url: str  # without the path of the operation: https://api.openai.com/v1
    auth: ProviderAuth | None = None  # how the key is sent; None: the default of its format
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # may contain a secret
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    quirks: frozenset[str] = frozenset()
    omitted: OmittedParts = NOTHING_OMITTED  # what this provider has refused before
    first_byte_s: float = FIRST_BYTE_S
    silence_s: float = SILENCE_S

    @property
    def provider(self) -> str:
        return self.facts.ref.provider

    @property
    def model(self) -> str:
        return self.facts.ref.model


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One HTTP request to a provider. Its headers may contain a key, so its `repr` omits them."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Sequence[bytes] = field(repr=False)


def _build_request(
    provider_format: ProviderFormat, prompt: ModelPrompt, target: ModelTarget, key: str
) -> ProviderRequest:
    """Build the HTTP request, with the key in the header that this provider expects."""
    if target.auth is None:
        return provider_format.build_request(prompt, target, key)
    request = provider_format.build_request(prompt, target, "")
    match target.auth:
        case ProviderAuth.BEARER:
            shown = {"authorization": f"Bearer {key}"}
        case ProviderAuth.API_KEY:
            shown = {"x-api-key": key}
        case ProviderAuth.NONE:
            shown = dict[str, str]()
    return replace(request, headers={**(shown if key else {}), **request.headers})


class ReplyReader(Protocol):
    """Decodes one reply of a provider into chunks. Each reply needs a new reader."""

    @property
    def is_done(self) -> bool:
        """Whether the provider has sent its last event. The caller then stops reading before the connection closes."""
        ...

    def read_event(self, name: bytes, data: bytes) -> Iterable[ReplyChunk]:
        """Read one event of the stream. Raises `ModelFailed` if it reports an error."""
        ...

    def read_body(self, body: bytes) -> Iterable[ReplyChunk]:
        """Read a reply that came as one JSON body. Yields no `EndChunk`. Raises if the body is an error."""
        ...

    def finish(self) -> EndChunk:
        """End the stream. Raises `ModelFailed` if it ended in the middle of a reply."""
        ...


@runtime_checkable
class FlushableReader(Protocol):
    """A reply reader for a format whose servers do not always send an end event."""

    def flush(self) -> Iterable[ReplyChunk]:
        """Return the chunks that were held back, if they are complete.

        Called before `finish`, after a stream that ended without an error.
        """
        ...


class ProviderFormat(Protocol):
    """One wire format: how a prompt is encoded, and how a reply is read."""

    def build_request(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ProviderRequest: ...

    def make_reader(self, target: ModelTarget) -> ReplyReader: ...


@runtime_checkable
class RequestRepairer(Protocol):
    """A format that can repair some refused requests by omitting a part."""

    def find_repair(self, error_body: ErrorBody, prompt: ModelPrompt, target: ModelTarget) -> RequestRepair | None:
        """Return what to omit after this refusal, so that the call can be retried. None if nothing helps."""
        ...


class ProviderConnections:
    """The server's connections to all providers. They are opened at first use, and reused."""

    def __init__(self) -> None:
        self.pool = ConnectionPool()
        self.repairs = LearnedRepairs()

    async def close(self) -> None:
        await self.pool.close()


class HttpModel:
    """A model that is called over HTTP. Each call makes one attempt, because the caller decides about retries.

    There is one exception. If the provider refuses a part of the request that the format can omit,
    the request is sent again once without that part. The refused request costs nothing.
    """

    def __init__(self, connections: ProviderConnections, provider_format: ProviderFormat, target: ModelTarget) -> None:
        self._connections = connections
        self._provider_format = provider_format
        self._target = target

    @property
    def name(self) -> str:
        return str(self._target.facts.ref)

    @property
    def facts(self) -> ModelFacts:
        return self._target.facts

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        """Send a prompt to the provider, and yield the chunks of its reply."""
        target = self._target
        if self._connections.repairs:
            target = self._apply_repairs(prompt, target, key)
        request = _build_request(self._provider_format, prompt, target, key)
        reader = self._provider_format.make_reader(target)
        exchange = _Exchange(
            self._connections.pool, request, target, partial(self._repair_request, prompt, target, key)
        )
        try:
            piece = await exchange.start()
            if not is_event_stream(piece):
                for chunk in reader.read_body(await exchange.read_rest(piece)):
                    yield chunk
                yield reader.finish()
                return
            events = SseParser()
            while piece:
                for chunk in _read_events(reader, events.feed(piece)):
                    yield chunk
                if reader.is_done:
                    exchange.expect_end()
                try:
                    piece = await exchange.read_more()
                except ModelFailed:
                    # Nothing after the end event is part of the reply, not even a broken connection.
                    ended = _try_finish(reader)
                    if ended is None:
                        raise
                    yield ended
                    return
            for chunk in _read_events(reader, events.finish()):
                yield chunk
            if not reader.is_done and isinstance(reader, FlushableReader):
                for chunk in reader.flush():
                    yield chunk
            yield reader.finish()
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            # Nested too deeply for the decoder, or not text where text is expected.
            raise ReplyMalformed(target.provider, "it cannot be decoded") from None
        except ModelFailed as failed:
            shown = error_messages.redact_failure(failed, (key, *target.headers.values()))
            if shown.code == ModelNotOffered.code:
                shown = add_replacement(shown, target.facts.ref)
            if shown is not failed:
                raise shown from None  # without the cause, which contains the secret
            raise
        finally:
            exchange.close()

    def _apply_repairs(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ModelTarget:
        now_s = asyncio.get_running_loop().time()
        omitted = self._connections.repairs.find_omitted(
            provider=target.provider, session=prompt.session, key=key, now_s=now_s
        )
        return target if omitted == target.omitted else replace(target, omitted=omitted)

    def _repair_request(
        self, prompt: ModelPrompt, target: ModelTarget, key: str, status: int, refusal: bytes
    ) -> ProviderRequest | None:
        """Return the request without the refused part, if that can be omitted. Later requests omit it too."""
        if status not in REPAIRABLE_STATUSES or not isinstance(self._provider_format, RequestRepairer):
            return None
        repair = self._provider_format.find_repair(parse_error_body(refusal), prompt, target)
        if repair is None:
            return None
        now_s = asyncio.get_running_loop().time()
        self._connections.repairs.remember(
            repair, provider=target.provider, session=prompt.session, key=key, now_s=now_s
        )
        log.info(
            "request repaired", extra={"model": target.facts.ref, "scope": repair.scope, "session": prompt.session}
        )
        return _build_request(
            self._provider_format, prompt, replace(target, omitted=target.omitted.merge(repair.omitted)), key
        )


def _read_events(reader: ReplyReader, events: Iterable[tuple[bytes, bytes]]) -> Iterator[ReplyChunk]:
    """Yield the reply chunks that one received piece of a stream contains.

    Adjacent text is merged: each chunk costs work downstream, and a fast provider sends dozens at once.
    """
    words: list[str] = []
    kind: type[TextChunk | ThinkingChunk] = TextChunk
    try:
        for name, data in events:
            for chunk in reader.read_event(name, data):
                if isinstance(chunk, _TEXT_CHUNKS):
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
    """One HTTP request and its response, which is read in pieces.

    Every failure is raised as `ModelFailed`. Timeouts cover only the wait for data, not the time
    that the consumer spends on a piece.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        request: ProviderRequest,
        target: ModelTarget,
        repair: Callable[[int, bytes], ProviderRequest | None] = lambda status, refusal: None,
    ) -> None:
        """`repair` builds another request after a refusal, if one can help. It is called at most once."""
        self._pool = pool
        self._request = request
        self._target = target
        self._repair = repair
        self._connection: Http1Connection | None = None
        self._idle_timeout: _IdleTimeout | None = None
        self._timeout_s = target.silence_s
        self._size_bytes = 0

    async def start(self) -> bytes:
        """Send the request, and return the first piece of the response. Raises if the request was refused."""
        try:
            async with asyncio.timeout(self._target.first_byte_s):
                line = await self._send_request()
                if line.status >= 300:
                    line = await self._send_repaired(line)
                first = b""
                while is_event_stream(first) is None and (piece := await line.read_chunk()):
                    self._count_bytes(piece)
                    first += piece
        except Exception as error:
            if model_error := self._to_model_error(error, self._target.first_byte_s):
                raise model_error from error
            raise
        return first

    async def read_more(self) -> bytes:
        """Return the next piece of the response. Empty at the end."""
        line = self._connection
        assert line is not None
        if line.is_at_end:  # a short reply arrives whole, so there is nothing to wait for
            return b""
        silence = self._idle_timeout
        if silence is None:
            silence = self._idle_timeout = _IdleTimeout(line, self._timeout_s)
        silence.start_waiting()
        try:
            piece = await line.read_chunk()
        except Exception as error:
            if model_error := self._to_model_error(error, silence.patience_s):
                raise model_error from error
            raise
        silence.stop_waiting()
        self._count_bytes(piece)
        return piece

    async def read_rest(self, first: bytes) -> bytes:
        """Return the whole body of a response that is not a stream."""
        pieces = [first]
        while piece := await self.read_more():
            pieces.append(piece)
        return b"".join(pieces)

    def expect_end(self) -> None:
        """Wait only briefly for the end of the response, because no more content is expected.

        Once the response has ended, the connection can be reused.
        """
        self._timeout_s = min(self._timeout_s, CONNECTION_END_S)
        if self._idle_timeout is not None:
            self._idle_timeout.shorten(CONNECTION_END_S)

    def close(self) -> None:
        if self._idle_timeout is not None:
            self._idle_timeout.cancel()
        self._release()

    def _release(self) -> None:
        if self._connection is not None:
            self._pool.release(self._connection)
            self._connection = None

    async def _send_repaired(self, refused: Http1Connection) -> Http1Connection:
        """Send the request again without the part that the provider refused, or raise the refusal."""
        refusal = await _read_error_body(refused)
        request = self._repair(refused.status, refusal)
        if request is None:
            raise error_messages.build_response_error(self._target.provider, refused.status, refused.headers, refusal)
        self._release()
        self._request = request
        line = await self._send_request()
        if line.status >= 300:
            raise error_messages.build_response_error(
                self._target.provider, line.status, line.headers, await _read_error_body(line)
            )
        return line

    async def _send_request(self) -> Http1Connection:
        """Send the request, and return the connection when the status has arrived.

        The other side may close a kept-alive connection while we send, without reading the request.
        The request is then sent again on a new connection. This is done only if the old connection
        was used before and failed at once, without a byte of response.
        """
        place, begin = parse_endpoint(self._request.url)
        line = self._connection = await self._pool.acquire(place)
        now = asyncio.get_running_loop().time
        sent_at = now()
        try:
            await line.send_request(begin, self._request.headers, self._request.body)
            return line
        except ConnectionFailed:
            if not line.was_used or line.has_response_bytes or now() - sent_at > STALE_CONNECTION_S:
                raise
        self._release()
        line = self._connection = await self._pool.acquire(place, force_new=True)
        await line.send_request(begin, self._request.headers, self._request.body)
        return line

    def _count_bytes(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._size_bytes > REPLY_BYTES_MAX:
            raise ReplyTooLarge(self._target.provider, bytes_max=REPLY_BYTES_MAX)

    def _to_model_error(self, error: Exception, timeout_s: float) -> ModelFailed | None:
        """Convert an error to `ModelFailed`. None if the error has nothing to do with the connection."""
        provider, begun = self._target.provider, self._size_bytes > 0
        match error:
            case TimeoutError():
                return ModelTimedOut(provider, begun=begun, timeout_s=timeout_s)
            case ConnectionFailed():
                return error_messages.build_connection_error(provider, error, begun=begun)
            case _:
                return None


class _IdleTimeout:
    """Limits how long a read waits for data.

    One timer serves a whole stream, because a timeout per piece would cost as much as reading the piece.
    """

    __slots__ = ("_line", "_loop", "_since", "_timer", "patience_s")

    def __init__(self, connection: Http1Connection, timeout_s: float) -> None:
        self._line = connection
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self.patience_s = timeout_s
        self._timer = self._loop.call_later(timeout_s, self._check)

    def start_waiting(self) -> None:
        self._since = self._loop.time()

    def stop_waiting(self) -> None:
        self._since = None

    def shorten(self, timeout_s: float) -> None:
        if timeout_s < self.patience_s:
            self.patience_s = timeout_s
            self._timer.cancel()
            self._timer = self._loop.call_later(timeout_s, self._check)

    def cancel(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        ends = (now if self._since is None else self._since) + self.patience_s
        if ends <= now:
            self._line.fail(TimeoutError())
        else:
            self._timer = self._loop.call_at(ends, self._check)


def is_event_stream(beginning: bytes) -> bool | None:
    """Whether a body with this beginning is an event stream. None if more bytes are needed to decide.

    The content type header is not used, because it is often wrong.
    """
    text = beginning.removeprefix(_BOM).lstrip()
    if text.startswith(_STREAM_PREFIXES):
        return True
    if _BOM.startswith(beginning) or any(field.startswith(text) for field in _STREAM_PREFIXES):
        return None
    return False


def _try_finish(reader: ReplyReader) -> EndChunk | None:
    try:
        return reader.finish()
    except ModelFailed:
        return None


async def _read_error_body(connection: Http1Connection) -> bytes:
    """Return the body of an error response, or its beginning. Empty if it cannot be read: the status alone suffices."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_BODY_TIMEOUT_S):
            while len(body) < ERROR_BYTES_MAX and (piece := await connection.read_chunk()):
                body += piece
    except (TimeoutError, ConnectionFailed):
        pass
    return body[:ERROR_BYTES_MAX]
