"""Converts prompts to pydantic-ai messages, and parts of its replies to ours. Its modules are passed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from retinue.domain.model import ModelFacts
from retinue.domain.record import PieceKind, Record, Reply, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import Prompt
from retinue.models.formats.message_parts import Part, parts, said_to_model
from retinue.models.formats.role_alternation import GO_ON, OPENING
from retinue.models.formats.wire_formats import PLAIN_IDS, fitting, shown

# What a part carries besides its text, and must get back. It names the provider that may have it.
_SEALED = ("id", "signature", "provider_name", "provider_details")


def messages(library: Any, prompt: Prompt, facts: ModelFacts) -> list[Any]:
    """Build the history. Everything between two replies is one request, with the results of calls first."""
    made: list[Any] = []
    for record in prompt.records:
        if isinstance(record.body, Reply):
            replied = [_said(library, part) for part in parts(record.body, provider=facts.ref.provider)]
            if sent := [part for part in replied if part is not None]:
                made.append(library.ModelResponse(parts=sent))
            continue
        said = list(_asked(library, record, prompt, facts))
        if said and made and made[-1].kind == "request":
            made[-1].parts.extend(said)
        elif said:
            made.append(library.ModelRequest(parts=said))
    if not made or made[0].kind != "request":
        made.insert(0, library.ModelRequest(parts=[library.UserPromptPart(content=OPENING)]))
    if made[-1].kind != "request":
        made.append(library.ModelRequest(parts=[library.UserPromptPart(content=GO_ON)]))
    for message in made:
        if message.kind == "request":
            message.parts.sort(key=_after_results)
    made[-1].instructions = prompt.instructions or None
    return made


def _after_results(part: Any) -> bool:
    return part.part_kind != "tool-return"


def parameters(models: Any, tools: Any, prompt: Prompt, facts: ModelFacts) -> Any:
    offered = prompt.tools if facts.tools else ()
    return models.ModelRequestParameters(
        function_tools=[
            tools.ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
            for tool in offered
        ]
    )


def call(part: Any, arguments: Mapping[str, Any]) -> Call:
    return Call(id=part.tool_call_id, tool=part.tool_name, arguments=dict(arguments))


def seal(part: Any) -> str:
    """Return what a part of a reply must get back with it; empty if nothing."""
    kept = {name: value for name in _SEALED if (value := getattr(part, name, None))}
    if not kept.keys() - {"provider_name"}:
        return ""
    return msgspec.json.encode(kept, enc_hook=str).decode()


def _asked(library: Any, record: Record, prompt: Prompt, facts: ModelFacts) -> Iterator[Any]:
    match record.body:
        case ToolResult() as result:
            yield library.ToolReturnPart(
                tool_name=result.tool,
                content=result.output,
                tool_call_id=fitting(result.call, PLAIN_IDS),
                outcome="failed" if result.failed else "success",
            )
        case UserTurn(attachments=attachments) as turn if attachments:
            content: list[Any] = [turn.text] if turn.text else []
            for file in shown(attachments, prompt.media, facts, turn.text):
                content.append(file.line or library.BinaryContent.from_data_uri(_uri(file.media_type, file.base64)))
            yield library.UserPromptPart(content=content)
        case body:
            if text := said_to_model(body):
                yield library.UserPromptPart(content=text)


def _uri(media_type: str, base64: str) -> str:
    return f"data:{media_type};base64,{base64}"


def _said(library: Any, part: Part) -> Any:
    """Build a part of a reply; None for what cannot be sent again: thinking without a signature."""
    sealed = _unsealed(part.seal)
    match part.kind:
        case PieceKind.TEXT:
            return library.TextPart(content=part.text, **_only(sealed, "id", "provider_name", "provider_details"))
        case PieceKind.THINKING:
            return library.ThinkingPart(content=part.text, **sealed) if sealed else None
        case PieceKind.CALL:
            assert part.call is not None
            return library.ToolCallPart(
                tool_name=part.call.tool,
                args=part.call.arguments,
                tool_call_id=fitting(part.call.id, PLAIN_IDS),
                **_only(sealed, "id", "provider_name", "provider_details"),
            )
        case PieceKind.SERVER:
            return None


def _unsealed(text: str) -> dict[str, Any]:
    """Decode our signature; empty if one of our own formats made it, before the bridge served this provider."""
    if not text.startswith("{"):
        return {}
    try:
        return _only(msgspec.json.decode(text, type=dict[str, Any]), *_SEALED)
    except msgspec.DecodeError:
        return {}


def _only(sealed: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: sealed[name] for name in names if name in sealed}
