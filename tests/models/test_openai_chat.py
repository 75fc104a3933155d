"""The wire openai-chat: what is said to a server, and how it is repaired before that server takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.replay import KEY, facts_of, linked, model_at, prompt_of, provider

from retinue.config.models import ProviderQuirk
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import ContextStart, Note, Reply, ReplyPiece, ReplyPieceKind, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EncodedContextCache
from retinue.models.formats.message_parts import SUMMARY_HEAD
from retinue.models.formats.openai_chat import PLACEHOLDER_ANSWER, QUIRKS, OpenAIChatFormat
from retinue.models.provider_http import ModelTarget

FORMAT = "openai-chat"
WEATHER = ToolSpec(name="weather", description="The weather somewhere.", parameters={"type": "object"})


def body_of(*bodies: Any, target: ModelTarget | None = None, key: str = KEY, **more: Any) -> Any:
    """The body of a request over these records."""
    request = OpenAIChatFormat(EncodedContextCache()).build_request(
        prompt_of(*bodies, **more), target or at("acme"), key
    )
    return json.loads(b"".join(request.body))


def at(name: str = "acme", *, model: str = "some-model", **how: Any) -> ModelTarget:
    known = {key: how.pop(key) for key in ("vision", "efforts", "tools") if key in how}
    return ModelTarget(facts=facts_of(name, model, **known), url="http://127.0.0.1:1/v1/", **how)


def test_a_request_says_who_is_asked_for_what() -> None:
    request = OpenAIChatFormat(EncodedContextCache()).build_request(prompt_of(tools=(WEATHER,)), at(), KEY)
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


def test_a_history_is_said_in_the_order_in_which_it_came() -> None:
    body = body_of(
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
        Note(text="The house was restarted."),
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
        {"role": "user", "content": "The house was restarted."},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Until here."},
    ]


class Album:
    def __init__(self, **kept: bytes) -> None:
        self._kept = kept

    def read(self, attachment: Attachment) -> bytes | None:
        return self._kept.get(attachment.hash)


CAT = Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=3)
PAGE = Attachment(hash="page", name="page.pdf", media_type="application/pdf", size_bytes=9)
WITH_FILES = UserTurn(text="Look.", attachments=(CAT, PAGE))


def test_an_image_is_shown_to_a_model_that_sees() -> None:
    body = body_of(WITH_FILES, target=at(vision=True), media=Album(cat=b"PNG"))
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
        {"type": "text", "text": "[attached: page.pdf, application/pdf, 9 bytes]"},
    ]


@pytest.mark.parametrize(
    ("vision", "media", "image", "because"),
    [
        (False, Album(cat=b"PNG"), CAT, "you cannot see images"),
        (True, Album(), CAT, "it is no longer kept"),
        (True, None, CAT, "it is no longer kept"),
        (
            True,
            Album(cat=b"TIFF"),
            Attachment(hash="cat", name="cat.png", media_type="image/tiff", size_bytes=3),
            "it cannot be shown to you",
        ),
        (
            True,
            Album(cat=b"PNG"),
            Attachment(hash="cat", name="cat.png", media_type="image/png", size_bytes=10**9),
            "it cannot be shown to you",
        ),
    ],
)
def test_an_image_that_cannot_be_shown_is_named(
    vision: bool, media: Album | None, image: Attachment, because: str
) -> None:
    body = body_of(UserTurn(text="", attachments=(image,)), target=at(vision=vision), media=media)
    (part,) = body["messages"][1]["content"]
    assert "cat.png" in part["text"] and because in part["text"]


def test_a_file_that_the_words_name_already_is_not_named_again() -> None:
    body = body_of(UserTurn(text="- [document] page.pdf (page, 9 bytes)", attachments=(PAGE,)))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "- [document] page.pdf (page, 9 bytes)"}]


@pytest.mark.spec("H80")
@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
def test_an_effort_is_asked_for_as_it_is(effort: str) -> None:
    assert body_of(effort=effort)["reasoning_effort"] == effort
    assert "reasoning_effort" not in body_of(effort=None)


@pytest.mark.spec("H80")
async def test_an_effort_that_the_model_does_not_take_is_refused_with_the_list_before_anything_is_sent() -> None:
    async with linked() as link, provider() as server:
        model = model_at(link, server.url, FORMAT, facts=facts_of("acme", efforts=("low", "high")))
        with pytest.raises(ModelFailed) as failed:
            await anext(model.reply(prompt_of(effort="xhigh")))
    assert server.asked == []
    assert failed.value.failure is ModelFailureKind.BAD_REQUEST
    assert "low, high" in failed.value.because


def test_no_effort_is_what_a_model_takes_that_does_not_think() -> None:
    assert "reasoning_effort" not in body_of(target=at(efforts=()), effort="none")


@pytest.mark.spec("C105.params")
def test_params_go_into_the_body_as_they_are_and_win() -> None:
    params = {"temperature": 0.2, "max_tokens": 5, "stream": False, "tools": [{"type": "web"}], "messages": ["mine"]}
    body = body_of(target=at(params=params), tools=(WEATHER,))
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.2, 5, False)
    assert [tool["type"] for tool in body["tools"]] == ["function", "web"]
    assert body["messages"][0]["role"] == "system"  # but not in place of the conversation


def test_a_model_without_tools_is_offered_none() -> None:
    assert "tools" not in body_of(target=at(tools=False), tools=(WEATHER,))


THOUGHT = Reply(
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


def test_details_of_reasoning_go_back_to_whoever_made_them() -> None:
    (message,) = body_of(THOUGHT)["messages"][1:]
    assert message["reasoning_details"] == [
        {"type": "reasoning.text", "text": "I could look."},
        {"type": "reasoning.encrypted", "data": "XYZ"},
    ]
    assert "web_search_call" not in json.dumps(message)


def test_a_seal_of_another_format_is_left_out() -> None:
    sealed = (
        ReplyPiece(kind=ReplyPieceKind.THINKING, seal="EqQB+c"),
        ReplyPiece(kind=ReplyPieceKind.THINKING, seal="[broken"),
    )
    (message,) = body_of(_with(THOUGHT, sealed))["messages"][1:]
    assert "reasoning_details" not in message


def _with(reply: Reply, pieces: Sequence[ReplyPiece]) -> Reply:
    return Reply(text=reply.text, calls=reply.calls, provider=reply.provider, pieces=(*reply.pieces[2:4], *pieces))


@pytest.mark.spec("C46")
def test_thoughts_and_seals_of_another_provider_are_left_out() -> None:
    (message,) = body_of(THOUGHT, target=at("other"))["messages"][1:]
    assert set(message) == {"role", "content", "tool_calls"}
    assert "I could look" not in json.dumps(message)


# --- the table of repairs, a row each ---


@pytest.mark.spec("C46")
def test_empty_messages_of_the_model_are_left_out() -> None:
    empty = Reply(text="", thinking="Nothing to say.")
    assert [message["role"] for message in body_of(UserTurn(text="Hi"), empty, ContextStart())["messages"]] == [
        "system",
        "user",
    ]


@pytest.mark.spec("C46")
def test_ids_that_mistral_does_not_take_are_others_for_call_and_result_alike() -> None:
    calls = tuple(Call(id=id_, tool="weather") for id_ in ("5e55ab12-0-1", "5e55ab12-0-2", "abcDEF123"))
    results = [ToolResult(call=call.id, tool="weather", output="Rain.") for call in calls]
    _, asked, *answered = body_of(Reply(text="", calls=calls), *results, target=at("mistral"))["messages"]
    ids = [made["id"] for made in asked["tool_calls"]]
    assert all(len(id_) == 9 and id_.isalnum() and id_.isascii() for id_ in ids)
    assert len(set(ids)) == 3
    assert ids[2] == "abcDEF123"
    assert [message["tool_call_id"] for message in answered] == ids


@pytest.mark.spec("C46")
def test_ids_that_no_server_takes_are_others_for_call_and_result_alike() -> None:
    for id_ in ("functions.weather:0", "x" * 41, "größe", ""):
        asked, result = (
            Reply(text="", calls=(Call(id=id_, tool="weather"),)),
            ToolResult(call=id_, tool="weather", output=""),
        )
        _, asked, answered = body_of(asked, result)["messages"]
        (made,) = asked["tool_calls"]
        assert made["id"] == answered["tool_call_id"]
        assert made["id"].isalnum() and made["id"].isascii() and len(made["id"]) <= 40


@pytest.mark.spec("C46")
def test_between_results_and_whoever_speaks_next_mistral_hears_the_model() -> None:
    history = (
        UserTurn(text="Weather?"),
        Reply(text="", calls=(Call(id="c1", tool="weather"), Call(id="c2", tool="weather"))),
        ToolResult(call="c1", tool="weather", output="Rain."),
        ToolResult(call="c2", tool="weather", output="Sun."),
        ContextStart(),
        UserTurn(text="Never mind."),
        Reply(text="All right."),
    )
    roles = [message["role"] for message in body_of(*history, target=at("mistral"))["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"]
    assert PLACEHOLDER_ANSWER in json.dumps(body_of(*history, target=at("mistral")))
    assert PLACEHOLDER_ANSWER not in json.dumps(body_of(*history))


@pytest.mark.spec("C46")
@pytest.mark.parametrize(
    "name", sorted(name for name, quirks in QUIRKS.items() if ProviderQuirk.REASONING_BACK in quirks)
)
def test_reasoning_goes_back_with_its_calls_to_those_who_want_it(name: str) -> None:
    own = Reply(text="", thinking="I could look.", calls=THOUGHT.calls, provider=name)
    plain = Reply(text="Six.", thinking="Hmm.", provider=name)
    other = Reply(text="", thinking="I could look.", calls=THOUGHT.calls, provider="other")
    words = Reply(text="Seven.", thinking="Hmm.", provider="other")
    messages = body_of(own, plain, other, words, target=at(name))["messages"][1:]
    assert [message.get("reasoning_content") for message in messages] == ["I could look.", "Hmm.", "", None]


@pytest.mark.spec("C46")
@pytest.mark.parametrize("name", ["acme", *sorted(QUIRKS)])
def test_each_server_is_asked_in_its_own_words(name: str) -> None:
    body = body_of(target=at(name))
    quirks = QUIRKS.get(name, frozenset())
    assert ("max_completion_tokens" in body) == (ProviderQuirk.MAX_COMPLETION_TOKENS in quirks)
    assert ("max_tokens" in body) == (ProviderQuirk.MAX_COMPLETION_TOKENS not in quirks)
    assert ("stream_options" in body) == (ProviderQuirk.NO_STREAM_OPTIONS not in quirks)


def test_a_target_may_have_quirks_that_its_name_does_not_tell() -> None:
    body = body_of(target=at("acme", quirks=frozenset({"max-completion-tokens", "no-stream-options"})))
    assert "max_completion_tokens" in body
    assert "stream_options" not in body


# --- what it costs ---


def test_a_record_is_encoded_once_for_each_form() -> None:
    cache = EncodedContextCache()
    wire = OpenAIChatFormat(cache)
    album = CountingAlbum()
    turns = [UserTurn(text=f"{number}", attachments=(CAT,)) for number in range(3)]
    sees, blind = at(vision=True), at(vision=False)
    first = prompt_of(*turns, media=album)
    wire.build_request(first, sees, KEY)
    wire.build_request(first, sees, KEY)
    assert album.read_count == 3
    unshown = b"".join(wire.build_request(first, blind, KEY).body)
    assert b"cannot see images" in unshown  # what was made for another is not used
    longer = prompt_of(*turns, turns[0], media=album)
    wire.build_request(longer, sees, KEY)
    assert album.read_count == 4
    unseen = b"".join(wire.build_request(prompt_of(*turns), sees, KEY).body)
    assert b"no longer kept" in unseen  # nor what was made when it could be looked at


class CountingAlbum(Album):
    def __init__(self) -> None:
        super().__init__(cat=b"PNG")
        self.read_count = 0

    def read(self, attachment: Attachment) -> bytes | None:
        self.read_count += 1
        return super().read(attachment)
