"""The rules of each wire format for a request, as its provider would check them. Raises `AssertionError` with the
rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from retinue.config.models import WireFormat

LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DUMMY_SIGNATURE = "skip_thought_signature_validator"
CACHE_MARKS_MAX = 4


def check_request_rules(format_: WireFormat, body: Mapping[str, Any], *, foreign_seals: Iterable[str] = ()) -> None:
    """Check a request body. `foreign_seals` are seals of other providers, which must not be in it."""
    raw = json.dumps(body, ensure_ascii=False)
    for seal in foreign_seals:
        assert seal not in raw, f"a seal of another provider was sent: {seal}"
    RULES[format_](body)


def anthropic(body: Mapping[str, Any]) -> None:
    assert body["max_tokens"] > 0
    assert count_key(body, "cache_control") <= CACHE_MARKS_MAX
    thinking = body.get("thinking")
    if thinking and thinking["type"] == "enabled":
        assert 1024 <= thinking["budget_tokens"] < body["max_tokens"]
    messages = body["messages"]
    assert messages and messages[0]["role"] == "user", "the first message must be the user's"
    _alternate([message["role"] for message in messages])
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        blocks = message["content"]
        assert blocks, "an empty message"
        kinds = [block["type"] for block in blocks]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(waiting), f"the next results must be those of {waiting}, not {results}"
        assert kinds[: len(results)] == ["tool_result"] * len(results), "results come first"
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert message["role"] == "assistant" or not waiting
        assert not seen & set(waiting) and len(set(waiting)) == len(waiting), "an id is used twice"
        seen |= set(waiting)
        for block in blocks:
            _anthropic_block(block)
    assert not waiting, "the last calls have no results"


def _anthropic_block(block: Mapping[str, Any]) -> None:
    match block["type"]:
        case "text":
            assert block["text"].strip(), "an empty text"
        case "thinking":
            assert block["signature"], "thinking without a signature"
        case "redacted_thinking":
            assert block["data"]
        case "tool_use":
            assert LEGAL_ID.fullmatch(block["id"]) and isinstance(block["input"], dict)
        case "tool_result":
            assert LEGAL_ID.fullmatch(block["tool_use_id"]) and block["content"].strip()
        case _:
            pass


def google(body: Mapping[str, Any]) -> None:
    assert body["generationConfig"]["maxOutputTokens"] > 0
    contents = body["contents"]
    assert contents and contents[0]["role"] == "user" and contents[-1]["role"] == "user"
    _alternate([content["role"] for content in contents])
    waiting: list[tuple[str, str]] = []
    for content in contents:
        parts = content["parts"]
        assert parts, "an empty content"
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert [(r["id"], r["name"]) for r in results] == waiting, "results must follow their calls, in order"
        assert all(isinstance(r["response"], dict) for r in results)
        calls = [part for part in parts if "functionCall" in part]
        assert content["role"] == "model" or not calls
        assert not calls or calls[0].get("thoughtSignature"), "the first call of a content must be signed"
        waiting = [(part["functionCall"]["id"], part["functionCall"]["name"]) for part in calls]
        assert all(LEGAL_ID.fullmatch(id_) for id_, _ in waiting)
        assert all(isinstance(part["functionCall"]["args"], dict) for part in calls)
    assert not waiting, "the last calls have no results"


def openai_chat(body: Mapping[str, Any]) -> None:
    assert body.get("max_tokens", 0) > 0 or body["max_completion_tokens"] > 0
    waiting: list[str] = []
    for number, message in enumerate(body["messages"]):
        role = message["role"]
        assert role != "system" or number == 0
        if waiting:
            assert role == "tool", f"the next results must be those of {waiting}"
        if role == "tool":
            assert message["tool_call_id"] in waiting, "a result without its call"
            waiting.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
        elif role == "assistant":
            calls = message.get("tool_calls") or []
            assert calls or message["content"], "an empty message"
            for call in calls:
                assert LEGAL_ID.fullmatch(call["id"])
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
            waiting = [call["id"] for call in calls]
        else:
            assert message["content"], "an empty message"
    assert not waiting, "the last calls have no results"


def openai_responses(body: Mapping[str, Any]) -> None:
    assert body["max_output_tokens"] > 0
    assert body["store"] is False
    waiting: set[str] = set()
    after_reasoning = False
    for item in body["input"]:
        kind = item.get("type", "message")
        if after_reasoning:
            mine = kind in ("function_call", "reasoning") or item.get("role") == "assistant" or kind.endswith("_call")
            assert mine, "reasoning without what follows it"
        after_reasoning = kind == "reasoning"
        match kind:
            case "reasoning":
                assert item["encrypted_content"], "reasoning without its encrypted content"
                assert isinstance(item["summary"], list)
            case "function_call":
                assert LEGAL_ID.fullmatch(item["call_id"]) and item["call_id"] not in waiting
                assert isinstance(json.loads(item["arguments"]), dict)
                waiting.add(item["call_id"])
            case "function_call_output":
                assert item["call_id"] in waiting, "a result without its call"
                waiting.remove(item["call_id"])
            case _:
                assert "role" not in item or item["content"], "an empty message"
                assert not waiting or item.get("role") == "assistant", f"the next results must be those of {waiting}"
    assert not after_reasoning, "reasoning without what follows it"
    assert not waiting, "the last calls have no results"


RULES: Mapping[WireFormat, Callable[[Mapping[str, Any]], None]] = {
    WireFormat.ANTHROPIC: anthropic,
    WireFormat.GOOGLE: google,
    WireFormat.OPENAI_CHAT: openai_chat,
    WireFormat.OPENAI_RESPONSES: openai_responses,
}


def count_key(value: Any, name: str) -> int:
    """Count how often a key occurs anywhere in a value."""
    if isinstance(value, dict):
        return sum((key == name) + count_key(inner, name) for key, inner in value.items())
    return sum(count_key(inner, name) for inner in value) if isinstance(value, list) else 0


def _alternate(roles: Sequence[str]) -> None:
    assert all(one != other for one, other in pairwise(roles)), f"roles do not alternate: {roles}"
