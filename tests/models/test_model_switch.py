"""A session continues with another model: replies of one provider become history under the rules of another. The
histories are made from replies in the four wire formats, with thinking, seals and calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.format_rules import DUMMY_SIGNATURE, check_request_rules
from models.replay import KEY, Answer, make_http_model, make_model_facts, open_provider_connections, prompt_of, provider

from retinue.config.models import WireFormat
from retinue.domain.record import Note, RecordBody, Reply, ReplyPiece, ReplyPieceKind, Summary, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EndChunk, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk

PROVIDERS = {
    WireFormat.ANTHROPIC: "anthropic",
    WireFormat.GOOGLE: "google",
    WireFormat.OPENAI_CHAT: "openrouter",
    WireFormat.OPENAI_RESPONSES: "openai",
}
SEALS = {
    WireFormat.ANTHROPIC: ("SIG-anthropic-1", "SIG-anthropic-2"),
    WireFormat.GOOGLE: ("U0lHLWdvb2dsZS0x", "U0lHLWdvb2dsZS0y"),
    WireFormat.OPENAI_CHAT: ("SIG-openrouter-1", "SIG-openrouter-2"),
    WireFormat.OPENAI_RESPONSES: ("ENC-openai-1", "ENC-openai-2"),
}
LOOK_TOOL = ToolSpec(
    name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)


def _sse(*events: Any) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


def _anthropic(seal: str, *, calls: bool) -> str:
    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    events = [{"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}]
    events += block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "I should look."},
        {"type": "signature_delta", "signature": seal},
    )
    events += block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "A moment."})
    if calls:
        for index, at in ((2, "north"), (3, "south")):
            start = {"type": "tool_use", "id": f"toolu_{at}", "name": "look", "input": {}}
            events += block(index, start, {"type": "input_json_delta", "partial_json": json.dumps({"at": at})})
    stop = "tool_use" if calls else "end_turn"
    events += [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    return _sse(*events)


def _google(seal: str, *, calls: bool) -> str:
    asked = [{"functionCall": {"name": "look", "args": {"at": at}}} for at in ("north", "south")] if calls else []
    parts = [{"text": "I should look.", "thought": True}, {"text": "A moment."}, *asked]
    parts[2 if calls else 1]["thoughtSignature"] = seal
    return _sse(*({"candidates": [{"content": {"parts": [part], "role": "model"}}]} for part in parts)) + _sse(
        {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 5}}
    )


def _openai_chat(seal: str, *, calls: bool) -> str:
    details = [{"type": "reasoning.text", "text": "I should look.", "signature": seal, "index": 0}]
    asked = [
        {"index": i, "id": f"call:{i}", "function": {"name": "look", "arguments": json.dumps({"at": at})}}
        for i, at in enumerate(("north", "south"))
    ]
    deltas: list[dict[str, Any]] = [
        {"reasoning": "I should look.", "reasoning_details": details},
        {"content": "A moment."},
    ]
    if calls:
        deltas.append({"tool_calls": asked})
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]}
    return _sse(*chunks, end) + "data: [DONE]\n\n"


def _openai_responses(seal: str, *, calls: bool) -> str:
    items: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "I should look."}],
            "encrypted_content": seal,
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A moment."}],
        },
    ]
    if calls:
        items += [
            {
                "type": "function_call",
                "id": f"fc_{at}",
                "call_id": f"call_{at}",
                "name": "look",
                "arguments": json.dumps({"at": at}),
            }
            for at in ("north", "south")
        ]
    response = {
        "id": "resp_1",
        "status": "completed",
        "output": items,
        "usage": {"input_tokens": 5, "output_tokens": 9},
    }
    return json.dumps(response)


SAMPLES = {
    WireFormat.ANTHROPIC: _anthropic,
    WireFormat.GOOGLE: _google,
    WireFormat.OPENAI_CHAT: _openai_chat,
    WireFormat.OPENAI_RESPONSES: _openai_responses,
}


async def receive_reply(format_: WireFormat, turn: int, *, calls: bool) -> Reply:
    """Return a reply as a run stores it after receiving it in this format."""
    sample = SAMPLES[format_](SEALS[format_][0 if calls else 1], calls=calls)
    text, thinking, asked, pieces = "", "", list[Call](), list[ReplyPiece]()

    def add(kind: ReplyPieceKind, length: int) -> None:
        last = pieces[-1] if pieces else None
        if last and last.kind is kind and not last.seal and kind is not ReplyPieceKind.CALL:
            pieces[-1] = ReplyPiece(kind=kind, length=last.length + length)
        else:
            pieces.append(ReplyPiece(kind=kind, length=length))

    async with open_provider_connections() as link, provider(Answer(body=sample), seed=turn) as server:
        model = make_http_model(link, server.url, format_, facts=make_model_facts(PROVIDERS[format_]))
        async for chunk in model.reply(prompt_of(), key=KEY):
            match chunk:
                case TextChunk(words):
                    text += words
                    add(ReplyPieceKind.TEXT, len(words))
                case ThinkingChunk(words):
                    thinking += words
                    add(ReplyPieceKind.THINKING, len(words))
                case ToolCallChunk(call):
                    asked.append(Call(id=f"run-{turn}-{len(asked) + 1}", tool=call.tool, arguments=call.arguments))
                    add(ReplyPieceKind.CALL, 1)
                case SignatureChunk(kind, seal):
                    if not pieces or pieces[-1].kind is not kind or pieces[-1].seal:
                        pieces.append(ReplyPiece(kind=kind))
                    pieces[-1] = ReplyPiece(kind=kind, length=pieces[-1].length, seal=seal)
                case EndChunk(stop, usage):
                    return Reply(
                        text=text,
                        thinking=thinking,
                        calls=tuple(asked),
                        pieces=tuple(pieces),
                        provider=PROVIDERS[format_],
                        stop=stop,
                        usage=usage,
                    )
    raise AssertionError("the reply has no end")


def results(reply: Reply) -> list[ToolResult]:
    return [
        ToolResult(call=call.id, tool=call.tool, output=f"snow in the {call.arguments['at']}") for call in reply.calls
    ]


async def make_history(formats: Sequence[WireFormat], *, open_loop: bool) -> list[RecordBody]:
    """In each turn the user asks and the model calls, reads and answers; with `open_loop`, the last turn ends after
    its results."""
    bodies: list[RecordBody] = [Summary(text="They met.", kept_from=1)]
    for number, format_ in enumerate(formats):
        reply_with_calls = await receive_reply(format_, number, calls=True)
        bodies += [UserTurn(text="And today?"), reply_with_calls, *results(reply_with_calls)]
        if not (open_loop and number == len(formats) - 1):
            bodies += [Note(text="Mail was left out."), await receive_reply(format_, number, calls=False)]
    return bodies if open_loop else [*bodies, UserTurn(text="And tomorrow?")]


async def asked(format_: WireFormat, bodies: Sequence[RecordBody], **how: Any) -> Any:
    """Return the body of the request that sends a history to a provider."""
    async with open_provider_connections() as link, provider(Answer(status=500)) as server:
        facts = make_model_facts(PROVIDERS[format_], vision=True)
        model = make_http_model(link, server.url, format_, facts=facts, **how)
        with pytest.raises(Exception, match=r"the server of .+ failed"):
            async for _ in model.reply(prompt_of(*bodies, tools=(LOOK_TOOL,), effort="low"), key=KEY):
                pass
        return server.last.body


def _seals_of_others(format_: WireFormat) -> list[str]:
    return [seal for other, seals in SEALS.items() if other is not format_ for seal in seals]


@pytest.mark.spec("C46")
@pytest.mark.parametrize("open_loop", [False, True], ids=["between turns", "within a turn"])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(WireFormat, 2)), ids=str)
async def test_a_session_that_switches_its_model_continues_with_any_other_provider(
    before: WireFormat, after: WireFormat, open_loop: bool
) -> None:
    body = await asked(after, await make_history([before], open_loop=open_loop))
    check_request_rules(after, body, foreign_seals=_seals_of_others(after))
    raw = json.dumps(body)
    assert "A moment." in raw and "snow in the north" in raw and "They met." in raw
    assert "I should look." not in raw  # thinking is sent only to the provider that made it


@pytest.mark.spec("C46")
@pytest.mark.parametrize("last", list(WireFormat), ids=str)
async def test_after_several_model_switches_a_session_continues_with_each_of_its_providers(last: WireFormat) -> None:
    others = [format_ for format_ in WireFormat if format_ is not last]
    body = await asked(last, await make_history([last, *others, last, *others], open_loop=False))
    check_request_rules(last, body, foreign_seals=_seals_of_others(last))
    for seal in SEALS[last]:
        assert json.dumps(body).count(seal) == 2  # its own seals are sent back to it, in place


@pytest.mark.parametrize("format_", list(WireFormat), ids=str)
async def test_a_session_sends_the_thinking_signatures_of_a_provider_back_to_that_provider(format_: WireFormat) -> None:
    body = await asked(format_, await make_history([format_], open_loop=True))
    check_request_rules(format_, body, foreign_seals=_seals_of_others(format_))
    assert SEALS[format_][0] in json.dumps(body)


@pytest.mark.spec("C46")
async def test_after_a_model_switch_to_google_a_call_of_another_provider_gets_the_dummy_signature() -> None:
    bodies = await make_history([WireFormat.ANTHROPIC, WireFormat.GOOGLE], open_loop=False)
    body = await asked(WireFormat.GOOGLE, bodies, quirks=frozenset({"thinking-level"}))
    signatures = [
        [part.get("thoughtSignature") for part in content["parts"] if "functionCall" in part]
        for content in body["contents"]
        if any("functionCall" in part for part in content["parts"])
    ]
    assert signatures == [[DUMMY_SIGNATURE, None], [SEALS[WireFormat.GOOGLE][0], None]]


@pytest.mark.spec("C46")
async def test_after_a_model_switch_amid_a_tool_call_anthropic_thinking_is_off_until_the_next_turn() -> None:
    """Anthropic refuses it: a reply with calls must begin with thinking, or thinking is off until the next turn."""
    foreign_seals = await asked(WireFormat.ANTHROPIC, await make_history([WireFormat.GOOGLE], open_loop=True))
    own = await asked(WireFormat.ANTHROPIC, await make_history([WireFormat.ANTHROPIC], open_loop=True))
    later = await asked(WireFormat.ANTHROPIC, await make_history([WireFormat.GOOGLE], open_loop=False))
    assert "thinking" not in foreign_seals
    assert own["thinking"]["type"] == later["thinking"]["type"] == "enabled"
