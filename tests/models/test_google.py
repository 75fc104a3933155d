"""The Google Gemini API: requests, and replies. The samples are hand-written."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from models.format_rules import DUMMY_SIGNATURE, check_request_rules
from models.replay import (
    KEY,
    Answer,
    Then,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    prompt_of,
    provider,
)

from retinue.config.models import WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, StopReason, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.google import GoogleFormat
from retinue.models.provider_http import ModelTarget

FORMAT = WireFormat.GOOGLE
LOOK_TOOL = ToolSpec(
    name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)
REST_TOOL = ToolSpec(name="rest", description="Rests.", parameters={"type": "object", "properties": {}})
IMAGE_ATTACHMENT = Attachment(hash="aa" * 32, name="cat.png", media_type="image/png", size_bytes=3)
PDF_ATTACHMENT = Attachment(hash="bb" * 32, name="bill.pdf", media_type="application/pdf", size_bytes=4)
CALLS = (Call(id="r-1-1", tool="look", arguments={"at": "north"}), Call(id="r-1-2", tool="rest"))
SIGNED_REPLY = Reply(
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
TOOL_RESULTS = (
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


async def collect_from(body: str | bytes, **more: Any) -> dict[str, Any]:
    async with open_provider_connections() as link, provider(Answer(body=body, **more), seed=7) as server:
        return await collect_reply(make_http_model(link, server.url, FORMAT, facts=make_model_facts("google")))


def make_request(*bodies: Any, key: str = KEY, model: str = "gemini-nine", target: Any = None, **more: Any) -> Any:
    facts = make_model_facts("google", model, vision=True)
    at = ModelTarget(facts=facts, url="http://127.0.0.1:1/v1beta/", **(target or {}))
    return GoogleFormat(EncodedContextCache()).build_request(prompt_of(*bodies, **more), at, key)


def request_body(*bodies: Any, **more: Any) -> Any:
    body = json.loads(b"".join(make_request(*bodies, **more).body))
    check_request_rules(FORMAT, body)
    return body


def roles_and_parts(body: Any) -> list[tuple[str, list[str]]]:
    return [(content["role"], [next(iter(part)) for part in content["parts"]]) for content in body["contents"]]


# Replies


async def test_text_thinking_and_token_counts_of_a_gemini_reply_are_read() -> None:
    collected = await collect_from(
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
    assert (collected["text"], collected["thinking"], collected["finish"]) == ("It snows.", "Hm. ", "stop")
    assert collected["usage"] == {"input": 17, "output": 10, "cache_read": 8, "cache_write": 0, "reasoning": 6}


async def test_google_function_calls_set_the_finish_reason_and_may_have_no_id() -> None:
    collected = await collect_from(
        stream(
            response(
                {"functionCall": {"name": "look", "args": {"at": "north"}, "id": "c1"}, "thoughtSignature": "U0lH"}
            ),
            response({"functionCall": {"name": "rest"}}, finish="STOP"),
        )
    )
    assert collected["tool_calls"] == [
        {"id": "c1", "name": "look", "arguments": {"at": "north"}},
        {"id": "", "name": "rest", "arguments": {}},
    ]
    assert collected["finish"] == "tool_call"
    assert collected["signatures"] == [{"on": "tool_call", "value": "U0lH"}]
    assert collected["usage"] is None


async def test_a_google_thought_signature_belongs_to_its_part_even_if_the_part_has_no_text() -> None:
    collected = await collect_from(
        stream(
            response({"text": "Hm.", "thought": True, "thoughtSignature": "QQ=="}),
            response({"text": "Yes"}),
            response({"text": "", "thoughtSignature": "Qg=="}, finish="STOP"),
        )
    )
    assert collected["signatures"] == [{"on": "thinking", "value": "QQ=="}, {"on": "text", "value": "Qg=="}]
    bare = await collect_from(stream(response({"text": "Yes"}, {"thoughtSignature": "Qw=="}, finish="STOP")))
    assert bare["signatures"] == [{"on": "text", "value": "Qw=="}]


async def test_code_execution_parts_of_a_google_reply_are_kept_as_signatures() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": "QQ=="}
    done = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    collected = await collect_from(
        stream(response(code), response(done, {}), response({"text": "One."}, finish="STOP"))
    )
    assert collected["order"] == ["server_tool_call", "server_tool_result", "text"]
    assert [json.loads(seal["value"]) for seal in collected["signatures"]] == [code, done]


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
async def test_gemini_finish_reasons_are_mapped(raw: str, finish: str) -> None:
    assert (await collect_from(stream(response({"text": "Well"}, finish=raw))))["finish"] == finish


async def test_a_prompt_blocked_by_google_gives_an_empty_filtered_reply() -> None:
    collected = await collect_from(
        stream({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}})
    )
    assert (collected["finish"], collected["text"]) == ("content_filter", "")


async def test_a_malformed_google_function_call_is_a_malformed_reply() -> None:
    collected = await collect_from(stream({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "content": {}}]}))
    assert collected["error"] == "malformed"


async def test_a_google_stream_without_its_end_is_a_connection_failure() -> None:
    assert (await collect_from(stream(response({"text": "Well"}))))["error"] == "connection"
    assert (await collect_from(stream(response({"text": "Well"})), then=Then.CUT))["error"] == "connection"


async def test_an_error_in_or_instead_of_a_google_stream_is_a_model_failure() -> None:
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    collected = {"error": "overloaded", "status": 200, "retry_after": None}
    assert await collect_from(stream(response({"text": "We"}), error)) == collected
    assert await collect_from(json.dumps([error])) == collected
    assert await collect_from(json.dumps(error)) == collected


async def test_a_google_reply_in_one_json_body_or_an_array_of_responses_is_read() -> None:
    one, two = response({"text": "It "}), response({"text": "snows."}, finish="STOP")
    assert (await collect_from(json.dumps([one, two])))["text"] == "It snows."
    assert (await collect_from(json.dumps(two, indent=2)))["text"] == "snows."
    assert (await collect_from("{}"))["error"] == "malformed"
    assert (await collect_from("It works!"))["error"] == "malformed"
    assert (await collect_from("[1,"))["error"] == "malformed"


@pytest.mark.parametrize("event", ["{broken", '{"candidates": 5}', '{"candidates": [{"content": {"parts": [5]}}]}'])
async def test_an_unreadable_event_in_a_google_stream_is_a_malformed_reply(event: str) -> None:
    assert (await collect_from(f"data: {event}\n\n"))["error"] == "malformed"


# Requests


async def test_a_google_request_has_its_key_in_a_header_and_never_in_its_url() -> None:
    async with (
        open_provider_connections() as link,
        provider(Answer(body=stream(response({"text": "Hi"}, finish="STOP")))) as server,
    ):
        model = make_http_model(link, server.url, FORMAT, facts=make_model_facts("google", "gemini-nine"))
        await collect_reply(model, prompt_of(output_tokens_max=777))
    got = server.last
    assert (got.method, got.path) == ("POST", "/models/gemini-nine:streamGenerateContent?alt=sse")
    assert got.headers["x-goog-api-key"] == KEY
    assert got.body["generationConfig"] == {"maxOutputTokens": 777}
    assert KEY not in got.path and KEY not in got.raw.decode()


def test_the_url_of_a_google_request_contains_the_escaped_model_name() -> None:
    url = make_request(model="tunedModels/my one").url
    assert url == "http://127.0.0.1:1/v1beta/tunedModels/my%20one:streamGenerateContent?alt=sse"
    assert "x-goog-api-key" not in make_request(key="").headers


def test_a_google_request_contains_a_history_with_all_record_kinds() -> None:
    body = request_body(
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Look around."),
        SIGNED_REPLY,
        *TOOL_RESULTS,
        Note(text="Mail was left out."),
        tools=(LOOK_TOOL, REST_TOOL),
    )
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "look", "description": "Looks.", "parametersJsonSchema": LOOK_TOOL.parameters},
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


def test_thinking_is_sent_back_to_google_only_with_a_signature_and_code_parts_unchanged() -> None:
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
    assert request_body(UserTurn(text="?"), reply, UserTurn(text="!"))["contents"][1]["parts"] == [
        {"text": "Ah.", "thought": True, "thoughtSignature": "Qg=="},
        json.loads(code),
        {"text": "One."},
        {"text": "", "thoughtSignature": "Qw=="},
    ]


@pytest.mark.spec("C46")
def test_a_call_without_a_signature_gets_the_dummy_signature_where_google_requires_it() -> None:
    foreign = Reply(text="", calls=CALLS, provider="anthropic")
    old = Reply(text="", calls=CALLS, provider="google")

    def signatures(reply: Reply, **target: Any) -> list[Any]:
        body = json.loads(b"".join(make_request(UserTurn(text="?"), reply, *TOOL_RESULTS, target=target).body))
        return [part.get("thoughtSignature") for part in body["contents"][1]["parts"]]

    by_level = frozenset({"thinking-level"})
    assert signatures(foreign) == signatures(foreign, quirks=by_level) == [DUMMY_SIGNATURE, None]
    assert signatures(old, quirks=by_level) == [DUMMY_SIGNATURE, None]
    assert signatures(old) == [None, None]


@pytest.mark.spec("C46")
def test_the_roles_of_a_google_request_alternate_and_start_and_end_with_the_user() -> None:
    alternating_body = request_body(
        UserTurn(text="1"), Note(text="2"), Reply(text="A"), Reply(text="B"), UserTurn(text="3")
    )
    assert roles_and_parts(alternating_body) == [
        ("user", ["text", "text"]),
        ("model", ["text", "text"]),
        ("user", ["text"]),
    ]
    assert [role for role, _ in roles_and_parts(request_body(Reply(text="Hello?")))] == ["user", "model", "user"]
    assert roles_and_parts(request_body(ContextStart(text=""))) == [("user", ["text"])]


@pytest.mark.spec("C46")
def test_an_empty_reply_is_omitted_from_the_contents_of_a_google_request() -> None:
    body = request_body(UserTurn(text="1"), Reply(text="", thinking="Hm.", provider="google"), UserTurn(text="2"))
    assert roles_and_parts(body) == [("user", ["text", "text"])]


class FakeAttachments:
    def read(self, attachment: Attachment) -> bytes | None:
        return {IMAGE_ATTACHMENT.hash: b"png", PDF_ATTACHMENT.hash: b"%PDF"}.get(attachment.hash)


def test_images_and_pdfs_are_sent_to_google_as_inline_data() -> None:
    turn = UserTurn(text="What is this?", attachments=(IMAGE_ATTACHMENT, PDF_ATTACHMENT))
    text, image, paper = request_body(turn, media=FakeAttachments())["contents"][0]["parts"]
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
def test_an_effort_becomes_a_google_thinking_budget_or_level(
    effort: Any, output: int, quirks: Any, thinking: Any
) -> None:
    body = request_body(effort=effort, output_tokens_max=output, target={"quirks": frozenset(quirks)})
    assert body["generationConfig"].get("thinkingConfig") == thinking
    assert body["generationConfig"]["maxOutputTokens"] == output


@pytest.mark.spec("H80")
def test_an_effort_unsupported_by_a_google_model_is_refused_without_a_request() -> None:
    facts = make_model_facts("google", efforts=("low", "high"))
    with pytest.raises(ModelFailed, match="does not support the effort 'none'"):
        GoogleFormat(EncodedContextCache()).build_request(
            prompt_of(effort="none"), ModelTarget(facts=facts, url="http://x"), KEY
        )


@pytest.mark.spec("C105.params")
def test_params_override_a_google_request_and_provider_tools_are_added() -> None:
    params = {
        "generationConfig": {"temperature": 0.5, "maxOutputTokens": 5},
        "safetySettings": [{"category": "X"}],
        "tools": [{"googleSearch": {}}],
        "contents": "no",
    }
    body = request_body(tools=(LOOK_TOOL,), target={"params": params})
    assert body["generationConfig"] == {"maxOutputTokens": 5, "temperature": 0.5}
    assert body["safetySettings"] == [{"category": "X"}]
    assert [next(iter(tool)) for tool in body["tools"]] == ["functionDeclarations", "googleSearch"]


def test_a_google_model_without_tool_support_gets_no_tools() -> None:
    facts = make_model_facts("google", tools=False)
    request = GoogleFormat(EncodedContextCache()).build_request(
        prompt_of(tools=(LOOK_TOOL,)), ModelTarget(facts=facts, url="http://x"), KEY
    )
    assert "tools" not in json.loads(b"".join(request.body))
