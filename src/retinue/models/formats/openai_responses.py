"""The wire format `openai-responses`: OpenAI's newer API, also offered by other providers.

Nothing is stored at the provider. So its thinking comes to us encrypted, and is sent back with the
history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from retinue.domain.model import ModelFacts
from retinue.domain.record import PieceKind, Record, RecordKind, Reply, ToolResult, UserTurn
from retinue.domain.tool import ToolSpec
from retinue.models.base import Media, Prompt, WireCache
from retinue.models.error_classification import Said
from retinue.models.formats.message_parts import Part, parts, said_plainly, said_to_model, told_plainly
from retinue.models.formats.openai_responses_reader import LEFT_OUT, ResponsesReader
from retinue.models.formats.role_alternation import Joined
from retinue.models.formats.wire_formats import (
    PLAIN_IDS,
    Heads,
    effort_of,
    fitting,
    listed,
    merged,
    named,
    opened,
    shown,
)
from retinue.models.provider_http import Request, Target
from retinue.models.request_repairs import Omitted, Repair, Scope

ENCRYPTED = "reasoning.encrypted_content"


MESSAGE_IDS = "message-ids"  # quirk: assistant messages must be sent back with an id and a status

QUIRKS: Mapping[str, frozenset[str]] = {
    "openrouter": frozenset({MESSAGE_IDS}),
}

# OpenAI summarizes thinking only for verified organizations, and otherwise refuses the whole request.
_SUMMARY_REFUSED = ("verified", "reasoning summar")

_OURS = ("input", "tools")
_USER_SAYS = (b',{"role":"user","content":', b"}")
_MODEL_SAYS = (
    b',{"type":"message","role":"assistant","content":[{"type":"output_text","text":',
    b',"annotations":[]}]}',
)
_told_plainly = partial(told_plainly, user=_USER_SAYS, model=_MODEL_SAYS)
_ASSISTANT = RecordKind.ASSISTANT


class OpenAIResponsesWire:
    """Encodes for any server with the responses API."""

    def __init__(self, cache: WireCache) -> None:
        self._cache = cache
        self._heads = Heads()

    def request(self, prompt: Prompt, target: Target, key: str) -> Request:
        quirks = QUIRKS.get(target.provider, frozenset[str]()) | target.quirks
        keeps = target.params.get("store") is True
        form = ("openai-responses", target.provider, target.facts.vision, prompt.media is not None, quirks, keeps)
        encoder = _Encoder(target, prompt.media, with_ids=MESSAGE_IDS in quirks, keeps=keeps)
        plainly = None if MESSAGE_IDS in quirks else _told_plainly
        pieces = self._cache.woven(
            prompt.session, prompt.records, encoder.record, Joined, form=form, plain=plainly
        ).pieces
        tools = prompt.tools if target.facts.tools else ()
        also = cast("list[Any]", target.params.get("tools") or [])
        head = self._heads.of(
            prompt.instructions, tools, lambda: _head(prompt.instructions, tools, also), form=(form, str(also))
        )
        plain = merged(_plain(prompt, target), target.params, granted=prompt.output_tokens_max, without=_OURS)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        body = [opened(plain), head, *listed(pieces, first=True), b"]}"]
        return Request(f"{target.url.rstrip('/')}/responses", {**headers, **target.headers}, body)

    def reader(self, target: Target) -> ResponsesReader:
        return ResponsesReader(target.provider)

    def repair(self, said: Said, prompt: Prompt, target: Target) -> Repair | None:
        """Omit the reasoning summary.

        If the settings have `reasoning`, it is sent unchanged and its refusal is reported.
        """
        if target.omitted.reasoning_summary or "reasoning" in target.params:
            return None
        words = said.message.lower()
        if not all(part in words for part in _SUMMARY_REFUSED):
            return None
        return Repair(scope=Scope.CREDENTIAL, omitted=Omitted(reasoning_summary=True))


def _plain(prompt: Prompt, target: Target) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "model": target.model,
        "stream": True,
        "store": False,
        "max_output_tokens": prompt.output_tokens_max,
    }
    if _thinks(target.facts) is not False:
        plain["include"] = [ENCRYPTED]
    effort = effort_of(prompt.effort, target.facts)
    reasoning: dict[str, str] = {} if effort is None else {"effort": effort}
    if not target.omitted.reasoning_summary and (effort is not None or _thinks(target.facts)):
        reasoning["summary"] = "auto"
    if reasoning:
        plain["reasoning"] = reasoning
    return plain


def _thinks(facts: ModelFacts) -> bool | None:
    """Whether a model supports thinking; None if unknown. One that does not refuses every parameter about it."""
    return None if facts.efforts is None else bool(facts.efforts)


def _head(instructions: str, tools: Sequence[ToolSpec], also: Sequence[Any]) -> bytes:
    told: list[Any] = [
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
    if told or also:
        head["tools"] = [*told, *also]
    fields = b"," + msgspec.json.encode(head)[1:-1] if head else b""
    return fields + b',"input":['


class _Encoder:
    """Encodes records as items, for one target."""

    def __init__(self, target: Target, media: Media | None, *, with_ids: bool, keeps: bool) -> None:
        self._target = target
        self._media = media
        self._with_ids = with_ids
        self._keeps = keeps

    def record(self, record: Record) -> bytes:
        if (words := said_plainly(record)) and not self._with_ids:  # the fast path for most records
            begin, end = _MODEL_SAYS if record.kind is _ASSISTANT else _USER_SAYS
            return begin + msgspec.json.encode(words) + end
        match record.body:
            case Reply() as reply:
                items = self._items(reply, record.seq)
            case ToolResult() as result:
                id_ = fitting(result.call, PLAIN_IDS)
                items = [{"type": "function_call_output", "call_id": id_, "output": result.output}]
            case UserTurn(attachments=attachments) as turn if attachments:
                items = [{"role": "user", "content": self._with_files(turn)}]
            case body:
                said = said_to_model(body)
                items = [{"role": "user", "content": said}] if said else []
        return b"," + msgspec.json.encode(items)[1:-1] if items else b""

    def _with_files(self, turn: UserTurn) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "input_text", "text": turn.text}] if turn.text else []
        for file in shown(turn.attachments, self._media, self._target.facts, turn.text):
            if file.line:
                content.append({"type": "input_text", "text": file.line})
            else:
                url = f"data:{file.media_type};base64,{file.base64}"
                content.append({"type": "input_image", "image_url": url})
        return content

    def _items(self, reply: Reply, seq: int) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        for part in parts(reply, provider=self._target.provider):
            items += self._item(part, f"msg_{seq}_{len(items)}")
        while items and items[-1].get("type") == "reasoning":
            items.pop()  # reasoning without a following item is refused
        return items

    def _item(self, part: Part, id_: str) -> Iterator[dict[str, Any]]:
        match part.kind:
            case PieceKind.TEXT:
                if part.text:
                    yield self._message(part, id_)
            case PieceKind.CALL:
                assert part.call is not None
                arguments = msgspec.json.encode(part.call.arguments).decode()
                call_id = fitting(part.call.id, PLAIN_IDS)
                yield {
                    "type": "function_call",
                    "call_id": call_id,
                    "name": named(part.call.tool),
                    "arguments": arguments,
                }
            case PieceKind.THINKING:
                item = _sealed(part.seal)
                if item.get("type") == "reasoning" and (
                    self._keeps or "encrypted_content" in item or "content" in item
                ):
                    yield item
            case PieceKind.SERVER:
                item = _sealed(part.seal)
                if "type" in item and LEFT_OUT not in item:
                    yield item

    def _message(self, part: Part, id_: str) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "output_text", "text": part.text, "annotations": []}
        message: dict[str, Any] = {"type": "message", "role": "assistant", "content": [text]}
        if self._with_ids:
            message |= {"id": id_, "status": "completed"}
        if phase := _sealed(part.seal).get("phase"):
            message["phase"] = phase
        return message


def _sealed(seal: str) -> dict[str, Any]:
    """Decode our signature; empty if it was made in another format, before this provider used this one."""
    if not seal.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(seal, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
