"""Whatever a server sends, a reader gives chunks or says that it cannot: never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.replay import Answer, hear, linked, model_at, provider

from retinue.config.models import WireFormat
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import Usage
from retinue.models.base import EndChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.formats.anthropic_reader import AnthropicReader
from retinue.models.formats.google_reader import GoogleReader
from retinue.models.formats.openai_chat_reader import OpenAIChatReader
from retinue.models.formats.openai_responses_reader import ITEMS_MAX, OpenAIResponsesReader
from retinue.models.provider_http import ReplyReader

# The words that the two formats have for things, so that what is made up looks like them.
_KEYS = [
    "choices",
    "index",
    "delta",
    "message",
    "content",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "refusal",
    "tool_calls",
    "id",
    "function",
    "name",
    "arguments",
    "finish_reason",
    "usage",
    "error",
    "x_groq",
    "object",
    "type",
    "text",
    "thinking",
    "summary",
    "data",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cost",
    "prompt_tokens_details",
    "cached_tokens",
    "output_index",
    "item",
    "response",
    "output",
    "status",
    "incomplete_details",
    "reason",
    "call_id",
    "encrypted_content",
    "phase",
    "code",
]
_WORDS = [
    "stop",
    "tool_calls",
    "length",
    "error",
    "<think>",
    "</think>",
    "{}",
    '{"a":1}',
    "reasoning",
    "function_call",
    "message",
    "output_text",
    "text",
    "thinking",
    "reasoning.text",
    "completed",
    "incomplete",
    "failed",
    "response.output_text.delta",
    "response.output_item.done",
    "response.output_item.added",
    "response.completed",
    "response.failed",
    "response.reasoning_text.delta",
]
_PLAIN = st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(_WORDS) | st.text(max_size=5)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
    max_leaves=25,
)
_EVENTS = st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=6)
_CHOICES = st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"delta": _VALUES}, optional={"finish_reason": _VALUES}), max_size=2)},
    optional={"usage": _VALUES, "error": _VALUES},
)
_TYPED = st.fixed_dictionaries(
    {"type": st.sampled_from([word for word in _WORDS if word.startswith("response.")])},
    optional={"delta": _VALUES, "item": _VALUES, "output_index": st.integers(0, 2), "response": _VALUES},
)


# The same for the other two.
_BLOCK_TYPES = ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result", "x"]
_EVENT_TYPES = [
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "error", "ping"),
]
_DELTA_TYPES = ["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta"]
_COUNTS = st.integers(-(2**70), 2**70) | _VALUES
_BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(_BLOCK_TYPES)},
    optional=dict.fromkeys(("id", "name", "text", "thinking", "signature", "data", "input"), _VALUES),
)
_DELTAS = st.fixed_dictionaries(
    {"type": st.sampled_from(_DELTA_TYPES)},
    optional=dict.fromkeys(("text", "thinking", "signature", "partial_json", "stop_reason"), _VALUES),
)
_ANTHROPIC_USAGE = st.dictionaries(
    st.sampled_from(["input_tokens", "output_tokens", "cache_read_input_tokens", "output_tokens_details"]), _COUNTS
)
_ANTHROPIC = st.fixed_dictionaries(
    {"type": st.sampled_from(_EVENT_TYPES)},
    optional={
        "delta": _DELTAS | _VALUES,
        "content_block": _BLOCKS | _VALUES,
        "usage": _ANTHROPIC_USAGE,
        "message": st.fixed_dictionaries({}, optional={"usage": _ANTHROPIC_USAGE, "content": st.lists(_BLOCKS)}),
        "content": st.lists(_BLOCKS, max_size=3),
        "stop_reason": _VALUES,
    },
)
_GOOGLE_PARTS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("text", "thought", "thoughtSignature", "functionCall", "inlineData"), _VALUES),
)
_GOOGLE = st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(
            st.fixed_dictionaries(
                {"content": st.fixed_dictionaries({"parts": st.lists(_GOOGLE_PARTS, max_size=3)})},
                optional={"finishReason": st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "?"]) | _VALUES},
            ),
            max_size=2,
        ),
        "usageMetadata": st.dictionaries(
            st.sampled_from(["promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount"]), _COUNTS
        ),
        "error": _VALUES,
    },
)


def check(reader: ReplyReader, events: list[Any], *, whole: bool) -> None:
    try:
        for event in events:
            data = json.dumps(event).encode()
            for chunk in reader.read_body(data) if whole else reader.read_event(b"", data):
                assert isinstance(chunk, TextChunk | ThinkingChunk | ToolCallChunk | SignatureChunk)
                match chunk:
                    case TextChunk(said) | ThinkingChunk(said) | SignatureChunk(_, said):
                        assert said
                        assert isinstance(said, str)
                    case ToolCallChunk(call):
                        assert isinstance(call.tool, str)
                        assert isinstance(call.arguments, dict)
        ended = reader.finish()
    except ModelFailed:
        return
    assert isinstance(ended, EndChunk)
    assert isinstance(ended.usage, Usage)
    assert ended.usage.input_tokens >= ended.usage.cache_read_tokens + ended.usage.cache_write_tokens >= 0


@pytest.mark.parametrize("reader", [OpenAIChatReader, OpenAIResponsesReader])
@given(events=st.lists(_EVENTS | _CHOICES | _TYPED, max_size=4), whole=st.booleans())
def test_made_up_replies_are_read_or_refused(
    reader: type[OpenAIChatReader | OpenAIResponsesReader], events: Any, whole: bool
) -> None:
    check(reader("acme"), events, whole=whole)


@pytest.mark.parametrize("reader", [AnthropicReader, GoogleReader])
@settings(max_examples=40)
@given(events=st.lists(_ANTHROPIC | _GOOGLE | _EVENTS, max_size=4), whole=st.booleans())
def test_made_up_replies_of_anthropic_and_google_are_read_or_refused(
    reader: type[AnthropicReader | GoogleReader], events: Any, whole: bool
) -> None:
    check(reader("acme"), events, whole=whole)


@pytest.mark.parametrize("format_", list(WireFormat))
@pytest.mark.parametrize(
    "said",
    [
        b'{"a":' * 100_000,
        b'{"type":"content_block_start","content_block":{"type":"tool_use","name":"t","input":' + b'{"a":' * 100_000,
        b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"t","args":' + b'{"a":' * 100_000,
        b'{"type":"content_block_start","content_block":{"type":"strange","x":"\xff\xfe"}}',
        b'{"type":"content_block_start","content_block":{"type":"server_tool_use","x":"\xff\xfe"}}',
        b'{"candidates":[{"content":{"parts":[{"inlineData":"\xff\xfe"}]},"finishReason":"STOP"}]}',
        b'{"choices":[{"delta":{"content":"\xff\xfe"}}]}',
        b'{"type":"response.output_item.done","item":{"type":"x","y":"\xff"}}',
    ],
    ids=range(8),
)
@pytest.mark.parametrize("whole", [True, False])
async def test_what_no_decoder_can_read_is_a_failure_that_the_next_model_can_mend(
    format_: WireFormat, said: bytes, whole: bool
) -> None:
    """A stack that runs out, or bytes that are no text, once came out as they were and ended the run."""
    closed = said + b"}" * 100_000 if said.endswith(b'{"a":') else said
    stop = b'{"type":"content_block_stop"}'
    body = closed if whole else b"data: " + closed + b"\n\ndata: " + stop + b"\n\n"
    async with linked() as link, provider(Answer(body=body)) as server:
        heard = await hear(model_at(link, server.url, format_))
    assert heard["error"] in (ModelFailureKind.MALFORMED, ModelFailureKind.CONNECTION)


def test_a_reply_with_parts_without_end_is_none() -> None:
    """Each part was looked at again with every other: a server that made up a million of them held the house up."""
    reader = OpenAIResponsesReader("acme")

    def begins(index: int) -> bytes:
        event = {"type": "response.output_item.added", "output_index": index, "item": {"type": "message"}}
        return json.dumps(event).encode()

    for index in range(ITEMS_MAX):
        assert list(reader.read_event(b"", begins(index))) == []
    with pytest.raises(ModelFailed, match="sent an invalid reply"):
        list(reader.read_event(b"", begins(ITEMS_MAX)))


def test_a_thought_in_very_many_pieces_is_put_together_once() -> None:
    """Each piece used to be a copy of all before it: a long thought took seconds in which nobody else was served."""
    reader, pieces = OpenAIChatReader("acme"), 100_000
    detail = {"type": "reasoning.text", "index": 0, "text": "word "}
    event = json.dumps({"choices": [{"delta": {"reasoning_details": [detail]}}]}).encode()
    for _ in range(pieces):
        list(reader.read_event(b"", event))
    (*_, sealed) = reader.read_event(b"", b"[DONE]")
    assert isinstance(sealed, SignatureChunk)
    assert json.loads(sealed.signature) == [detail | {"text": "word " * pieces}]
