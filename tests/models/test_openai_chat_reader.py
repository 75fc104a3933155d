"""Replies in the format openai-chat, in all the ways in which servers write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from models.replay import Answer, Then, facts_of, hear, linked, model_at, provider

FORMAT = "openai-chat"
DONE = "data: [DONE]\n\n"


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def call(arguments: Any = None, *, index: int | None = 0, id_: Any = None, name: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}
    return {key: value for key, value in piece.items() if value is not None}


def stream(*events: Any, done: bool = True) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + (DONE if done else "")


async def read(*events: Any, done: bool = True, provider_name: str = "acme") -> dict[str, Any]:
    return await read_body(stream(*events, done=done), provider_name=provider_name)


async def read_body(body: str, *, provider_name: str = "acme") -> dict[str, Any]:
    async with linked() as link, provider(Answer(body=body)) as server:
        return await hear(model_at(link, server.url, FORMAT, facts=facts_of(provider_name)))


async def test_words_come_together_with_what_they_took() -> None:
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    heard = await read(
        delta(role="assistant", content=""),
        delta(content="Open until "),
        delta(content="six. 🥐"),
        delta("stop"),
        {"choices": [], "usage": usage},
    )
    assert heard["text"] == "Open until six. 🥐"
    assert heard["finish"] == "stop"
    assert heard["order"] == ["text"]
    assert heard["usage"] == {"input": 30, "output": 12, "cache_read": 20, "cache_write": 4, "reasoning": 5}
    assert heard["cost_microusd"] == 0


@pytest.mark.parametrize("place", ["reasoning_content", "reasoning"])
async def test_thoughts_have_more_than_one_place(place: str) -> None:
    heard = await read(delta(**{place: "Hmm, "}), delta(**{place: "six."}), delta(content="At six."), delta("stop"))
    assert (heard["thinking"], heard["text"]) == ("Hmm, six.", "At six.")
    assert heard["order"] == ["thinking", "text"]
    assert heard["signatures"] == []


async def test_details_of_reasoning_are_put_together_and_sealed_before_what_came_of_them() -> None:
    heard = await read(
        delta(reasoning="I ", reasoning_details=[{"type": "reasoning.text", "text": "I ", "index": 0}]),
        delta(reasoning="know.", reasoning_details=[{"type": "reasoning.text", "text": "know.", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.text", "signature": "SIG", "index": 0}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "XYZ", "index": 1}]),
        delta(content="Six."),
        delta("stop"),
    )
    assert (heard["thinking"], heard["text"]) == ("I know.", "Six.")
    assert heard["order"] == ["thinking", "text"]
    (seal,) = heard["signatures"]
    assert json.loads(seal["value"]) == [
        {"type": "reasoning.text", "text": "I know.", "index": 0, "signature": "SIG"},
        {"type": "reasoning.encrypted", "data": "XYZ", "index": 1},
    ]


async def test_details_alone_are_thoughts_too_and_may_come_after_the_calls() -> None:
    heard = await read(
        delta(reasoning_details=[{"type": "reasoning.summary", "summary": "Looked it up.", "index": 0}]),
        delta(tool_calls=[call("{}", id_="c1", name="weather")]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "data": "XYZ", "id": "c1", "index": 0}]),
        delta("tool_calls"),
    )
    assert heard["thinking"] == "Looked it up."
    assert [len(json.loads(seal["value"])) for seal in heard["signatures"]] == [1, 1]


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
async def test_thoughts_between_tags_at_the_start_are_thoughts(content: str, thinking: str, text: str) -> None:
    for size in (1, 3, len(content)):
        pieces = [delta(content=content[place : place + size]) for place in range(0, len(content), size)]
        heard = await read(*pieces, delta("stop"))
        assert (heard["thinking"], heard["text"]) == (thinking, text)


async def test_a_tag_is_text_where_thoughts_have_a_place_of_their_own() -> None:
    heard = await read(delta(reasoning="Hmm."), delta(content="<think>is a tag"), delta("stop"))
    assert (heard["thinking"], heard["text"]) == ("Hmm.", "<think>is a tag")


async def test_content_in_parts_is_words_and_thoughts() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}]}
    heard = await read(
        delta(content=[thought]), delta(content=[{"type": "text", "text": "Six."}, {"type": "image"}, 7]), delta("stop")
    )
    assert (heard["thinking"], heard["text"]) == ("Hmm.", "Six.")


async def test_a_refusal_is_said_and_is_no_answer() -> None:
    heard = await read(delta(refusal="I would "), delta(refusal="rather not."), delta("stop"))
    assert (heard["text"], heard["finish"]) == ("I would rather not.", "content_filter")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),  # it says so, and asks for nothing
    ],
)
async def test_why_it_stopped(reason: str, finish: str) -> None:
    assert (await read(delta(content="Six."), delta(reason)))["finish"] == finish


async def test_calls_are_known_by_being_there_whatever_the_reason_says() -> None:
    pieces = [delta(tool_calls=[call('{"a": 1}', id_="c1", name="weather")])]
    assert (await read(*pieces, delta("stop")))["finish"] == "tool_call"
    assert (await read(*pieces))["finish"] == "tool_call"
    assert (await read(*pieces, delta("length")))["finish"] == "length"


WITH_CALL = delta(tool_calls=[call("{}", id_="c1", name="weather")])
WHOLE = [("c1", "weather", {"city": "Bern"}), ("c2", "weather", {"city": "Rome"})]
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
async def test_parallel_calls_are_told_apart(pieces: list[list[Any]]) -> None:
    heard = await read(*(delta(tool_calls=piece) for piece in pieces), delta("tool_calls"))
    assert [(made["id"], made["name"], made["arguments"]) for made in heard["tool_calls"]] == WHOLE
    assert heard["finish"] == "tool_call"


async def test_another_id_is_another_call_though_nothing_was_given_to_the_one_before() -> None:
    heard = await read(
        delta(tool_calls=[call("", id_="c1", name="clock")]),
        delta(tool_calls=[call(ROME, id_="c2", name="weather")]),
        delta("tool_calls"),
    )
    assert [(made["name"], made["arguments"]) for made in heard["tool_calls"]] == [
        ("clock", {}),
        ("weather", {"city": "Rome"}),
    ]


@pytest.mark.parametrize("same", ["", "same"])
async def test_whole_calls_without_an_id_to_tell_them_apart_are_told_apart(same: str) -> None:
    heard = await read(
        delta(tool_calls=[call(BERN, id_=same, name="weather")]),
        delta(tool_calls=[call(ROME, id_=same, name="weather")]),
        delta(tool_calls=[call("", id_=same, name="weather")]),
        delta("tool_calls"),
    )
    assert [made["arguments"]["city"] for made in heard["tool_calls"]] == ["Bern", "Rome"]
    assert all(made["id"] for made in heard["tool_calls"])


@pytest.mark.parametrize(
    ("arguments", "told"),
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
async def test_arguments_that_do_not_parse_are_told_as_they_are(arguments: str, told: dict[str, Any]) -> None:
    heard = await read(delta(tool_calls=[call(arguments, id_="c1", name="weather")]), delta("tool_calls"))
    assert heard["tool_calls"] == [{"id": "c1", "name": "weather", "arguments": told}]


async def test_calls_have_a_bound() -> None:
    calls = [call("{}", index=number, id_=f"c{number}", name="weather") for number in range(300)]
    assert (await read(delta(tool_calls=calls)))["error"] == "malformed"


async def test_a_stream_that_stops_in_the_middle_broke_off() -> None:
    assert (await read(delta(content="Six"), done=False))["error"] == "connection"
    assert (await read(delta(reasoning="Hmm"), done=False))["error"] == "connection"
    half = delta(tool_calls=[call("{", index=1, id_="c2", name="weather")])
    assert (await read(WITH_CALL, half, done=False))["error"] == "connection"


async def test_calls_that_are_whole_need_no_end() -> None:
    heard = await read(delta(content="Let me see."), WITH_CALL, done=False)
    assert (heard["text"], len(heard["tool_calls"]), heard["finish"]) == ("Let me see.", 1, "tool_call")


async def test_calls_that_look_whole_are_none_where_the_line_was_cut() -> None:
    async with linked() as link, provider(Answer(body=stream(WITH_CALL, done=False), then=Then.CUT)) as server:
        assert (await hear(model_at(link, server.url, FORMAT)))["error"] == "connection"


async def test_one_end_is_enough() -> None:
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
async def test_what_it_took_is_said_in_more_than_one_place(last: Any) -> None:
    heard = await read(delta(content="Six."), last)
    assert heard["usage"] == {"input": 3, "output": 2, "cache_read": 0, "cache_write": 0, "reasoning": 0}


async def test_nothing_taken_is_said_as_nothing() -> None:
    heard = await read(delta(content="Six."), {**delta("stop"), "usage": {"prompt_tokens": 0, "completion_tokens": 0}})
    assert heard["usage"] == {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "reasoning": 0}


@pytest.mark.parametrize("usage", [None, {}, [], "free", {"prompt_tokens": None}, {"prompt_tokens": "many"}])
async def test_a_bill_that_says_nothing_is_no_bill(usage: Any) -> None:
    heard = await read(delta(content="Six."), {**delta("stop"), "usage": usage})
    assert (heard["text"], heard["usage"]) == ("Six.", None)


@pytest.mark.parametrize("details", [{"prompt_cache_hit_tokens": 7}, {"cached_tokens": 7}])
async def test_what_was_read_from_a_cache_has_more_than_one_name(details: dict[str, Any]) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, **details}
    heard = await read(delta(content="Six."), {**delta("stop"), "usage": usage})
    assert heard["usage"]["cache_read"] == 7


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
async def test_a_cost_that_the_server_names_is_the_cost(usage: dict[str, Any], cost_microusd: int) -> None:
    bill = {"prompt_tokens": 1, "completion_tokens": 1, **usage}
    heard = await read(delta(content="Six."), {**delta("stop"), "usage": bill})
    assert heard["cost_microusd"] == cost_microusd


async def test_thoughts_that_are_counted_apart_are_counted() -> None:
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
async def test_an_error_in_the_stream_is_a_failure(event: Any, error: str) -> None:
    heard = await read(delta(content="Si"), event)
    assert (heard["error"], heard["status"]) == (error, 200)


async def test_an_error_is_known_by_the_name_of_its_event_too() -> None:
    body = stream(delta(content="Si"), done=False) + 'event: error\ndata: {"message":"busy","type":"server_error"}\n\n'
    assert (await read_body(body))["error"] == "server"


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
async def test_a_reason_that_is_a_failure_is_one(reason: str) -> None:
    assert "error" in await read(delta(content="Si"), delta(reason))


async def test_what_we_do_not_need_may_be_anything() -> None:
    odd = {"id": 7, "object": None, "created": "now", "model": [], "service_tier": {}, "system_fingerprint": 1}
    heard = await read(
        odd,
        {**odd, "choices": None},
        {**odd, "choices": [{"index": None, "delta": None}]},
        {**odd, "choices": [{"delta": {"role": 3, "content": None, "annotations": 7, "audio": [], "reasoning": {}}}]},
        {**odd, "choices": [{"delta": {"content": "Six."}, "logprobs": 7, "content_filter_results": []}]},
        {**odd, "choices": [{"index": 1, "delta": {"content": "another reply"}}]},
        delta("stop"),
    )
    assert heard["text"] == "Six."


async def test_a_message_beside_deltas_is_not_said_again() -> None:
    heard = await read(
        {"choices": [{"delta": {"content": "Six."}, "message": {"content": "Six."}}]},
        {"choices": [{"message": {"content": "Six."}, "finish_reason": "stop"}]},
    )
    assert heard["text"] == "Six."


async def test_a_reply_in_one_event_is_a_reply() -> None:
    heard = await read({"choices": [{"message": {"content": "Six."}, "finish_reason": "stop"}]})
    assert heard["text"] == "Six."


async def test_a_reply_in_one_body_is_a_reply() -> None:
    message = {
        "role": "assistant",
        "content": "<think>Hmm.</think>Let me see.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": BERN}},
            {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": ROME}},
        ],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    heard = await read_body(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))
    assert (heard["thinking"], heard["text"], heard["finish"]) == ("Hmm.", "Let me see.", "tool_call")
    assert [made["arguments"]["city"] for made in heard["tool_calls"]] == ["Bern", "Rome"]
    assert heard["order"] == ["thinking", "text", "tool_call", "tool_call"]
    assert heard["usage"]["input"] == 3


async def test_an_error_in_one_body_is_a_failure() -> None:
    for body in (
        {"error": {"message": "no", "code": "insufficient_quota"}},
        [{"error": {"code": "insufficient_quota"}}],
    ):
        assert (await read_body(json.dumps(body)))["error"] == "quota"
    assert (await read_body(json.dumps({"choices": []})))["error"] == "malformed"


SMALL = stream(
    delta(content="Grüße "),
    delta(content="🥐"),
    delta(tool_calls=[call("{}", id_="c1", name="weather")]),
    delta("stop"),
)


async def test_a_reply_is_the_same_wherever_its_bytes_are_cut() -> None:
    body = SMALL.encode()
    async with linked() as link:
        for cut in range(1, len(body), 3):
            async with provider(Answer(body=body, cuts=[cut])) as server:
                heard = await hear(model_at(link, server.url, FORMAT))
            assert (heard["text"], len(heard["tool_calls"])) == ("Grüße 🥐", 1)
