"""A fake provider: an HTTP server on loopback that sends given answers in small pieces and stores its requests. It
also collects the chunks of a model into the form of the recordings."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from retinue.config.models import WireFormat
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelFailed, ModelRef
from retinue.domain.record import Record, ReplyPieceKind, StopReason, Usage, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.models.base import EndChunk, Model, ModelPrompt, SignatureChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.provider_http import HttpModel, ModelTarget, ProviderConnections
from retinue.testing.fake_clock import START

CUTS_MAX = 60
KEY = "sk-test-0123456789abcdef"
SESSION = SessionId("5e55" * 8)


class Then(StrEnum):
    """What the server does after it has sent its body."""

    END = "end"
    HANG = "hang"
    CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    then: Then = Then.END
    before: Then = Then.END  # HANG or CUT: no status is sent either
    cuts: Sequence[int] | None = None  # where the body is cut; None: anywhere
    held: asyncio.Event | None = None  # the second piece is sent once this is set

    @property
    def wire(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else self.body.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request as the server received it. Header names are lowercase."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Provider:
    """The server. It sends its answers in order, and then repeats the last one."""

    def __init__(self, answers: Sequence[Answer], seed: int) -> None:
        self.asked: list[ReceivedRequest] = []
        self.url = ""
        self._answers = list(answers)
        self._random = random.Random(seed)
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def last(self) -> ReceivedRequest:
        return self.asked[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            self.asked.append(await _read_request(reader))
            answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
            await self._answer(answer, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            self._busy.discard(task)
            writer.close()

    async def stop(self) -> None:
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        if answer.before is not Then.END:
            return await _end_connection(answer.before, writer)
        try:
            phrase = HTTPStatus(answer.status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"HTTP/1.1 {answer.status} {phrase}", "transfer-encoding: chunked", "connection: close"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        for number, piece in enumerate(self._pieces(answer)):
            if number == 1 and answer.held is not None:
                await answer.held.wait()
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            for _ in range(3):  # so that the client usually reads each piece separately
                await asyncio.sleep(0)
        if answer.then is Then.END:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        await _end_connection(answer.then, writer)

    def _pieces(self, answer: Answer) -> Iterator[bytes]:
        body = answer.wire
        cuts = answer.cuts
        if cuts is None:
            places = range(1, len(body))
            cuts = sorted(self._random.sample(places, min(len(places), CUTS_MAX)))
        for start, end in zip((0, *cuts), (*cuts, len(body)), strict=True):
            if end > start:
                yield body[start:end]


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method=method, path=path, headers=headers, raw=raw)


async def _end_connection(then: Then, writer: asyncio.StreamWriter) -> None:
    match then:
        case Then.HANG:
            await asyncio.Event().wait()
        case Then.CUT:
            writer.transport.abort()
        case Then.END:
            pass


@asynccontextmanager
async def provider(*answers: Answer, seed: int = 0) -> AsyncGenerator[Provider]:
    """Start a server that sends these answers, one for each request."""
    server_stand_in = Provider(answers or (Answer(),), seed)
    server = await asyncio.start_server(server_stand_in.serve, "127.0.0.1", 0, limit=1024 * 1024)
    server_stand_in.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield server_stand_in
    finally:
        server.close()
        await server_stand_in.stop()


@asynccontextmanager
async def open_provider_connections() -> AsyncGenerator[ProviderConnections]:
    link = ProviderConnections()
    try:
        yield link
    finally:
        await link.close()


def make_model_facts(provider_name: str = "openai", model: str = "some-model", **known: Any) -> ModelFacts:
    return ModelFacts(ref=ModelRef(provider_name, model), **known)


def make_http_model(
    link: ProviderConnections, url: str, format_: WireFormat | str, *, facts: ModelFacts | None = None, **how: Any
) -> HttpModel:
    """A model of one format behind this address. `how` is what else a `Target` knows."""
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    return HttpModel(link, wire, ModelTarget(facts=facts or make_model_facts(), url=url, **how))


def make_records(*bodies: Any, session: SessionId = SESSION) -> list[Record]:
    return [
        Record(session=session, seq=seq, kind=body_kind(body), body=body, at_ms=to_ms(START))
        for seq, body in enumerate(bodies, start=1)
    ]


def prompt_of(*bodies: Any, **more: Any) -> ModelPrompt:
    """Return a prompt with these record bodies, or with one plain question if there are none."""
    records = make_records(*(bodies or (UserTurn(text="Is the bakery open today?"),)))
    given: dict[str, Any] = {"session": SESSION, "instructions": "Be brief.", "records": records, "tools": ()}
    return ModelPrompt(**{**given, **more})


async def collect_reply(model: Model, prompt: ModelPrompt | None = None, key: str = KEY) -> dict[str, Any]:
    """Return what a model replies, in the form of the recordings' `expected`."""
    collector = ReplyCollector()
    try:
        async for chunk in _closing(model.reply(prompt or prompt_of(), key=key)):
            collector.add(chunk)
    except ModelFailed as failed:
        return {"error": failed.failure.value, "status": failed.status, "retry_after": failed.retry_after_s}
    return collector.collected_reply()


async def _closing(chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


_FINISH = {
    StopReason.END: "stop",
    StopReason.CALLS: "tool_call",
    StopReason.LENGTH: "length",
    StopReason.FILTERED: "content_filter",
    StopReason.PAUSED: "pause",
    StopReason.CUT_OFF: "cut_off",
}
_ON = {
    ReplyPieceKind.TEXT: "text",
    ReplyPieceKind.THINKING: "thinking",
    ReplyPieceKind.CALL: "tool_call",
    ReplyPieceKind.SERVER: "server_tool_call",
}


class ReplyCollector:
    """Adds up chunks. Seals are listed with their kind of block; `differences` compares their values."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._served: list[dict[str, Any]] = []
        self._seals: list[dict[str, str]] = []
        self._order: list[str] = []
        self._ended: EndChunk | None = None

    def add(self, chunk: Any) -> None:
        assert self._ended is None, f"{chunk!r} arrived after the end"
        match chunk:
            case TextChunk(text):
                assert text, "an empty chunk"
                self._text.append(text)
                self._kind("text")
            case ThinkingChunk(text):
                assert text, "an empty chunk"
                self._thinking.append(text)
                self._kind("thinking")
            case ToolCallChunk(call):
                self._calls.append({"id": call.id, "name": call.tool, "arguments": call.arguments})
                self._order.append("tool_call")
            case SignatureChunk(kind, seal):
                self._seal(kind, seal)
            case EndChunk():
                self._ended = chunk
            case _:
                raise AssertionError(f"{chunk!r} is no chunk")

    def collected_reply(self) -> dict[str, Any]:
        assert self._ended is not None, "the reply has no end"
        return {
            "text": "".join(self._text),
            "thinking": "".join(self._thinking),
            "tool_calls": self._calls,
            "server_tool_calls": self._served,
            "usage": _usage(self._ended.usage),
            "cost_microusd": self._ended.usage.cost_microusd,
            "finish": _FINISH[self._ended.stop],
            "order": self._order,
            "signatures": self._seals,
        }

    def _kind(self, kind: str) -> None:
        if not self._order or self._order[-1] != kind:
            self._order.append(kind)

    def _seal(self, kind: ReplyPieceKind, seal: str) -> None:
        assert seal, "an empty seal"
        self._seals.append({"on": _ON[kind], "value": seal})
        match kind:
            case ReplyPieceKind.SERVER:
                self._server(json.loads(seal))
            case ReplyPieceKind.THINKING:
                self._kind("thinking")
            case ReplyPieceKind.TEXT | ReplyPieceKind.CALL:
                pass

    def _server(self, block: dict[str, Any]) -> None:
        """Record a tool call of the provider itself, in any of the three formats that have them."""
        if "codeExecutionResult" in block or str(block.get("type", "")).endswith("_result"):
            self._order.append("server_tool_result")
            return
        name = "code_execution" if "executableCode" in block else str(block.get("name") or block.get("type"))
        self._served.append({"name": name.removesuffix("_call"), "id": block.get("id")})
        self._order.append("server_tool_call")


def _usage(usage: Usage) -> dict[str, int] | None:
    if usage.estimated:
        return None
    return {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
        "reasoning": usage.reasoning_tokens,
    }


def differences(collected: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """List the differences between a collected reply and a recording's expectation."""
    if "error" in collected or "error" in expected:
        return [
            _differs(name, collected.get(name), expected.get(name))
            for name in ("error", "status", "retry_after")
            if collected.get(name) != expected.get(name)
        ]
    found = [
        _differs(name, collected[name], expected[name])
        for name in ("text", "thinking", "finish", "order")
        if name in expected and collected[name] != expected[name]
    ]
    for name in ("tool_calls", "server_tool_calls"):
        if not _same_calls(collected[name], expected.get(name) or []):
            found.append(_differs(name, collected[name], expected.get(name)))
    if not _same_usage(collected["usage"], expected.get("usage")):
        found.append(_differs("usage", collected["usage"], expected.get("usage")))
    if missing := _missing_seals(collected["signatures"], expected.get("signatures") or []):
        found.append(f"seals that were not kept: {missing}")
    return found


def _differs(name: str, collected: Any, expected: Any) -> str:
    return f"{name}: got {collected!r}, expected {expected!r}"


def _same_calls(collected: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> bool:
    """Compare calls. An id that the recording does not have is generated."""
    return len(collected) == len(expected) and all(
        ours[name] == value or (name == "id" and value is None)
        for ours, theirs in zip(collected, expected, strict=True)
        for name, value in theirs.items()
    )


def _same_usage(collected: Mapping[str, int] | None, expected: Mapping[str, int] | None) -> bool:
    if collected is None or expected is None:
        return collected is None and expected is None
    return all(collected[name] == count for name, count in expected.items())


def _missing_seals(collected: Sequence[Mapping[str, str]], expected: Sequence[Mapping[str, str]]) -> list[str]:
    """List missing seals. They must be in order and on their kind of block; our value may contain more."""
    rest = iter(collected)
    missing: list[str] = []
    for theirs in expected:
        if not any(ours["on"] == theirs["on"] and _holds(ours["value"], theirs["value"]) for ours in rest):
            missing.append(f"{theirs['value'][:40]} on {theirs['on']}")
    return missing


def _holds(seal: str, value: str) -> bool:
    return value in seal or json.dumps(value)[1:-1] in seal
