"""Replies in the openai-chat format, in all the variants that servers send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.replay import (
    Answer,
    Then,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    provider,
)

FORMAT = "openai-chat"
DONE = "data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments: Any = None, *, index: int | None = 0, id_: Any = None, name: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}
    return {key: value for key, value in piece.items() if value is not None}


def stream(*events: Any, done: bool = True) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + (DONE if done else "")


async def read(*events: Any, done: bool = True, provider_name: str = "acme") -> dict[str, Any]:
    return await read_body(stream(*events, done=done), provider_name=provider_name)


async def read_body(body: str, *, provider_name: str = "acme") -> dict[str, Any]:
    async with open_provider_connections() as link, provider(Answer(body=body)) as server:
        return await collect_reply(make_http_model(link, server.url, FORMAT, facts=make_model_facts(provider_name)))


async def test_text_deltas_of_an_openai_chat_stream_are_joined_and_usage_is_read() -> None:
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    collected = await read(
        delta(role="assistant", content=""),
        delta(content="Open until "),
        delta(content="six. 🥐"),
        delta("stop"),
        {"choices": [], "usage": usage},
    )
    assert collected["text"] == "Open until six. 🥐"
    assert collected["finish"] == "stop"
    assert collected["order"] == ["text"]
    assert collected["usage"] == {"input": 30, "output": 12, "cache_read": 20, "cache_write": 4, "reasoning": 5}
    assert collected["cost_microusd"] == 0


@pytest.mark.parametrize("place", ["reasoning_content", "reasoning"])
async def test_thinking_of_an_openai_chat_reply_is_read_from_both_reasoning_fields(place: str) -> None:
    collected = await read(delta(**{place: "Hmm, "}), delta(**{place: "six."}), delta(content="At six."), delta("stop"))
    assert (collected["thinking"], collected["text"]) == ("Hmm, six.", "At six.")
    assert collected["order"] == ["thinking", "text"]
    assert collected["signatures"] == []


async def test_joined_reasoning_details_of_an_openai_chat_reply_precede_its_text() -> None:
    collected = await read(
        delta(reasoning="I ", reasoning_details=[{"type": "reasoning.text", "text": "I ", "index": 0}]),
        delta(reasoning="know.", reasoning_details=[{"type": "reasoning.text", "text": "know.", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.text", "signature": "SIG", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "XYZ", "index": 1}]),
        delta(content="Six."),
        delta("stop"),
    )
    assert (collected["thinking"], collected["text"]) == ("I know.", "Six.")
    assert collected["order"] == ["thinking", "text"]
    (seal,) = collected["signatures"]
    assert json.loads(seal["value"]) == [
        {"type": "reasoning.text", "text": "I know.", "index": 0, "signature": "SIG"},
        {"type": "reasoning.encrypted", "data": "XYZ", "index": 1},
    ]


async def test_reasoning_details_of_an_openai_chat_reply_are_thinking_and_may_follow_the_calls() -> None:
    collected = await read(
        delta(reasoning_details=[{"type": "reasoning.summary", "summary": "Looked it up.", "index": 0}]),
        delta(tool_calls=[call("{}", id_="c1", name="weather")]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "XYZ", "id": "c1", "index": 0}]),
        delta("tool_calls"),
    )
    assert collected["thinking"] == "Looked it up."
    assert [len(json.loads(seal["value"])) for seal in collected["signatures"]] == [1, 1]


@pytest.mark.parametrize(
    ("content", "thinking", "text"),
    [
        ("<think>\nHmm.\n</think>\n\nSix.", "Hmm.", "Six."),
        ("  \n<think>Hmm.</think>Six.", "Hmm.", "Six."),
        ("<think>never ends\n", "never ends", ""),
        ("<think></think>Six.", "", "Six."),
        ("<think>\n\n</think>\n\n", "", ""),
        ("Six. <think>not at the start</think>", "", "Six. <think>not at the start</think>"),
        ("<thin ice", "", "<thin ice"),
        ("<think", "", "<think"),
        ("<think>a < b </thin> c</think> d </think>", "a < b </thin> c", "d </think>"),
        (" leading space", "", " leading space"),
    ],
)
async def test_text_in_think_tags_at_the_start_of_an_openai_chat_reply_is_thinking(
    content: str, thinking: str, text: str
) -> None:
    for size in (1, 3, len(content)):
        pieces = [delta(content=content[place : place + size]) for place in range(0, len(content), size)]
        collected = await read(*pieces, delta("stop"))
        assert (collected["thinking"], collected["text"]) == (thinking, text)


async def test_a_think_tag_in_an_openai_chat_reply_is_text_if_thinking_has_its_own_field() -> None:
    collected = await read(delta(reasoning="Hmm."), delta(content="<think>is a tag"), delta("stop"))
    assert (collected["thinking"], collected["text"]) == ("Hmm.", "<think>is a tag")


async def test_content_of_an_openai_chat_reply_as_a_list_of_parts_is_read_as_text_and_thinking() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}]}
    collected = await read(
        delta(content=[thought]), delta(content=[{"type": "text", "text": "Six."}, {"type": "image"}, 7]), delta("stop")
    )
    assert (collected["thinking"], collected["text"]) == ("Hmm.", "Six.")


async def test_a_refusal_in_an_openai_chat_reply_is_text_with_a_content_filter_finish() -> None:
    collected = await read(delta(refusal="I would "), delta(refusal="rather not."), delta("stop"))
    assert (collected["text"], collected["finish"]) == ("I would rather not.", "content_filter")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),  # it names calls but contains none
    ],
)
async def test_finish_reasons_of_openai_chat_replies_are_mapped(reason: str, finish: str) -> None:
    assert (await read(delta(content="Six."), delta(reason)))["finish"] == finish


async def test_tool_calls_in_an_openai_chat_reply_set_its_finish_reason_whatever_the_server_reports() -> None:
    pieces = [delta(tool_calls=[call('{"a": 1}', id_="c1", name="weather")])]
    assert (await read(*pieces, delta("stop")))["finish"] == "tool_call"
    assert (await read(*pieces))["finish"] == "tool_call"
    assert (await read(*pieces, delta("length")))["finish"] == "length"


WITH_CALL = delta(tool_calls=[call("{}", id_="c1", name="weather")])
EXPECTED_CALLS = [("c1", "weather", {"city": "Bern"}), ("c2", "weather", {"city": "Rome"})]
BERN, ROME = '{"city": "Bern"}', '{"city": "Rome"}'


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                [call("", id_="c1", name="weather")],
                [call('{"city": ')],
                [call("", index=1, id_="c2", name="weather")],
                [call('{"city":', index=1), call('"Bern"}')],
                [call(' "Rome"}', index=1)],
            ],
            id="by index, mixed",
        ),
        pytest.param(
            [[call(BERN, id_="c1", name="weather"), call(ROME, index=1, id_="c2", name="weather")]],
            id="whole, in one delta",
        ),
        pytest.param(
            [[call(BERN, id_="c1", name="weather")], [call(ROME, id_="c2", name="weather")]],
            id="whole, all with index 0",
        ),
        pytest.param(
            [
                [call('{"city"', id_="c1", name="weather")],
                [call(': "Bern"}', id_="c1", name="weather")],
                [call('{"city": "Ro', index=1, id_="c2", name="weather")],
                [call('me"}', index=1, id_="c2", name="weather")],
            ],
            id="id and name in every piece",
        ),
        pytest.param(
            [
                [call("", id_="c1", name="weather")],
                [call(BERN, id_="")],
                [call("", id_="")],
                [call("", index=1, id_="c2", name="weather")],
                [call(ROME, index=1, id_="")],
            ],
            id="empty ids after the first",
        ),
        pytest.param(
            [
                [call('{"city": "B', index=None, id_="c1", name="weather")],
                [call('ern"}', index=None)],
                [call(ROME, index=None, id_="c2", name="weather")],
            ],
            id="no index",
        ),
        pytest.param(
            [
                [call({"city": "Bern"}, id_="c1", name="weather")],
                [call({"city": "Rome"}, index=1, id_="c2", name="weather")],
            ],
            id="arguments as an object",
        ),
        pytest.param(
            [[call(json.dumps(BERN), id_="c1", name="weather")], [call(ROME, index=1, id_="c2", name="weather")]],
            id="JSON in JSON",
        ),
    ],
)
async def test_parallel_openai_chat_tool_calls_are_separated_in_every_streaming_style(pieces: list[list[Any]]) -> None:
    collected = await read(*(delta(tool_calls=piece) for piece in pieces), delta("tool_calls"))
    assert [(made["id"], made["name"], made["arguments"]) for made in collected["tool_calls"]] == EXPECTED_CALLS
    assert collected["finish"] == "tool_call"


async def test_a_new_call_id_in_an_openai_chat_stream_starts_a_new_call_even_after_empty_arguments() -> None:
    collected = await read(
        delta(tool_calls=[call("", id_="c1", name="clock")]),
        delta(tool_calls=[call(ROME, id_="c2", name="weather")]),
        delta("tool_calls"),
    )
    assert [(made["name"], made["arguments"]) for made in collected["tool_calls"]] == [
        ("clock", {}),
        ("weather", {"city": "Rome"}),
    ]


@pytest.mark.parametrize("same", ["", "same"])
async def test_complete_openai_chat_tool_calls_without_distinct_ids_are_separated(same: str) -> None:
    collected = await read(
        delta(tool_calls=[call(BERN, id_=same, name="weather")]),
        delta(tool_calls=[call(ROME, id_=same, name="weather")]),
        delta(tool_calls=[call("", id_=same, name="weather")]),
        delta("tool_calls"),
    )
    assert [made["arguments"]["city"] for made in collected["tool_calls"]] == ["Bern", "Rome"]
    assert all(made["id"] for made in collected["tool_calls"])


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ("", {}),
        ("null", {}),
        ("{}", {}),
        ('{"city": "Ber', {"_unparsed": '{"city": "Ber'}),
        ("[1]", {"_unparsed": "[1]"}),
        ('"Bern"', {"_unparsed": '"Bern"'}),
        ("{'city': 'Bern'}", {"_unparsed": "{'city': 'Bern'}"}),
        ("[" * 5000, {"_unparsed": "[" * 5000}),
        ('{"n": 1e999}', {"_unparsed": '{"n": 1e999}'}),
    ],
)
async def test_arguments_of_an_openai_chat_tool_call_that_do_not_parse_are_kept_as_unparsed(
    arguments: str, parsed: dict[str, Any]
) -> None:
    collected = await read(delta(tool_calls=[call(arguments, id_="c1", name="weather")]), delta("tool_calls"))
    assert collected["tool_calls"] == [{"id": "c1", "name": "weather", "arguments": parsed}]


async def test_too_many_tool_calls_in_an_openai_chat_reply_are_a_malformed_reply() -> None:
    calls = [call("{}", index=number, id_=f"c{number}", name="weather") for number in range(300)]
    assert (await read(delta(tool_calls=calls)))["error"] == "malformed"


async def test_an_openai_chat_stream_that_stops_in_the_middle_is_a_connection_failure() -> None:
    assert (await read(delta(content="Six"), done=False))["error"] == "connection"
    assert (await read(delta(reasoning="Hmm"), done=False))["error"] == "connection"
    half = delta(tool_calls=[call("{", index=1, id_="c2", name="weather")])
    assert (await read(WITH_CALL, half, done=False))["error"] == "connection"


async def test_an_openai_chat_stream_with_complete_tool_calls_needs_no_end_marker() -> None:
    collected = await read(delta(content="Let me see."), WITH_CALL, done=False)
    assert (collected["text"], len(collected["tool_calls"]), collected["finish"]) == ("Let me see.", 1, "tool_call")


async def test_complete_openai_chat_tool_calls_are_discarded_if_the_connection_was_cut() -> None:
    async with (
        open_provider_connections() as link,
        provider(Answer(body=stream(WITH_CALL, done=False), then=Then.CUT)) as server,
    ):
        assert (await collect_reply(make_http_model(link, server.url, FORMAT)))["error"] == "connection"


async def test_any_single_end_marker_ends_an_openai_chat_reply() -> None:
    words = delta(content="Six.")
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    for body in (stream(words), stream(words, delta("stop"), done=False), stream(words, usage, done=False)):
        assert (await read_body(body))["text"] == "Six."


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}},
        {"choices": [], "usage": {"prompt_tokens": 3.0, "completion_tokens": 2, "prompt_tokens_details": None}},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": "?", "x": []}},
    ],
)
async def test_usage_of_an_openai_chat_reply_is_read_from_every_known_place(last: Any) -> None:
    collected = await read(delta(content="Six."), last)
    assert collected["usage"] == {"input": 3, "output": 2, "cache_read": 0, "cache_write": 0, "reasoning": 0}


async def test_a_usage_of_zero_tokens_in_an_openai_chat_reply_is_read_as_zero() -> None:
    collected = await read(
        delta(content="Six."), {**delta("stop"), "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    )
    assert collected["usage"] == {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 0}


@pytest.mark.parametrize("usage", [None, {}, [], "free", {"prompt_tokens": None}, {"prompt_tokens": "many"}])
async def test_an_empty_or_invalid_usage_in_an_openai_chat_reply_is_ignored(usage: Any) -> None:
    collected = await read(delta(content="Six."), {**delta("stop"), "usage": usage})
    assert (collected["text"], collected["usage"]) == ("Six.", None)


@pytest.mark.parametrize("details", [{"prompt_cache_hit_tokens": 7}, {"cached_tokens": 7}])
async def test_cached_tokens_of_an_openai_chat_reply_are_read_from_every_known_field(details: dict[str, Any]) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, **details}
    collected = await read(delta(content="Six."), {**delta("stop"), "usage": usage})
    assert collected["usage"]["cache_read"] == 7


@pytest.mark.parametrize(
    ("usage", "cost_microusd"),
    [
        ({"cost": 0.001156}, 1156),
        ({"cost": 0.0000004}, 1),
        ({"cost": 0.0001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}, 2100),
        ({"cost_in_usd_ticks": 20_001}, 3),
        ({"cost": -1}, 0),
        ({"cost": None}, 0),
        ({"cost": "much"}, 0),
    ],
)
async def test_a_cost_reported_in_an_openai_chat_reply_is_used(usage: dict[str, Any], cost_microusd: int) -> None:
    bill = {"prompt_tokens": 1, "completion_tokens": 1, **usage}
    collected = await read(delta(content="Six."), {**delta("stop"), "usage": bill})
    assert collected["cost_microusd"] == cost_microusd


async def test_reasoning_tokens_that_openai_chat_counts_separately_are_added_to_the_output() -> None:
    thought = {"completion_tokens_details": {"reasoning_tokens": 5}}
    bill = {"prompt_tokens": 10, "completion_tokens": 2, **thought}
    apart = await read(delta(content="Six."), {**delta("stop"), "usage": {**bill, "total_tokens": 17}})
    within = await read(delta(content="Six."), {**delta("stop"), "usage": {**bill, "total_tokens": 12}})
    assert (apart["usage"]["output"], within["usage"]["output"]) == (7, 2)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": {"message": "The server is overloaded", "type": "overloaded_error"}}, "overloaded"),
        ({"error": {"message": "out", "code": "insufficient_quota"}, "choices": []}, "quota"),
        ({"object": "error", "message": "no such model", "code": "model_not_found"}, "not_found"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "gone"}}]}, "server"),
        ({"x_groq": {"error": {"message": "busy", "type": "rate_limit_error"}}}, "rate_limit"),
        ([{"error": {"message": "x", "code": "context_length_exceeded"}}], "context_overflow"),
    ],
)
async def test_an_error_in_an_openai_chat_stream_is_a_model_failure(event: Any, error: str) -> None:
    collected = await read(delta(content="Si"), event)
    assert (collected["error"], collected["status"]) == (error, 200)


async def test_an_event_named_error_in_an_openai_chat_stream_is_a_model_failure() -> None:
    body = stream(delta(content="Si"), done=False) + 'event: error\ndata: {"message":"busy","type":"server_error"}\n\n'
    assert (await read_body(body))["error"] == "server"


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
async def test_an_openai_chat_finish_reason_that_reports_an_error_is_a_model_failure(reason: str) -> None:
    assert "error" in await read(delta(content="Si"), delta(reason))


async def test_unneeded_fields_of_an_openai_chat_reply_may_have_any_type() -> None:
    odd = {"id": 7, "object": None, "created": "now", "model": [], "service_tier": {}, "system_fingerprint": 1}
    collected = await read(
        odd,
        {**odd, "choices": None},
        {**odd, "choices": [{"index": None, "delta": None}]},
        {**odd, "choices": [{"delta": {"role": 3, "content": None, "annotations": 7, "audio": [], "reasoning": {}}}]},
        {**odd, "choices": [{"delta": {"content": "Six."}, "logprobs": 7, "content_filter_results": []}]},
        {**odd, "choices": [{"index": 1, "delta": {"content": "another reply"}}]},
        delta("stop"),
    )
    assert collected["text"] == "Six."


async def test_a_message_in_addition_to_the_deltas_of_an_openai_chat_stream_is_not_repeated() -> None:
    collected = await read(
        {"choices": [{"delta": {"content": "Six."}, "message": {"content": "Six."}}]},
        {"choices": [{"message": {"content": "Six."}, "finish_reason": "stop"}]},
    )
    assert collected["text"] == "Six."


async def test_an_openai_chat_reply_in_one_event_is_read() -> None:
    collected = await read({"choices": [{"message": {"content": "Six."}, "finish_reason": "stop"}]})
    assert collected["text"] == "Six."


async def test_an_openai_chat_reply_in_one_json_body_is_read() -> None:
    message = {
        "role": "assistant",
        "content": "<think>Hmm.</think>Let me see.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": BERN}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": ROME}},
        ],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    collected = await read_body(
        json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    )
    assert (collected["thinking"], collected["text"], collected["finish"]) == ("Hmm.", "Let me see.", "tool_call")
    assert [made["arguments"]["city"] for made in collected["tool_calls"]] == ["Bern", "Rome"]
    assert collected["order"] == ["thinking", "text", "tool_call", "tool_call"]
    assert collected["usage"]["input"] == 3


async def test_an_error_in_the_json_body_of_an_openai_chat_reply_is_a_model_failure() -> None:
    for body in (
        {"error": {"message": "no", "code": "insufficient_quota"}},
        [{"error": {"code": "insufficient_quota"}}],
    ):
        assert (await read_body(json.dumps(body)))["error"] == "quota"
    assert (await read_body(json.dumps({"choices": []})))["error"] == "malformed"


SMALL_STREAM = stream(
    delta(content="Grüße "),
    delta(content="🥐"),
    delta(tool_calls=[call("{}", id_="c1", name="weather")]),
    delta("stop"),
)


async def test_an_openai_chat_reply_is_the_same_for_any_split_of_its_bytes() -> None:
    body = SMALL_STREAM.encode()
    async with open_provider_connections() as link:
        for cut in range(1, len(body), 3):
            async with provider(Answer(body=body, cuts=[cut])) as server:
                collected = await collect_reply(make_http_model(link, server.url, FORMAT))
            assert (collected["text"], len(collected["tool_calls"])) == ("Grüße 🥐", 1)
