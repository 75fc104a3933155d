"""Whatever a server sends, a reader gives chunks or says that it cannot: never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.model import ModelFailed
from retinue.domain.record import Usage
from retinue.models.base import Asks, Ended, Seals, Text, Thinking
from retinue.models.http import Reader
from retinue.models.openai_chat_reader import ChatReader
from retinue.models.openai_responses_reader import ResponsesReader

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


def check(reader: Reader, events: list[Any], *, whole: bool) -> None:
    try:
        for event in events:
            data = json.dumps(event).encode()
            for chunk in reader.whole(data) if whole else reader.read(b"", data):
                assert isinstance(chunk, Text | Thinking | Asks | Seals)
                match chunk:
                    case Text(said) | Thinking(said) | Seals(_, said):
                        assert said
                        assert isinstance(said, str)
                    case Asks(call):
                        assert isinstance(call.tool, str)
                        assert isinstance(call.arguments, dict)
        ended = reader.end()
    except ModelFailed:
        return
    assert isinstance(ended, Ended)
    assert isinstance(ended.usage, Usage)
    assert ended.usage.input_tokens >= ended.usage.cache_read_tokens + ended.usage.cache_write_tokens >= 0


@pytest.mark.parametrize("reader", [ChatReader, ResponsesReader])
@given(events=st.lists(_EVENTS | _CHOICES | _TYPED, max_size=4), whole=st.booleans())
def test_made_up_replies_are_read_or_refused(
    reader: type[ChatReader | ResponsesReader], events: Any, whole: bool
) -> None:
    check(reader("acme"), events, whole=whole)
