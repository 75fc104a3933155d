"""A session goes on with another model: what one provider said is history for any other, by that other's rules.

The histories are made by replies that came over the wire, in the four formats, with thinking, seals and calls.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from models.format_rules import DUMMY, follows
from models.replay import KEY, Answer, facts_of, linked, model_at, prompt_of, provider

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
LOOK = ToolSpec(
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


async def replied(format_: WireFormat, turn: int, *, calls: bool) -> Reply:
    """What a run keeps of a reply that came in this format."""
    sample = SAMPLES[format_](SEALS[format_][0 if calls else 1], calls=calls)
    text, thinking, asked, pieces = "", "", list[Call](), list[ReplyPiece]()

    def add(kind: ReplyPieceKind, length: int) -> None:
        last = pieces[-1] if pieces else None
        if last and last.kind is kind and not last.seal and kind is not ReplyPieceKind.CALL:
            pieces[-1] = ReplyPiece(kind=kind, length=last.length + length)
        else:
            pieces.append(ReplyPiece(kind=kind, length=length))

    async with linked() as link, provider(Answer(body=sample), seed=turn) as server:
        model = model_at(link, server.url, format_, facts=facts_of(PROVIDERS[format_]))
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


async def history(formats: Sequence[WireFormat], *, open_loop: bool) -> list[RecordBody]:
    """Each asks, calls, reads and answers in turn; with an open loop the last has just read what came of its calls."""
    bodies: list[RecordBody] = [Summary(text="They met.", kept_from=1)]
    for number, format_ in enumerate(formats):
        asks = await replied(format_, number, calls=True)
        bodies += [UserTurn(text="And today?"), asks, *results(asks)]
        if not (open_loop and number == len(formats) - 1):
            bodies += [Note(text="Mail was left out."), await replied(format_, number, calls=False)]
    return bodies if open_loop else [*bodies, UserTurn(text="And tomorrow?")]


async def asked(format_: WireFormat, bodies: Sequence[RecordBody], **how: Any) -> Any:
    """The body of the request in which a history reaches a provider."""
    async with linked() as link, provider(Answer(status=500)) as server:
        facts = facts_of(PROVIDERS[format_], vision=True)
        model = model_at(link, server.url, format_, facts=facts, **how)
        with pytest.raises(Exception, match=r"the server of .+ failed"):
            async for _ in model.reply(prompt_of(*bodies, tools=(LOOK,), effort="low"), key=KEY):
                pass
        return server.last.body


def _foreign_to(format_: WireFormat) -> list[str]:
    return [seal for other, seals in SEALS.items() if other is not format_ for seal in seals]


@pytest.mark.spec("C46")
@pytest.mark.parametrize("open_loop", [False, True], ids=["between turns", "within a turn"])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(WireFormat, 2)), ids=str)
async def test_a_session_goes_on_with_any_other_provider(
    before: WireFormat, after: WireFormat, open_loop: bool
) -> None:
    body = await asked(after, await history([before], open_loop=open_loop))
    follows(after, body, foreign=_foreign_to(after))
    raw = json.dumps(body)
    assert "A moment." in raw and "snow in the north" in raw and "They met." in raw
    assert "I should look." not in raw  # thoughts are the business of the one who had them


@pytest.mark.spec("C46")
@pytest.mark.parametrize("last", list(WireFormat), ids=str)
async def test_a_session_that_was_with_all_of_them_goes_on_with_each(last: WireFormat) -> None:
    others = [format_ for format_ in WireFormat if format_ is not last]
    body = await asked(last, await history([last, *others, last, *others], open_loop=False))
    follows(last, body, foreign=_foreign_to(last))
    for seal in SEALS[last]:
        assert json.dumps(body).count(seal) == 2  # its own come back to it, where they were


@pytest.mark.parametrize("format_", list(WireFormat), ids=str)
async def test_its_own_seals_come_back_to_a_provider(format_: WireFormat) -> None:
    body = await asked(format_, await history([format_], open_loop=True))
    follows(format_, body, foreign=_foreign_to(format_))
    assert SEALS[format_][0] in json.dumps(body)


@pytest.mark.spec("C46")
async def test_a_call_that_another_made_is_signed_by_nobody_for_google() -> None:
    bodies = await history([WireFormat.ANTHROPIC, WireFormat.GOOGLE], open_loop=False)
    body = await asked(WireFormat.GOOGLE, bodies, quirks=frozenset({"thinking-level"}))
    signatures = [
        [part.get("thoughtSignature") for part in content["parts"] if "functionCall" in part]
        for content in body["contents"]
        if any("functionCall" in part for part in content["parts"])
    ]
    assert signatures == [[DUMMY, None], [SEALS[WireFormat.GOOGLE][0], None]]


@pytest.mark.spec("C46")
async def test_thinking_does_not_begin_between_the_call_of_another_and_its_result() -> None:
    """Anthropic refuses it: a reply with calls must have begun with thinking, or there is none until the next turn."""
    foreign = await asked(WireFormat.ANTHROPIC, await history([WireFormat.GOOGLE], open_loop=True))
    own = await asked(WireFormat.ANTHROPIC, await history([WireFormat.ANTHROPIC], open_loop=True))
    later = await asked(WireFormat.ANTHROPIC, await history([WireFormat.GOOGLE], open_loop=False))
    assert "thinking" not in foreign
    assert own["thinking"]["type"] == later["thinking"]["type"] == "enabled"
