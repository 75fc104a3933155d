"""The openai-responses format: requests, and replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.replay import (
    KEY,
    Answer,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    prompt_of,
    provider,
)

from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats import openai_responses_reader
from retinue.models.formats.message_parts import SUMMARY_HEAD
from retinue.models.formats.openai_responses import OpenAIResponsesFormat
from retinue.models.provider_http import ModelTarget

FORMAT = "openai-responses"
WEATHER_TOOL = ToolSpec(name="weather", description="The weather somewhere.", parameters={"type": "object"})
USAGE = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}


def event(type_: str, index: int | None = 0, **more: Any) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index}
    return {"type": f"response.{type_}", **place, **more}


def text_deltas(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [event("output_text.delta", index, delta=piece) for piece in pieces]


def item_done_event(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return event("output_item.done", index, item=item)


def message_item(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, **more}


def call_item(id_: str = "call_1", arguments: str = '{"city":"Bern"}') -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": id_, "name": "weather", "arguments": arguments}


def reasoning_item(*summary: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": parts, "status": "completed", **more}


def completed_event(*output: Any, **more: Any) -> dict[str, Any]:
    response = {"status": "completed", "output": list(output), "usage": USAGE, "error": None, **more}
    return {"type": f"response.{response['status']}", "response": response}


def stream(*events: Any) -> str:
    return "".join(f"event: {each.get('type')}\ndata: {json.dumps(each)}\n\n" for each in events)


async def read(*events: Any) -> dict[str, Any]:
    return await read_body(stream(*events))


async def read_body(body: str) -> dict[str, Any]:
    async with open_provider_connections() as link, provider(Answer(body=body)) as server:
        return await collect_reply(make_http_model(link, server.url, FORMAT))


def make_target(name: str = "acme", **how: Any) -> ModelTarget:
    known = {key: how.pop(key) for key in ("vision", "efforts", "tools") if key in how}
    return ModelTarget(facts=make_model_facts(name, **known), url="http://127.0.0.1:1/v1/", **how)


def request_body(*bodies: Any, target: ModelTarget | None = None, **more: Any) -> Any:
    request = OpenAIResponsesFormat(EncodedContextCache()).build_request(
        prompt_of(*bodies, **more), target or make_target(), KEY
    )
    return json.loads(b"".join(request.body))


def input_items(*bodies: Any, target: ModelTarget | None = None, **more: Any) -> list[Any]:
    return request_body(*bodies, target=target, **more)["input"]


# --- replies ---


async def test_text_deltas_of_an_openai_responses_stream_are_joined_and_usage_is_read() -> None:
    collected = await read(
        event("created", None, response={"status": "in_progress"}),
        event("output_item.added", item={"type": "message", "id": "msg_1", "content": []}),
        event("content_part.added", part={"type": "output_text", "text": ""}),
        *text_deltas("Open until ", "six. 🥐"),
        event("output_text.done", text="Open until six. 🥐"),
        item_done_event(message_item("Open until six. 🥐")),
        completed_event(message_item("Open until six. 🥐")),
    )
    assert collected["text"] == "Open until six. 🥐"
    assert (collected["finish"], collected["order"]) == ("stop", ["text"])
    assert collected["usage"] == {"input": 30, "output": 12, "cache_read": 20, "cache_write": 0, "reasoning": 5}


async def test_text_that_comes_only_in_done_events_of_an_openai_responses_stream_is_read() -> None:
    assert (await read(item_done_event(message_item("Open ", "now.")), completed_event()))["text"] == "Open now."
    assert (await read(completed_event(message_item("Open now."))))["text"] == "Open now."


async def test_tool_calls_in_an_openai_responses_stream_are_read_once_when_they_are_complete() -> None:
    collected = await read(
        event("output_item.added", item=call_item(arguments="")),
        event("function_call_arguments.delta", delta='{"city":'),
        event("function_call_arguments.delta", delta='"Bern"}'),
        item_done_event(call_item()),
        item_done_event(call_item("call_2", '{"city":"Ro'), 1),
        completed_event(call_item(), call_item("call_2", '{"city":"Ro')),
    )
    assert collected["tool_calls"] == [
        {"id": "call_1", "name": "weather", "arguments": {"city": "Bern"}},
        {"id": "call_2", "name": "weather", "arguments": {"_unparsed": '{"city":"Ro'}},
    ]
    assert collected["finish"] == "tool_call"


async def test_a_tool_call_that_is_only_in_the_final_event_of_an_openai_responses_stream_is_read() -> None:
    collected = await read(*text_deltas("Let me see."), completed_event(message_item("Let me see."), call_item()))
    assert (collected["text"], len(collected["tool_calls"])) == ("Let me see.", 1)


async def test_a_reasoning_summary_of_openai_responses_is_thinking_and_its_item_is_kept_to_be_sent_back() -> None:
    collected = await read(
        event("output_item.added", item=reasoning_item()),
        event("reasoning_summary_text.delta", delta="I could "),
        event("reasoning_summary_text.delta", delta="look."),
        item_done_event(reasoning_item("I could look.", encrypted_content="gAAA")),
        *text_deltas("Six.", index=1),
        completed_event(),
    )
    assert (collected["thinking"], collected["order"]) == ("I could look.", ["thinking", "text"])
    (seal,) = collected["signatures"]
    assert seal["on"] == "thinking"
    assert json.loads(seal["value"]) == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "I could look."}],
        "encrypted_content": "gAAA",
    }


async def test_an_openai_responses_reasoning_item_without_text_is_kept_to_be_sent_back() -> None:
    collected = await read(
        item_done_event(reasoning_item(encrypted_content="gAAA")), item_done_event(call_item(), 1), completed_event()
    )
    assert (collected["thinking"], collected["order"]) == ("", ["thinking", "tool_call"])


async def test_raw_reasoning_text_of_an_openai_responses_reply_is_kept_and_not_shown() -> None:
    raw = {"type": "reasoning_text", "text": "secret musings"}
    collected = await read(
        event("reasoning_text.delta", delta="secret "),
        event("reasoning_text.delta", delta="musings"),
        item_done_event(reasoning_item(content=[raw])),
        *text_deltas("Six.", index=1),
        completed_event(),
    )
    assert (collected["thinking"], collected["text"]) == ("", "Six.")
    (seal,) = collected["signatures"]
    assert json.loads(seal["value"])["content"] == [raw]


async def test_raw_reasoning_that_openai_responses_finishes_after_its_text_is_ordered_before_it() -> None:
    raw = {"type": "reasoning_text", "text": "musings"}
    collected = await read(
        event("output_item.added", item={"type": "reasoning", "id": "rs_9"}),
        event("reasoning_text.delta", delta="musings"),
        event("output_item.added", 1, item={"type": "message", "id": "msg_1"}),
        *text_deltas("Six.", index=1),
        item_done_event(message_item("Six."), 1),
        item_done_event(reasoning_item(content=[raw])),
        completed_event(),
    )
    assert collected["order"] == ["thinking", "text"]
    (seal,) = collected["signatures"]
    assert json.loads(seal["value"]) == {"type": "reasoning", "id": "rs_9", "summary": [], "content": [raw]}


async def test_a_server_tool_call_in_an_openai_responses_reply_is_kept_unchanged() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "bakery"}}
    collected = await read(item_done_event(search), *text_deltas("Six.", index=1), completed_event())
    assert collected["server_tool_calls"] == [{"name": "web_search", "id": "ws_1"}]
    assert collected["order"] == ["server_tool_call", "text"]
    assert json.loads(collected["signatures"][0]["value"]) == search


async def test_a_server_item_of_openai_responses_that_is_too_large_is_kept_without_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_responses_reader, "SERVER_ITEM_BYTES_MAX", 100)
    picture = {"type": "image_generation_call", "id": "ig_1", "result": "x" * 200}
    collected = await read(item_done_event(picture), *text_deltas("There.", index=1), completed_event())
    assert collected["server_tool_calls"] == [{"name": "image_generation", "id": "ig_1"}]
    (seal,) = collected["signatures"]
    assert "xxx" not in seal["value"]
    pieces = (
        ReplyPiece(kind=ReplyPieceKind.SERVER, seal=seal["value"]),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=6),
    )
    assert input_items(Reply(text="There.", provider="acme", pieces=pieces)) == [sent_message_item("There.")]


async def test_the_phase_of_an_openai_responses_message_is_kept_to_be_sent_back() -> None:
    collected = await read(
        *text_deltas("On it."),
        item_done_event(message_item("On it.", phase="commentary")),
        item_done_event(call_item(), 1),
        completed_event(),
    )
    assert collected["signatures"] == [{"on": "text", "value": '{"phase":"commentary"}'}]


async def test_a_refusal_in_an_openai_responses_reply_is_text_with_a_content_filter_finish() -> None:
    streamed = await read(event("refusal.delta", delta="I would rather not."), completed_event())
    whole = await read(
        item_done_event(message_item() | {"content": [{"type": "refusal", "refusal": "I would rather not."}]}),
        completed_event(),
    )
    for collected in (streamed, whole):
        assert (collected["text"], collected["finish"]) == ("I would rather not.", "content_filter")


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")]
)
async def test_an_incomplete_openai_responses_reply_has_the_finish_reason_of_its_details(
    reason: str | None, finish: str
) -> None:
    details = {"reason": reason} if reason else None
    collected = await read(*text_deltas("Open un"), completed_event(status="incomplete", incomplete_details=details))
    assert (collected["text"], collected["finish"]) == ("Open un", finish)


@pytest.mark.parametrize(
    ("failed", "error"),
    [
        (completed_event(status="failed", error={"code": "rate_limit_exceeded", "message": "slow down"}), "rate_limit"),
        (completed_event(status="failed", error={"code": "server_error", "message": "oops"}), "server"),
        (completed_event(status="failed", error=None), "server"),
        (completed_event(status="cancelled"), "server"),
        ({"type": "error", "code": "insufficient_quota", "message": "out", "param": None}, "quota"),
        ({"type": "error", "error": {"type": "server_error", "message": "oops"}}, "server"),
        ({"error": {"code": "context_length_exceeded", "message": "too long"}}, "context_overflow"),
    ],
)
async def test_an_error_in_an_openai_responses_stream_is_a_model_failure(failed: Any, error: str) -> None:
    collected = await read(*text_deltas("Open un"), failed)
    assert (collected["error"], collected["status"]) == (error, 200)


async def test_an_openai_responses_stream_that_stops_in_the_middle_is_a_connection_failure() -> None:
    assert (await read(*text_deltas("Open un")))["error"] == "connection"
    assert (await read(*text_deltas("Open un"), item_done_event(message_item("Open un"))))["error"] == "connection"


async def test_a_done_marker_at_the_end_of_an_openai_responses_stream_is_ignored() -> None:
    assert (await read_body(stream(*text_deltas("Six."), completed_event()) + "data: [DONE]\n\n"))["text"] == "Six."


async def test_unneeded_fields_of_an_openai_responses_reply_may_have_any_type() -> None:
    collected = await read(
        event("in_progress", None, response=None, sequence_number="x"),
        event("something.new", item=7, delta={}),
        event("output_item.added", item=None),
        event("output_text.delta", delta=None),
        event("output_item.done", item="?"),
        item_done_event({"type": 7}),
        {"type": "keepalive"},
        *text_deltas("Six.", index=1),
        completed_event(usage=None),
    )
    assert (collected["text"], collected["usage"]) == ("Six.", None)


async def test_an_openai_responses_reply_in_one_json_body_is_read() -> None:
    search = {"type": "web_search_call", "id": "ws_1"}
    output = [reasoning_item("Hmm.", encrypted_content="gAAA"), search, message_item("Let me see."), call_item()]
    collected = await read_body(json.dumps(completed_event(*output)["response"]))
    assert collected["order"] == ["thinking", "server_tool_call", "text", "tool_call"]
    assert (collected["thinking"], collected["text"], collected["finish"]) == ("Hmm.", "Let me see.", "tool_call")
    assert collected["usage"]["output"] == 12


async def test_an_error_in_the_json_body_of_an_openai_responses_reply_is_a_model_failure() -> None:
    assert (await read_body(json.dumps({"error": {"message": "no", "code": "insufficient_quota"}})))["error"] == "quota"


async def test_an_openai_responses_reply_is_the_same_for_any_split_of_its_bytes() -> None:
    body = stream(*text_deltas("Grüße ", "🥐"), item_done_event(call_item(), 1), completed_event()).encode()
    async with open_provider_connections() as link:
        for cut in range(1, len(body), 5):
            async with provider(Answer(body=body, cuts=[cut])) as server:
                collected = await collect_reply(make_http_model(link, server.url, FORMAT))
            assert (collected["text"], len(collected["tool_calls"])) == ("Grüße 🥐", 1)


# --- requests ---


def test_an_openai_responses_request_has_url_key_model_tools_and_input_and_is_not_stored() -> None:
    request = OpenAIResponsesFormat(EncodedContextCache()).build_request(
        prompt_of(tools=(WEATHER_TOOL,)), make_target(), KEY
    )
    assert request.url == "http://127.0.0.1:1/v1/responses"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(b"".join(request.body)) == {
        "model": "some-model",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 8192,
        "instructions": "Be brief.",
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": "The weather somewhere.",
                "parameters": {"type": "object"},
                "strict": False,
            }
        ],
        "input": [{"role": "user", "content": "Is the bakery open today?"}],
    }


def sent_message_item(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **more}


SEALED_REASONING = '{"type":"reasoning","summary":[],"id":"rs_1","encrypted_content":"gAAA"}'
SEALED_SEARCH = '{"type":"web_search_call","id":"ws_1","status":"completed"}'
CALLS = (Call(id="run1-0-1", tool="weather", arguments={"city": "Bern"}), Call(id="run1-0-2", tool="clock"))
SEALED_REPLY = Reply(
    text="On it.Still on it.",
    thinking="I could look.",
    calls=CALLS,
    provider="acme",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=13, seal=SEALED_REASONING),
        ReplyPiece(kind=ReplyPieceKind.SERVER, seal=SEALED_SEARCH),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=6, seal='{"phase":"commentary"}'),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=12),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
    ),
)
CALL_ITEMS = [
    {"type": "function_call", "call_id": "run1-0-1", "name": "weather", "arguments": '{"city":"Bern"}'},
    {"type": "function_call", "call_id": "run1-0-2", "name": "clock", "arguments": "{}"},
]


def test_an_openai_responses_reply_is_sent_back_in_its_order_with_its_kept_items() -> None:
    assert input_items(SEALED_REPLY) == [
        json.loads(SEALED_REASONING),
        json.loads(SEALED_SEARCH),
        sent_message_item("On it.", phase="commentary"),
        CALL_ITEMS[0],
        sent_message_item("Still on it."),
        CALL_ITEMS[1],
    ]


@pytest.mark.spec("C46")
def test_an_openai_responses_request_omits_thinking_and_kept_items_of_another_provider() -> None:
    assert input_items(SEALED_REPLY, target=make_target("other")) == [
        sent_message_item("On it."),
        CALL_ITEMS[0],
        sent_message_item("Still on it."),
        CALL_ITEMS[1],
    ]


def test_an_openai_responses_request_contains_the_history_in_its_order() -> None:
    items = input_items(
        ContextStart(),
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Weather in Bern?"),
        Reply(text="Let me see.", thinking="I could look.", calls=CALLS),
        ToolResult(call="run1-0-1", tool="weather", output="Rain."),
        ToolResult(call="run1-0-2", tool="clock", output="It broke.", failed=True),
        Note(text="The server was restarted."),
        Reply(text="It rains."),
    )
    assert items == [
        {"role": "user", "content": f"{SUMMARY_HEAD}\n\nThey met."},
        {"role": "user", "content": "Weather in Bern?"},
        sent_message_item("Let me see."),
        *CALL_ITEMS,
        {"type": "function_call_output", "call_id": "run1-0-1", "output": "Rain."},
        {"type": "function_call_output", "call_id": "run1-0-2", "output": "It broke."},
        {"role": "user", "content": "The server was restarted."},
        sent_message_item("It rains."),
    ]


class FakeMedia:
    def read(self, attachment: Attachment) -> bytes | None:
        return b"PNG" if attachment.hash == "cat" else None


def test_an_openai_responses_model_with_vision_gets_an_image_and_one_without_gets_its_name() -> None:
    cat = Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=3)
    turn = UserTurn(text="Look.", attachments=(cat,))
    (vision_item,) = input_items(turn, target=make_target(vision=True), media=FakeMedia())
    (text_only_item,) = input_items(turn, media=FakeMedia())
    assert vision_item["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": "data:image/png;base64,UE5H"},
    ]
    assert [part["type"] for part in text_only_item["content"]] == ["input_text", "input_text"]
    assert "cat.png" in text_only_item["content"][1]["text"]


# --- repairs, one row each ---


@pytest.mark.spec("C46")
def test_an_openai_responses_request_omits_empty_assistant_messages() -> None:
    assert input_items(UserTurn(text="Hi"), Reply(text="", thinking="Nothing to say."), ContextStart()) == [
        {"role": "user", "content": "Hi"}
    ]


@pytest.mark.spec("C46")
def test_an_openai_responses_request_omits_a_reasoning_item_without_a_following_item() -> None:
    alone = Reply(text="", provider="acme", pieces=(ReplyPiece(kind=ReplyPieceKind.THINKING, seal=SEALED_REASONING),))
    after = Reply(text="Six.", provider="acme", pieces=(ReplyPiece(kind=ReplyPieceKind.TEXT, length=4), *alone.pieces))
    assert input_items(alone, after) == [sent_message_item("Six.")]


@pytest.mark.spec("C46")
def test_an_unencrypted_reasoning_item_is_sent_back_to_openai_responses_only_with_store() -> None:
    bare = '{"type":"reasoning","summary":[],"id":"rs_1"}'
    pieces = (ReplyPiece(kind=ReplyPieceKind.THINKING, seal=bare), ReplyPiece(kind=ReplyPieceKind.TEXT, length=4))
    reply = Reply(text="Six.", provider="acme", pieces=pieces)
    assert input_items(reply) == [sent_message_item("Six.")]
    assert input_items(reply, target=make_target(params={"store": True})) == [
        json.loads(bare),
        sent_message_item("Six."),
    ]


@pytest.mark.spec("C46")
def test_raw_reasoning_is_sent_back_to_openai_responses() -> None:
    raw = '{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"musings"}]}'
    pieces = (ReplyPiece(kind=ReplyPieceKind.THINKING, seal=raw), ReplyPiece(kind=ReplyPieceKind.TEXT, length=4))
    assert input_items(Reply(text="Six.", provider="acme", pieces=pieces))[0] == json.loads(raw)


@pytest.mark.spec("C46")
def test_an_openai_responses_request_omits_thinking_signatures_of_another_format() -> None:
    seals = ("EqQB+c", '[{"type":"reasoning.text"}]', "{broken", '"text"')
    pieces = [
        ReplyPiece(kind=kind, seal=seal) for seal in seals for kind in (ReplyPieceKind.THINKING, ReplyPieceKind.SERVER)
    ]
    reply = Reply(
        text="Six.", provider="acme", pieces=(*pieces, ReplyPiece(kind=ReplyPieceKind.TEXT, length=4, seal="EqQB"))
    )
    assert input_items(reply) == [sent_message_item("Six.")]


@pytest.mark.spec("C46")
def test_call_ids_invalid_for_openai_responses_are_rewritten_equally_for_call_and_result() -> None:
    for id_ in ("functions.weather:0", "x" * 70, "größe"):
        asked, answered = input_items(
            Reply(text="", calls=(Call(id=id_, tool="weather"),)), ToolResult(call=id_, tool="weather", output="Rain.")
        )
        assert asked["call_id"] == answered["call_id"]
        assert asked["call_id"].isalnum() and asked["call_id"].isascii() and len(asked["call_id"]) <= 64


@pytest.mark.spec("C46")
def test_the_messages_of_an_openai_responses_request_to_openrouter_have_ids() -> None:
    items = input_items(UserTurn(text="Hi"), SEALED_REPLY, target=make_target("openrouter"))
    ids = [item["id"] for item in items if item.get("type") == "message"]
    assert len(set(ids)) == 2 and all(id_.startswith("msg_") for id_ in ids)
    assert all(item["status"] == "completed" for item in items if item.get("type") == "message")


# --- effort and params ---


@pytest.mark.spec("H80")
@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
def test_an_openai_responses_request_with_an_effort_asks_for_an_automatic_summary(effort: str) -> None:
    assert request_body(effort=effort)["reasoning"] == {"effort": effort, "summary": "auto"}


@pytest.mark.spec("H80")
async def test_an_effort_unsupported_by_an_openai_responses_model_is_refused_before_a_request() -> None:
    async with open_provider_connections() as link, provider() as server:
        model = make_http_model(link, server.url, FORMAT, facts=make_model_facts("acme", efforts=("low", "high")))
        with pytest.raises(ModelFailed) as failed:
            await anext(model.reply(prompt_of(effort="xhigh")))
    assert server.asked == []
    assert failed.value.failure is ModelFailureKind.BAD_REQUEST
    assert "low, high" in failed.value.because


def test_an_openai_responses_request_asks_a_reasoning_model_for_a_summary() -> None:
    assert request_body(target=make_target(efforts=("low", "high")))["reasoning"] == {"summary": "auto"}


def test_an_openai_responses_request_to_a_model_without_efforts_has_no_reasoning_parameters() -> None:
    body = request_body(target=make_target(efforts=()), effort="none")
    assert "reasoning" not in body
    assert "include" not in body


@pytest.mark.spec("C105.params")
def test_params_override_the_body_of_an_openai_responses_request_but_not_its_input() -> None:
    params = {"store": True, "include": [], "max_output_tokens": 5, "tools": [{"type": "web_search"}], "input": "mine"}
    body = request_body(target=make_target(params=params), tools=(WEATHER_TOOL,))
    assert (body["store"], body["include"], body["max_output_tokens"]) == (True, [], 5)
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["input"] == [{"role": "user", "content": "Is the bakery open today?"}]


def test_an_openai_responses_model_without_tool_support_gets_no_tools() -> None:
    assert "tools" not in request_body(target=make_target(tools=False), tools=(WEATHER_TOOL,))
