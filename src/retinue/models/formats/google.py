"""Wire format of Google's Gemini API: contexts as contents with parts, replies as a stream of candidates.

Each record is encoded once, as the parts it adds to a content. Roles are put around those bytes for
each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from retinue.config.models import Quirk
from retinue.domain.record import PieceKind, Record, Reply, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import Prompt, WireCache
from retinue.models.formats.file_parts import files
from retinue.models.formats.google_reader import GoogleReader
from retinue.models.formats.message_parts import Part, parts, said_plainly, said_to_model
from retinue.models.formats.role_alternation import GO_ON, OPENING, Sides, Turns
from retinue.models.formats.wire_formats import PLAIN_IDS, Heads, effort_of, fitting, merged, named, opened
from retinue.models.provider_http import Request, Target

IMAGE_BYTES_MAX = 10 * 1024 * 1024  # a request is limited to 20 MiB in total

THINKING_TOKENS: Mapping[str, int] = {"none": 0, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576}
LEAST_LEVEL = "minimal"  # there is no level without any thinking
ANSWER_TOKENS_MIN = 1_024  # what thinking must leave of the reply's token limit

# The signature for calls that another model made. Newer models refuse calls without one of their own,
# except for this value.
SIGNED_BY_NOBODY = "skip_thought_signature_validator"

_OURS = ("contents", "systemInstruction", "tools", "generationConfig")
_encode = msgspec.json.encode


class GoogleWire:
    """Encodes for Google, with the API that needs only a key."""

    def __init__(self, cache: WireCache) -> None:
        self._cache = cache
        self._heads = Heads()

    def request(self, prompt: Prompt, target: Target, key: str) -> Request:
        by_level = Quirk.THINKING_LEVEL in target.quirks
        form = ("google", target.provider, target.facts.vision, prompt.media is not None, by_level)
        woven = self._cache.woven(
            prompt.session, prompt.records, lambda r: _parts(r, prompt, target), lambda: Turns(_SIDES), form=form
        )
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._heads.of(
            prompt.instructions, tools, lambda: _head(prompt.instructions, tools, also), form=str(also)
        )
        body = [_plain(prompt, target), head, b',"contents":[', *woven.told()[0], b"]}"]
        name = quote(target.model if "/" in target.model else f"models/{target.model}")
        headers = {"content-type": "application/json", "accept": "text/event-stream", **target.headers}
        if key:
            headers["x-goog-api-key"] = key  # never in the URL, which proxies log
        return Request(f"{target.url.rstrip('/')}/{name}:streamGenerateContent?alt=sse", headers, body)

    def reader(self, target: Target) -> GoogleReader:
        return GoogleReader(target.provider)


def _plain(prompt: Prompt, target: Target) -> bytes:
    """Encode the limits of the reply and the parameters from the settings, as a JSON object without
    its closing brace.
    """
    config: dict[str, Any] = {"maxOutputTokens": prompt.output_tokens_max}
    effort = effort_of(prompt.effort, target.facts)
    if effort is not None:
        config["thinkingConfig"] = _thinking(effort, prompt.output_tokens_max, target)
    granted = prompt.output_tokens_max
    config = merged(config, cast("Mapping[str, Any]", target.params.get("generationConfig") or {}), granted=granted)
    return opened(merged({"generationConfig": config}, target.params, granted=granted, without=_OURS))


def _thinking(effort: str, output_tokens_max: int, target: Target) -> dict[str, Any]:
    shown = effort != "none"
    if Quirk.THINKING_LEVEL in target.quirks:
        return {"includeThoughts": shown, "thinkingLevel": effort if shown else LEAST_LEVEL}
    wanted = THINKING_TOKENS.get(effort, THINKING_TOKENS["high"])
    return {"includeThoughts": shown, "thinkingBudget": max(min(wanted, output_tokens_max - ANSWER_TOKENS_MIN), 0)}


def _head(instructions: str, tools: Sequence[ToolSpec], also: Sequence[Any]) -> bytes:
    declared = [_declaration(tool) for tool in tools]
    offered = [*([{"functionDeclarations": declared}] if declared else []), *also]
    head: dict[str, Any] = {}
    if instructions.strip():
        head["systemInstruction"] = {"parts": [{"text": instructions}]}
    if offered:
        head["tools"] = offered
    return b"," + _encode(head)[1:-1] if head else b""


def _declaration(tool: ToolSpec) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": tool.name, "description": tool.description}
    # Without properties there is no schema: Google rejects an object type without any.
    if tool.parameters.get("properties"):
        declared["parametersJsonSchema"] = tool.parameters
    return declared


# --- history ---


def _parts(record: Record, prompt: Prompt, target: Target) -> bytes:
    """Encode what a record adds to its content: comma-separated parts, or nothing."""
    if words := said_plainly(record):
        return _text(words)
    match record.body:
        case Reply() as reply:
            return b",".join(_reply(reply, target))
        case ToolResult() as result:
            return _encode(_response(result))
        case UserTurn() as turn if turn.attachments:
            return b",".join(_encode(part) for part in _turn(turn, prompt, target))
        case body:
            text = said_to_model(body)
            return _text(text) if text else b""


def _text(text: str) -> bytes:
    return b'{"text":' + _encode(text) + b"}"


_SIDES = Sides(
    user=b'{"role":"user","parts":[',
    model=b'{"role":"model","parts":[',
    opening=_text(OPENING),
    go_on=_text(GO_ON),
)


def _response(result: ToolResult) -> dict[str, Any]:
    response = {"error" if result.failed else "output": result.output}
    return {
        "functionResponse": {"id": fitting(result.call, PLAIN_IDS), "name": named(result.tool), "response": response}
    }


def _turn(turn: UserTurn, prompt: Prompt, target: Target) -> Iterator[dict[str, Any]]:
    if turn.text:
        yield {"text": turn.text}
    for file in files(turn, prompt.media, target.facts, image_bytes_max=IMAGE_BYTES_MAX):
        yield {"text": file.line} if file.line else {"inlineData": {"mimeType": file.media_type, "data": file.base64}}


def _reply(reply: Reply, target: Target) -> Iterator[bytes]:
    """Encode each part as it came, with its signature. If no call has one, the first gets the placeholder signature."""
    own = reply.provider == target.provider
    sent = list(parts(reply, provider=target.provider))
    signed = any(part.kind is PieceKind.CALL and part.seal for part in sent)
    unsigned = not signed and (not own or Quirk.THINKING_LEVEL in target.quirks)
    for part in sent:
        if part.kind is PieceKind.SERVER:
            yield part.seal.encode()
        elif part.kind is PieceKind.CALL and unsigned:
            yield _encode({**_part(part), "thoughtSignature": SIGNED_BY_NOBODY})
            unsigned = False
        elif made := _part(part):
            yield _encode(made)


def _part(part: Part) -> dict[str, Any]:
    """Build a part.

    Empty if there is nothing to send back: unsigned thinking is only a summary, without value to
    the model.
    """
    seal = {"thoughtSignature": part.seal} if part.seal and part.seal[0] not in "[{" else {}
    match part.kind:
        case PieceKind.TEXT:
            return {"text": part.text, **seal}
        case PieceKind.THINKING:
            return {"text": part.text, "thought": True, **seal} if seal else {}
        case PieceKind.CALL:
            call = cast("Call", part.call)
            asked = {"id": fitting(call.id, PLAIN_IDS), "name": named(call.tool), "args": call.arguments}
            return {"functionCall": asked, **seal}
        case PieceKind.SERVER:
            return {}
