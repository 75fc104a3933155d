"""The wire format `openai-responses`: OpenAI's newer API, also offered by other providers.

By default, requests tell the provider to store nothing. The provider returns the model's thinking
in encrypted form, and later requests send it back with the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from retinue.domain.model import ModelFacts
from retinue.domain.record import Record, RecordKind, Reply, ReplyPieceKind, ToolResult, UserTurn
from retinue.domain.tool import ToolSpec
from retinue.models.base import AttachmentReader, ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.error_classification import ErrorBody
from retinue.models.formats.message_parts import (
    ReplyPart,
    encode_plain_records,
    get_record_text,
    get_text_for_model,
    split_reply,
)
from retinue.models.formats.openai_responses_reader import LEFT_OUT_KEY, OpenAIResponsesReader
from retinue.models.formats.role_alternation import JoinedPieces
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
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
from retinue.models.request_repairs import OmittedParts, RepairScope, RequestRepair

ENCRYPTED_REASONING = "reasoning.encrypted_content"


MESSAGE_IDS_QUIRK = "message-ids"  # quirk: assistant messages must be sent back with an id and a status

QUIRKS: Mapping[str, frozenset[str]] = {
    "openrouter": frozenset({MESSAGE_IDS_QUIRK}),
}

# OpenAI summarizes thinking only for verified organizations, and otherwise refuses the whole request.
_SUMMARY_REFUSAL = ("verified", "reasoning summar")

_OWN_FIELDS = ("input", "tools")
_USER_WRAPPING = (b',{"role":"user","content":', b"}")
_MODEL_WRAPPING = (
    b',{"type":"message","role":"assistant","content":[{"type":"output_text","text":',
    b',"annotations":[]}]}',
)
_encode_plain = partial(encode_plain_records, user=_USER_WRAPPING, model=_MODEL_WRAPPING)
_ASSISTANT = RecordKind.ASSISTANT


class OpenAIResponsesFormat:
    """Encodes requests for any server with the responses API."""

    def __init__(self, cache: EncodedContextCache) -> None:
        self._cache = cache
        self._head_cache = RequestHeadCache()

    def build_request(self, prompt: ModelPrompt, target: ModelTarget, key: str) -> ProviderRequest:
        quirks = QUIRKS.get(target.provider, frozenset[str]()) | target.quirks
        keeps = target.params.get("store") is True
        form = ("openai-responses", target.provider, target.facts.vision, prompt.media is not None, quirks, keeps)
        encoder = _ItemEncoder(target, prompt.media, with_ids=MESSAGE_IDS_QUIRK in quirks, is_stored=keeps)
        plainly = None if MESSAGE_IDS_QUIRK in quirks else _encode_plain
        pieces = self._cache.join_records(
            prompt.session, prompt.records, encoder.encode_record, JoinedPieces, format_key=form, encode_plain=plainly
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
            _build_settings(prompt, target),
            target.params,
            output_tokens_max=prompt.output_tokens_max,
            without=_OWN_FIELDS,
        )
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        body = [encode_open_object(plain), head, *build_list_items(pieces, first=True), b"]}"]
        return ProviderRequest(f"{target.url.rstrip('/')}/responses", {**headers, **target.headers}, body)

    def make_reader(self, target: ModelTarget) -> OpenAIResponsesReader:
        return OpenAIResponsesReader(target.provider)

    def find_repair(self, error_body: ErrorBody, prompt: ModelPrompt, target: ModelTarget) -> RequestRepair | None:
        """Return a repair that omits the reasoning summary, if the provider refused it.

        None for other errors, and if `params` in the settings has `reasoning`, which is sent
        unchanged.
        """
        if target.omitted.reasoning_summary or "reasoning" in target.params:
            return None
        words = error_body.message.lower()
        if not all(part in words for part in _SUMMARY_REFUSAL):
            return None
        return RequestRepair(scope=RepairScope.CREDENTIAL, omitted=OmittedParts(reasoning_summary=True))


def _build_settings(prompt: ModelPrompt, target: ModelTarget) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "model": target.model,
        "stream": True,
        "store": False,
        "max_output_tokens": prompt.output_tokens_max,
    }
    if _supports_thinking(target.facts) is not False:
        plain["include"] = [ENCRYPTED_REASONING]
    effort = check_effort(prompt.effort, target.facts)
    reasoning: dict[str, str] = {} if effort is None else {"effort": effort}
    if not target.omitted.reasoning_summary and (effort is not None or _supports_thinking(target.facts)):
        reasoning["summary"] = "auto"
    if reasoning:
        plain["reasoning"] = reasoning
    return plain


def _supports_thinking(facts: ModelFacts) -> bool | None:
    """Whether a model supports thinking. None if unknown.

    A model that does not support thinking refuses every parameter about it.
    """
    return None if facts.efforts is None else bool(facts.efforts)


def _encode_head(instructions: str, tools: Sequence[ToolSpec], extra_tools: Sequence[Any]) -> bytes:
    offered_tools: list[Any] = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,  # on by default, and accepts only some schemas
        }
        for tool in tools
    ]
    head: dict[str, Any] = {"instructions": instructions} if instructions else {}
    if offered_tools or extra_tools:
        head["tools"] = [*offered_tools, *extra_tools]
    fields = b"," + msgspec.json.encode(head)[1:-1] if head else b""
    return fields + b',"input":['


class _ItemEncoder:
    """Encodes records as items of the API, with the changes that one provider needs."""

    def __init__(self, target: ModelTarget, media: AttachmentReader | None, *, with_ids: bool, is_stored: bool) -> None:
        self._target = target
        self._media = media
        self._with_ids = with_ids
        self._is_stored = is_stored

    def encode_record(self, record: Record) -> bytes:
        if (words := get_record_text(record)) and not self._with_ids:  # the fast path for most records
            begin, end = _MODEL_WRAPPING if record.kind is _ASSISTANT else _USER_WRAPPING
            return begin + msgspec.json.encode(words) + end
        match record.body:
            case Reply() as reply:
                items = self._build_items(reply, record.seq)
            case ToolResult() as result:
                id_ = fit_call_id(result.call, PLAIN_IDS)
                items = [{"type": "function_call_output", "call_id": id_, "output": result.output}]
            case UserTurn(attachments=attachments) as turn if attachments:
                items = [{"role": "user", "content": self._build_content(turn)}]
            case body:
                text = get_text_for_model(body)
                items = [{"role": "user", "content": text}] if text else []
        return b"," + msgspec.json.encode(items)[1:-1] if items else b""

    def _build_content(self, turn: UserTurn) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "input_text", "text": turn.text}] if turn.text else []
        for file in build_attachment_parts(turn.attachments, self._media, self._target.facts, turn.text):
            if file.note:
                content.append({"type": "input_text", "text": file.note})
            else:
                url = f"data:{file.media_type};base64,{file.base64}"
                content.append({"type": "input_image", "image_url": url})
        return content

    def _build_items(self, reply: Reply, seq: int) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        for part in split_reply(reply, provider=self._target.provider):
            items += self._iterate_part_items(part, f"msg_{seq}_{len(items)}")
        while items and items[-1].get("type") == "reasoning":
            items.pop()  # reasoning without a following item is refused
        return items

    def _iterate_part_items(self, part: ReplyPart, id_: str) -> Iterator[dict[str, Any]]:
        match part.kind:
            case ReplyPieceKind.TEXT:
                if part.text:
                    yield self._build_message(part, id_)
            case ReplyPieceKind.CALL:
                assert part.call is not None
                arguments = msgspec.json.encode(part.call.arguments).decode()
                call_id = fit_call_id(part.call.id, PLAIN_IDS)
                yield {
                    "type": "function_call",
                    "call_id": call_id,
                    "name": fit_tool_name(part.call.tool),
                    "arguments": arguments,
                }
            case ReplyPieceKind.THINKING:
                item = _decode_signature(part.signature)
                if item.get("type") == "reasoning" and (
                    self._is_stored or "encrypted_content" in item or "content" in item
                ):
                    yield item
            case ReplyPieceKind.SERVER:
                item = _decode_signature(part.signature)
                if "type" in item and LEFT_OUT_KEY not in item:
                    yield item

    def _build_message(self, part: ReplyPart, id_: str) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "output_text", "text": part.text, "annotations": []}
        message: dict[str, Any] = {"type": "message", "role": "assistant", "content": [text]}
        if self._with_ids:
            message |= {"id": id_, "status": "completed"}
        if phase := _decode_signature(part.signature).get("phase"):
            message["phase"] = phase
        return message


def _decode_signature(signature: str) -> dict[str, Any]:
    """Decode a signature that this format made. Empty for a signature that another format made earlier."""
    if not signature.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(signature, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
