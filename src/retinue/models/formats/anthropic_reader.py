"""Reads replies of Anthropic's Messages API: a stream of content blocks, or a message in one body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec

from retinue.domain.record import PieceKind, Stop, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import Asks, Chunk, Ended, Seals, Text, Thinking
from retinue.models.formats.wire_formats import arguments_of
from retinue.models.provider_http import malformed
from retinue.models.usage_validation import tokens

REDACTED = "redacted:"  # prefix of thinking that came encrypted; thinking without text has a bare signature


_NOTHING = msgspec.Raw()


class _Usage(msgspec.Struct):
    """Anything unexpected counts as missing: a reply must not fail because of its usage."""

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
    error: msgspec.Raw = _NOTHING


class _Event(msgspec.Struct):
    type: str
    delta: _Delta | None = None
    content_block: msgspec.Raw = _NOTHING
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


class _Kind(msgspec.Struct):
    type: str | None = None


_event = msgspec.json.Decoder(_Event).decode
_block_of = msgspec.json.Decoder(_Block).decode
_message = msgspec.json.Decoder(_Message).decode
_kind_of = msgspec.json.Decoder(_Kind).decode

_KNOWN = frozenset(
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
    "end_turn": Stop.END,
    "stop_sequence": Stop.END,
    "tool_use": Stop.CALLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "refusal": Stop.FILTERED,
    "pause_turn": Stop.PAUSED,
}


class AnthropicReader:
    """Reads one reply, block by block. A call is emitted when its block ends, or when the reply ends within it."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._block: _Block | None = None  # a block that is emitted as a whole: a call, ours or the provider's
        self._raw = b""
        self._json: list[str] = []
        self._sealed: list[str] = []
        self._asked = False
        self._stop: str | None = None
        self.done = False
        self._usage: _Usage | None = None

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        event = self._decoded(data)
        if event is None:
            return ()
        match event.type:
            case "content_block_delta" if event.delta is not None:
                return self._more(event.delta)
            case "content_block_start":
                return [*self._closed(), *self._begun(bytes(event.content_block))]
            case "content_block_stop":
                return self._closed()
            case "message_start" if event.message is not None:
                self._used(event.message.usage)
            case "message_delta":
                self._used(event.usage)
                if event.delta is not None:
                    self._stop = event.delta.stop_reason or self._stop
                return self._closed()
            case "message_stop":
                self.done = True
            case "error":
                raise error_messages.in_stream(self._provider, data)
            case _:
                pass  # a ping, or an event type newer than this code
        return ()

    def whole(self, body: bytes) -> Iterable[Chunk]:
        try:
            message = _message(body)
        except msgspec.DecodeError as error:
            raise malformed(self._provider, "its body is no message") from error
        if bytes(message.error) not in (b"", b"null") or message.type == "error":
            raise error_messages.in_stream(self._provider, body)
        if message.content is None:
            raise malformed(self._provider, "its body has no content")
        for raw in message.content:
            yield from self._begun(bytes(raw))
            yield from self._closed()
        self._used(message.usage)
        self._stop = message.stop_reason
        self.done = True

    def end(self) -> Ended:
        if not self.done:
            raise error_messages.broke_off(self._provider)
        stop = _STOPS.get(self._stop or "", Stop.END)
        if self._asked and stop is Stop.END:
            stop = Stop.CALLS
        elif stop is Stop.CALLS and not self._asked:
            stop = Stop.END
        return Ended(stop, _counted(self._usage))

    def _decoded(self, data: bytes) -> _Event | None:
        try:
            return _event(data)
        except msgspec.DecodeError as error:
            if data.strip() == b"[DONE]" or self._is_other(data, _KNOWN):
                return None
            raise malformed(self._provider, "an event of its stream cannot be read") from error

    def _is_other(self, data: bytes, known: frozenset[str]) -> bool:
        """Whether it is of a type that we do not read: then its shape does not matter."""
        try:
            return _kind_of(data).type not in known
        except msgspec.DecodeError:
            return False

    def _begun(self, raw: bytes) -> Iterator[Chunk]:
        try:
            block = _block_of(raw)
        except msgspec.DecodeError as error:
            if self._is_other(raw, _KNOWN_BLOCKS):
                yield Seals(PieceKind.SERVER, raw.decode())
                return
            raise malformed(self._provider, "a block of its reply cannot be read") from error
        match block.type:
            case "text":
                yield from _words(Text, block.text)
            case "thinking":
                yield from _words(Thinking, block.thinking)
                self._block = block
                if block.signature:
                    self._sealed.append(block.signature)
            case "redacted_thinking":
                yield Seals(PieceKind.THINKING, REDACTED + (block.data or ""))
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                self._block, self._raw = block, raw
            case _:  # results of the provider's own tools, and future block types: sent back unchanged
                yield Seals(PieceKind.SERVER, raw.decode())

    def _more(self, delta: _Delta) -> Iterable[Chunk]:
        match delta.type:
            case "text_delta":
                return _words(Text, delta.text)
            case "thinking_delta":
                return _words(Thinking, delta.thinking)
            case "input_json_delta" if delta.partial_json:
                self._json.append(delta.partial_json)
            case "signature_delta" if delta.signature:
                self._sealed.append(delta.signature)
            case _:
                pass  # citations
        return ()

    def _closed(self) -> Sequence[Chunk]:
        block, self._block = self._block, None
        if block is None:
            return ()
        if block.type == "thinking":
            seal = "".join(self._sealed)
            self._sealed.clear()
            return (Seals(PieceKind.THINKING, seal),) if seal else ()
        said = "".join(self._json)
        self._json.clear()
        arguments = arguments_of(said) if said.strip() else block.input or {}
        if block.type == "tool_use":
            self._asked = True
            return (Asks(Call(id=block.id or "", tool=block.name or "", arguments=arguments)),)
        use = {**msgspec.json.decode(self._raw), "input": arguments}
        return (Seals(PieceKind.SERVER, msgspec.json.encode(use).decode()),)

    def _used(self, usage: _Usage | None) -> None:
        """Add the usage. Counts are totals so far; a missing one stays as it was."""
        if usage is None:
            return
        if self._usage is None:
            self._usage = usage
            return
        for name in usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._usage, name, count)


def _words(chunk: type[Text] | type[Thinking], words: str | None) -> Sequence[Chunk]:
    return (chunk(words),) if words else ()


def _counted(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage(estimated=True)
    plain, said = tokens(usage.input_tokens), tokens(usage.output_tokens)
    if plain is None and said is None:
        return Usage(estimated=True)
    read, written = tokens(usage.cache_read_input_tokens) or 0, tokens(usage.cache_creation_input_tokens) or 0
    details = usage.output_tokens_details
    thought = cast("dict[str, Any]", details).get("thinking_tokens") if isinstance(details, dict) else None
    return Usage(
        input_tokens=(plain or 0) + read + written,
        output_tokens=said or 0,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=tokens(thought) or 0,
    )
