"""Reads replies of Google's Gemini API: a stream of responses, an array of them, or one body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from retinue.domain.record import PieceKind, Stop, Usage
from retinue.domain.tool import Call
from retinue.models import error_messages
from retinue.models.base import Asks, Chunk, Ended, Seals, Text, Thinking
from retinue.models.provider_http import malformed
from retinue.models.usage_validation import tokens


class _Asked(msgspec.Struct, rename="camel"):
    name: str | None = None
    args: dict[str, Any] | None = None
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Asked | None = None


class _Content(msgspec.Struct):
    parts: list[msgspec.Raw] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Usage(msgspec.Struct, rename="camel"):
    """Anything unexpected counts as missing: a reply must not fail because of its usage."""

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


_response = msgspec.json.Decoder(_Response).decode
_responses = msgspec.json.Decoder(list[msgspec.Raw]).decode
_part_of = msgspec.json.Decoder(_Part).decode

_FILTERED = frozenset(
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
_BROKEN = frozenset(
    {"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE"}
)


class GoogleReader:
    """Reads one reply. Every event is a response with more parts; the last one has the finish reason."""

    done = False  # no event marks the end

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._asked = False
        self._finish: str | None = None
        self._usage: _Usage | None = None

    def read(self, name: bytes, data: bytes) -> Iterable[Chunk]:
        if data == b"[DONE]":
            return
        try:
            response = _response(data)
        except msgspec.DecodeError as error:
            raise malformed(self._provider, "an event of its stream cannot be read") from error
        if response.error is not None:
            raise error_messages.in_stream(self._provider, data)
        if response.usage_metadata is not None:
            self._usage = response.usage_metadata  # totals so far: the last one counts
        if response.prompt_feedback is not None and response.prompt_feedback.block_reason:
            self._finish = "SAFETY"
        for candidate in (response.candidates or [])[:1]:
            yield from self._candidate(candidate)

    def whole(self, body: bytes) -> Iterable[Chunk]:
        """Read one response, or an array of them from a server that does not stream events."""
        try:
            found = [bytes(raw) for raw in _responses(body)] if body.lstrip()[:1] == b"[" else [body]
        except msgspec.DecodeError as error:
            raise malformed(self._provider, "its body is no response") from error
        for response in found:
            yield from self.read(b"", response)
        if self._finish is None:
            raise malformed(self._provider, "its body has no candidate")

    def end(self) -> Ended:
        match self._finish:
            case None:
                raise error_messages.broke_off(self._provider)
            case "MAX_TOKENS":
                stop = Stop.LENGTH
            case reason if reason in _FILTERED:
                stop = Stop.FILTERED
            case _:
                stop = Stop.CALLS if self._asked else Stop.END
        return Ended(stop, _counted(self._usage))

    def _candidate(self, candidate: _Candidate) -> Iterator[Chunk]:
        if candidate.content is not None:
            for raw in candidate.content.parts or ():
                yield from self._part(bytes(raw))
        if candidate.finish_reason in _BROKEN:
            raise malformed(self._provider, f"the model could not say which tool it wanted ({candidate.finish_reason})")
        self._finish = candidate.finish_reason or self._finish

    def _part(self, raw: bytes) -> Iterator[Chunk]:
        try:
            part = _part_of(raw)
        except msgspec.DecodeError as error:
            raise malformed(self._provider, "a part of its reply cannot be read") from error
        asked = part.function_call
        if asked is not None:
            self._asked = True
            yield Asks(Call(id=asked.id or "", tool=asked.name or "", arguments=asked.args or {}))
            kind = PieceKind.CALL
        elif part.text is None:
            # Code that it ran, the output of it, a file: made by the provider, and sent back unchanged.
            if raw.strip() != b"{}":
                yield from _served(raw, part)
            return
        else:
            kind = PieceKind.THINKING if part.thought else PieceKind.TEXT
            if part.text:
                yield Thinking(part.text) if part.thought else Text(part.text)
        if part.thought_signature:
            yield Seals(kind, part.thought_signature)


def _served(raw: bytes, part: _Part) -> Iterator[Chunk]:
    if set(msgspec.json.decode(raw, type=dict[str, Any])) <= {"thought", "thoughtSignature"}:
        if part.thought_signature:  # of text that came before
            yield Seals(PieceKind.THINKING if part.thought else PieceKind.TEXT, part.thought_signature)
        return
    yield Seals(PieceKind.SERVER, raw.decode())


def _counted(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage(estimated=True)
    read, said = tokens(usage.prompt_token_count), tokens(usage.candidates_token_count)
    thoughts = tokens(usage.thoughts_token_count) or 0
    if read is None and said is None:
        return Usage(estimated=True)
    read = (read or 0) + (tokens(usage.tool_use_prompt_token_count) or 0)
    return Usage(
        input_tokens=read,
        output_tokens=(said or 0) + thoughts,
        cache_read_tokens=min(tokens(usage.cached_content_token_count) or 0, read),
        reasoning_tokens=thoughts,
    )
