"""Reads replies of Anthropic's Messages API: a stream of content blocks, or a message in one body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from retinue.domain.record import ReplyPieceKind, StopReason, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import EndChunk, ReplyChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.errors import ReplyMalformed, ReplyTruncated
from retinue.models.formats.wire_formats import parse_arguments
from retinue.models.usage_validation import parse_token_count

REDACTED_PREFIX = "redacted:"  # prefix of thinking that came encrypted; thinking without text has a bare signature


_EMPTY_RAW = msgspec.Raw()


class _Usage(msgspec.Struct):
    """The usage of a reply. Unexpected values count as missing, so that a reply never fails because of its usage."""

    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    output_tokens_details: Any = None


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    type: str | None = None
    usage: _Usage | None = None
    stop_reason: str | None = None
    content: list[msgspec.Raw] | None = None
    error: msgspec.Raw = _EMPTY_RAW


class _Event(msgspec.Struct):
    type: str
    delta: _Delta | None = None
    content_block: msgspec.Raw = _EMPTY_RAW
    message: _Message | None = None
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    input: dict[str, Any] | None = None


class _TypeOnly(msgspec.Struct):
    type: str | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_type = msgspec.json.Decoder(_TypeOnly).decode

_KNOWN_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
_KNOWN_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"})
_STOPS = {
    "end_turn": StopReason.END,
    "stop_sequence": StopReason.END,
    "tool_use": StopReason.CALLS,
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "refusal": StopReason.FILTERED,
    "pause_turn": StopReason.PAUSED,
}


class AnthropicReader:
    """Reads one reply, block by block.

    A tool call is emitted when its block ends, or when the reply ends within the block.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._block: _Block | None = None  # a block that is emitted as a whole: a call, ours or the provider's
        self._raw = b""
        self._json_parts: list[str] = []
        self._signature_parts: list[str] = []
        self._has_calls = False
        self._stop: str | None = None
        self.is_done = False
        self._usage: _Usage | None = None

    def read_event(self, name: bytes, data: bytes) -> Iterable[ReplyChunk]:
        event = self._decode(data)
        if event is None:
            return ()
        match event.type:
            case "content_block_delta" if event.delta is not None:
                return self._read_delta(event.delta)
            case "content_block_start":
                return [*self._close_block(), *self._start_block(bytes(event.content_block))]
            case "content_block_stop":
                return self._close_block()
            case "message_start" if event.message is not None:
                self._add_usage(event.message.usage)
            case "message_delta":
                self._add_usage(event.usage)
                if event.delta is not None:
                    self._stop = event.delta.stop_reason or self._stop
                return self._close_block()
            case "message_stop":
                self.is_done = True
            case "error":
                raise error_messages.build_stream_error(self._provider, data)
            case _:
                pass  # a ping, or an event type newer than this code
        return ()

    def read_body(self, body: bytes) -> Iterable[ReplyChunk]:
        try:
            message = _decode_message(body)
        except msgspec.DecodeError as error:
            raise ReplyMalformed(self._provider, "its body is not a message") from error
        if bytes(message.error) not in (b"", b"null") or message.type == "error":
            raise error_messages.build_stream_error(self._provider, body)
        if message.content is None:
            raise ReplyMalformed(self._provider, "its body has no content")
        for raw in message.content:
            yield from self._start_block(bytes(raw))
            yield from self._close_block()
        self._add_usage(message.usage)
        self._stop = message.stop_reason
        self.is_done = True

    def finish(self) -> EndChunk:
        if not self.is_done:
            raise ReplyTruncated(self._provider)
        stop = _STOPS.get(self._stop or "", StopReason.END)
        if self._has_calls and stop is StopReason.END:
            stop = StopReason.CALLS
        elif stop is StopReason.CALLS and not self._has_calls:
            stop = StopReason.END
        return EndChunk(stop, _build_usage(self._usage))

    def _decode(self, data: bytes) -> _Event | None:
        try:
            return _decode_event(data)
        except msgspec.DecodeError as error:
            if data.strip() == b"[DONE]" or self._is_unknown_type(data, _KNOWN_EVENTS):
                return None
            raise ReplyMalformed(self._provider, "an event of its stream cannot be read") from error

    def _is_unknown_type(self, data: bytes, known: frozenset[str]) -> bool:
        """Whether this reader ignores events or blocks of this type, so that their shape does not matter."""
        try:
            return _decode_type(data).type not in known
        except msgspec.DecodeError:
            return False

    def _start_block(self, raw: bytes) -> Iterator[ReplyChunk]:
        try:
            block = _decode_block(raw)
        except msgspec.DecodeError as error:
            if self._is_unknown_type(raw, _KNOWN_BLOCKS):
                yield SignatureChunk(ReplyPieceKind.SERVER, raw.decode())
                return
            raise ReplyMalformed(self._provider, "a block of its reply cannot be read") from error
        match block.type:
            case "text":
                yield from _build_text_chunks(TextChunk, block.text)
            case "thinking":
                yield from _build_text_chunks(ThinkingChunk, block.thinking)
                self._block = block
                if block.signature:
                    self._signature_parts.append(block.signature)
            case "redacted_thinking":
                yield SignatureChunk(ReplyPieceKind.THINKING, REDACTED_PREFIX + (block.data or ""))
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                self._block, self._raw = block, raw
            case _:  # results of the provider's own tools, and future block types: sent back unchanged
                yield SignatureChunk(ReplyPieceKind.SERVER, raw.decode())

    def _read_delta(self, delta: _Delta) -> Iterable[ReplyChunk]:
        match delta.type:
            case "text_delta":
                return _build_text_chunks(TextChunk, delta.text)
            case "thinking_delta":
                return _build_text_chunks(ThinkingChunk, delta.thinking)
            case "input_json_delta" if delta.partial_json:
                self._json_parts.append(delta.partial_json)
            case "signature_delta" if delta.signature:
                self._signature_parts.append(delta.signature)
            case _:
                pass  # citations
        return ()

    def _close_block(self) -> Sequence[ReplyChunk]:
        block, self._block = self._block, None
        if block is None:
            return ()
        if block.type == "thinking":
            seal = "".join(self._signature_parts)
            self._signature_parts.clear()
            return (SignatureChunk(ReplyPieceKind.THINKING, seal),) if seal else ()
        encoded = "".join(self._json_parts)
        self._json_parts.clear()
        arguments = parse_arguments(encoded) if encoded.strip() else block.input or {}
        if block.type == "tool_use":
            self._has_calls = True
            return (ToolCallChunk(Call(id=block.id or "", tool=block.name or "", arguments=arguments)),)
        use = {**msgspec.json.decode(self._raw), "input": arguments}
        return (SignatureChunk(ReplyPieceKind.SERVER, msgspec.json.encode(use).decode()),)

    def _add_usage(self, usage: _Usage | None) -> None:
        """Update the usage from an event.

        The counts in an event are totals so far. If a count is missing, the previous one is kept.
        """
        if usage is None:
            return
        if self._usage is None:
            self._usage = usage
            return
        for name in usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._usage, name, count)


def _build_text_chunks(chunk: type[TextChunk] | type[ThinkingChunk], text: str | None) -> Sequence[ReplyChunk]:
    return (chunk(text),) if text else ()


def _build_usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage(estimated=True)
    input_tokens, output_tokens = parse_token_count(usage.input_tokens), parse_token_count(usage.output_tokens)
    if input_tokens is None and output_tokens is None:
        return Usage(estimated=True)
    read, written = (
        parse_token_count(usage.cache_read_input_tokens) or 0,
        parse_token_count(usage.cache_creation_input_tokens) or 0,
    )
    details = usage.output_tokens_details
    thought = cast("dict[str, Any]", details).get("thinking_tokens") if isinstance(details, dict) else None
    return Usage(
        input_tokens=(input_tokens or 0) + read + written,
        output_tokens=output_tokens or 0,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=parse_token_count(thought) or 0,
    )
