"""The openai-chat format: requests, and how they are repaired for a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.replay import KEY, make_http_model, make_model_facts, open_provider_connections, prompt_of, provider

from retinue.config.models import ProviderQuirk
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.message_parts import SUMMARY_HEAD
from retinue.models.formats.openai_chat import PLACEHOLDER_ANSWER, QUIRKS, OpenAIChatFormat
from retinue.models.provider_http import ModelTarget

FORMAT = "openai-chat"
WEATHER_TOOL = ToolSpec(name="weather", description="The weather somewhere.", parameters={"type": "object"})


def request_body(*bodies: Any, target: ModelTarget | None = None, key: str = KEY, **more: Any) -> Any:
    """Return the body of a request with these records."""
    request = OpenAIChatFormat(EncodedContextCache()).build_request(
        prompt_of(*bodies, **more), target or make_target("acme"), key
    )
    return json.loads(b"".join(request.body))


def make_target(name: str = "acme", *, model: str = "some-model", **how: Any) -> ModelTarget:
    known = {key: how.pop(key) for key in ("vision", "efforts", "tools") if key in how}
    return ModelTarget(facts=make_model_facts(name, model, **known), url="http://127.0.0.1:1/v1/", **how)


def test_an_openai_chat_request_has_url_key_model_tools_and_messages() -> None:
    request = OpenAIChatFormat(EncodedContextCache()).build_request(
        prompt_of(tools=(WEATHER_TOOL,)), make_target(), KEY
    )
    assert request.url == "http://127.0.0.1:1/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert json.loads(b"".join(request.body)) == {
        "model": "some-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8192,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "The weather somewhere.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Is the bakery open today?"},
        ],
    }


def test_an_openai_chat_request_contains_the_history_in_its_order() -> None:
    body = request_body(
        ContextStart(),
        Summary(text="They met.", kept_from=3),
        UserTurn(text="Weather in Bern?"),
        Reply(
            text="Let me see.",
            thinking="I could look.",
            calls=(Call(id="run1-0-1", tool="weather", arguments={"city": "Bern"}), Call(id="run1-0-2", tool="clock")),
        ),
        ToolResult(call="run1-0-1", tool="weather", output="Rain."),
        ToolResult(call="run1-0-2", tool="clock", output="It broke.", failed=True),
        Note(text="The server was restarted."),
        Reply(text="It rains."),
        ContextStart(text="Until here."),
        instructions="",
    )
    assert "tools" not in body
    assert body["messages"] == [
        {"role": "user", "content": f"{SUMMARY_HEAD}\n\nThey met."},
        {"role": "user", "content": "Weather in Bern?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "run1-0-1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
                },
                {"id": "run1-0-2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "run1-0-1", "content": "Rain."},
        {"role": "tool", "tool_call_id": "run1-0-2", "content": "It broke."},
        {"role": "user", "content": "The server was restarted."},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Until here."},
    ]


class FakeMedia:
    def __init__(self, **kept: bytes) -> None:
        self._kept = kept

    def read(self, attachment: Attachment) -> bytes | None:
        return self._kept.get(attachment.hash)


IMAGE_ATTACHMENT = Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=3)
PDF_ATTACHMENT = Attachment(hash="page", name="page.pdf", media_type="application/pdf", size_bytes=9)
TURN_WITH_FILES = UserTurn(text="Look.", attachments=(IMAGE_ATTACHMENT, PDF_ATTACHMENT))


def test_an_image_is_sent_to_an_openai_chat_model_with_vision() -> None:
    body = request_body(TURN_WITH_FILES, target=make_target(vision=True), media=FakeMedia(cat=b"PNG"))
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
        {"type": "text", "text": "[attached: page.pdf, application/pdf, 9 bytes]"},
    ]


@pytest.mark.parametrize(
    ("vision", "media", "image", "because"),
    [
        (False, FakeMedia(cat=b"PNG"), IMAGE_ATTACHMENT, "you cannot see images"),
        (True, FakeMedia(), IMAGE_ATTACHMENT, "it is no longer kept"),
        (True, None, IMAGE_ATTACHMENT, "it is no longer kept"),
        (
            True,
            FakeMedia(cat=b"TIFF"),
            Attachment(hash="cat", name="cat.png", media_type="image/tiff", size_bytes=3),
            "it cannot be shown to you",
        ),
        (
            True,
            FakeMedia(cat=b"PNG"),
            Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=10**9),
            "it cannot be shown to you",
        ),
    ],
)
def test_an_openai_chat_request_names_an_image_that_cannot_be_sent(
    vision: bool, media: FakeMedia | None, image: Attachment, because: str
) -> None:
    body = request_body(UserTurn(text="", attachments=(image,)), target=make_target(vision=vision), media=media)
    (part,) = body["messages"][1]["content"]
    assert "cat.png" in part["text"] and because in part["text"]


def test_an_openai_chat_request_does_not_name_a_file_that_its_text_already_names() -> None:
    body = request_body(UserTurn(text="- [document] page.pdf (page, 9 bytes)", attachments=(PDF_ATTACHMENT,)))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "- [document] page.pdf (page, 9 bytes)"}]


@pytest.mark.spec("H80")
@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
def test_an_openai_chat_request_contains_the_effort_as_reasoning_effort(effort: str) -> None:
    assert request_body(effort=effort)["reasoning_effort"] == effort
    assert "reasoning_effort" not in request_body(effort=None)


@pytest.mark.spec("H80")
async def test_an_effort_unsupported_by_an_openai_chat_model_is_refused_before_a_request() -> None:
    async with open_provider_connections() as link, provider() as server:
        model = make_http_model(link, server.url, FORMAT, facts=make_model_facts("acme", efforts=("low", "high")))
        with pytest.raises(ModelFailed) as failed:
            await anext(model.reply(prompt_of(effort="xhigh")))
    assert server.asked == []
    assert failed.value.failure is ModelFailureKind.BAD_REQUEST
    assert "low, high" in failed.value.because


def test_the_effort_none_is_not_sent_to_an_openai_chat_model_without_efforts() -> None:
    assert "reasoning_effort" not in request_body(target=make_target(efforts=()), effort="none")


@pytest.mark.spec("C105.params")
def test_params_override_the_body_of_an_openai_chat_request_but_not_its_messages() -> None:
    params = {"temperature": 0.2, "max_tokens": 5, "stream": False, "tools": [{"type": "web"}], "messages": ["mine"]}
    body = request_body(target=make_target(params=params), tools=(WEATHER_TOOL,))
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.2, 5, False)
    assert [tool["type"] for tool in body["tools"]] == ["function", "web"]
    assert body["messages"][0]["role"] == "system"  # but they do not replace the conversation


def test_an_openai_chat_model_without_tool_support_gets_no_tools() -> None:
    assert "tools" not in request_body(target=make_target(tools=False), tools=(WEATHER_TOOL,))


THOUGHTFUL_REPLY = Reply(
    text="Let me see.",
    thinking="I could look.",
    calls=(Call(id="run1-0-1", tool="weather"),),
    provider="acme",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=13, seal='[{"type":"reasoning.text","text":"I could look."}]'),
        ReplyPiece(kind=ReplyPieceKind.SERVER, seal='{"type":"web_search_call"}'),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=11),
        ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
        ReplyPiece(kind=ReplyPieceKind.THINKING, seal='[{"type":"reasoning.encrypted","data":"XYZ"}]'),
    ),
)


def test_reasoning_details_of_an_openai_chat_reply_are_sent_back_to_their_provider() -> None:
    (message,) = request_body(THOUGHTFUL_REPLY)["messages"][1:]
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I could look."},
        {"type": "reasoning.encrypted", "data": "XYZ"},
    ]
    assert "web_search_call" not in json.dumps(message)


def test_an_openai_chat_request_omits_thinking_signatures_of_another_format() -> None:
    sealed = (
        ReplyPiece(kind=ReplyPieceKind.THINKING, seal="EqQB+c"),
        ReplyPiece(kind=ReplyPieceKind.THINKING, seal="[broken"),
    )
    (message,) = request_body(_with_pieces(THOUGHTFUL_REPLY, sealed))["messages"][1:]
    assert "reasoning_details" not in message


def _with_pieces(reply: Reply, pieces: Sequence[ReplyPiece]) -> Reply:
    return Reply(text=reply.text, calls=reply.calls, provider=reply.provider, pieces=(*reply.pieces[2:4], *pieces))


@pytest.mark.spec("C46")
def test_an_openai_chat_request_omits_thinking_and_its_signatures_from_another_provider() -> None:
    (message,) = request_body(THOUGHTFUL_REPLY, target=make_target("other"))["messages"][1:]
    assert set(message) == {"role", "content", "tool_calls"}
    assert "I could look" not in json.dumps(message)


# --- repairs, one row each ---


@pytest.mark.spec("C46")
def test_an_openai_chat_request_omits_empty_assistant_messages() -> None:
    empty = Reply(text="", thinking="Nothing to say.")
    assert [message["role"] for message in request_body(UserTurn(text="Hi"), empty, ContextStart())["messages"]] == [
        "system",
        "user",
    ]


@pytest.mark.spec("C46")
def test_an_openai_chat_request_to_mistral_rewrites_call_ids_equally_for_call_and_result() -> None:
    calls = tuple(Call(id=id_, tool="weather") for id_ in ("5e55ab12-0-1", "5e55ab12-0-2", "abcDEF123"))
    results = [ToolResult(call=call.id, tool="weather", output="Rain.") for call in calls]
    _, asked, *answered = request_body(Reply(text="", calls=calls), *results, target=make_target("mistral"))["messages"]
    ids = [made["id"] for made in asked["tool_calls"]]
    assert all(len(id_) == 9 and id_.isalnum() and id_.isascii() for id_ in ids)
    assert len(set(ids)) == 3
    assert ids[2] == "abcDEF123"
    assert [message["tool_call_id"] for message in answered] == ids


@pytest.mark.spec("C46")
def test_call_ids_invalid_for_openai_chat_are_rewritten_equally_for_call_and_result() -> None:
    for id_ in ("functions.weather:0", "x" * 41, "größe", ""):
        asked, result = (
            Reply(text="", calls=(Call(id=id_, tool="weather"),)),
            ToolResult(call=id_, tool="weather", output=""),
        )
        _, asked, answered = request_body(asked, result)["messages"]
        (made,) = asked["tool_calls"]
        assert made["id"] == answered["tool_call_id"]
        assert made["id"].isalnum() and made["id"].isascii() and len(made["id"]) <= 40


@pytest.mark.spec("C46")
def test_an_openai_chat_request_to_mistral_has_a_placeholder_answer_after_tool_results() -> None:
    history = (
        UserTurn(text="Weather?"),
        Reply(text="", calls=(Call(id="c1", tool="weather"), Call(id="c2", tool="weather"))),
        ToolResult(call="c1", tool="weather", output="Rain."),
        ToolResult(call="c2", tool="weather", output="Sun."),
        ContextStart(),
        UserTurn(text="Never mind."),
        Reply(text="All right."),
    )
    roles = [message["role"] for message in request_body(*history, target=make_target("mistral"))["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert PLACEHOLDER_ANSWER in json.dumps(request_body(*history, target=make_target("mistral")))
    assert PLACEHOLDER_ANSWER not in json.dumps(request_body(*history))


@pytest.mark.spec("C46")
@pytest.mark.parametrize(
    "name", sorted(name for name, quirks in QUIRKS.items() if ProviderQuirk.RESEND_REASONING in quirks)
)
def test_an_openai_chat_request_sends_reasoning_back_to_providers_that_require_it(name: str) -> None:
    own = Reply(text="", thinking="I could look.", calls=THOUGHTFUL_REPLY.calls, provider=name)
    plain = Reply(text="Six.", thinking="Hmm.", provider=name)
    other = Reply(text="", thinking="I could look.", calls=THOUGHTFUL_REPLY.calls, provider="other")
    words = Reply(text="Seven.", thinking="Hmm.", provider="other")
    messages = request_body(own, plain, other, words, target=make_target(name))["messages"][1:]
    assert [message.get("reasoning_content") for message in messages] == ["I could look.", "Hmm.", "", None]


@pytest.mark.spec("C46")
@pytest.mark.parametrize("name", ["acme", *sorted(QUIRKS)])
def test_an_openai_chat_request_has_the_parameters_for_the_quirks_of_its_provider(name: str) -> None:
    body = request_body(target=make_target(name))
    quirks = QUIRKS.get(name, frozenset())
    assert ("max_completion_tokens" in body) == (ProviderQuirk.MAX_COMPLETION_TOKENS in quirks)
    assert ("max_tokens" in body) == (ProviderQuirk.MAX_COMPLETION_TOKENS not in quirks)
    assert ("stream_options" in body) == (ProviderQuirk.NO_STREAM_OPTIONS not in quirks)


def test_an_openai_chat_request_has_the_parameters_for_the_quirks_of_its_model_target() -> None:
    body = request_body(target=make_target("acme", quirks=frozenset({"max-completion-tokens", "no-stream-options"})))
    assert "max_completion_tokens" in body
    assert "stream_options" not in body


# --- encoding cost ---


def test_a_record_of_an_openai_chat_request_is_encoded_once_per_vision_and_media_variant() -> None:
    cache = EncodedContextCache()
    wire = OpenAIChatFormat(cache)
    counting_media = CountingMedia()
    turns = [UserTurn(text=f"{number}", attachments=(IMAGE_ATTACHMENT,)) for number in range(3)]
    vision_target, text_only_target = make_target(vision=True), make_target(vision=False)
    first = prompt_of(*turns, media=counting_media)
    wire.build_request(first, vision_target, KEY)
    wire.build_request(first, vision_target, KEY)
    assert counting_media.read_count == 3
    unshown = b"".join(wire.build_request(first, text_only_target, KEY).body)
    assert b"cannot see images" in unshown  # the encoding for another target is not used
    longer = prompt_of(*turns, turns[0], media=counting_media)
    wire.build_request(longer, vision_target, KEY)
    assert counting_media.read_count == 4
    unseen = b"".join(wire.build_request(prompt_of(*turns), vision_target, KEY).body)
    assert b"no longer kept" in unseen  # nor the encoding that was made with media


class CountingMedia(FakeMedia):
    def __init__(self) -> None:
        super().__init__(cat=b"PNG")
        self.read_count = 0

    def read(self, attachment: Attachment) -> bytes | None:
        self.read_count += 1
        return super().read(attachment)
