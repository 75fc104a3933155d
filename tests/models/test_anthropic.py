"""The Anthropic Messages API: requests, and replies. The samples are hand-written."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.format_rules import check_request_rules, count_key
from models.replay import (
    KEY,
    SESSION,
    Answer,
    Then,
    collect_reply,
    make_http_model,
    make_model_facts,
    make_records,
    open_provider_connections,
    prompt_of,
    provider,
)

from retinue.config.models import WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, StopReason, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.anthropic import AnthropicFormat
from retinue.models.provider_http import ModelTarget

FORMAT = WireFormat.ANTHROPIC
LOOK_TOOL = ToolSpec(
    name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
IMAGE_ATTACHMENT = Attachment(hash="aa" * 32, name="cat.png", media_type="image/png", size_bytes=3)
PDF_ATTACHMENT = Attachment(hash="bb" * 32, name="bill.pdf", media_type="application/pdf", size_bytes=4)
SIGNED_REPLY = Reply(
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
TOOL_RESULTS = (
    ToolResult(call="r-1-1", tool="look", output="snow"),
    ToolResult(call="r-1-2", tool="look", output="", failed=True),
)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(text: str, index: int = 0) -> list[dict[str, Any]]:
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


async def collect_from(body: str | bytes, **more: Any) -> dict[str, Any]:
    async with open_provider_connections() as link, provider(Answer(body=body, **more), seed=7) as server:
        return await collect_reply(make_http_model(link, server.url, FORMAT, facts=make_model_facts("anthropic")))


def make_request(
    *bodies: Any, key: str = KEY, target: Any = None, cache: EncodedContextCache | None = None, **more: Any
) -> Any:
    facts = make_model_facts("anthropic", "claude-nine", vision=True)
    at = ModelTarget(facts=facts, url="http://127.0.0.1:1/v1", **(target or {}))
    return AnthropicFormat(cache or EncodedContextCache()).build_request(prompt_of(*bodies, **more), at, key)


def request_body(*bodies: Any, **more: Any) -> Any:
    body = json.loads(b"".join(make_request(*bodies, **more).body))
    check_request_rules(FORMAT, body)
    return body


def roles_and_blocks(body: Any) -> list[tuple[str, list[str]]]:
    return [(message["role"], [part["type"] for part in message["content"]]) for message in body["messages"]]


# Replies


async def test_text_and_token_counts_of_an_anthropic_reply_are_read() -> None:
    collected = await collect_from(stream(text_block("Hello"), text_block(" there", 1), usage={"output_tokens": 7}))
    assert collected["text"] == "Hello there"
    assert collected["finish"] == "stop"
    assert collected["usage"] == {"input": 14, "output": 7, "cache_read": 4, "cache_write": 0, "reasoning": 0}


async def test_final_token_counts_of_an_anthropic_stream_replace_the_first_ones_unless_they_are_missing() -> None:
    usage = {
        "input_tokens": 90,
        "output_tokens": 7,
        "cache_creation_input_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
        "server_tool_use": {"web_search_requests": 1},
    }
    collected = await collect_from(stream(text_block("Yes"), usage=usage))
    assert collected["usage"] == {"input": 99, "output": 7, "cache_read": 4, "cache_write": 5, "reasoning": 3}


async def test_anthropic_thinking_is_read_with_its_signature_even_without_text() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    collected = await collect_from(
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
            text_block("Done", 3),
        )
    )
    assert collected["thinking"] == "Hm"
    assert collected["order"] == ["thinking", "text"]
    assert [seal["value"] for seal in collected["signatures"]] == ["SIG1", "SIG2", "redacted:SECRET"]


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
async def test_the_arguments_of_a_streamed_anthropic_tool_call_are_joined_and_parsed(
    pieces: Sequence[str], arguments: Any
) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    collected = await collect_from(
        stream(block(0, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}, *deltas))
    )
    assert collected["tool_calls"] == [{"id": "t1", "name": "look", "arguments": arguments}]
    assert collected["finish"] == "tool_call"  # a reply with calls ends by them, whatever its stop reason is


async def test_parallel_complete_and_truncated_anthropic_tool_calls_are_read() -> None:
    cut = block(2, {"type": "tool_use", "id": "t3", "name": "look", "input": {}})[:-1]
    cut.append(
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a'}}
    )
    collected = await collect_from(
        stream(
            block(0, {"type": "tool_use", "id": "t1", "name": "look", "input": {}}),
            block(1, {"type": "tool_use", "id": "t2", "name": "look", "input": {"at": "south"}}),
            cut,
            stop="max_tokens",
        )
    )
    assert [call["arguments"] for call in collected["tool_calls"]] == [{}, {"at": "south"}, {"_unparsed": '{"a'}]
    assert collected["finish"] == "length"


async def test_server_tool_blocks_of_an_anthropic_reply_are_kept_as_signatures() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "https://a.example"}]}
    collected = await collect_from(
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
    assert collected["order"] == ["server_tool_call", "server_tool_result", "text"]
    assert collected["tool_calls"] == []
    use, found = (json.loads(seal["value"]) for seal in collected["signatures"])
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
async def test_anthropic_stop_reasons_are_mapped_to_finish_reasons(raw: str, finish: str) -> None:
    assert (await collect_from(stream(text_block("Well"), stop=raw)))["finish"] == finish


async def test_an_anthropic_stream_without_its_end_is_a_connection_failure() -> None:
    assert (await collect_from(stream(text_block("Well"), end=False)))["error"] == "connection"
    assert (await collect_from(stream(text_block("Well"), end=False), then=Then.CUT))["error"] == "connection"


async def test_an_error_in_an_anthropic_stream_is_a_model_failure() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    body = stream(text_block("Wel"), end=False) + f"event: error\ndata: {json.dumps(error)}\n\n"
    assert await collect_from(body) == {"error": "overloaded", "status": 200, "retry_after": None}
    assert (await collect_from(json.dumps(error)))["error"] == "overloaded"


async def test_unknown_events_and_blocks_do_not_fail_an_anthropic_reply() -> None:
    strange = f"data: {json.dumps({'type': 'message_gossip', 'delta': 'words', 'usage': 3})}\n\n: comment\n\n"
    known, new = text_block("Hi"), block(1, {"type": "container_upload", "id": 5})
    collected = await collect_from(strange + stream(known, new))
    assert collected["text"] == "Hi"
    assert json.loads(collected["signatures"][0]["value"])["type"] == "container_upload"


@pytest.mark.parametrize("event", ["{broken", '{"type":"content_block_delta","delta":{"type":"text_delta","text":5}}'])
async def test_an_unreadable_event_in_an_anthropic_stream_is_a_malformed_reply(event: str) -> None:
    assert (await collect_from(f"data: {event}\n\n"))["error"] == "malformed"


async def test_an_anthropic_reply_in_one_json_body_is_read() -> None:
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
    collected = await collect_from(json.dumps(message))
    assert (collected["text"], collected["thinking"], collected["finish"]) == ("Looking.", "Hm", "tool_call")
    assert collected["tool_calls"] == [{"id": "t1", "name": "look", "arguments": {"at": "north"}}]
    assert collected["order"] == ["thinking", "text", "tool_call"]
    assert (await collect_from('{"hello": 1}'))["error"] == "malformed"
    assert (await collect_from("It works!"))["error"] == "malformed"


# Requests


async def test_an_anthropic_request_has_its_key_in_a_header_and_an_output_limit() -> None:
    async with open_provider_connections() as link, provider(Answer(body=stream(text_block("Hi")))) as server:
        model = make_http_model(link, server.url, FORMAT, facts=make_model_facts("anthropic", "claude-nine"))
        await collect_reply(model, prompt_of(output_tokens_max=777))
    got = server.last
    assert (got.method, got.path) == ("POST", "/messages")
    assert got.headers["x-api-key"] == KEY
    assert got.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in got.headers
    assert (got.body["model"], got.body["max_tokens"], got.body["stream"]) == ("claude-nine", 777, True)
    assert KEY not in got.raw.decode()


def test_an_oauth_token_is_sent_to_anthropic_as_bearer_with_its_beta_header() -> None:
    request = make_request(key="sk-ant-oat01-abc", target={"headers": {"anthropic-beta": "context-1m"}})
    assert request.headers["authorization"] == "Bearer sk-ant-oat01-abc"
    assert request.headers["anthropic-beta"] == "context-1m,oauth-2025-04-20"
    assert "x-api-key" not in request.headers
    assert "oat01" not in repr(request)
    assert "x-api-key" not in make_request(key="").headers


def test_an_anthropic_request_contains_a_history_with_all_record_kinds() -> None:
    body = request_body(
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Look around."),
        SIGNED_REPLY,
        *TOOL_RESULTS,
        Note(text="Mail was left out."),
        tools=(LOOK_TOOL,),
    )
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert body["tools"] == [{"name": "look", "description": "Looks.", "input_schema": LOOK_TOOL.parameters}]
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
def test_consecutive_records_of_one_role_are_one_message_of_an_anthropic_request() -> None:
    body = request_body(
        UserTurn(text="One."), Note(text="Two."), Reply(text="A"), Reply(text="B"), UserTurn(text="Three.")
    )
    assert roles_and_blocks(body) == [("user", ["text", "text"]), ("assistant", ["text", "text"]), ("user", ["text"])]


@pytest.mark.spec("C46")
def test_tool_results_come_first_in_the_anthropic_message_after_their_calls() -> None:
    body = request_body(
        UserTurn(text="Look."), SIGNED_REPLY, TOOL_RESULTS[0], Note(text="In between."), TOOL_RESULTS[1]
    )
    assert roles_and_blocks(body)[-1] == ("user", ["tool_result", "tool_result", "text"])


@pytest.mark.spec("C46")
def test_empty_text_is_not_sent_to_anthropic() -> None:
    body = request_body(UserTurn(text="Hi"), Reply(text=" \n"), ContextStart(text=""), UserTurn(text="Are you there?"))
    assert roles_and_blocks(body) == [("user", ["text", "text"])]


@pytest.mark.spec("C46")
def test_thinking_without_a_signature_of_anthropic_is_omitted() -> None:
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
    body = request_body(UserTurn(text="1"), bare, UserTurn(text="2"), foreign, UserTurn(text="3"))
    assert "Hm." not in json.dumps(body) and "ENC" not in json.dumps(body)


def test_redacted_thinking_and_thinking_without_text_are_sent_back_to_anthropic_unchanged() -> None:
    reply = Reply(
        text="Yes.",
        provider="anthropic",
        pieces=(
            ReplyPiece(kind=ReplyPieceKind.THINKING, seal="redacted:SECRET"),
            ReplyPiece(kind=ReplyPieceKind.THINKING, seal="SIG"),
            ReplyPiece(kind=ReplyPieceKind.TEXT, length=4),
        ),
    )
    redacted, silent, _ = request_body(UserTurn(text="?"), reply, UserTurn(text="!"))["messages"][1]["content"]
    assert redacted == {"type": "redacted_thinking", "data": "SECRET"}
    assert silent == {"type": "thinking", "thinking": "", "signature": "SIG"}


@pytest.mark.spec("C46")
def test_call_ids_invalid_for_anthropic_are_rewritten_equally_for_call_and_result() -> None:
    calls = (Call(id="call:1|x", tool="look"), Call(id="call:1/x", tool="look"))
    results = [ToolResult(call=call.id, tool="look", output="snow") for call in calls]
    body = request_body(UserTurn(text="Look."), Reply(text="", calls=calls), *results)
    uses = [part["id"] for part in body["messages"][1]["content"]]
    assert uses == [part["tool_use_id"] for part in body["messages"][2]["content"]]
    assert len(set(uses)) == 2


@pytest.mark.spec("C46")
def test_the_messages_of_an_anthropic_request_start_and_end_with_the_user_role() -> None:
    assert [role for role, _ in roles_and_blocks(request_body(Reply(text="Hello?")))] == ["user", "assistant", "user"]
    assert roles_and_blocks(request_body(ContextStart(text=""))) == [("user", ["text"])]


def paused_reply(*, ended: bool) -> Reply:
    use = json.dumps({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}})
    result = json.dumps({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})
    pieces = [ReplyPiece(kind=ReplyPieceKind.TEXT, length=9), ReplyPiece(kind=ReplyPieceKind.SERVER, seal=use)]
    if ended:
        pieces.append(ReplyPiece(kind=ReplyPieceKind.SERVER, seal=result))
    return Reply(text="Searching", provider="anthropic", stop=StopReason.PAUSED, pieces=tuple(pieces))


def test_a_paused_anthropic_reply_is_sent_back_last_and_joined_with_its_continuation() -> None:
    body = request_body(UserTurn(text="Search."), paused_reply(ended=False))
    assert roles_and_blocks(body)[-1] == ("assistant", ["text", "server_tool_use"])
    rest = Reply(
        text="Found.",
        provider="anthropic",
        pieces=(paused_reply(ended=True).pieces[-1], ReplyPiece(kind=ReplyPieceKind.TEXT, length=6)),
    )
    body = request_body(UserTurn(text="Search."), paused_reply(ended=False), rest, UserTurn(text="Thanks."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text", "server_tool_use", "web_search_tool_result", "text"])


@pytest.mark.spec("C46")
def test_in_an_anthropic_request_a_user_message_follows_a_paused_reply_of_another_provider() -> None:
    body = request_body(UserTurn(text="Search."), replace(paused_reply(ended=False), provider="elsewhere"))
    assert roles_and_blocks(body)[1:] == [("assistant", ["text"]), ("user", ["text"])]


@pytest.mark.spec("C46")
def test_a_paused_anthropic_reply_that_was_not_continued_leaves_no_open_server_tool_call() -> None:
    body = request_body(UserTurn(text="Search."), paused_reply(ended=False), UserTurn(text="Never mind."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text"])
    body = request_body(UserTurn(text="Search."), paused_reply(ended=True), UserTurn(text="Never mind."))
    assert roles_and_blocks(body)[1] == ("assistant", ["text", "server_tool_use", "web_search_tool_result"])


class FakeAttachments:
    def read(self, attachment: Attachment) -> bytes | None:
        return {IMAGE_ATTACHMENT.hash: b"png", PDF_ATTACHMENT.hash: b"%PDF"}.get(attachment.hash)


def test_images_and_pdfs_are_sent_to_anthropic_before_the_text() -> None:
    turn = UserTurn(text="What is this?", attachments=(IMAGE_ATTACHMENT, PDF_ATTACHMENT))
    image, paper, text = request_body(turn, media=FakeAttachments())["messages"][0]["content"]
    data = base64.b64encode(b"png").decode()
    assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert (paper["type"], paper["source"]["media_type"]) == ("document", "application/pdf")
    assert text["text"] == "What is this?"


def test_an_anthropic_request_names_an_image_that_is_too_large_or_missing_in_its_text() -> None:
    huge = Attachment(hash="cc" * 32, name="huge.png", media_type="image/png", size_bytes=6 * 1024 * 1024)
    gone = Attachment(hash="dd" * 32, name="gone.png", media_type="image/png", size_bytes=3)
    turn = UserTurn(text="Look.", attachments=(huge, gone))
    words = [part["text"] for part in request_body(turn, media=FakeAttachments())["messages"][0]["content"]]
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
def test_an_effort_becomes_an_anthropic_thinking_budget_within_the_output_limit(
    effort: Any, output: int, thinking: Any
) -> None:
    body = request_body(effort=effort, output_tokens_max=output)
    assert body.get("thinking") == thinking
    assert body["max_tokens"] == output


def test_an_anthropic_model_with_adaptive_thinking_gets_the_effort() -> None:
    body = request_body(effort="high", target={"quirks": frozenset({"adaptive"})})
    assert body["thinking"]["type"] == "adaptive"
    assert body["output_config"] == {"effort": "high"}


@pytest.mark.spec("H80")
def test_an_effort_unsupported_by_an_anthropic_model_is_refused_without_a_request() -> None:
    facts = make_model_facts("anthropic", efforts=("low", "high"))
    with pytest.raises(ModelFailed, match="does not support the effort 'xhigh'") as refused:
        AnthropicFormat(EncodedContextCache()).build_request(
            prompt_of(effort="xhigh"), ModelTarget(facts=facts, url="http://x"), KEY
        )
    assert "low, high" in refused.value.because


@pytest.mark.spec("C105.params")
def test_params_override_an_anthropic_request_and_provider_tools_are_added() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    params = {"max_tokens": 5, "temperature": 0.5, "tools": [search], "messages": "no"}
    body = request_body(tools=(LOOK_TOOL,), target={"params": params})
    assert (body["max_tokens"], body["temperature"]) == (5, 0.5)
    assert [tool["name"] for tool in body["tools"]] == ["web_search", "look"]


def test_anthropic_cache_marks_move_so_that_the_next_request_reuses_the_cached_prefix() -> None:
    first = request_body(UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"), tools=(LOOK_TOOL,))
    then = request_body(
        UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"), Reply(text="B"), UserTurn(text="3"), tools=(LOOK_TOOL,)
    )

    def cached_messages(body: Any) -> list[int]:
        return [i for i, message in enumerate(body["messages"]) if "cache_control" in message["content"][-1]]

    assert cached_messages(first) == [0, 2]
    assert cached_messages(then) == [2, 4]
    assert count_key(then, "cache_control") == 3
    bare = request_body(instructions="", tools=(LOOK_TOOL,))
    assert "system" not in bare and "cache_control" in bare["tools"][-1]


def test_each_record_of_an_anthropic_request_is_encoded_once_and_without_cache_marks() -> None:
    cache = EncodedContextCache()
    records = make_records(UserTurn(text="1"), Reply(text="A"), UserTurn(text="2"))
    wire = AnthropicFormat(cache)
    target = ModelTarget(facts=make_model_facts("anthropic"), url="http://x")
    prompt = ModelPrompt(session=SESSION, instructions="", records=records[:1], tools=())
    wire.build_request(prompt, target, KEY)
    size = cache.size_bytes
    longer = ModelPrompt(session=SESSION, instructions="", records=records, tools=())
    bodies = [json.loads(b"".join(wire.build_request(longer, target, KEY).body)) for _ in range(2)]
    assert bodies[0] == bodies[1]
    assert count_key(bodies[0], "cache_control") == 2
    assert cache.size_bytes == size + len(b'{"type":"text","text":"A"}') + len(b'{"type":"text","text":"2"}')
