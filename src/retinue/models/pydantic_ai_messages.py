"""Converts prompts to pydantic-ai messages, and parts of pydantic-ai replies to ours.

The modules of pydantic-ai are passed in, because it is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from retinue.domain.model import ModelFacts
from retinue.domain.record import Record, Reply, ReplyPieceKind, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import ModelPrompt
from retinue.models.formats.message_parts import ReplyPart, get_text_for_model, split_reply
from retinue.models.formats.role_alternation import CONTINUE_TEXT, OPENING_TEXT
from retinue.models.formats.wire_formats import PLAIN_IDS, build_attachment_parts, fit_call_id

# Fields of a part, besides its text, that must be sent back, and only to the provider they name.
_SIGNATURE_FIELDS = ("id", "signature", "provider_name", "provider_details")


def build_messages(library: Any, prompt: ModelPrompt, facts: ModelFacts) -> list[Any]:
    """Build the message history of a prompt.

    Everything between two replies is one request, with the results of calls first.
    """
    made: list[Any] = []
    for record in prompt.records:
        if isinstance(record.body, Reply):
            replied = [
                _build_reply_part(library, part) for part in split_reply(record.body, provider=facts.ref.provider)
            ]
            if sent := [part for part in replied if part is not None]:
                made.append(library.ModelResponse(parts=sent))
            continue
        parts = list(_build_request_parts(library, record, prompt, facts))
        if parts and made and made[-1].kind == "request":
            made[-1].parts.extend(parts)
        elif parts:
            made.append(library.ModelRequest(parts=parts))
    if not made or made[0].kind != "request":
        made.insert(0, library.ModelRequest(parts=[library.UserPromptPart(content=OPENING_TEXT)]))
    if made[-1].kind != "request":
        made.append(library.ModelRequest(parts=[library.UserPromptPart(content=CONTINUE_TEXT)]))
    for message in made:
        if message.kind == "request":
            message.parts.sort(key=_results_first)
    made[-1].instructions = prompt.instructions or None
    return made


def _results_first(part: Any) -> bool:
    return part.part_kind != "tool-return"


def build_parameters(models: Any, tools: Any, prompt: ModelPrompt, facts: ModelFacts) -> Any:
    offered = prompt.tools if facts.tools else ()
    return models.ModelRequestParameters(
        function_tools=[
            tools.ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
            for tool in offered
        ]
    )


def build_call(part: Any, arguments: Mapping[str, Any]) -> Call:
    return Call(id=part.tool_call_id, tool=part.tool_name, arguments=dict(arguments))


def encode_signature(part: Any) -> str:
    """Return the data that must be sent back with a part of a reply. Empty if there is none."""
    kept = {name: value for name in _SIGNATURE_FIELDS if (value := getattr(part, name, None))}
    if not kept.keys() - {"provider_name"}:
        return ""
    return msgspec.json.encode(kept, enc_hook=str).decode()


def _build_request_parts(library: Any, record: Record, prompt: ModelPrompt, facts: ModelFacts) -> Iterator[Any]:
    match record.body:
        case ToolResult() as result:
            yield library.ToolReturnPart(
                tool_name=result.tool,
                content=result.output,
                tool_call_id=fit_call_id(result.call, PLAIN_IDS),
                outcome="failed" if result.failed else "success",
            )
        case UserTurn(attachments=attachments) as turn if attachments:
            content: list[Any] = [turn.text] if turn.text else []
            for file in build_attachment_parts(attachments, prompt.media, facts, turn.text):
                content.append(
                    file.note or library.BinaryContent.from_data_uri(_build_data_uri(file.media_type, file.base64))
                )
            yield library.UserPromptPart(content=content)
        case body:
            if text := get_text_for_model(body):
                yield library.UserPromptPart(content=text)


def _build_data_uri(media_type: str, base64: str) -> str:
    return f"data:{media_type};base64,{base64}"


def _build_reply_part(library: Any, part: ReplyPart) -> Any:
    """Build a part of a reply. None for thinking without a signature, which cannot be sent again."""
    sealed = _decode_signature(part.signature)
    match part.kind:
        case ReplyPieceKind.TEXT:
            return library.TextPart(
                content=part.text, **_pick_fields(sealed, "id", "provider_name", "provider_details")
            )
        case ReplyPieceKind.THINKING:
            return library.ThinkingPart(content=part.text, **sealed) if sealed else None
        case ReplyPieceKind.CALL:
            assert part.call is not None
            return library.ToolCallPart(
                tool_name=part.call.tool,
                args=part.call.arguments,
                tool_call_id=fit_call_id(part.call.id, PLAIN_IDS),
                **_pick_fields(sealed, "id", "provider_name", "provider_details"),
            )
        case ReplyPieceKind.SERVER:
            return None


def _decode_signature(text: str) -> dict[str, Any]:
    """Decode a signature that `encode_signature` made. Empty for a signature of another wire format."""
    if not text.startswith("{"):
        return {}
    try:
        return _pick_fields(msgspec.json.decode(text, type=dict[str, Any]), *_SIGNATURE_FIELDS)
    except msgspec.DecodeError:
        return {}


def _pick_fields(sealed: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: sealed[name] for name in names if name in sealed}
