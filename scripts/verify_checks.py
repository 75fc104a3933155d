"""The requests that check whether a provider behaves as expected, and an upper bound on their cost."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retinue.domain.attachment import Attachment
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelFailed, ModelFailureKind
from retinue.domain.record import (
    Record,
    RecordBody,
    Reply,
    ReplyPiece,
    ReplyPieceKind,
    StopReason,
    Usage,
    UserTurn,
    body_kind,
)
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EndChunk, Model, ModelPrompt, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk

REPLY_TOKENS_MAX = 4_096
CACHED_WORDS = 6_000  # more than the minimum that any provider caches
CHARS_PER_TOKEN_MAX = 6  # in plain English, this many characters are more than one token
QUESTION_TOKENS_MAX = 2_000  # of each request, except the long ones
REQUESTS = 10  # requests that a provider answers; those with a wrong key or a long prompt are refused, and cost nothing
TOKENS_PRICED = 1_000_000

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in one city, now.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    model: Model
    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check: `ok`, `differs` if the reply was not as expected, or `failed` if there was no reply."""

    verdict: str
    words: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == "ok"


class Differs(Exception):
    """The reply of a provider is not as expected."""


class _Red:
    """Returns a small red picture for any attachment."""

    def read(self, attachment: Attachment) -> bytes | None:
        return RED


def _png(colour: bytes, side: int = 32) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\x00" + colour * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


RED = _png(b"\xff\x00\x00")


async def check(subject: Subject, name: str) -> Outcome:
    try:
        return Outcome("ok", await CHECKS[name](subject) or "")
    except Differs as differs:
        return Outcome("differs", str(differs))
    except ModelFailed as failed:
        return Outcome("failed", f"{failed.sentence}; {failed.because} [{failed.code}]")


def cost_bound_usd(facts: ModelFacts) -> float | None:
    """Return an upper bound on the cost of all checks, or None if the price is not known."""
    if facts.price is None:
        return None
    read = REQUESTS * QUESTION_TOKENS_MAX + 2 * CACHED_WORDS * 2
    microusd = read * facts.price.highest_input + REQUESTS * REPLY_TOKENS_MAX * facts.price.output
    return (microusd / TOKENS_PRICED + REQUESTS * facts.price.call) / 1e6


async def text(subject: Subject) -> str:
    reply = await _ask(subject, UserTurn(text="Say the word: ready"))
    _expect("ready" in reply.text.lower(), f"unexpected reply: {reply.text[:60]!r}")
    _expect(reply.stop is StopReason.END, f"unexpected stop reason: {reply.stop}")
    _expect(not reply.usage.estimated, "the reply has no token usage")
    _expect(reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0, f"invalid token counts: {reply.usage}")
    return f"{reply.usage.input_tokens} input tokens, {reply.usage.output_tokens} output tokens"


async def thinking(subject: Subject) -> str:
    question = UserTurn(text="How many of the numbers from 1 to 60 are divisible by 7 or by 11? Only the number.")
    reply = await _ask(subject, question, effort="low")
    sealed = [piece for piece in reply.pieces if piece.seal]
    thought = bool(reply.thinking) or reply.usage.reasoning_tokens > 0 or bool(sealed)
    _expect(thought, "the reply has no thinking, no reasoning tokens and no seals")
    again = await _ask(subject, question, reply, UserTurn(text="And up to 77?"), effort="low")
    _expect(bool(again.text), "no reply to a history that contains its own thinking")
    return f"{len(reply.thinking)} characters, {reply.usage.reasoning_tokens} tokens, {len(sealed)} seals accepted"


async def tool(subject: Subject) -> str:
    question = UserTurn(text="What is the weather in Oslo? Use the tool.")
    reply = await _ask(subject, question, tools=True)
    _expect(len(reply.calls) == 1, f"{len(reply.calls)} calls instead of 1")
    _expect(
        reply.calls[0].arguments.get("city", "").lower() == "oslo", f"unexpected arguments: {reply.calls[0].arguments}"
    )
    _expect(reply.stop is StopReason.CALLS, f"unexpected stop reason: {reply.stop}")
    final = await _ask(subject, question, reply, _result(reply.calls[0], "17 degrees, rain"), tools=True)
    _expect("17" in final.text, f"the reply ignores the result: {final.text[:60]!r}")
    return ""


async def parallel(subject: Subject) -> str:
    question = UserTurn(text="Compare the weather in Oslo and in Rome. Ask the tool for both at once, in one turn.")
    reply = await _ask(subject, question, tools=True)
    _expect(len(reply.calls) == 2, f"{len(reply.calls)} calls in one reply instead of 2")
    _expect(len({call.id for call in reply.calls}) == 2, "both calls have the same id")
    results = [_result(call, f"{number}0 degrees") for number, call in enumerate(reply.calls, start=1)]
    final = await _ask(subject, question, reply, *results, tools=True)
    _expect("10" in final.text and "20" in final.text, f"the reply ignores the results: {final.text[:60]!r}")
    return ""


async def image(subject: Subject) -> str:
    file = Attachment(hash="0" * 64, name="color.png", media_type="image/png", size_bytes=len(RED))
    reply = await _ask(subject, UserTurn(text="Which color is this? One word.", attachments=(file,)))
    _expect("red" in reply.text.lower(), f"unexpected reply: {reply.text[:60]!r}")
    return ""


async def cached(subject: Subject) -> str:
    long = " ".join(f"Line {number} of a long list." for number in range(CACHED_WORDS // 6))
    question = UserTurn(text="Say the word: ready")
    await _ask(subject, question, instructions=long)
    reply = await _ask(subject, question, instructions=long)
    _expect(reply.usage.cache_read_tokens > 0, "a repeated request reads no tokens from the cache")
    return f"{reply.usage.cache_read_tokens} of {reply.usage.input_tokens} tokens"


async def wrong_key(subject: Subject) -> str:
    wrong = Subject(subject.name, subject.model, f"{subject.key[:8]}-wrong")
    return await _refused(wrong, {ModelFailureKind.AUTH}, UserTurn(text="Say the word: ready"))


async def too_long(subject: Subject) -> str:
    words = "word " * (subject.model.facts.window_tokens * CHARS_PER_TOKEN_MAX // len("word "))
    return await _refused(
        subject, {ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE}, UserTurn(text=words)
    )


CHECKS: Mapping[str, Callable[[Subject], Awaitable[str]]] = {
    "text": text,
    "thinking": thinking,
    "tool": tool,
    "parallel": parallel,
    "image": image,
    "cached": cached,
    "wrong-key": wrong_key,
    "too-long": too_long,
}


async def _refused(subject: Subject, expected: set[ModelFailureKind], *bodies: RecordBody) -> str:
    try:
        await _ask(subject, *bodies)
    except ModelFailed as failed:
        if failed.failure not in expected:
            raise Differs(f"the request was refused as {failed.failure}: {failed.because}") from None
        return f"{failed.failure}, with {failed.status}"
    raise Differs("the request was not refused")


async def _ask(
    subject: Subject,
    *bodies: RecordBody,
    tools: bool = False,
    effort: str | None = None,
    instructions: str = "Answer briefly.",
) -> Reply:
    session = SessionId("0" * 32)
    at_ms = to_ms(datetime.now(UTC))
    prompt = ModelPrompt(
        session=session,
        instructions=instructions,
        records=[
            Record(session=session, seq=seq, kind=body_kind(body), body=body, at_ms=at_ms)
            for seq, body in enumerate(bodies, start=1)
        ],
        tools=[WEATHER] if tools else [],
        output_tokens_max=REPLY_TOKENS_MAX,
        effort=effort,
        media=_Red(),
    )
    heard = _Heard(subject.model.facts.ref.provider)
    async for chunk in subject.model.reply(prompt, key=subject.key):
        heard.add(chunk)
    return heard.reply()


class _Heard:
    """Collects the chunks of a reply into one that can be sent back to the provider, with the seal of each piece."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._text = self._thinking = ""
        self._calls: list[Call] = []
        self._pieces: list[ReplyPiece] = []
        self._stop, self._usage = StopReason.CUT_OFF, Usage(estimated=True)

    def add(self, chunk: Any) -> None:
        match chunk:
            case TextChunk(words):
                self._text += words
                self._grow(ReplyPieceKind.TEXT, len(words))
            case ThinkingChunk(words):
                self._thinking += words
                self._grow(ReplyPieceKind.THINKING, len(words))
            case ToolCallChunk(call):
                self._calls.append(call)
                self._pieces.append(ReplyPiece(kind=ReplyPieceKind.CALL, length=1))
            case SignatureChunk(kind, seal):
                last = self._pieces.pop() if self._pieces and self._open(kind) else ReplyPiece(kind=kind)
                self._pieces.append(ReplyPiece(kind=kind, length=last.length, seal=seal))
            case EndChunk(stop, usage):
                self._stop, self._usage = stop, usage

    def reply(self) -> Reply:
        return Reply(
            text=self._text,
            thinking=self._thinking,
            calls=tuple(self._calls),
            stop=self._stop,
            usage=self._usage,
            provider=self._provider,
            pieces=tuple(self._pieces),
        )

    def _open(self, kind: ReplyPieceKind) -> bool:
        return bool(self._pieces) and self._pieces[-1].kind is kind and not self._pieces[-1].seal

    def _grow(self, kind: ReplyPieceKind, length: int) -> None:
        before = self._pieces.pop().length if self._open(kind) else 0
        self._pieces.append(ReplyPiece(kind=kind, length=before + length))


def _result(call: Call, output: str) -> ToolResult:
    return ToolResult(call=call.id, tool=call.tool, output=output)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Differs(otherwise)
