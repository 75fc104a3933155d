"""Reads replies of Google's Gemini API: a stream of responses, an array of them, or one body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from retinue.domain.record import ReplyPieceKind, StopReason, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import EndChunk, ReplyChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.errors import ReplyMalformed, ReplyTruncated
from retinue.models.usage_validation import parse_token_count


class _FunctionCall(msgspec.Struct, rename="camel"):
    name: str | None = None
    args: dict[str, Any] | None = None
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct):
    parts: list[msgspec.Raw] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(msgspec.Struct, rename="camel"):
    """The usage of a reply. Unexpected values count as missing, so that a reply never fails because of its usage."""

    prompt_token_count: Any = None
    candidates_token_count: Any = None
    thoughts_token_count: Any = None
    tool_use_prompt_token_count: Any = None
    cached_content_token_count: Any = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Response(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: _Usage | None = None
    prompt_feedback: _Feedback | None = None
    error: Any = None


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_responses = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_part = msgspec.json.Decoder(_Part).decode

_FILTERED_REASONS = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    }
)
# The model tried to call a tool and produced no valid call. None of it is usable, and a retry often helps.
_BROKEN_REASONS = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE"}
)


class GoogleReader:
    """Reads one reply. Each event contains the next parts of the reply, and the last event has the finish reason."""

    is_done = False  # no event marks the end

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._has_calls = False
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def read_event(self, name: bytes, data: bytes) -> Iterable[ReplyChunk]:
        if data == b"[DONE]":
            return
        try:
            response = _decode_response(data)
        except msgspec.DecodeError as error:
            raise ReplyMalformed(self._provider, "an event of its stream cannot be read") from error
        if response.error is not None:
            raise error_messages.build_stream_error(self._provider, data)
        if response.usage_metadata is not None:
            self._usage = response.usage_metadata  # totals so far: the last one counts
        if response.prompt_feedback is not None and response.prompt_feedback.block_reason:
            self._finish_reason = "SAFETY"
        for candidate in (response.candidates or [])[:1]:
            yield from self._read_candidate(candidate)

    def read_body(self, body: bytes) -> Iterable[ReplyChunk]:
        """Read one response, or an array of them from a server that does not stream events."""
        try:
            found = [bytes(raw) for raw in _decode_responses(body)] if body.lstrip()[:1] == b"[" else [body]
        except msgspec.DecodeError as error:
            raise ReplyMalformed(self._provider, "its body is not a response") from error
        for response in found:
            yield from self.read_event(b"", response)
        if self._finish_reason is None:
            raise ReplyMalformed(self._provider, "its body has no candidate")

    def finish(self) -> EndChunk:
        match self._finish_reason:
            case None:
                raise ReplyTruncated(self._provider)
            case "MAX_TOKENS":
                stop = StopReason.LENGTH
            case reason if reason in _FILTERED_REASONS:
                stop = StopReason.FILTERED
            case _:
                stop = StopReason.CALLS if self._has_calls else StopReason.END
        return EndChunk(stop, _build_usage(self._usage))

    def _read_candidate(self, candidate: _Candidate) -> Iterator[ReplyChunk]:
        if candidate.content is not None:
            for raw in candidate.content.parts or ():
                yield from self._read_part(bytes(raw))
        if candidate.finish_reason in _BROKEN_REASONS:
            raise ReplyMalformed(self._provider, f"the model made an invalid tool call ({candidate.finish_reason})")
        self._finish_reason = candidate.finish_reason or self._finish_reason

    def _read_part(self, raw: bytes) -> Iterator[ReplyChunk]:
        try:
            part = _decode_part(raw)
        except msgspec.DecodeError as error:
            raise ReplyMalformed(self._provider, "a part of its reply cannot be read") from error
        asked = part.function_call
        if asked is not None:
            self._has_calls = True
            yield ToolCallChunk(Call(id=asked.id or "", tool=asked.name or "", arguments=asked.args or {}))
            kind = ReplyPieceKind.CALL
        elif part.text is None:
            # Code that it ran, its output, or a file: made by the provider, and sent back unchanged.
            if raw.strip() != b"{}":
                yield from _read_server_part(raw, part)
            return
        else:
            kind = ReplyPieceKind.THINKING if part.thought else ReplyPieceKind.TEXT
            if part.text:
                yield ThinkingChunk(part.text) if part.thought else TextChunk(part.text)
        if part.thought_signature:
            yield SignatureChunk(kind, part.thought_signature)


def _read_server_part(raw: bytes, part: _Part) -> Iterator[ReplyChunk]:
    if set(msgspec.json.decode(raw, type=dict[str, Any])) <= {"thought", "thoughtSignature"}:
        if part.thought_signature:  # of text that came before
            yield SignatureChunk(
                ReplyPieceKind.THINKING if part.thought else ReplyPieceKind.TEXT, part.thought_signature
            )
        return
    yield SignatureChunk(ReplyPieceKind.SERVER, raw.decode())


def _build_usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage(estimated=True)
    read, output_tokens = parse_token_count(usage.prompt_token_count), parse_token_count(usage.candidates_token_count)
    thoughts = parse_token_count(usage.thoughts_token_count) or 0
    if read is None and output_tokens is None:
        return Usage(estimated=True)
    read = (read or 0) + (parse_token_count(usage.tool_use_prompt_token_count) or 0)
    return Usage(
        input_tokens=read,
        output_tokens=(output_tokens or 0) + thoughts,
        cache_read_tokens=min(parse_token_count(usage.cached_content_token_count) or 0, read),
        reasoning_tokens=thoughts,
    )
