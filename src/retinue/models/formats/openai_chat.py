"""The wire format `openai-chat`: OpenAI's chat completions, which OpenAI and most other providers support.

Servers differ in details. The known differences are in `QUIRKS`, by provider, and the settings of a provider may add
more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from retinue.config.models import ProviderQuirk
from retinue.domain.record import Record, RecordKind, Reply, ReplyPieceKind, ToolResult, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.base import AttachmentReader, ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.message_parts import (
    ReplyPart,
    encode_plain_records,
    get_record_text,
    get_text_for_model,
    split_reply,
)
from retinue.models.formats.openai_chat_reader import OpenAIChatReader
from retinue.models.formats.role_alternation import JoinedPieces
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
    CallIdRule,
    RequestHeadCache,
    build_attachment_parts,
    build_list_items,
    check_effort,
    encode_open_object,
    fit_call_id,
    fit_tool_name,
    merge_params,
)
from retinue.models.provider_http import ModelTarget, ProviderRequest

# The provider-specific field names, and the changes that a history needs before it is accepted.
QUIRKS: Mapping[str, frozenset[ProviderQuirk]] = {
    "openai": frozenset({ProviderQuirk.MAX_COMPLETION_TOKENS}),
    "azure": frozenset({ProviderQuirk.MAX_COMPLETION_TOKENS}),
    "cerebras": frozenset({ProviderQuirk.MAX_COMPLETION_TOKENS}),
    "groq": frozenset({ProviderQuirk.MAX_COMPLETION_TOKENS}),
    "mistral": frozenset(
        {ProviderQuirk.NO_STREAM_OPTIONS, ProviderQuirk.NINE_CHARACTER_IDS, ProviderQuirk.ASSISTANT_AFTER_RESULTS}
    ),
    "deepseek": frozenset({ProviderQuirk.RESEND_REASONING}),
    "moonshot": frozenset({ProviderQuirk.RESEND_REASONING}),
    "alibaba": frozenset({ProviderQuirk.RESEND_REASONING}),
    "zai": frozenset({ProviderQuirk.RESEND_REASONING}),
}

NINE_CHARACTER_IDS = CallIdRule(re.compile(r"[A-Za-z0-9]{9}"), 9)
PLACEHOLDER_ANSWER = "Done."  # an assistant message for servers that reject a user message right after a tool result

_OWN_FIELDS = ("messages", "tools")
_USER_WRAPPING = (b',{"role":"user","content":', b"}")
_MODEL_WRAPPING = (b',{"role":"assistant","content":', b"}")
_encode_plain = partial(encode_plain_records, user=_USER_WRAPPING, model=_MODEL_WRAPPING)
_ASSISTANT = RecordKind.ASSISTANT
_encode = msgspec.json.Encoder().encode


def find_quirks(target: ModelTarget) -> frozenset[str]:
    return QUIRKS.get(target.provider, frozenset()) | target.quirks


class OpenAIChatFormat:
    """Encodes requests for any server with the chat completions API."""

    def __init__(self, cache: EncodedContextCache) -> None:
        self._cache = cache
        self._head_cache = RequestHeadCache()

    def build_request(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ProviderRequest:
        quirks = find_quirks(target)
        form = ("openai-chat", target.provider, target.facts.vision, prompt.media is not None, quirks)
        encoder = _MessageEncoder(target, quirks, prompt.media)
        if ProviderQuirk.ASSISTANT_AFTER_RESULTS in quirks:
            wires = self._cache.encode_records(prompt.session, prompt.records, encoder.encode_record, format_key=form)
            pieces = _insert_answers(prompt.records, wires)
        else:
            pieces = self._cache.join_records(
                prompt.session,
                prompt.records,
                encoder.encode_record,
                JoinedPieces,
                format_key=form,
                encode_plain=_encode_plain,
            ).pieces
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._head_cache.get_or_encode(
            prompt.instructions,
            tools,
            lambda: _encode_head(prompt.instructions, tools, also),
            format_key=(form, str(also)),
        )
        plain = merge_params(
            _build_settings(prompt, target, quirks),
            target.params,
            output_tokens_max=prompt.output_tokens_max,
            without=_OWN_FIELDS,
        )
        body = [encode_open_object(plain), head, *build_list_items(pieces, first=not prompt.instructions), b"]}"]
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return ProviderRequest(f"{target.url.rstrip('/')}/chat/completions", {**headers, **target.headers}, body)

    def make_reader(self, target: ModelTarget) -> OpenAIChatReader:
        return OpenAIChatReader(target.provider)


def _build_settings(prompt: ModelPrompt, target: ModelTarget, quirks: frozenset[str]) -> dict[str, Any]:
    bound = "max_completion_tokens" if ProviderQuirk.MAX_COMPLETION_TOKENS in quirks else "max_tokens"
    plain: dict[str, Any] = {"model": target.model, "stream": True, bound: prompt.output_tokens_max}
    if ProviderQuirk.NO_STREAM_OPTIONS not in quirks:
        plain["stream_options"] = {"include_usage": True}
    if (effort := check_effort(prompt.effort, target.facts)) is not None:
        plain["reasoning_effort"] = effort
    return plain


def _encode_head(instructions: str, tools: Sequence[ToolSpec], extra_tools: Sequence[Any]) -> bytes:
    offered_tools: list[Any] = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]
    head = (
        b"," + msgspec.json.encode({"tools": [*offered_tools, *extra_tools]})[1:-1]
        if offered_tools or extra_tools
        else b""
    )
    system = msgspec.json.encode({"role": "system", "content": instructions}) if instructions else b""
    return head + b',"messages":[' + system


def _insert_answers(records: Sequence[Record], encoded: Sequence[bytes]) -> Iterator[bytes]:
    """Insert an assistant message between tool results and the next user message.

    Some servers reject a user message directly after a tool result.
    """
    after_result = False
    for record, wire in zip(records, encoded, strict=True):
        if wire:
            is_result = record.kind is RecordKind.TOOL
            if after_result and not is_result and record.kind is not _ASSISTANT:
                yield b"," + msgspec.json.encode({"role": "assistant", "content": PLACEHOLDER_ANSWER})
            after_result = is_result
        yield wire


class _MessageEncoder:
    """Encodes records as messages, with the changes that the provider needs."""

    def __init__(self, target: ModelTarget, quirks: frozenset[str], media: AttachmentReader | None) -> None:
        self._target = target
        self._quirks = quirks
        self._media = media
        self._id_rule = NINE_CHARACTER_IDS if ProviderQuirk.NINE_CHARACTER_IDS in quirks else PLAIN_IDS

    def encode_record(self, record: Record) -> bytes:
        if words := get_record_text(record):  # the fast path for most records: a long session has thousands
            before, after = _MODEL_WRAPPING if record.kind is _ASSISTANT else _USER_WRAPPING
            return before + _encode(words) + after
        match record.body:
            case Reply() as reply:
                message = self._build_assistant(reply)
            case ToolResult() as result:
                id_ = fit_call_id(result.call, self._id_rule)
                message = {"role": "tool", "tool_call_id": id_, "content": result.output}
            case UserTurn(attachments=attachments) as turn if attachments:
                message = {"role": "user", "content": self._build_content(turn)}
            case body:
                text = get_text_for_model(body)
                message = {"role": "user", "content": text} if text else None
        return b"," + msgspec.json.encode(message) if message else b""

    def _build_content(self, turn: UserTurn) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
        for file in build_attachment_parts(turn.attachments, self._media, self._target.facts, turn.text):
            if file.note:
                content.append({"type": "text", "text": file.note})
            else:
                url = f"data:{file.media_type};base64,{file.base64}"
                content.append({"type": "image_url", "image_url": {"url": url}})
        return content

    def _build_assistant(self, reply: Reply) -> dict[str, Any] | None:
        """Build the assistant message.

        None if it has neither text nor calls, because no server accepts an empty message.
        """
        if not reply.text and not reply.calls:
            return None
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls:
            message["tool_calls"] = [self._build_call(call) for call in reply.calls]
        own = reply.provider == self._target.provider
        if ProviderQuirk.RESEND_REASONING in self._quirks and (reply.calls or (own and reply.thinking)):
            # Calls without it are refused, including those of another model. An empty string suffices.
            message["reasoning_content"] = reply.thinking if own else ""
        if own and (details := _collect_reasoning_details(split_reply(reply, provider=self._target.provider))):
            message["reasoning_details"] = details
        return message

    def _build_call(self, call: Call) -> dict[str, Any]:
        arguments = msgspec.json.encode(call.arguments).decode()
        return {
            "id": fit_call_id(call.id, self._id_rule),
            "type": "function",
            "function": {"name": fit_tool_name(call.tool), "arguments": arguments},
        }


def _collect_reasoning_details(pieces: Iterator[ReplyPart]) -> list[Any]:
    """Return all reasoning details that the signatures of a reply contain, in order."""
    found: list[Any] = []
    for part in pieces:
        if part.kind is ReplyPieceKind.THINKING and part.signature.startswith("["):
            try:
                found += msgspec.json.decode(part.signature, type=list[Any])
            except (msgspec.DecodeError, RecursionError):
                continue  # of the same provider, in another format
    return found
