"""Inputs for the comparison with pydantic-ai: random replies encoded in all four formats, and a common form of
requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from models.replay import Answer

WORDS = ("rain ", "on ", "Sunday, ", "grüße ", "\n", "{", '"', "日本 ", "🦊 ", "</b>", "a" * 90 + " ", ". ")
TOOLS = ("read", "write_file", "look_up")


@dataclass(frozen=True, slots=True)
class MadeReplyPart:
    """A part of a reply: text in streamed pieces, or a call."""

    kind: str  # thinking, text, call
    pieces: tuple[str, ...] = ()
    name: str = ""
    arguments: str = ""
    id: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeReply:
    parts: tuple[MadeReplyPart, ...]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cut_short: bool

    @property
    def calls(self) -> bool:
        return any(part.kind == "call" for part in self.parts)


def make_random_reply(seed: int) -> MadeReply:
    chance = random.Random(seed)
    parts: list[MadeReplyPart] = []
    if chance.random() < 0.5:
        parts.append(MadeReplyPart("thinking", _words(chance), signature=f"signed{seed}=="))
    if chance.random() < 0.8 or not parts:
        parts.append(MadeReplyPart("text", _words(chance)))
    for number in range(chance.choice((0, 0, 1, 2, 4))):
        arguments = {
            name: _value(chance) for name in chance.sample(("path", "text", "n", "deep"), chance.randint(0, 3))
        }
        text = json.dumps(arguments, ensure_ascii=chance.random() < 0.5)
        parts.append(MadeReplyPart("call", name=chance.choice(TOOLS), arguments=text, id=f"call_{seed}_{number}"))
    thinks = any(part.kind == "thinking" for part in parts)
    return MadeReply(
        parts=tuple(parts),
        input_tokens=(read := chance.randint(1, 90_000)),
        output_tokens=(written := chance.randint(60, 9_000)),
        cached_tokens=chance.choice((0, read // 2)),
        reasoning_tokens=written // 2 if thinks else 0,
        cut_short=not any(part.kind == "call" for part in parts) and chance.random() < 0.2,
    )


def _words(chance: random.Random) -> tuple[str, ...]:
    return (
        "Well ",
        *("".join(chance.choices(WORDS, k=chance.randint(1, 3))) for _ in range(chance.randint(0, 12))),
        "ok",
    )


def _value(chance: random.Random) -> Any:
    return chance.choice(("/tmp/a", "grüße 🦊", 7, 1.5, True, None, [1, "b"], {"x": {"y": []}}, 'a "quoted"\nline', ""))


def encode_reply(format_: str, made: MadeReply, seed: int) -> Answer:
    events = {
        "openai-chat": _encode_chat,
        "openai-responses": _encode_responses,
        "anthropic": _encode_anthropic,
        "google": _encode_google,
    }[format_](made, random.Random(seed))
    headers = {"content-type": "text/event-stream"}
    return Answer(body="".join(events), headers=headers)


def _split_randomly(text: str, chance: random.Random) -> Iterator[str]:
    while text:
        length = chance.randint(1, 12)
        yield text[:length]
        text = text[length:]


def _event(data: Mapping[str, Any], name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


# openai-chat


def _encode_chat(made: MadeReply, chance: random.Random) -> Iterator[str]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "some-model"}

    def delta(fields: Mapping[str, Any], finish: str | None = None) -> str:
        return _event({**base, "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})

    yield delta({"role": "assistant", "content": ""})
    asked = 0
    for part in made.parts:
        if part.kind == "call":
            head = {"index": asked, "id": part.id, "type": "function"}
            yield delta({"tool_calls": [{**head, "function": {"name": part.name, "arguments": ""}}]})
            for piece in _split_randomly(part.arguments, chance):
                yield delta({"tool_calls": [{"index": asked, "function": {"arguments": piece}}]})
            asked += 1
        for piece in part.pieces:
            yield delta({"reasoning_content" if part.kind == "thinking" else "content": piece})
    yield delta({}, "length" if made.cut_short else "tool_calls" if made.calls else "stop")
    usage = {
        "prompt_tokens": made.input_tokens,
        "completion_tokens": made.output_tokens,
        "total_tokens": made.input_tokens + made.output_tokens,
        "prompt_tokens_details": {"cached_tokens": made.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": made.reasoning_tokens},
    }
    yield _event({**base, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


# openai-responses


def _encode_responses(made: MadeReply, chance: random.Random) -> Iterator[str]:
    number = 0

    def build_event(type_: str, **data: Any) -> str:
        nonlocal number
        number += 1
        return _event({"type": type_, "sequence_number": number, **data}, type_)

    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "some-model",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "in_progress",
    }
    yield build_event("response.created", response=response)
    output: list[dict[str, Any]] = []
    for index, part in enumerate(made.parts):
        begun, item = _item(part, index)
        place = {"output_index": index, "item_id": item["id"]}
        yield build_event("response.output_item.added", output_index=index, item=begun)
        yield from _item_events(build_event, part, place, chance)
        yield build_event("response.output_item.done", output_index=index, item=item)
        output.append(item)
    usage = {
        "input_tokens": made.input_tokens,
        "input_tokens_details": {"cached_tokens": made.cached_tokens},
        "output_tokens": made.output_tokens,
        "output_tokens_details": {"reasoning_tokens": made.reasoning_tokens},
        "total_tokens": made.input_tokens + made.output_tokens,
    }
    if made.cut_short:
        ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        ended = {"status": "completed"}
    yield build_event(f"response.{ended['status']}", response={**response, **ended, "output": output, "usage": usage})


def _item(part: MadeReplyPart, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an item as it starts and as it is when it is complete."""
    text = "".join(part.pieces)
    match part.kind:
        case "thinking":
            begun: dict[str, Any] = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
            summary = [{"type": "summary_text", "text": text}]
            return begun, {**begun, "summary": summary, "encrypted_content": part.signature}
        case "call":
            begun = {
                "type": "function_call",
                "id": f"fc_{index}",
                "call_id": part.id,
                "name": part.name,
                "arguments": "",
                "status": "in_progress",
            }
            return begun, {**begun, "arguments": part.arguments, "status": "completed"}
        case _:
            begun = {
                "type": "message",
                "id": f"msg_{index}",
                "role": "assistant",
                "content": [],
                "status": "in_progress",
            }
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return begun, {**begun, "content": content, "status": "completed"}


def _item_events(
    build_event: Any, part: MadeReplyPart, place: Mapping[str, Any], chance: random.Random
) -> Iterator[str]:
    text = "".join(part.pieces)
    match part.kind:
        case "thinking":
            at = {**place, "summary_index": 0}
            yield build_event("response.reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
            for piece in part.pieces:
                yield build_event("response.reasoning_summary_text.delta", **at, delta=piece)
            yield build_event("response.reasoning_summary_text.done", **at, text=text)
            yield build_event("response.reasoning_summary_part.done", **at, part={"type": "summary_text", "text": text})
        case "call":
            for piece in _split_randomly(part.arguments, chance):
                yield build_event("response.function_call_arguments.delta", **place, delta=piece)
            yield build_event(
                "response.function_call_arguments.done", **place, arguments=part.arguments, name=part.name
            )
        case _:
            at = {**place, "content_index": 0}
            begun = {"type": "output_text", "text": "", "annotations": []}
            yield build_event("response.content_part.added", **at, part=begun)
            for piece in part.pieces:
                yield build_event("response.output_text.delta", **at, delta=piece, logprobs=[])
            yield build_event("response.output_text.done", **at, text=text, logprobs=[])
            yield build_event("response.content_part.done", **at, part={**begun, "text": text})


# anthropic


def _encode_anthropic(made: MadeReply, chance: random.Random) -> Iterator[str]:
    def build_event(type_: str, **data: Any) -> str:
        return _event({"type": type_, **data}, type_)

    usage = {
        "input_tokens": made.input_tokens - made.cached_tokens,
        "cache_read_input_tokens": made.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield build_event("message_start", message=message)
    yield build_event("ping")
    for index, part in enumerate(made.parts):
        match part.kind:
            case "thinking":
                block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in part.pieces]
                deltas.append({"type": "signature_delta", "signature": part.signature})
            case "call":
                block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                deltas = [
                    {"type": "input_json_delta", "partial_json": cut}
                    for cut in ("", *_split_randomly(part.arguments, chance))
                ]
            case _:
                block = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in part.pieces]
        yield build_event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield build_event("content_block_delta", index=index, delta=delta)
        yield build_event("content_block_stop", index=index)
    reason = "max_tokens" if made.cut_short else "tool_use" if made.calls else "end_turn"
    yield build_event(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": made.output_tokens},
    )
    yield build_event("message_stop")


# google


def _encode_google(made: MadeReply, chance: random.Random) -> Iterator[str]:
    def build_event(parts: list[Any], **more: Any) -> str:
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **more}
        return _event({"candidates": [candidate], "usageMetadata": counts, "modelVersion": "gemini-2.5-pro"})

    counts = {
        "promptTokenCount": made.input_tokens,
        "candidatesTokenCount": made.output_tokens - made.reasoning_tokens,
        "cachedContentTokenCount": made.cached_tokens,
        "thoughtsTokenCount": made.reasoning_tokens,
        "totalTokenCount": made.input_tokens + made.output_tokens,
    }
    for part in made.parts:
        if part.kind == "call":
            yield build_event(
                [{"functionCall": {"id": part.id, "name": part.name, "args": json.loads(part.arguments)}}]
            )
        for piece in part.pieces:
            yield build_event([{"text": piece, "thought": True} if part.kind == "thinking" else {"text": piece}])
    yield build_event([{"text": ""}], finishReason="MAX_TOKENS" if made.cut_short else "STOP")


# Requests, in their common form


def list_request_parts(format_: str, body: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """List all parts in order: `("user", "text", words)`, `("model", "call", id, name, arguments)` and so on."""
    return list(
        {
            "openai-chat": _parse_chat,
            "openai-responses": _parse_responses,
            "anthropic": _parse_anthropic,
            "google": _parse_google,
        }[format_](body)
    )


def _parse_chat(body: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for message in body["messages"]:
        role = _role(message["role"])
        if role == "tool":
            yield "user", "result", message["tool_call_id"], message["content"]
            continue
        yield from _texts(role, message.get("content"))
        for call in message.get("tool_calls") or ():
            yield "model", "call", call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def _parse_responses(body: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    if body.get("instructions"):
        yield "system", "text", body["instructions"]
    for item in body["input"]:
        match item.get("type"):
            case "function_call":
                yield "model", "call", item["call_id"], item["name"], json.loads(item["arguments"])
            case "function_call_output":
                yield "user", "result", item["call_id"], item["output"]
            case _:
                yield from _texts(_role(item["role"]), item["content"])


def _parse_anthropic(body: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    yield from _texts("system", body.get("system"))
    for message in body["messages"]:
        role = "model" if message["role"] == "assistant" else "user"
        if isinstance(message["content"], str):
            yield role, "text", message["content"]
            continue
        for block in message["content"]:
            match block["type"]:
                case "tool_use":
                    yield role, "call", block["id"], block["name"], block["input"]
                case "tool_result":
                    content = block["content"]
                    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                    yield role, "result", block["tool_use_id"], text
                case _:
                    yield role, "text", block["text"]


def _parse_google(body: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for part in (body.get("systemInstruction") or {"parts": ()})["parts"]:
        yield "system", "text", part["text"]
    for content in body["contents"]:
        for part in content["parts"]:
            if call := part.get("functionCall"):
                yield content["role"], "call", call.get("id"), call["name"], call.get("args") or {}
            elif result := part.get("functionResponse"):
                yield content["role"], "result", result.get("id"), next(iter(result["response"].values()))
            else:
                yield content["role"], "text", part["text"]


def _role(role: str) -> str:
    return {"assistant": "model", "developer": "system"}.get(role, role)


def _texts(role: str, content: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(content, str):
        if content:
            yield role, "text", content
    for part in content if isinstance(content, list) else ():
        yield role, "text", part["text"]
