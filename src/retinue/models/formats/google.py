"""Wire format of Google's Gemini API.

A context is encoded as a list of `contents`, each with `parts`, and a reply is a stream of
`candidates`. Each record is encoded once, as its `parts`. Roles are added around those bytes for
each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from retinue.config.models import ProviderQuirk
from retinue.domain.record import Record, Reply, ReplyPieceKind, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.file_parts import build_file_parts
from retinue.models.formats.google_reader import GoogleReader
from retinue.models.formats.message_parts import ReplyPart, get_record_text, get_text_for_model, split_reply
from retinue.models.formats.role_alternation import CONTINUE_TEXT, OPENING_TEXT, AlternatingTurns, RoleTemplates
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
    RequestHeadCache,
    check_effort,
    encode_open_object,
    fit_call_id,
    fit_tool_name,
    merge_params,
)
from retinue.models.provider_http import ModelTarget, ProviderRequest

IMAGE_BYTES_MAX = 10 * 1024 * 1024  # a request is limited to 20 MiB in total

THINKING_TOKENS: Mapping[str, int] = {"none": 0, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576}
MINIMAL_LEVEL = "minimal"  # there is no level without any thinking
ANSWER_TOKENS_MIN = 1_024  # what thinking must leave of the reply's token limit

# The signature for calls that another model made. Newer models refuse calls without one of their own,
# except for this value.
PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"

_OWN_FIELDS = ("contents", "systemInstruction", "tools", "generationConfig")
_encode = msgspec.json.encode


class GoogleFormat:
    """Encodes requests for Google's Gemini API, which needs only an API key."""

    def __init__(self, cache: EncodedContextCache) -> None:
        self._cache = cache
        self._head_cache = RequestHeadCache()

    def build_request(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ProviderRequest:
        by_level = ProviderQuirk.THINKING_LEVEL in target.quirks
        form = ("google", target.provider, target.facts.vision, prompt.media is not None, by_level)
        woven = self._cache.join_records(
            prompt.session,
            prompt.records,
            lambda r: _encode_record(r, prompt, target),
            lambda: AlternatingTurns(_ROLE_TEMPLATES),
            format_key=form,
        )
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._head_cache.get_or_encode(
            prompt.instructions, tools, lambda: _encode_head(prompt.instructions, tools, also), format_key=str(also)
        )
        body = [_encode_settings(prompt, target), head, b',"contents":[', *woven.close_turns()[0], b"]}"]
        name = quote(target.model if "/" in target.model else f"models/{target.model}")
        headers = {"content-type": "application/json", "accept": "text/event-stream", **target.headers}
        if key:
            headers["x-goog-api-key"] = key  # never in the URL, which proxies log
        return ProviderRequest(f"{target.url.rstrip('/')}/{name}:streamGenerateContent?alt=sse", headers, body)

    def make_reader(self, target: ModelTarget) -> GoogleReader:
        return GoogleReader(target.provider)


def _encode_settings(prompt: ModelPrompt, target: ModelTarget) -> bytes:
    """Encode the reply limits, and the parameters from the settings, as an open JSON object.

    The closing brace is left out, so that more fields can be added.
    """
    config: dict[str, Any] = {"maxOutputTokens": prompt.output_tokens_max}
    effort = check_effort(prompt.effort, target.facts)
    if effort is not None:
        config["thinkingConfig"] = _build_thinking(effort, prompt.output_tokens_max, target)
    granted = prompt.output_tokens_max
    config = merge_params(
        config, cast("Mapping[str, Any]", target.params.get("generationConfig") or {}), output_tokens_max=granted
    )
    return encode_open_object(
        merge_params({"generationConfig": config}, target.params, output_tokens_max=granted, without=_OWN_FIELDS)
    )


def _build_thinking(effort: str, output_tokens_max: int, target: ModelTarget) -> dict[str, Any]:
    shown = effort != "none"
    if ProviderQuirk.THINKING_LEVEL in target.quirks:
        return {"includeThoughts": shown, "thinkingLevel": effort if shown else MINIMAL_LEVEL}
    wanted = THINKING_TOKENS.get(effort, THINKING_TOKENS["high"])
    return {"includeThoughts": shown, "thinkingBudget": max(min(wanted, output_tokens_max - ANSWER_TOKENS_MIN), 0)}


def _encode_head(instructions: str, tools: Sequence[ToolSpec], extra_tools: Sequence[Any]) -> bytes:
    declared = [_build_declaration(tool) for tool in tools]
    offered = [*([{"functionDeclarations": declared}] if declared else []), *extra_tools]
    head: dict[str, Any] = {}
    if instructions.strip():
        head["systemInstruction"] = {"parts": [{"text": instructions}]}
    if offered:
        head["tools"] = offered
    return b"," + _encode(head)[1:-1] if head else b""


def _build_declaration(tool: ToolSpec) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    # Without properties there is no schema: Google rejects an object type without any.
    if tool.parameters.get("properties"):
        declared["parametersJsonSchema"] = tool.parameters
    return declared


# --- history ---


def _encode_record(record: Record, prompt: ModelPrompt, target: ModelTarget) -> bytes:
    """Encode the parts of a record, separated by commas. Empty if the record has no content."""
    if words := get_record_text(record):
        return _encode_text(words)
    match record.body:
        case Reply() as reply:
            return b",".join(_encode_reply(reply, target))
        case ToolResult() as result:
            return _encode(_build_response(result))
        case UserTurn() as turn if turn.attachments:
            return b",".join(_encode(part) for part in _build_user_parts(turn, prompt, target))
        case body:
            text = get_text_for_model(body)
            return _encode_text(text) if text else b""


def _encode_text(text: str) -> bytes:
    return b'{"text":' + _encode(text) + b"}"


_ROLE_TEMPLATES = RoleTemplates(
    user=b'{"role":"user","parts":[',
    model=b'{"role":"model","parts":[',
    opening=_encode_text(OPENING_TEXT),
    continuation=_encode_text(CONTINUE_TEXT),
)


def _build_response(result: ToolResult) -> dict[str, Any]:
    response = {"error" if result.failed else "output": result.output}
    return {
        "functionResponse": {
            "id": fit_call_id(result.call, PLAIN_IDS),
            "name": fit_tool_name(result.tool),
            "response": response,
        }
    }


def _build_user_parts(turn: UserTurn, prompt: ModelPrompt, target: ModelTarget) -> Iterator[dict[str, Any]]:
    if turn.text:
        yield {"text": turn.text}
    for file in build_file_parts(turn, prompt.media, target.facts, image_bytes_max=IMAGE_BYTES_MAX):
        yield {"text": file.note} if file.note else {"inlineData": {"mimeType": file.media_type, "data": file.base64}}


def _encode_reply(reply: Reply, target: ModelTarget) -> Iterator[bytes]:
    """Yield the encoded parts of a reply in order, with their signatures.

    If no call is signed, the first call may get a placeholder, because newer models refuse unsigned
    calls.
    """
    own = reply.provider == target.provider
    sent = list(split_reply(reply, provider=target.provider))
    signed = any(part.kind is ReplyPieceKind.CALL and part.signature for part in sent)
    unsigned = not signed and (not own or ProviderQuirk.THINKING_LEVEL in target.quirks)
    for part in sent:
        if part.kind is ReplyPieceKind.SERVER:
            yield part.signature.encode()
        elif part.kind is ReplyPieceKind.CALL and unsigned:
            yield _encode({**_build_part(part), "thoughtSignature": PLACEHOLDER_SIGNATURE})
            unsigned = False
        elif made := _build_part(part):
            yield _encode(made)


def _build_part(part: ReplyPart) -> dict[str, Any]:
    """Build the request object for a part of a reply. It is empty if there is nothing to send back.

    Thinking without a signature is only a summary, so it is not sent back.
    """
    seal = {"thoughtSignature": part.signature} if part.signature and part.signature[0] not in "[{" else {}
    match part.kind:
        case ReplyPieceKind.TEXT:
            return {"text": part.text, **seal}
        case ReplyPieceKind.THINKING:
            return {"text": part.text, "thought": True, **seal} if seal else {}
        case ReplyPieceKind.CALL:
            call = cast("Call", part.call)
            asked = {"id": fit_call_id(call.id, PLAIN_IDS), "name": fit_tool_name(call.tool), "args": call.arguments}
            return {"functionCall": asked, **seal}
        case ReplyPieceKind.SERVER:
            return {}
