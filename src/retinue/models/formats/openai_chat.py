"""The wire format `openai-chat`: OpenAI's chat completions, which OpenAI and most other providers support.

Servers differ in details. The known differences are in `QUIRKS`, by provider; a target may name
more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from retinue.config.models import Quirk
from retinue.domain.record import PieceKind, Record, RecordKind, Reply, ToolResult, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.base import Media, Prompt, WireCache
from retinue.models.formats.message_parts import Part, parts, said_plainly, said_to_model, told_plainly
from retinue.models.formats.openai_chat_reader import ChatReader
from retinue.models.formats.role_alternation import Joined
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
    Heads,
    IdRule,
    effort_of,
    fitting,
    listed,
    merged,
    named,
    opened,
    shown,
)
from retinue.models.provider_http import Request, Target

# The provider-specific field names, and the changes that a history needs before it is accepted.
QUIRKS: Mapping[str, frozenset[Quirk]] = {
    "openai": frozenset({Quirk.MAX_COMPLETION_TOKENS}),
    "azure": frozenset({Quirk.MAX_COMPLETION_TOKENS}),
    "cerebras": frozenset({Quirk.MAX_COMPLETION_TOKENS}),
    "groq": frozenset({Quirk.MAX_COMPLETION_TOKENS}),
    "mistral": frozenset({Quirk.NO_STREAM_OPTIONS, Quirk.NINE_LETTER_IDS, Quirk.ANSWER_AFTER_RESULTS}),
    "deepseek": frozenset({Quirk.REASONING_BACK}),
    "moonshot": frozenset({Quirk.REASONING_BACK}),
    "alibaba": frozenset({Quirk.REASONING_BACK}),
    "zai": frozenset({Quirk.REASONING_BACK}),
}

NINE_LETTERS = IdRule(re.compile(r"[A-Za-z0-9]{9}"), 9)
WENT_ON = "Done."  # an assistant message for servers that reject a user message right after a tool result

_OURS = ("messages", "tools")
_USER_SAYS = (b',{"role":"user","content":', b"}")
_MODEL_SAYS = (b',{"role":"assistant","content":', b"}")
_told_plainly = partial(told_plainly, user=_USER_SAYS, model=_MODEL_SAYS)
_ASSISTANT = RecordKind.ASSISTANT
_encode = msgspec.json.Encoder().encode


def quirks_of(target: Target) -> frozenset[str]:
    return QUIRKS.get(target.provider, frozenset()) | target.quirks


class OpenAIChatWire:
    """Encodes for any server with the chat completions API."""

    def __init__(self, cache: WireCache) -> None:
        self._cache = cache
        self._heads = Heads()

    def request(self, prompt: Prompt, target: Target, key: str) -> Request:
        quirks = quirks_of(target)
        form = ("openai-chat", target.provider, target.facts.vision, prompt.media is not None, quirks)
        encoder = _Encoder(target, quirks, prompt.media)
        if Quirk.ANSWER_AFTER_RESULTS in quirks:
            wires = self._cache.of(prompt.session, prompt.records, encoder.record, form=form)
            pieces = _answered(prompt.records, wires)
        else:
            pieces = self._cache.woven(
                prompt.session, prompt.records, encoder.record, Joined, form=form, plain=_told_plainly
            ).pieces
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._heads.of(
            prompt.instructions, tools, lambda: _head(prompt.instructions, tools, also), form=(form, str(also))
        )
        plain = merged(_plain(prompt, target, quirks), target.params, granted=prompt.output_tokens_max, without=_OURS)
        body = [opened(plain), head, *listed(pieces, first=not prompt.instructions), b"]}"]
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return Request(f"{target.url.rstrip('/')}/chat/completions", {**headers, **target.headers}, body)

    def reader(self, target: Target) -> ChatReader:
        return ChatReader(target.provider)


def _plain(prompt: Prompt, target: Target, quirks: frozenset[str]) -> dict[str, Any]:
    bound = "max_completion_tokens" if Quirk.MAX_COMPLETION_TOKENS in quirks else "max_tokens"
    plain: dict[str, Any] = {"model": target.model, "stream": True, bound: prompt.output_tokens_max}
    if Quirk.NO_STREAM_OPTIONS not in quirks:
        plain["stream_options"] = {"include_usage": True}
    if (effort := effort_of(prompt.effort, target.facts)) is not None:
        plain["reasoning_effort"] = effort
    return plain


def _head(instructions: str, tools: Sequence[ToolSpec], also: Sequence[Any]) -> bytes:
    told: list[Any] = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]
    head = b"," + msgspec.json.encode({"tools": [*told, *also]})[1:-1] if told or also else b""
    system = msgspec.json.encode({"role": "system", "content": instructions}) if instructions else b""
    return head + b',"messages":[' + system


def _answered(records: Sequence[Record], wires: Sequence[bytes]) -> Iterator[bytes]:
    """Insert an assistant message between tool results and the next user message."""
    after_result = False
    for record, wire in zip(records, wires, strict=True):
        if wire:
            is_result = record.kind is RecordKind.TOOL
            if after_result and not is_result and record.kind is not _ASSISTANT:
                yield b"," + msgspec.json.encode({"role": "assistant", "content": WENT_ON})
            after_result = is_result
        yield wire


class _Encoder:
    """Encodes records as messages, for one target."""

    def __init__(self, target: Target, quirks: frozenset[str], media: Media | None) -> None:
        self._target = target
        self._quirks = quirks
        self._media = media
        self._ids = NINE_LETTERS if Quirk.NINE_LETTER_IDS in quirks else PLAIN_IDS

    def record(self, record: Record) -> bytes:
        if words := said_plainly(record):  # as most records are, and there are thousands when a session is restored
            before, after = _MODEL_SAYS if record.kind is _ASSISTANT else _USER_SAYS
            return before + _encode(words) + after
        match record.body:
            case Reply() as reply:
                message = self._assistant(reply)
            case ToolResult() as result:
                id_ = fitting(result.call, self._ids)
                message = {"role": "tool", "tool_call_id": id_, "content": result.output}
            case UserTurn(attachments=attachments) as turn if attachments:
                message = {"role": "user", "content": self._with_files(turn)}
            case body:
                said = said_to_model(body)
                message = {"role": "user", "content": said} if said else None
        return b"," + msgspec.json.encode(message) if message else b""

    def _with_files(self, turn: UserTurn) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
        for file in shown(turn.attachments, self._media, self._target.facts, turn.text):
            if file.line:
                content.append({"type": "text", "text": file.line})
            else:
                url = f"data:{file.media_type};base64,{file.base64}"
                content.append({"type": "image_url", "image_url": {"url": url}})
        return content

    def _assistant(self, reply: Reply) -> dict[str, Any] | None:
        """Build the assistant message; None without text and calls: no server accepts an empty message."""
        if not reply.text and not reply.calls:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [self._call(call) for call in reply.calls]
        own = reply.provider == self._target.provider
        if Quirk.REASONING_BACK in self._quirks and (reply.calls or (own and reply.thinking)):
            # Calls without it are refused, including those of another model. An empty string suffices.
            message["reasoning_content"] = reply.thinking if own else ""
        if own and (details := _details(parts(reply, provider=self._target.provider))):
            message["reasoning_details"] = details
        return message

    def _call(self, call: Call) -> dict[str, Any]:
        arguments = msgspec.json.encode(call.arguments).decode()
        return {
            "id": fitting(call.id, self._ids),
            "type": "function",
            "function": {"name": named(call.tool), "arguments": arguments},
        }


def _details(pieces: Iterator[Part]) -> list[Any]:
    """Return all reasoning details from the signatures, in order."""
    found: list[Any] = []
    for part in pieces:
        if part.kind is PieceKind.THINKING and part.seal.startswith("["):
            try:
                found += msgspec.json.decode(part.seal, type=list[Any])
            except (msgspec.DecodeError, RecursionError):
                continue  # of the same provider, in another format
    return found
