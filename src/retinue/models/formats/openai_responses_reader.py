"""Reads replies in the format `openai-responses`: items that start, grow and finish, each identified by its index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from retinue.domain.model import ModelFailed
from retinue.domain.record import ReplyPieceKind, StopReason, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import EndChunk, ReplyChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.errors import ReplyMalformed, ReplyTruncated
from retinue.models.formats.openai_usage import parse_usage
from retinue.models.formats.wire_formats import decode_json_or_none, parse_arguments

ITEMS_MAX = 1_000  # per reply
SERVER_ITEM_BYTES_MAX = 256 * 1024  # larger items, such as generated images, are not sent back

LEFT_OUT_KEY = "_left_out"  # marks an item that is too large to keep: only its existence is recorded

_DONE = b"[DONE]"
_STOPS = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.FILTERED}


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    item: Any = None
    output_index: int | None = None
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[Any] | None = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_decoder = msgspec.json.Decoder(_Event)
_response_decoder = msgspec.json.Decoder(_Response)


class _PartialItem:
    """The state of an item that is still being received."""

    __slots__ = ("id", "is_signed", "is_streamed", "raw_thinking")

    def __init__(self) -> None:
        self.id: str | None = None
        self.is_streamed = False  # its text was streamed
        self.raw_thinking: list[str] = []  # raw thinking, which is not shown
        self.is_signed = False


class OpenAIResponsesReader:
    """Reads one reply, event by event."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: dict[int, _PartialItem] = {}
        self._call_ids: set[str] = set()
        self._has_content = False
        self._is_refused = False
        self._end_chunk: EndChunk | None = None

    @property
    def is_done(self) -> bool:
        return self._end_chunk is not None

    def read_event(self, name: bytes, data: bytes) -> Iterable[ReplyChunk]:
        data = data.strip()
        if not data or data == _DONE:
            return ()
        try:
            event = _decoder.decode(data)
        except msgspec.ValidationError as error:
            raise ReplyMalformed(self._provider, f"it cannot be decoded: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ReplyMalformed(self._provider, "it is not JSON") from None
        return self._dispatch_event(event, name, data)

    def read_body(self, body: bytes) -> Iterable[ReplyChunk]:
        response = self._decode_response(body)
        if not response.error and response.output is None:
            raise ReplyMalformed(self._provider, "it is JSON without a reply")
        return list(self._finish_response(response))

    def finish(self) -> EndChunk:
        if self._end_chunk is None:
            raise ReplyTruncated(self._provider)
        return self._end_chunk

    def _dispatch_event(self, event: _Event, name: bytes, data: bytes) -> Iterator[ReplyChunk]:
        match event.type:
            case "response.output_text.delta":
                yield from self._read_text(event)
            case "response.refusal.delta":
                self._is_refused = True
                yield from self._read_text(event)
            case "response.reasoning_summary_text.delta":
                if isinstance(event.delta, str) and event.delta:
                    self._get_item(event).is_streamed = self._has_content = True
                    yield ThinkingChunk(event.delta)
            case "response.reasoning_text.delta":
                if isinstance(event.delta, str):
                    self._get_item(event).raw_thinking.append(event.delta)
            case "response.output_item.added":
                yield from self._flush_raw_thinking(event)
                self._get_item(event).id = _get_id(event.item)
            case "response.output_item.done":
                yield from self._finish_item(event.item, self._get_item(event))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                yield from self._finish_response(self._decode_response(event.response))
            case _:
                if event.type == "error" or name == b"error" or event.error:
                    raise self._build_error(event.error, data)

    def _read_text(self, event: _Event) -> Iterator[ReplyChunk]:
        yield from self._flush_raw_thinking(event)
        if isinstance(event.delta, str) and event.delta:
            self._get_item(event).is_streamed = self._has_content = True
            yield TextChunk(event.delta)

    def _get_item(self, event: _Event) -> _PartialItem:
        index = event.output_index if event.output_index is not None else -1
        found = self._items.setdefault(index, _PartialItem())
        if len(self._items) > ITEMS_MAX:
            raise ReplyMalformed(self._provider, f"it has more than {ITEMS_MAX:,} parts")
        return found

    def _flush_raw_thinking(self, event: _Event) -> Iterator[ReplyChunk]:
        """Emit unfinished raw thinking when the next item begins.

        Thinking must be emitted before the item that follows it, but some servers finish the
        thinking later.
        """
        for index, item in self._items.items():
            if item.raw_thinking and not item.is_signed and index != event.output_index:
                text = {"type": "reasoning_text", "text": "".join(item.raw_thinking)}
                item.is_signed = True
                yield _build_reasoning_signature({"id": item.id, "content": [text]})

    def _finish_item(self, item: Any, known: _PartialItem) -> Iterator[ReplyChunk]:
        if not isinstance(item, dict):
            return
        self._has_content = True
        fields = cast("dict[str, Any]", item)
        match fields.get("type"):
            case "message":
                yield from self._read_message(fields, known)
            case "reasoning":
                if not known.is_streamed:
                    yield from (ThinkingChunk(text) for text in _iterate_texts(fields.get("summary")))
                if not known.is_signed or fields.get("encrypted_content"):
                    known.is_signed = True
                    yield _build_reasoning_signature(fields)
            case "function_call":
                yield from self._read_call(fields)
            case str():
                seal = msgspec.json.encode(fields)
                if len(seal) > SERVER_ITEM_BYTES_MAX:
                    seal = msgspec.json.encode({"type": fields["type"], "id": _get_id(fields), LEFT_OUT_KEY: True})
                yield SignatureChunk(ReplyPieceKind.SERVER, seal.decode())
            case _:
                pass

    def _read_message(self, fields: dict[str, Any], known: _PartialItem) -> Iterator[ReplyChunk]:
        for part in _iterate_parts(fields.get("content")):
            refusal = part.get("refusal")
            if isinstance(refusal, str):
                self._is_refused = True
            words = refusal or part.get("text")
            if not known.is_streamed and isinstance(words, str) and words:
                yield TextChunk(words)
        if isinstance(phase := fields.get("phase"), str) and phase:
            yield SignatureChunk(ReplyPieceKind.TEXT, msgspec.json.encode({"phase": phase}).decode())

    def _read_call(self, fields: dict[str, Any]) -> Iterator[ReplyChunk]:
        id_, name, arguments = fields.get("call_id"), fields.get("name"), fields.get("arguments")
        id_ = id_ if isinstance(id_, str) and id_ else f"call_{len(self._call_ids) + 1}"
        if id_ in self._call_ids or not isinstance(name, str):
            return
        self._call_ids.add(id_)
        given = parse_arguments(arguments) if isinstance(arguments, str) else arguments
        yield ToolCallChunk(
            Call(id=id_, tool=name, arguments=cast("dict[str, Any]", given) if isinstance(given, dict) else {})
        )

    def _finish_response(self, response: _Response) -> Iterator[ReplyChunk]:
        if response.error:
            raise error_messages.build_stream_error(self._provider, response.error)
        details = response.incomplete_details
        reason = cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
        match response.status:
            case "completed" | "incomplete" | None:
                pass
            case status:
                raise error_messages.build_stream_error(
                    self._provider, {"code": "server_error", "message": f"the reply is {status}"}
                )
        spoke = self._has_content
        for item in response.output or ():
            # Usually everything has arrived before. A call that has not must not be lost.
            is_call = isinstance(item, dict) and cast("dict[str, Any]", item).get("type") == "function_call"
            if is_call or not spoke:
                yield from self._finish_item(item, _PartialItem())
        stop = _STOPS.get(
            reason if isinstance(reason, str) else "",
            StopReason.END if response.status != "incomplete" else StopReason.LENGTH,
        )
        if self._is_refused:
            stop = StopReason.FILTERED
        elif self._call_ids and stop is StopReason.END:
            stop = StopReason.CALLS
        self._end_chunk = EndChunk(stop, parse_usage(response.usage) or Usage(estimated=True))

    def _decode_response(self, body: bytes | msgspec.Raw) -> _Response:
        try:
            return _response_decoder.decode(body)
        except msgspec.ValidationError as error:
            raise ReplyMalformed(self._provider, f"it cannot be decoded: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ReplyMalformed(self._provider, "it is not JSON") from None

    def _build_error(self, error: Any, data: bytes) -> ModelFailed:
        return error_messages.build_stream_error(self._provider, error or decode_json_or_none(data))


def _build_reasoning_signature(item: dict[str, Any]) -> SignatureChunk:
    """Build the chunk that keeps a reasoning item, which must be sent back unchanged."""
    kept: dict[str, Any] = {"type": "reasoning", "summary": item.get("summary") or []}
    for name in ("id", "content", "encrypted_content"):
        if value := item.get(name):
            kept[name] = value
    return SignatureChunk(ReplyPieceKind.THINKING, msgspec.json.encode(kept).decode())


def _get_id(item: Any) -> str | None:
    found = cast("dict[str, Any]", item).get("id") if isinstance(item, dict) else None
    return found if isinstance(found, str) else None


def _iterate_parts(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, list):
        for part in cast("list[Any]", content):
            if isinstance(part, dict):
                yield cast("dict[str, Any]", part)


def _iterate_texts(content: Any) -> Iterator[str]:
    for part in _iterate_parts(content):
        if isinstance(text := part.get("text"), str) and text:
            yield text
