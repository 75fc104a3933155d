"""The wire openai-responses: what is said to a server, and what is made of what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.replay import KEY, Answer, facts_of, hear, linked, model_at, prompt_of, provider

from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EncodedContextCache
from retinue.models.formats import openai_responses_reader
from retinue.models.formats.message_parts import SUMMARY_HEAD
from retinue.models.formats.openai_responses import OpenAIResponsesFormat
from retinue.models.provider_http import ModelTarget

FORMAT = "openai-responses"
WEATHER = ToolSpec(name="weather", description="The weather somewhere.", parameters={"type": "object"})
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


def words(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [event("output_text.delta", index, delta=piece) for piece in pieces]


def done(item: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return event("output_item.done", index, item=item)


def message(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, **more}


def asks(id_: str = "call_1", arguments: str = '{"city":"Bern"}') -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": id_, "name": "weather", "arguments": arguments}


def thought(*summary: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": parts, "status": "completed", **more}


def completed(*output: Any, **more: Any) -> dict[str, Any]:
    response = {"status": "completed", "output": list(output), "usage": USAGE, "error": None, **more}
    return {"type": f"response.{response['status']}", "response": response}


def stream(*events: Any) -> str:
    return "".join(f"event: {each.get('type')}\ndata: {json.dumps(each)}\n\n" for each in events)


async def read(*events: Any) -> dict[str, Any]:
    return await read_body(stream(*events))


async def read_body(body: str) -> dict[str, Any]:
    async with linked() as link, provider(Answer(body=body)) as server:
        return await hear(model_at(link, server.url, FORMAT))


def at(name: str = "acme", **how: Any) -> ModelTarget:
    known = {key: how.pop(key) for key in ("vision", "efforts", "tools") if key in how}
    return ModelTarget(facts=facts_of(name, **known), url="http://127.0.0.1:1/v1/", **how)


def body_of(*bodies: Any, target: ModelTarget | None = None, **more: Any) -> Any:
    request = OpenAIResponsesFormat(EncodedContextCache()).build_request(
        prompt_of(*bodies, **more), target or at(), KEY
    )
    return json.loads(b"".join(request.body))


def items_of(*bodies: Any, target: ModelTarget | None = None, **more: Any) -> list[Any]:
    return body_of(*bodies, target=target, **more)["input"]


# --- what is read ---


async def test_words_come_together_with_what_they_took() -> None:
    heard = await read(
        event("created", None, response={"status": "in_progress"}),
        event("output_item.added", item={"type": "message", "id": "msg_1", "content": []}),
        event("content_part.added", part={"type": "output_text", "text": ""}),
        *words("Open until ", "six. 🥐"),
        event("output_text.done", text="Open until six. 🥐"),
        done(message("Open until six. 🥐")),
        completed(message("Open until six. 🥐")),
    )
    assert heard["text"] == "Open until six. 🥐"
    assert (heard["finish"], heard["order"]) == ("stop", ["text"])
    assert heard["usage"] == {"input": 30, "output": 12, "cache_read": 20, "cache_write": 0, "reasoning": 5}


async def test_words_that_come_only_when_they_are_done_are_words() -> None:
    assert (await read(done(message("Open ", "now.")), completed()))["text"] == "Open now."
    assert (await read(completed(message("Open now."))))["text"] == "Open now."


async def test_calls_are_told_when_they_are_whole_and_once() -> None:
    heard = await read(
        event("output_item.added", item=asks(arguments="")),
        event("function_call_arguments.delta", delta='{"city":'),
        event("function_call_arguments.delta", delta='"Bern"}'),
        done(asks()),
        done(asks("call_2", '{"city":"Ro'), 1),
        completed(asks(), asks("call_2", '{"city":"Ro')),
    )
    assert heard["tool_calls"] == [
        {"id": "call_1", "name": "weather", "arguments": {"city": "Bern"}},
        {"id": "call_2", "name": "weather", "arguments": {"_unparsed": '{"city":"Ro'}},
    ]
    assert heard["finish"] == "tool_call"


async def test_a_call_that_only_the_end_tells_of_is_not_lost() -> None:
    heard = await read(*words("Let me see."), completed(message("Let me see."), asks()))
    assert (heard["text"], len(heard["tool_calls"])) == ("Let me see.", 1)


async def test_a_summary_of_thoughts_is_thinking_and_the_thought_is_sealed_as_it_is_wanted_back() -> None:
    heard = await read(
        event("output_item.added", item=thought()),
        event("reasoning_summary_text.delta", delta="I could "),
        event("reasoning_summary_text.delta", delta="look."),
        done(thought("I could look.", encrypted_content="gAAA")),
        *words("Six.", index=1),
        completed(),
    )
    assert (heard["thinking"], heard["order"]) == ("I could look.", ["thinking", "text"])
    (seal,) = heard["signatures"]
    assert seal["on"] == "thinking"
    assert json.loads(seal["value"]) == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "I could look."}],
        "encrypted_content": "gAAA",
    }


async def test_a_thought_without_words_is_a_seal() -> None:
    heard = await read(done(thought(encrypted_content="gAAA")), done(asks(), 1), completed())
    assert (heard["thinking"], heard["order"]) == ("", ["thinking", "tool_call"])


async def test_raw_thoughts_are_kept_and_not_shown() -> None:
    raw = {"type": "reasoning_text", "text": "secret musings"}
    heard = await read(
        event("reasoning_text.delta", delta="secret "),
        event("reasoning_text.delta", delta="musings"),
        done(thought(content=[raw])),
        *words("Six.", index=1),
        completed(),
    )
    assert (heard["thinking"], heard["text"]) == ("", "Six.")
    (seal,) = heard["signatures"]
    assert json.loads(seal["value"])["content"] == [raw]


async def test_raw_thoughts_that_are_done_after_the_words_they_led_to_still_come_before_them() -> None:
    raw = {"type": "reasoning_text", "text": "musings"}
    heard = await read(
        event("output_item.added", item={"type": "reasoning", "id": "rs_9"}),
        event("reasoning_text.delta", delta="musings"),
        event("output_item.added", 1, item={"type": "message", "id": "msg_1"}),
        *words("Six.", index=1),
        done(message("Six."), 1),
        done(thought(content=[raw])),
        completed(),
    )
    assert heard["order"] == ["thinking", "text"]
    (seal,) = heard["signatures"]
    assert json.loads(seal["value"]) == {"type": "reasoning", "id": "rs_9", "summary": [], "content": [raw]}


async def test_what_the_provider_does_itself_is_sealed_as_it_came() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "bakery"}}
    heard = await read(done(search), *words("Six.", index=1), completed())
    assert heard["server_tool_calls"] == [{"name": "web_search", "id": "ws_1"}]
    assert heard["order"] == ["server_tool_call", "text"]
    assert json.loads(heard["signatures"][0]["value"]) == search


async def test_of_what_is_too_long_to_send_again_only_that_is_kept_that_it_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_responses_reader, "SERVER_ITEM_BYTES_MAX", 100)
    picture = {"type": "image_generation_call", "id": "ig_1", "result": "x" * 200}
    heard = await read(done(picture), *words("There.", index=1), completed())
    assert heard["server_tool_calls"] == [{"name": "image_generation", "id": "ig_1"}]
    (seal,) = heard["signatures"]
    assert "xxx" not in seal["value"]
    pieces = (
        ReplyPiece(kind=ReplyPieceKind.SERVER, seal=seal["value"]),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=6),
    )
    assert items_of(Reply(text="There.", provider="acme", pieces=pieces)) == [said("There.")]


async def test_the_phase_of_a_message_is_sealed_to_it() -> None:
    heard = await read(*words("On it."), done(message("On it.", phase="commentary")), done(asks(), 1), completed())
    assert heard["signatures"] == [{"on": "text", "value": '{"phase":"commentary"}'}]


async def test_a_refusal_is_said_and_is_no_answer() -> None:
    streamed = await read(event("refusal.delta", delta="I would rather not."), completed())
    whole = await read(
        done(message() | {"content": [{"type": "refusal", "refusal": "I would rather not."}]}), completed()
    )
    for heard in (streamed, whole):
        assert (heard["text"], heard["finish"]) == ("I would rather not.", "content_filter")


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")]
)
async def test_a_reply_that_is_not_complete_says_why(reason: str | None, finish: str) -> None:
    details = {"reason": reason} if reason else None
    heard = await read(*words("Open un"), completed(status="incomplete", incomplete_details=details))
    assert (heard["text"], heard["finish"]) == ("Open un", finish)


@pytest.mark.parametrize(
    ("failed", "error"),
    [
        (completed(status="failed", error={"code": "rate_limit_exceeded", "message": "slow down"}), "rate_limit"),
        (completed(status="failed", error={"code": "server_error", "message": "oops"}), "server"),
        (completed(status="failed", error=None), "server"),
        (completed(status="cancelled"), "server"),
        ({"type": "error", "code": "insufficient_quota", "message": "out", "param": None}, "quota"),
        ({"type": "error", "error": {"type": "server_error", "message": "oops"}}, "server"),
        ({"error": {"code": "context_length_exceeded", "message": "too long"}}, "context_overflow"),
    ],
)
async def test_an_error_in_the_stream_is_a_failure(failed: Any, error: str) -> None:
    heard = await read(*words("Open un"), failed)
    assert (heard["error"], heard["status"]) == (error, 200)


async def test_a_stream_that_stops_in_the_middle_broke_off() -> None:
    assert (await read(*words("Open un")))["error"] == "connection"
    assert (await read(*words("Open un"), done(message("Open un"))))["error"] == "connection"


async def test_a_marker_at_the_end_is_passed_over() -> None:
    assert (await read_body(stream(*words("Six."), completed()) + "data: [DONE]\n\n"))["text"] == "Six."


async def test_what_we_do_not_need_may_be_anything() -> None:
    heard = await read(
        event("in_progress", None, response=None, sequence_number="x"),
        event("something.new", item=7, delta={}),
        event("output_item.added", item=None),
        event("output_text.delta", delta=None),
        event("output_item.done", item="?"),
        done({"type": 7}),
        {"type": "keepalive"},
        *words("Six.", index=1),
        completed(usage=None),
    )
    assert (heard["text"], heard["usage"]) == ("Six.", None)


async def test_a_reply_in_one_body_is_a_reply() -> None:
    search = {"type": "web_search_call", "id": "ws_1"}
    output = [thought("Hmm.", encrypted_content="gAAA"), search, message("Let me see."), asks()]
    heard = await read_body(json.dumps(completed(*output)["response"]))
    assert heard["order"] == ["thinking", "server_tool_call", "text", "tool_call"]
    assert (heard["thinking"], heard["text"], heard["finish"]) == ("Hmm.", "Let me see.", "tool_call")
    assert heard["usage"]["output"] == 12


async def test_an_error_in_one_body_is_a_failure() -> None:
    assert (await read_body(json.dumps({"error": {"message": "no", "code": "insufficient_quota"}})))["error"] == "quota"


async def test_a_reply_is_the_same_wherever_its_bytes_are_cut() -> None:
    body = stream(*words("Grüße ", "🥐"), done(asks(), 1), completed()).encode()
    async with linked() as link:
        for cut in range(1, len(body), 5):
            async with provider(Answer(body=body, cuts=[cut])) as server:
                heard = await hear(model_at(link, server.url, FORMAT))
            assert (heard["text"], len(heard["tool_calls"])) == ("Grüße 🥐", 1)


# --- what is said ---


def test_a_request_says_who_is_asked_for_what_and_that_nothing_is_to_be_kept() -> None:
    request = OpenAIResponsesFormat(EncodedContextCache()).build_request(prompt_of(tools=(WEATHER,)), at(), KEY)
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


def said(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "content": content, **more}


THOUGHT = '{"type":"reasoning","summary":[],"id":"rs_1","encrypted_content":"gAAA"}'
SEARCH = '{"type":"web_search_call","id":"ws_1","status":"completed"}'
CALLS = (Call(id="run1-0-1", tool="weather", arguments={"city": "Bern"}), Call(id="run1-0-2", tool="clock"))
MADE = Reply(
    text="On it.Still on it.",
    thinking="I could look.",
    calls=CALLS,
    provider="acme",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=13, seal=THOUGHT),
        ReplyPiece(kind=ReplyPieceKind.SERVER, seal=SEARCH),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=6, seal='{"phase":"commentary"}'),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=12),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
    ),
)
CALLED = [
    {"type": "function_call", "call_id": "run1-0-1", "name": "weather", "arguments": '{"city":"Bern"}'},
    {"type": "function_call", "call_id": "run1-0-2", "name": "clock", "arguments": "{}"},
]


def test_a_reply_goes_back_in_the_order_in_which_it_came_with_its_seals() -> None:
    assert items_of(MADE) == [
        json.loads(THOUGHT),
        json.loads(SEARCH),
        said("On it.", phase="commentary"),
        CALLED[0],
        said("Still on it."),
        CALLED[1],
    ]


@pytest.mark.spec("C46")
def test_thoughts_and_seals_of_another_provider_are_left_out() -> None:
    assert items_of(MADE, target=at("other")) == [said("On it."), CALLED[0], said("Still on it."), CALLED[1]]


def test_a_history_is_said_in_the_order_in_which_it_came() -> None:
    items = items_of(
        ContextStart(),
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Weather in Bern?"),
        Reply(text="Let me see.", thinking="I could look.", calls=CALLS),
        ToolResult(call="run1-0-1", tool="weather", output="Rain."),
        ToolResult(call="run1-0-2", tool="clock", output="It broke.", failed=True),
        Note(text="The house was restarted."),
        Reply(text="It rains."),
    )
    assert items == [
        {"role": "user", "content": f"{SUMMARY_HEAD}\n\nThey met."},
        {"role": "user", "content": "Weather in Bern?"},
        said("Let me see."),
        *CALLED,
        {"type": "function_call_output", "call_id": "run1-0-1", "output": "Rain."},
        {"type": "function_call_output", "call_id": "run1-0-2", "output": "It broke."},
        {"role": "user", "content": "The house was restarted."},
        said("It rains."),
    ]


class Album:
    def read(self, attachment: Attachment) -> bytes | None:
        return b"PNG" if attachment.hash == "cat" else None


def test_an_image_is_shown_to_a_model_that_sees_and_named_to_one_that_does_not() -> None:
    cat = Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=3)
    turn = UserTurn(text="Look.", attachments=(cat,))
    (sees,) = items_of(turn, target=at(vision=True), media=Album())
    (blind,) = items_of(turn, media=Album())
    assert sees["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": "data:image/png;base64,UE5H"},
    ]
    assert [part["type"] for part in blind["content"]] == ["input_text", "input_text"]
    assert "cat.png" in blind["content"][1]["text"]


# --- the table of repairs, a row each ---


@pytest.mark.spec("C46")
def test_empty_messages_of_the_model_are_left_out() -> None:
    assert items_of(UserTurn(text="Hi"), Reply(text="", thinking="Nothing to say."), ContextStart()) == [
        {"role": "user", "content": "Hi"}
    ]


@pytest.mark.spec("C46")
def test_a_thought_that_nothing_came_of_is_left_out() -> None:
    alone = Reply(text="", provider="acme", pieces=(ReplyPiece(kind=ReplyPieceKind.THINKING, seal=THOUGHT),))
    after = Reply(text="Six.", provider="acme", pieces=(ReplyPiece(kind=ReplyPieceKind.TEXT, length=4), *alone.pieces))
    assert items_of(alone, after) == [said("Six.")]


@pytest.mark.spec("C46")
def test_a_thought_that_only_its_provider_could_look_up_goes_back_only_where_it_is_kept() -> None:
    bare = '{"type":"reasoning","summary":[],"id":"rs_1"}'
    pieces = (ReplyPiece(kind=ReplyPieceKind.THINKING, seal=bare), ReplyPiece(kind=ReplyPieceKind.TEXT, length=4))
    reply = Reply(text="Six.", provider="acme", pieces=pieces)
    assert items_of(reply) == [said("Six.")]
    assert items_of(reply, target=at(params={"store": True})) == [json.loads(bare), said("Six.")]


@pytest.mark.spec("C46")
def test_raw_thoughts_go_back() -> None:
    raw = '{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"musings"}]}'
    pieces = (ReplyPiece(kind=ReplyPieceKind.THINKING, seal=raw), ReplyPiece(kind=ReplyPieceKind.TEXT, length=4))
    assert items_of(Reply(text="Six.", provider="acme", pieces=pieces))[0] == json.loads(raw)


@pytest.mark.spec("C46")
def test_seals_that_were_made_in_another_format_are_left_out() -> None:
    seals = ("EqQB+c", '[{"type":"reasoning.text"}]', "{broken", '"text"')
    pieces = [
        ReplyPiece(kind=kind, seal=seal) for seal in seals for kind in (ReplyPieceKind.THINKING, ReplyPieceKind.SERVER)
    ]
    reply = Reply(
        text="Six.", provider="acme", pieces=(*pieces, ReplyPiece(kind=ReplyPieceKind.TEXT, length=4, seal="EqQB"))
    )
    assert items_of(reply) == [said("Six.")]


@pytest.mark.spec("C46")
def test_ids_that_are_not_taken_are_others_for_call_and_result_alike() -> None:
    for id_ in ("functions.weather:0", "x" * 70, "größe"):
        asked, answered = items_of(
            Reply(text="", calls=(Call(id=id_, tool="weather"),)), ToolResult(call=id_, tool="weather", output="Rain.")
        )
        assert asked["call_id"] == answered["call_id"]
        assert asked["call_id"].isalnum() and asked["call_id"].isascii() and len(asked["call_id"]) <= 64


@pytest.mark.spec("C46")
def test_words_of_the_model_have_ids_where_these_are_wanted() -> None:
    items = items_of(UserTurn(text="Hi"), MADE, target=at("openrouter"))
    ids = [item["id"] for item in items if item.get("type") == "message"]
    assert len(set(ids)) == 2 and all(id_.startswith("msg_") for id_ in ids)
    assert all(item["status"] == "completed" for item in items if item.get("type") == "message")


# --- effort and params ---


@pytest.mark.spec("H80")
@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
def test_an_effort_is_asked_for_as_it_is(effort: str) -> None:
    assert body_of(effort=effort)["reasoning"] == {"effort": effort, "summary": "auto"}


@pytest.mark.spec("H80")
async def test_an_effort_that_the_model_does_not_take_is_refused_with_the_list_before_anything_is_sent() -> None:
    async with linked() as link, provider() as server:
        model = model_at(link, server.url, FORMAT, facts=facts_of("acme", efforts=("low", "high")))
        with pytest.raises(ModelFailed) as failed:
            await anext(model.reply(prompt_of(effort="xhigh")))
    assert server.asked == []
    assert failed.value.failure is ModelFailureKind.BAD_REQUEST
    assert "low, high" in failed.value.because


def test_a_model_that_thinks_is_asked_to_sum_its_thoughts_up() -> None:
    assert body_of(target=at(efforts=("low", "high")))["reasoning"] == {"summary": "auto"}


def test_to_a_model_that_does_not_think_no_word_is_said_about_it() -> None:
    body = body_of(target=at(efforts=()), effort="none")
    assert "reasoning" not in body
    assert "include" not in body


@pytest.mark.spec("C105.params")
def test_params_go_into_the_body_as_they_are_and_win() -> None:
    params = {"store": True, "include": [], "max_output_tokens": 5, "tools": [{"type": "web_search"}], "input": "mine"}
    body = body_of(target=at(params=params), tools=(WEATHER,))
    assert (body["store"], body["include"], body["max_output_tokens"]) == (True, [], 5)
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["input"] == [{"role": "user", "content": "Is the bakery open today?"}]


def test_a_model_without_tools_is_offered_none() -> None:
    assert "tools" not in body_of(target=at(tools=False), tools=(WEATHER,))
