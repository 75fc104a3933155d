"""Reads replies in the format `openai-chat`, as written by a dozen different servers.

A reply with calls is detected by the calls themselves, because the finish reason is often wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from retinue.domain.model import ModelFailed
from retinue.domain.record import ReplyPieceKind, StopReason, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import EndChunk, ReplyChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.errors import ReplyMalformed, ReplyTruncated, TooManyToolCalls
from retinue.models.formats.openai_usage import parse_usage
from retinue.models.formats.think_tags import ThinkTagParser
from retinue.models.formats.wire_formats import decode_json_or_none, parse_arguments
from retinue.models.tool_call_limits import CALLS_MAX, UNPARSED

_DONE = b"[DONE]"
_STOPS = {
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "content_filter": StopReason.FILTERED,
    "safety": StopReason.FILTERED,
    "refusal": StopReason.FILTERED,
}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_STREAMED_FIELDS = ("text", "summary", "data")  # fields of a reasoning detail that arrive in pieces
_ERROR_REASONS = frozenset({"error", "insufficient_system_resource"})


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class _Groq(msgspec.Struct):
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    x_groq: _Groq | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _PartialCall:
    """A tool call that is still being received."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    @property
    def is_complete(self) -> bool:
        return bool(self.arguments) and self.arguments[-1].endswith("}") and UNPARSED not in self._parse_arguments()

    def build_call(self, number: int) -> Call:
        return Call(id=self.id or f"call_{number}", tool=self.name, arguments=self._parse_arguments())

    def _parse_arguments(self) -> dict[str, Any]:
        return parse_arguments("".join(self.arguments))


class _ReasoningDetail:
    """A reasoning detail that must be sent back unchanged. Collects its pieces of text and joins them once."""

    __slots__ = ("_fields", "_streamed")

    def __init__(self, first: dict[str, Any]) -> None:
        self._fields: dict[str, Any] = {}
        self._streamed: dict[str, list[str]] = {}
        self.add(first)

    def is_continued_by(self, new: dict[str, Any]) -> bool:
        known = self._fields
        same = known.get("type") == new.get("type") and known.get("index") == new.get("index")
        return same and known.get("id") in (None, new.get("id"))

    def add(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            if name in _STREAMED_FIELDS and isinstance(value, str):
                self._streamed.setdefault(name, []).append(value)
                self._fields.setdefault(name, None)  # keeps its position among the fields
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    @property
    def merged(self) -> dict[str, Any]:
        return {**self._fields, **{name: "".join(pieces) for name, pieces in self._streamed.items()}}


class OpenAIChatReader:
    """Reads one reply, event by event."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._tags = ThinkTagParser()
        self._calls: list[_PartialCall] = []
        self._emitted_count = 0  # number of calls emitted
        self._details: list[_ReasoningDetail] = []
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._is_refused = False
        self._has_content = False
        self._is_complete = False
        self.is_done = False

    def read_event(self, name: bytes, data: bytes) -> Iterable[ReplyChunk]:
        try:
            event = _decode(data)
        except _UNREADABLE as error:
            payload = data.strip()
            if payload == _DONE:
                self._is_complete = self.is_done = True
                return self._flush_held()
            if not payload:
                return ()
            raise self._build_decode_error(data, error) from None
        if event.error or event.object == "error" or name == b"error":
            raise self._build_error(event.error, data)
        if self._tags.is_text_only and not self._details and (words := _get_only_text(event)):
            return (TextChunk(words),)  # the fast path: almost every event is only text
        return self._read_choices(event)

    def read_body(self, body: bytes) -> Iterable[ReplyChunk]:
        try:
            event = _decode(body)
        except _UNREADABLE as error:
            raise self._build_decode_error(body, error) from None
        if event.error or event.object == "error":
            raise self._build_error(event.error, body)
        if not event.choices:
            raise ReplyMalformed(self._provider, "it is JSON without a reply")
        self._is_complete = True
        return [*self._read_choices(event), *self._flush_held()]

    def flush(self) -> Iterable[ReplyChunk]:
        """Return the tool calls that were held back, if all are complete.

        They are valid even if the server gave no finish reason.
        """
        if self._is_complete or self._finish_reason is not None or not all(asked.is_complete for asked in self._calls):
            return ()
        self._is_complete = bool(self._calls)
        return self._flush_held()

    def finish(self) -> EndChunk:
        if not self._is_complete and self._finish_reason is None:
            raise ReplyTruncated(self._provider)
        stop = _STOPS.get(self._finish_reason or "", StopReason.END)
        if self._is_refused:
            stop = StopReason.FILTERED
        elif self._calls and stop is StopReason.END:
            stop = StopReason.CALLS
        return EndChunk(stop, self._usage or Usage(estimated=True))

    def _build_decode_error(self, data: bytes, error: Exception) -> ModelFailed:
        if not isinstance(error, msgspec.ValidationError):
            return ReplyMalformed(self._provider, "it is not JSON")
        return self._find_unusual_error(data) or ReplyMalformed(self._provider, f"it cannot be decoded: {error}")

    def _find_unusual_error(self, data: bytes) -> ModelFailed | None:
        """Return the error in a body of unusual form, such as a list with one object, or None."""
        found = decode_json_or_none(data)
        if isinstance(found, list) and found:
            found = cast("list[Any]", found)[0]
        error = cast("dict[str, Any]", found).get("error") if isinstance(found, dict) else None
        return error_messages.build_stream_error(self._provider, error) if error else None

    def _build_error(self, error: Any, data: bytes) -> ModelFailed:
        return error_messages.build_stream_error(self._provider, error or decode_json_or_none(data))

    def _read_choices(self, event: _Event) -> Iterator[ReplyChunk]:
        for choice in event.choices or ():
            if choice.index:
                continue  # we requested one reply
            if choice.error:
                raise error_messages.build_stream_error(self._provider, choice.error)
            delta = choice.delta
            if delta is None and not self._has_content:
                delta = choice.message  # besides deltas, some servers repeat everything so far in it
            if delta is not None:
                yield from self._read_delta(delta)
            self._set_usage(choice.usage)
            if choice.finish_reason:
                if choice.finish_reason in _ERROR_REASONS:
                    raise error_messages.build_stream_error(
                        self._provider, {"message": "", "code": choice.finish_reason}
                    )
                self._finish_reason = choice.finish_reason
                yield from self._flush_held()
        self._set_usage(event.usage)
        if event.x_groq is not None:
            if event.x_groq.error:
                raise error_messages.build_stream_error(self._provider, event.x_groq.error)
            if self._usage is None:
                self._set_usage(event.x_groq.usage)
        if not event.choices and event.usage is not None and self._has_content:
            self._is_complete = True  # usage comes last, even without a finish reason
            yield from self._flush_held()

    def _read_delta(self, message: _Delta) -> Iterator[ReplyChunk]:
        if thought := self._read_thinking(message):
            self._has_content = True
            yield ThinkingChunk(thought)
        if message.content:
            self._has_content = True
            if isinstance(message.content, str):
                yield from self._read_text(message.content)
            else:
                for part in message.content:
                    yield from self._read_content_part(part)
        if message.refusal:
            self._has_content = self._is_refused = True
            yield TextChunk(message.refusal)
        if message.tool_calls:
            self._has_content = True
            yield from self._flush_signature()
            for delta in message.tool_calls:
                self._add_call_delta(delta)

    def _read_thinking(self, message: _Delta) -> str:
        """Return the thinking of a message from the first of three fields that has it.

        Two fields may repeat the same text.
        """
        details = self._add_details(message.reasoning_details) if message.reasoning_details else ""
        words = next(
            (words for words in (message.reasoning_content, message.reasoning) if words and isinstance(words, str)),
            details,
        )
        if words:
            self._tags.disable()
        return words

    def _add_details(self, details: Any) -> str:
        """Collect the pieces of each reasoning detail, and return their text.

        A detail must be sent back to the provider complete and unchanged.
        """
        words = ""
        for detail in cast("list[Any]", details) if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            new = cast("dict[str, Any]", detail)
            text = new.get("text") or new.get("summary")
            words += text if isinstance(text, str) else ""
            if self._details and self._details[-1].is_continued_by(new):
                self._details[-1].add(new)
            else:
                self._details.append(_ReasoningDetail(new))
        return words

    def _read_text(self, content: str) -> Iterator[ReplyChunk]:
        for chunk in self._tags.feed(content):
            if isinstance(chunk, TextChunk):
                yield from self._flush_signature()
            yield chunk

    def _read_content_part(self, part: Any) -> Iterator[ReplyChunk]:
        """Yield the chunks of a structured content part: text, or thinking that contains text."""
        if not isinstance(part, dict):
            return
        known = cast("dict[str, Any]", part)
        match known.get("type"):
            case "text" if isinstance(text := known.get("text"), str) and text:
                yield from self._read_text(text)
            case "thinking":
                thoughts = known.get("thinking")
                for thought in cast("list[Any]", thoughts) if isinstance(thoughts, list) else [thoughts]:
                    text = cast("dict[str, Any]", thought).get("text") if isinstance(thought, dict) else thought
                    if isinstance(text, str) and text:
                        self._tags.disable()
                        yield ThinkingChunk(text)
            case _:
                pass

    def _add_call_delta(self, delta: _CallDelta) -> None:
        function = delta.function or _Function()
        id_ = "" if delta.id is None else str(delta.id)
        asked = self._find_call(delta.index, id_, function)
        if asked is None:
            if len(self._calls) >= CALLS_MAX:
                raise TooManyToolCalls(self._provider, calls_max=CALLS_MAX)
            asked = _PartialCall(delta.index)
            self._calls.append(asked)
        asked.id = asked.id or id_
        asked.name = asked.name or function.name or ""
        if isinstance(function.arguments, str):
            asked.arguments.append(function.arguments)
        elif function.arguments:
            asked.arguments.append(msgspec.json.encode(function.arguments).decode())

    def _find_call(self, index: int | None, id_: str, function: _Function) -> _PartialCall | None:
        """Return the call that a delta belongs to, or None for a new call.

        The index alone does not identify the call, because not every server increments it.
        """
        asked = next((one for one in reversed(self._calls) if index is None or one.index == index), None)
        if asked is None or not function.name or not asked.name:
            return asked  # only the first delta has a name, so without one it continues
        if id_ and asked.id and id_ != asked.id:
            return None
        # A repeated name without an id is another call if it has arguments and the previous call is complete.
        return None if function.arguments and asked.is_complete else asked

    def _flush_signature(self) -> Iterator[ReplyChunk]:
        if self._details:
            seal = msgspec.json.encode([detail.merged for detail in self._details]).decode()
            self._details = []
            yield SignatureChunk(ReplyPieceKind.THINKING, seal)

    def _flush_held(self) -> Iterator[ReplyChunk]:
        """Yield what was held back until the reply was complete: the last text, tool calls and the signature.

        Nothing is yielded twice.
        """
        yield from self._tags.finish()
        for number, asked in enumerate(self._calls[self._emitted_count :], start=self._emitted_count + 1):
            self._emitted_count = number
            yield ToolCallChunk(asked.build_call(number))
        yield from self._flush_signature()

    def _set_usage(self, usage: Any) -> None:
        found = parse_usage(usage)
        if found is not None:
            self._usage = found


def _get_only_text(event: _Event) -> str | None:
    choices = event.choices
    if choices is None or len(choices) != 1 or event.usage is not None or event.x_groq is not None:
        return None
    choice = choices[0]
    delta = choice.delta
    if delta is None or choice.index or choice.finish_reason or choice.usage is not None or choice.error:
        return None
    if delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.reasoning_details or delta.refusal:
        return None
    return delta.content if isinstance(delta.content, str) else None
