"""The Gemini API of Google: what is sent, and what is made of what comes back. Samples are written by hand."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from models.format_rules import DUMMY, follows
from models.replay import KEY, Answer, Then, facts_of, hear, linked, model_at, prompt_of, provider

from retinue.config.models import WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, StopReason, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EncodedContextCache
from retinue.models.formats.google import GoogleFormat
from retinue.models.provider_http import ModelTarget

FORMAT = WireFormat.GOOGLE
LOOK = ToolSpec(
    name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
REST = ToolSpec(name="rest", description="Rests.", parameters={"type": "object", "properties": {}})
PICTURE = Attachment(hash="aa" * 32, name="cat.png", media_type="image/png", size_bytes=3)
PAPER = Attachment(hash="bb" * 32, name="bill.pdf", media_type="application/pdf", size_bytes=4)
CALLS = (Call(id="r-1-1", tool="look", arguments={"at": "north"}), Call(id="r-1-2", tool="rest"))
SIGNED = Reply(
    text="Looking.",
    thinking="North first.",
    calls=CALLS,
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=12),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=8, seal="U0lHMQ=="),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1, seal="U0lHMg=="),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
    ),
    provider="google",
    stop=StopReason.CALLS,
)
RESULTS = (
    ToolResult(call="r-1-1", tool="look", output="snow"),
    ToolResult(call="r-1-2", tool="rest", output="too loud", failed=True),
)


def response(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish := more.pop("finish", None):
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-nine", **more}


def stream(*responses: Any) -> str:
    return "".join(f"data: {json.dumps(one)}\r\n\r\n" for one in responses)


async def heard(body: str | bytes, **more: Any) -> dict[str, Any]:
    async with linked() as link, provider(Answer(body=body, **more), seed=7) as server:
        return await hear(model_at(link, server.url, FORMAT, facts=facts_of("google")))


def request_of(*bodies: Any, key: str = KEY, model: str = "gemini-nine", target: Any = None, **more: Any) -> Any:
    facts = facts_of("google", model, vision=True)
    at = ModelTarget(facts=facts, url="http://127.0.0.1:1/v1beta/", **(target or {}))
    return GoogleFormat(EncodedContextCache()).build_request(prompt_of(*bodies, **more), at, key)


def body_of(*bodies: Any, **more: Any) -> Any:
    body = json.loads(b"".join(request_of(*bodies, **more).body))
    follows(FORMAT, body)
    return body


def roles_and_parts(body: Any) -> list[tuple[str, list[str]]]:
    return [(content["role"], [next(iter(part)) for part in content["parts"]]) for content in body["contents"]]


# What comes back


async def test_words_thoughts_and_counts_are_read() -> None:
    told = await heard(
        stream(
            response({"text": "Hm. ", "thought": True}, usageMetadata={"promptTokenCount": 30}),
            response({"text": "It sn"}, {"text": ""}),
            response(
                {"text": "ows."},
                finish="STOP",
                usageMetadata={
                    "promptTokenCount": 12,
                    "toolUsePromptTokenCount": 5,
                    "candidatesTokenCount": 4,
                    "thoughtsTokenCount": 6,
                    "cachedContentTokenCount": 8,
                    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 12}],
                },
            ),
        )
    )
    assert (told["text"], told["thinking"], told["finish"]) == ("It snows.", "Hm. ", "stop")
    assert told["usage"] == {"input": 17, "output": 10, "cache_read": 8, "cache_write": 0, "reasoning": 6}


async def test_calls_are_known_by_being_there_and_may_have_no_id() -> None:
    told = await heard(
        stream(
            response(
                {"functionCall": {"name": "look", "args": {"at": "north"}, "id": "c1"}, "thoughtSignature": "U0lH"}
            ),
            response({"functionCall": {"name": "rest"}}, finish="STOP"),
        )
    )
    assert told["tool_calls"] == [
        {"id": "c1", "name": "look", "arguments": {"at": "north"}},
        {"id": "", "name": "rest", "arguments": {}},
    ]
    assert told["finish"] == "tool_call"
    assert told["signatures"] == [{"on": "tool_call", "value": "U0lH"}]
    assert told["usage"] is None


async def test_a_signature_is_on_the_part_it_came_with_also_where_that_has_no_words() -> None:
    told = await heard(
        stream(
            response({"text": "Hm.", "thought": True, "thoughtSignature": "QQ=="}),
            response({"text": "Yes"}),
            response({"text": "", "thoughtSignature": "Qg=="}, finish="STOP"),
        )
    )
    assert told["signatures"] == [{"on": "thinking", "value": "QQ=="}, {"on": "text", "value": "Qg=="}]
    bare = await heard(stream(response({"text": "Yes"}, {"thoughtSignature": "Qw=="}, finish="STOP")))
    assert bare["signatures"] == [{"on": "text", "value": "Qw=="}]


async def test_what_the_provider_does_itself_is_kept_to_be_sent_back() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": "QQ=="}
    done = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    told = await heard(stream(response(code), response(done, {}), response({"text": "One."}, finish="STOP")))
    assert told["order"] == ["server_tool_call", "server_tool_result", "text"]
    assert [json.loads(seal["value"]) for seal in told["signatures"]] == [code, done]


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("OTHER", "stop"),
    ],
)
async def test_why_it_stopped(raw: str, finish: str) -> None:
    assert (await heard(stream(response({"text": "Well"}, finish=raw))))["finish"] == finish


async def test_a_prompt_that_was_blocked_has_an_answer_without_words() -> None:
    told = await heard(stream({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}))
    assert (told["finish"], told["text"]) == ("content_filter", "")


async def test_a_call_that_the_model_could_not_say_is_a_failure() -> None:
    told = await heard(stream({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "content": {}}]}))
    assert told["error"] == "malformed"


async def test_a_stream_without_its_end_broke_off() -> None:
    assert (await heard(stream(response({"text": "Well"}))))["error"] == "connection"
    assert (await heard(stream(response({"text": "Well"})), then=Then.CUT))["error"] == "connection"


async def test_an_error_in_the_stream_or_in_place_of_it_is_raised() -> None:
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    told = {"error": "overloaded", "status": 200, "retry_after": None}
    assert await heard(stream(response({"text": "We"}), error)) == told
    assert await heard(json.dumps([error])) == told
    assert await heard(json.dumps(error)) == told


async def test_a_body_in_one_piece_or_an_array_of_responses_is_read_too() -> None:
    one, two = response({"text": "It "}), response({"text": "snows."}, finish="STOP")
    assert (await heard(json.dumps([one, two])))["text"] == "It snows."
    assert (await heard(json.dumps(two, indent=2)))["text"] == "snows."
    assert (await heard("{}"))["error"] == "malformed"
    assert (await heard("It works!"))["error"] == "malformed"
    assert (await heard("[1,"))["error"] == "malformed"


@pytest.mark.parametrize("event", ["{broken", '{"candidates": 5}', '{"candidates": [{"content": {"parts": [5]}}]}'])
async def test_an_event_that_cannot_be_read_is_said_to_be_that(event: str) -> None:
    assert (await heard(f"data: {event}\n\n"))["error"] == "malformed"


# What is sent


async def test_a_request_carries_its_key_in_a_header_and_never_in_its_address() -> None:
    async with linked() as link, provider(Answer(body=stream(response({"text": "Hi"}, finish="STOP")))) as server:
        model = model_at(link, server.url, FORMAT, facts=facts_of("google", "gemini-nine"))
        await hear(model, prompt_of(output_tokens_max=777))
    got = server.last
    assert (got.method, got.path) == ("POST", "/models/gemini-nine:streamGenerateContent?alt=sse")
    assert got.headers["x-goog-api-key"] == KEY
    assert got.body["generationConfig"] == {"maxOutputTokens": 777}
    assert KEY not in got.path and KEY not in got.raw.decode()


def test_the_address_of_a_model() -> None:
    url = request_of(model="tunedModels/my one").url
    assert url == "http://127.0.0.1:1/v1beta/tunedModels/my%20one:streamGenerateContent?alt=sse"
    assert "x-goog-api-key" not in request_of(key="").headers


def test_a_history_with_everything_in_it() -> None:
    body = body_of(
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Look around."),
        SIGNED,
        *RESULTS,
        Note(text="Mail was left out."),
        tools=(LOOK, REST),
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "look", "description": "Looks.", "parametersJsonSchema": LOOK.parameters},
                {"name": "rest", "description": "Rests."},
            ]
        }
    ]
    assert roles_and_parts(body) == [
        ("user", ["text", "text"]),
        ("model", ["text", "functionCall", "functionCall"]),
        ("user", ["functionResponse", "functionResponse", "text"]),
    ]
    text, first, second = body["contents"][1]["parts"]
    assert text == {"text": "Looking.", "thoughtSignature": "U0lHMQ=="}
    assert first["thoughtSignature"] == "U0lHMg==" and "thoughtSignature" not in second
    assert first["functionCall"] == {"id": "r-1-1", "name": "look", "args": {"at": "north"}}
    ok, failed, _ = body["contents"][2]["parts"]
    assert ok["functionResponse"] == {"id": "r-1-1", "name": "look", "response": {"output": "snow"}}
    assert failed["functionResponse"]["response"] == {"error": "too loud"}


def test_thoughts_go_back_only_with_a_signature_and_what_was_done_as_it_was() -> None:
    code = json.dumps({"executableCode": {"code": "1"}, "thoughtSignature": "QQ=="})
    reply = Reply(
        text="One.",
        thinking="Hm.Ah.",
        provider="google",
        pieces=(
            ReplyPiece(kind=ReplyPieceKind.THINKING, length=3),
            ReplyPiece(kind=ReplyPieceKind.THINKING, length=3, seal="Qg=="),
            ReplyPiece(kind=ReplyPieceKind.SERVER, seal=code),
            ReplyPiece(kind=ReplyPieceKind.TEXT, length=4),
            ReplyPiece(kind=ReplyPieceKind.TEXT, seal="Qw=="),
        ),
    )
    assert body_of(UserTurn(text="?"), reply, UserTurn(text="!"))["contents"][1]["parts"] == [
        {"text": "Ah.", "thought": True, "thoughtSignature": "Qg=="},
        json.loads(code),
        {"text": "One."},
        {"text": "", "thoughtSignature": "Qw=="},
    ]


@pytest.mark.spec("C46")
def test_a_call_without_a_signature_is_signed_by_nobody_where_one_is_wanted() -> None:
    foreign = Reply(text="", calls=CALLS, provider="anthropic")
    old = Reply(text="", calls=CALLS, provider="google")

    def signatures(reply: Reply, **target: Any) -> list[Any]:
        body = json.loads(b"".join(request_of(UserTurn(text="?"), reply, *RESULTS, target=target).body))
        return [part.get("thoughtSignature") for part in body["contents"][1]["parts"]]

    by_level = frozenset({"thinking-level"})
    assert signatures(foreign) == signatures(foreign, quirks=by_level) == [DUMMY, None]
    assert signatures(old, quirks=by_level) == [DUMMY, None]
    assert signatures(old) == [None, None]


@pytest.mark.spec("C46")
def test_roles_alternate_and_the_user_has_the_first_word_and_the_last() -> None:
    said = body_of(UserTurn(text="1"), Note(text="2"), Reply(text="A"), Reply(text="B"), UserTurn(text="3"))
    assert roles_and_parts(said) == [("user", ["text", "text"]), ("model", ["text", "text"]), ("user", ["text"])]
    assert [role for role, _ in roles_and_parts(body_of(Reply(text="Hello?")))] == ["user", "model", "user"]
    assert roles_and_parts(body_of(ContextStart(text=""))) == [("user", ["text"])]


@pytest.mark.spec("C46")
def test_an_empty_reply_is_left_out() -> None:
    body = body_of(UserTurn(text="1"), Reply(text="", thinking="Hm.", provider="google"), UserTurn(text="2"))
    assert roles_and_parts(body) == [("user", ["text", "text"])]


class Shelf:
    def read(self, attachment: Attachment) -> bytes | None:
        return {PICTURE.hash: b"png", PAPER.hash: b"%PDF"}.get(attachment.hash)


def test_pictures_and_papers_are_shown_in_line() -> None:
    turn = UserTurn(text="What is this?", attachments=(PICTURE, PAPER))
    text, image, paper = body_of(turn, media=Shelf())["contents"][0]["parts"]
    assert text == {"text": "What is this?"}
    assert image == {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(b"png").decode()}}
    assert paper["inlineData"]["mimeType"] == "application/pdf"


@pytest.mark.parametrize(
    ("effort", "output", "quirks", "thinking"),
    [
        (None, 8192, (), None),
        ("none", 8192, (), {"includeThoughts": False, "thinkingBudget": 0}),
        ("low", 8192, (), {"includeThoughts": True, "thinkingBudget": 2048}),
        ("high", 8192, (), {"includeThoughts": True, "thinkingBudget": 7168}),
        ("low", 500, (), {"includeThoughts": True, "thinkingBudget": 0}),
        ("none", 8192, ("thinking-level",), {"includeThoughts": False, "thinkingLevel": "minimal"}),
        ("high", 8192, ("thinking-level",), {"includeThoughts": True, "thinkingLevel": "high"}),
    ],
)
def test_effort_is_a_budget_or_a_level(effort: Any, output: int, quirks: Any, thinking: Any) -> None:
    body = body_of(effort=effort, output_tokens_max=output, target={"quirks": frozenset(quirks)})
    assert body["generationConfig"].get("thinkingConfig") == thinking
    assert body["generationConfig"]["maxOutputTokens"] == output


@pytest.mark.spec("H80")
def test_an_effort_that_the_model_does_not_take_is_said_and_nothing_sent() -> None:
    facts = facts_of("google", efforts=("low", "high"))
    with pytest.raises(ModelFailed, match="does not support the effort 'none'"):
        GoogleFormat(EncodedContextCache()).build_request(
            prompt_of(effort="none"), ModelTarget(facts=facts, url="http://x"), KEY
        )


@pytest.mark.spec("C105.params")
def test_params_win_and_tools_of_the_provider_join_ours() -> None:
    params = {
        "generationConfig": {"temperature": 0.5, "maxOutputTokens": 5},
        "safetySettings": [{"category": "X"}],
        "tools": [{"googleSearch": {}}],
        "contents": "no",
    }
    body = body_of(tools=(LOOK,), target={"params": params})
    assert body["generationConfig"] == {"maxOutputTokens": 5, "temperature": 0.5}
    assert body["safetySettings"] == [{"category": "X"}]
    assert [next(iter(tool)) for tool in body["tools"]] == ["functionDeclarations", "googleSearch"]


def test_a_model_without_tools_is_offered_none() -> None:
    facts = facts_of("google", tools=False)
    request = GoogleFormat(EncodedContextCache()).build_request(
        prompt_of(tools=(LOOK,)), ModelTarget(facts=facts, url="http://x"), KEY
    )
    assert "tools" not in json.loads(b"".join(request.body))
