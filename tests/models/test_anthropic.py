"""The Messages API of Anthropic: what is sent, and what is made of what comes back. Samples are written by hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.format_rules import follows, raw_count
from models.replay import KEY, SESSION, Answer, Then, facts_of, hear, linked, model_at, prompt_of, provider, records_of

from retinue.config.models import WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, StopReason, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EncodedContextCache, ModelPrompt
from retinue.models.formats.anthropic import AnthropicFormat
from retinue.models.provider_http import ModelTarget

FORMAT = WireFormat.ANTHROPIC
LOOK = ToolSpec(
    name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
PICTURE = Attachment(hash="aa" * 32, name="cat.png", media_type="image/png", size_bytes=3)
PAPER = Attachment(hash="bb" * 32, name="bill.pdf", media_type="application/pdf", size_bytes=4)
SIGNED = Reply(
    text="Looking.",
    thinking="North first.",
    calls=(Call(id="r-1-1", tool="look", arguments={"at": "north"}), Call(id="r-1-2", tool="look")),
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=12, seal="SIG"),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=8),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
    ),
    provider="anthropic",
    stop=StopReason.CALLS,
)
RESULTS = (
    ToolResult(call="r-1-1", tool="look", output="snow"),
    ToolResult(call="r-1-2", tool="look", output="", failed=True),
)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def said(text: str, index: int = 0) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})


def stream(*blocks: list[dict[str, Any]], stop: str = "end_turn", usage: Any = None, end: bool = True) -> str:
    start = {"usage": {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 4}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for part in blocks:
        events += part
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage or {"output_tokens": 7}})
    if end:
        events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


async def heard(body: str | bytes, **more: Any) -> dict[str, Any]:
    async with linked() as link, provider(Answer(body=body, **more), seed=7) as server:
        return await hear(model_at(link, server.url, FORMAT, facts=facts_of("anthropic")))


def request_of(
    *bodies: Any, key: str = KEY, target: Any = None, cache: EncodedContextCache | None = None, **more: Any
) -> Any:
    facts = facts_of("anthropic", "claude-nine", vision=True)
    at = ModelTarget(facts=facts, url="http://127.0.0.1:1/v1", **(target or {}))
    return AnthropicFormat(cache or EncodedContextCache()).build_request(prompt_of(*bodies, **more), at, key)


def body_of(*bodies: Any, **more: Any) -> Any:
    body = json.loads(b"".join(request_of(*bodies, **more).body))
    follows(FORMAT, body)
    return body


def roles_and_blocks(body: Any) -> list[tuple[str, list[str]]]:
    return [(message["role"], [part["type"] for part in message["content"]]) for message in body["messages"]]


# What comes back


async def test_words_and_counts_are_read() -> None:
    told = await heard(stream(said("Hello"), said(" there", 1), usage={"output_tokens": 7}))
    assert told["text"] == "Hello there"
    assert told["finish"] == "stop"
    assert told["usage"] == {"input": 14, "output": 7, "cache_read": 4, "cache_write": 0, "reasoning": 0}


async def test_counts_at_the_end_replace_those_of_the_beginning_and_missing_ones_stay() -> None:
    usage = {
        "input_tokens": 90,
        "output_tokens": 7,
        "cache_creation_input_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
        "server_tool_use": {"web_search_requests": 1},
    }
    told = await heard(stream(said("Yes"), usage=usage))
    assert told["usage"] == {"input": 99, "output": 7, "cache_read": 4, "cache_write": 5, "reasoning": 3}


async def test_thinking_comes_with_its_signature_also_where_its_words_are_kept_back() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    told = await heard(
        stream(
            block(
                0,
                thinking,
                {"type": "thinking_delta", "thinking": "Hm"},
                {"type": "thinking_delta", "thinking": ""},
                {"type": "signature_delta", "signature": "SIG1"},
            ),
            block(1, thinking, {"type": "signature_delta", "signature": "SIG2"}),
            block(2, {"type": "redacted_thinking", "data": "SECRET"}),
            said("Done", 3),
        )
    )
    assert told["thinking"] == "Hm"
    assert told["order"] == ["thinking", "text"]
    assert [seal["value"] for seal in told["signatures"]] == ["SIG1", "SIG2", "redacted:SECRET"]


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        (['{"at": ', '"north"}'], {"at": "north"}),
        ([""], {}),
        ([], {}),
        (['{"at": "nor'], {"_unparsed": '{"at": "nor'}),
        (["[1, 2]"], {"_unparsed": "[1, 2]"}),
    ],
)
async def test_the_arguments_of_a_call_come_in_pieces(pieces: Sequence[str], arguments: Any) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    told = await heard(stream(block(0, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}, *deltas)))
    assert told["tool_calls"] == [{"id": "t1", "name": "look", "arguments": arguments}]
    assert told["finish"] == "tool_call"  # by the call, not by what the provider calls the end


async def test_calls_may_come_in_parallel_or_whole_or_be_cut_off() -> None:
    cut = block(2, {"type": "tool_use", "id": "t3", "name": "look", "input": {}})[:-1]
    cut.append(
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a'}}
    )
    told = await heard(
        stream(
            block(0, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}),
            block(1, {"type": "tool_use", "id": "t2", "name": "look", "input": {"at": "south"}}),
            cut,
            stop="max_tokens",
        )
    )
    assert [call["arguments"] for call in told["tool_calls"]] == [{}, {"at": "south"}, {"_unparsed": '{"a'}]
    assert told["finish"] == "length"


async def test_what_the_provider_does_itself_is_kept_to_be_sent_back() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "https://a.example"}]}
    told = await heard(
        stream(
            block(
                0,
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                {"type": "input_json_delta", "partial_json": '{"query": "snow"}'},
            ),
            block(1, result),
            block(
                2,
                {"type": "text", "text": "", "citations": []},
                {"type": "citations_delta", "citation": {"cited_text": "x"}},
                {"type": "text_delta", "text": "It snows."},
            ),
        )
    )
    assert told["order"] == ["server_tool_call", "server_tool_result", "text"]
    assert told["tool_calls"] == []
    use, found = (json.loads(seal["value"]) for seal in told["signatures"])
    assert use == {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "snow"}}
    assert found == result


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause"),
        ("something_new", "stop"),
    ],
)
async def test_why_it_stopped(raw: str, finish: str) -> None:
    assert (await heard(stream(said("Well"), stop=raw)))["finish"] == finish


async def test_a_stream_without_its_end_broke_off() -> None:
    assert (await heard(stream(said("Well"), end=False)))["error"] == "connection"
    assert (await heard(stream(said("Well"), end=False), then=Then.CUT))["error"] == "connection"


async def test_an_error_in_the_stream_is_raised() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    body = stream(said("Wel"), end=False) + f"event: error\ndata: {json.dumps(error)}\n\n"
    assert await heard(body) == {"error": "overloaded", "status": 200, "retry_after": None}
    assert (await heard(json.dumps(error)))["error"] == "overloaded"


async def test_events_and_blocks_that_are_not_known_do_no_harm() -> None:
    strange = f"data: {json.dumps({'type': 'message_gossip', 'delta': 'words', 'usage': 3})}\n\n: comment\n\n"
    known, new = said("Hi"), block(1, {"type": "container_upload", "id": 5})
    told = await heard(strange + stream(known, new))
    assert told["text"] == "Hi"
    assert json.loads(told["signatures"][0]["value"])["type"] == "container_upload"


@pytest.mark.parametrize("event", ["{broken", '{"type":"content_block_delta","delta":{"type":"text_delta","text":5}}'])
async def test_an_event_that_cannot_be_read_is_said_to_be_that(event: str) -> None:
    assert (await heard(f"data: {event}\n\n"))["error"] == "malformed"


async def test_a_message_in_one_piece_is_read_too() -> None:
    message = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "SIG"},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "north"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": None},
    }
    told = await heard(json.dumps(message))
    assert (told["text"], told["thinking"], told["finish"]) == ("Looking.", "Hm", "tool_call")
    assert told["tool_calls"] == [{"id": "t1", "name": "look", "arguments": {"at": "north"}}]
    assert told["order"] == ["thinking", "text", "tool_call"]
    assert (await heard('{"hello": 1}'))["error"] == "malformed"
    assert (await heard("It works!"))["error"] == "malformed"


# What is sent


async def test_a_request_carries_its_key_in_a_header_and_always_a_bound() -> None:
    async with linked() as link, provider(Answer(body=stream(said("Hi")))) as server:
        model = model_at(link, server.url, FORMAT, facts=facts_of("anthropic", "claude-nine"))
        await hear(model, prompt_of(output_tokens_max=777))
    got = server.last
    assert (got.method, got.path) == ("POST", "/messages")
    assert got.headers["x-api-key"] == KEY
    assert got.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in got.headers
    assert (got.body["model"], got.body["max_tokens"], got.body["stream"]) == ("claude-nine", 777, True)
    assert KEY not in got.raw.decode()


def test_a_token_is_sent_as_one_beside_other_betas() -> None:
    request = request_of(key="sk-ant-oat01-abc", target={"headers": {"anthropic-beta": "context-1m"}})
    assert request.headers["authorization"] == "Bearer sk-ant-oat01-abc"
    assert request.headers["anthropic-beta"] == "context-1m,oauth-2025-04-20"
    assert "x-api-key" not in request.headers
    assert "oat01" not in repr(request)
    assert "x-api-key" not in request_of(key="").headers


def test_a_history_with_everything_in_it() -> None:
    body = body_of(
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Look around."),
        SIGNED,
        *RESULTS,
        Note(text="Mail was left out."),
        tools=(LOOK,),
    )
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert body["tools"] == [{"name": "look", "description": "Looks.", "input_schema": LOOK.parameters}]
    assert roles_and_blocks(body) == [
        ("user", ["text", "text"]),
        ("assistant", ["thinking", "text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result", "text"]),
    ]
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "North first.", "signature": "SIG"}
    assert body["messages"][1]["content"][3]["input"] == {}
    north, failed, _ = body["messages"][2]["content"]
    assert north == {"type": "tool_result", "tool_use_id": "r-1-1", "content": "snow"}
    assert failed == {"type": "tool_result", "tool_use_id": "r-1-2", "content": "[no output]", "is_error": True}


@pytest.mark.spec("C46")
def test_what_one_side_says_in_a_row_is_one_message() -> None:
    body = body_of(UserTurn(text="One."), Note(text="Two."), Reply(text="A"), Reply(text="B"), UserTurn(text="Three."))
    assert roles_and_blocks(body) == [("user", ["text", "text"]), ("assistant", ["text", "text"]), ("user", ["text"])]


@pytest.mark.spec("C46")
def test_results_come_first_in_the_message_after_their_calls() -> None:
    body = body_of(UserTurn(text="Look."), SIGNED, RESULTS[0], Note(text="In between."), RESULTS[1])
    assert roles_and_blocks(body)[-1] == ("user", ["tool_result", "tool_result", "text"])


@pytest.mark.spec("C46")
def test_empty_words_are_not_sent() -> None:
    body = body_of(UserTurn(text="Hi"), Reply(text=" \n"), ContextStart(text=""), UserTurn(text="Are you there?"))
    assert roles_and_blocks(body) == [("user", ["text", "text"])]


@pytest.mark.spec("C46")
def test_thinking_without_a_signature_of_this_provider_is_left_out() -> None:
    bare = Reply(text="Yes.", thinking="Hm.", provider="anthropic")
    foreign = Reply(
        text="Yes.",
        thinking="Hm.",
        provider="openai",
        pieces=(
            ReplyPiece(kind=ReplyPieceKind.THINKING, length=3, seal="ENC"),
            ReplyPiece(kind=ReplyPieceKind.TEXT, length=4),
        ),
    )
    body = body_of(UserTurn(text="1"), bare, UserTurn(text="2"), foreign, UserTurn(text="3"))
    assert "Hm." not in json.dumps(body) and "ENC" not in json.dumps(body)


def test_encrypted_thoughts_and_thoughts_without_words_go_back_as_they_came() -> None:
    reply = Reply(
        text="Yes.",
        provider="anthropic",
        pieces=(
            ReplyPiece(kind=ReplyPieceKind.THINKING, seal="redacted:SECRET"),
            ReplyPiece(kind=ReplyPieceKind.THINKING, seal="SIG"),
            ReplyPiece(kind=ReplyPieceKind.TEXT, length=4),
        ),
    )
    redacted, silent, _ = body_of(UserTurn(text="?"), reply, UserTurn(text="!"))["messages"][1]["content"]
    assert redacted == {"type": "redacted_thinking", "data": "SECRET"}
    assert silent == {"type": "thinking", "thinking": "", "signature": "SIG"}


@pytest.mark.spec("C46")
def test_ids_that_are_not_taken_are_rewritten_for_call_and_result_alike() -> None:
    calls = (Call(id="call:1|x", tool="look"), Call(id="call:1/x", tool="look"))
    results = [ToolResult(call=call.id, tool="look", output="snow") for call in calls]
    body = body_of(UserTurn(text="Look."), Reply(text="", calls=calls), *results)
    uses = [part["id"] for part in body["messages"][1]["content"]]
    assert uses == [part["tool_use_id"] for part in body["messages"][2]["content"]]
    assert len(set(uses)) == 2


@pytest.mark.spec("C46")
def test_the_user_has_the_first_word_and_the_last() -> None:
    assert [role for role, _ in roles_and_blocks(body_of(Reply(text="Hello?")))] == ["user", "assistant", "user"]
    assert roles_and_blocks(body_of(ContextStart(text=""))) == [("user", ["text"])]


def paused(*, ended: bool) -> Reply:
    use = json.dumps({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}})
    result = json.dumps({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})
    pieces = [ReplyPiece(kind=ReplyPieceKind.TEXT, length=9), ReplyPiece(kind=ReplyPieceKind.SERVER, seal=use)]
    if ended:
        pieces.append(ReplyPiece(kind=ReplyPieceKind.SERVER, seal=result))
    return Reply(text="Searching", provider="anthropic", stop=StopReason.PAUSED, pieces=tuple(pieces))


def test_a_paused_reply_goes_back_as_the_last_word_and_its_rest_joins_it() -> None:
    body = body_of(UserTurn(text="Search."), paused(ended=False))
    assert roles_and_blocks(body)[-1] == ("assistant", ["text", "server_tool_use"])
    rest = Reply(
        text="Found.",
        provider="anthropic",
        pieces=(paused(ended=True).pieces[-1], ReplyPiece(kind=ReplyPieceKind.TEXT, length=6)),
    )
    body = body_of(UserTurn(text="Search."), paused(ended=False), rest, UserTurn(text="Thanks."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text", "server_tool_use", "web_search_tool_result", "text"])


@pytest.mark.spec("C46")
def test_a_pause_of_another_is_answered_by_the_user() -> None:
    body = body_of(UserTurn(text="Search."), replace(paused(ended=False), provider="elsewhere"))
    assert roles_and_blocks(body)[1:] == [("assistant", ["text"]), ("user", ["text"])]


@pytest.mark.spec("C46")
def test_a_pause_that_was_never_taken_up_again_leaves_nothing_open() -> None:
    body = body_of(UserTurn(text="Search."), paused(ended=False), UserTurn(text="Never mind."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text"])
    body = body_of(UserTurn(text="Search."), paused(ended=True), UserTurn(text="Never mind."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text", "server_tool_use", "web_search_tool_result"])


class Shelf:
    def read(self, attachment: Attachment) -> bytes | None:
        return {PICTURE.hash: b"png", PAPER.hash: b"%PDF"}.get(attachment.hash)


def test_pictures_and_papers_are_shown_before_the_words() -> None:
    turn = UserTurn(text="What is this?", attachments=(PICTURE, PAPER))
    image, paper, text = body_of(turn, media=Shelf())["messages"][0]["content"]
    data = base64.b64encode(b"png").decode()
    assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert (paper["type"], paper["source"]["media_type"]) == ("document", "application/pdf")
    assert text["text"] == "What is this?"


def test_a_file_that_cannot_be_shown_is_named() -> None:
    huge = Attachment(hash="cc" * 32, name="huge.png", media_type="image/png", size_bytes=6 * 1024 * 1024)
    gone = Attachment(hash="dd" * 32, name="gone.png", media_type="image/png", size_bytes=3)
    turn = UserTurn(text="Look.", attachments=(huge, gone))
    words = [part["text"] for part in body_of(turn, media=Shelf())["messages"][0]["content"]]
    assert words[0] == "Look."
    assert "huge.png" in words[1] and "too large" in words[1]
    assert "gone.png" in words[2]


@pytest.mark.parametrize(
    ("effort", "output", "thinking"),
    [
        (None, 8192, None),
        ("none", 8192, None),
        ("low", 8192, {"type": "enabled", "budget_tokens": 2048}),
        ("high", 8192, {"type": "enabled", "budget_tokens": 7168}),
        ("xhigh", 64_000, {"type": "enabled", "budget_tokens": 32_768}),
        ("high", 1500, None),
    ],
)
def test_effort_is_a_budget_within_the_bound_of_the_reply(effort: Any, output: int, thinking: Any) -> None:
    body = body_of(effort=effort, output_tokens_max=output)
    assert body.get("thinking") == thinking
    assert body["max_tokens"] == output


def test_a_model_that_decides_for_itself_is_told_how_hard_to_try() -> None:
    body = body_of(effort="high", target={"quirks": frozenset({"adaptive"})})
    assert body["thinking"]["type"] == "adaptive"
    assert body["output_config"] == {"effort": "high"}


@pytest.mark.spec("H80")
def test_an_effort_that_the_model_does_not_take_is_said_and_nothing_sent() -> None:
    facts = facts_of("anthropic", efforts=("low", "high"))
    with pytest.raises(ModelFailed, match="does not support the effort 'xhigh'") as refused:
        AnthropicFormat(EncodedContextCache()).build_request(
            prompt_of(effort="xhigh"), ModelTarget(facts=facts, url="http://x"), KEY
        )
    assert "low, high" in refused.value.because


@pytest.mark.spec("C105.params")
def test_params_win_and_tools_of_the_provider_join_ours() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    params = {"max_tokens": 5, "temperature": 0.5, "tools": [search], "messages": "no"}
    body = body_of(tools=(LOOK,), target={"params": params})
    assert (body["max_tokens"], body["temperature"]) == (5, 0.5)
    assert [tool["name"] for tool in body["tools"]] == ["web_search", "look"]


def test_marks_roll_along_so_that_the_next_request_finds_what_this_one_left() -> None:
    first = body_of(UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"), tools=(LOOK,))
    then = body_of(
        UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"), Reply(text="B"), UserTurn(text="3"), tools=(LOOK,)
    )

    def marked(body: Any) -> list[int]:
        return [i for i, message in enumerate(body["messages"]) if "cache_control" in message["content"][-1]]

    assert marked(first) == [0, 2]
    assert marked(then) == [2, 4]
    assert raw_count(then, "cache_control") == 3
    bare = body_of(instructions="", tools=(LOOK,))
    assert "system" not in bare and "cache_control" in bare["tools"][-1]


def test_each_record_is_encoded_once_and_marks_do_not_stay_on_it() -> None:
    cache = EncodedContextCache()
    records = records_of(UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"))
    wire = AnthropicFormat(cache)
    target = ModelTarget(facts=facts_of("anthropic"), url="http://x")
    prompt = ModelPrompt(session=SESSION, instructions="", records=records[:1], tools=())
    wire.build_request(prompt, target, KEY)
    size = cache.size_bytes
    longer = ModelPrompt(session=SESSION, instructions="", records=records, tools=())
    bodies = [json.loads(b"".join(wire.build_request(longer, target, KEY).body)) for _ in range(2)]
    assert bodies[0] == bodies[1]
    assert raw_count(bodies[0], "cache_control") == 2
    assert cache.size_bytes == size + len(b'{"type":"text","text":"A"}') + len(b'{"type":"text","text":"2"}')
