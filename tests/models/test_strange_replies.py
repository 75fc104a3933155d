"""Whatever a server sends, a reader returns chunks or fails with `ModelFailed`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.replay import Answer, collect_reply, make_http_model, open_provider_connections, provider

from retinue.config.models import WireFormat
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import Usage
from retinue.models.base import EndChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.formats.anthropic_reader import AnthropicReader
from retinue.models.formats.google_reader import GoogleReader
from retinue.models.formats.openai_chat_reader import OpenAIChatReader
from retinue.models.formats.openai_responses_reader import ITEMS_MAX, OpenAIResponsesReader
from retinue.models.provider_http import ReplyReader

# Terms of the two formats, so that generated data looks like them
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


# The same for the other two formats
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


def check_reader(reader: ReplyReader, events: list[Any], *, whole: bool) -> None:
    try:
        for event in events:
            data = json.dumps(event).encode()
            for chunk in reader.read_body(data) if whole else reader.read_event(b"", data):
                assert isinstance(chunk, TextChunk | ThinkingChunk | ToolCallChunk | SignatureChunk)
                match chunk:
                    case TextChunk(text) | ThinkingChunk(text) | SignatureChunk(_, text):
                        assert text
                        assert isinstance(text, str)
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
def test_strange_random_replies_in_the_openai_formats_are_read_or_refused(
    reader: type[OpenAIChatReader | OpenAIResponsesReader], events: Any, whole: bool
) -> None:
    check_reader(reader("acme"), events, whole=whole)


@pytest.mark.parametrize("reader", [AnthropicReader, GoogleReader])
@settings(max_examples=40)
@given(events=st.lists(_ANTHROPIC | _GOOGLE | _EVENTS, max_size=4), whole=st.booleans())
def test_strange_random_replies_in_the_anthropic_and_google_formats_are_read_or_refused(
    reader: type[AnthropicReader | GoogleReader], events: Any, whole: bool
) -> None:
    check_reader(reader("acme"), events, whole=whole)


@pytest.mark.parametrize("format_", list(WireFormat))
@pytest.mark.parametrize(
    "sent",
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
async def test_a_strange_reply_that_cannot_be_decoded_is_a_model_failure_that_allows_fallback(
    format_: WireFormat, sent: bytes, whole: bool
) -> None:
    """A recursion error, or bytes that are not text, once escaped as they were and ended the run."""
    closed = sent + b"}" * 100_000 if sent.endswith(b'{"a":') else sent
    stop = b'{"type":"content_block_stop"}'
    body = closed if whole else b"data: " + closed + b"\n\ndata: " + stop + b"\n\n"
    async with open_provider_connections() as link, provider(Answer(body=body)) as server:
        collected = await collect_reply(make_http_model(link, server.url, format_))
    assert collected["error"] in (ModelFailureKind.MALFORMED, ModelFailureKind.CONNECTION)


def test_an_openai_responses_reply_with_a_strange_number_of_items_is_refused() -> None:
    """Each item was once compared with every other, so a server that sent a million of them blocked the process."""
    reader = OpenAIResponsesReader("acme")

    def item_added_event(index: int) -> bytes:
        event = {"type": "response.output_item.added", "output_index": index, "item": {"type": "message"}}
        return json.dumps(event).encode()

    for index in range(ITEMS_MAX):
        assert list(reader.read_event(b"", item_added_event(index))) == []
    with pytest.raises(ModelFailed, match="sent an invalid reply"):
        list(reader.read_event(b"", item_added_event(ITEMS_MAX)))


def test_openai_chat_reasoning_details_in_very_many_pieces_are_joined() -> None:
    """Each piece was once a copy of all before it, so a long thought blocked the process for seconds."""
    reader, pieces = OpenAIChatReader("acme"), 100_000
    detail = {"type": "reasoning.text", "index": 0, "text": "word "}
    event = json.dumps({"choices": [{"delta": {"reasoning_details": [detail]}}]}).encode()
    for _ in range(pieces):
        list(reader.read_event(b"", event))
    (*_, sealed) = reader.read_event(b"", b"[DONE]")
    assert isinstance(sealed, SignatureChunk)
    assert json.loads(sealed.signature) == [detail | {"text": "word " * pieces}]
