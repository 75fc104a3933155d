"""The cost of a model client: ours and the vendors' SDKs, next to a bare request whose reply is only split into lines.

`python -m benchmarks.clients PORT` measures them against one mock in one process, and prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec

from benchmarks.measure import Figure, median
from benchmarks.mock import REPLY_WORDS
from retinue.config.models import WireFormat
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.record import Record, RecordBody, Reply, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolSpec
from retinue.models.base import ModelPrompt, TextChunk
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.provider_http import HttpModel, ModelTarget, ProviderConnections, ProviderFormat

ROUNDS = 25
REPLIES, LONG_REPLIES = 20, 6  # of each client, in each round
SDK_REPLIES, SDK_LONG_REPLIES = 4, 1  # slower, but with less variance
HISTORY, HISTORY_BYTES = 400, 463_000
TOOLS = 10

FLOOR_RATIO_MAX = 2.0
SDK_RATIO_MIN = 10.0

INSTRUCTIONS = "You are a careful assistant. " * 20
REPLY_TEXT = "word " * REPLY_WORDS
KEY = "sk-bench"
SDKS = {WireFormat.OPENAI_CHAT: "openai", WireFormat.ANTHROPIC: "anthropic"}
FIGURE_NAMES = {WireFormat.OPENAI_CHAT: "openai-chat", WireFormat.ANTHROPIC: "anthropic"}

_tools = [
    ToolSpec(
        name=f"tool_{number}",
        description="Does one thing, and does it well. " * 3,
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string", "description": "Where it is."}},
            "required": ["path"],
        },
    )
    for number in range(TOOLS)
]


@dataclass(slots=True)
class MeasuredClient:
    """A model client to measure. `prepare` prepares a round and is not measured; `ask` sends one
    request and is measured."""

    replies: int
    prepare: Callable[[], Awaitable[None]]
    ask: Callable[[], Awaitable[str]]
    cpus_s: list[float] = field(default_factory=list[float])

    async def round(self) -> None:
        await self.prepare()
        text = await self.ask()  # objects that are created once and kept are created here
        assert text == REPLY_TEXT, f"got {text[:80]!r}"
        started = time.process_time()
        for _ in range(self.replies):
            await self.ask()
        self.cpus_s.append((time.process_time() - started) / self.replies)


class Conversation:
    """A conversation that grows by a question and an answer with each reply."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._sessions = 0
        self.records: list[Record] = []
        self.session = SessionId("")
        self.start_again()

    def start_again(self) -> None:
        self._sessions += 1
        self.session = SessionId(f"{self._sessions:032x}")
        words = "A line of an earlier message, of ordinary length. "
        filler = (words * (1 + HISTORY_BYTES // HISTORY // len(words)))[: HISTORY_BYTES // HISTORY - 34]
        self.records = []
        for number in range(self._length - 1):
            self._add(Reply(text=filler) if number % 2 else UserTurn(text=filler))
        self._add(UserTurn(text="What is on today?"))

    def add_exchange(self) -> None:
        self._add(Reply(text=REPLY_TEXT))
        self._add(UserTurn(text=f"And what is number {len(self.records)}?"))

    def _add(self, body: RecordBody) -> None:
        at_ms = to_ms(datetime(2026, 1, 1, tzinfo=UTC))
        seq = len(self.records) + 1
        self.records.append(Record(session=self.session, seq=seq, kind=body_kind(body), body=body, at_ms=at_ms))

    def prompt(self) -> ModelPrompt:
        return ModelPrompt(session=self.session, instructions=INSTRUCTIONS, records=self.records, tools=_tools)


def _target(port: int) -> ModelTarget:
    return ModelTarget(facts=ModelFacts(ref=ModelRef("bench", "mock")), url=f"http://127.0.0.1:{port}/v1")


def floor(
    session: aiohttp.ClientSession, wire: ProviderFormat, target: ModelTarget, length: int, replies: int
) -> MeasuredClient:
    """Send the same bytes with aiohttp, and split what arrives into lines."""
    request = wire.build_request(Conversation(length).prompt(), target, KEY)
    body = b"".join(request.body)

    async def prepare() -> None:
        pass

    async def ask() -> str:
        rest = b""
        lines: list[bytes] = []
        async with session.post(request.url, data=body, headers=request.headers) as response:
            async for piece in response.content.iter_any():
                *whole, rest = (rest + piece).split(b"\n")
                lines += whole
        return REPLY_TEXT if sum(line.count(b"word ") for line in lines) == REPLY_WORDS else ""

    return MeasuredClient(replies, prepare, ask)


def retinue_client(
    link: ProviderConnections, wire: ProviderFormat, target: ModelTarget, length: int, replies: int
) -> MeasuredClient:
    model = HttpModel(link, wire, target)
    talk = Conversation(length)

    async def prepare() -> None:
        talk.start_again()

    async def ask() -> str:
        pieces = [c.text async for c in model.reply(talk.prompt(), key=KEY) if isinstance(c, TextChunk)]
        talk.add_exchange()
        return "".join(pieces)

    return MeasuredClient(replies, prepare, ask)


def openai_sdk(port: int, length: int, replies: int) -> MeasuredClient:
    sdk: Any = importlib.import_module("openai")
    client = sdk.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
    talk = _Messages(length, [{"role": "system", "content": INSTRUCTIONS}])
    tools: Any = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in _tools
    ]

    async def ask() -> str:
        pieces: list[str] = []
        stream = await client.chat.completions.create(
            model="mock",
            messages=talk.messages,
            tools=tools,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=8_192,
        )
        async for event in stream:
            if event.choices and event.choices[0].delta.content:
                pieces.append(event.choices[0].delta.content)
        talk.add_exchange()
        return "".join(pieces)

    return MeasuredClient(replies, talk.start_again, ask)


def anthropic_sdk(port: int, length: int, replies: int) -> MeasuredClient:
    sdk: Any = importlib.import_module("anthropic")
    client = sdk.AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key=KEY, max_retries=0)
    talk = _Messages(length, [])
    tools: Any = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in _tools]

    async def ask() -> str:
        pieces: list[str] = []
        stream = await client.messages.create(
            model="mock",
            system=INSTRUCTIONS,
            messages=talk.messages,
            tools=tools,
            stream=True,
            max_tokens=8_192,
        )
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                pieces.append(event.delta.text)
        talk.add_exchange()
        return "".join(pieces)

    return MeasuredClient(replies, talk.start_again, ask)


class _Messages:
    """A conversation in the format of an SDK."""

    def __init__(self, length: int, head: Sequence[Any]) -> None:
        self._talk = Conversation(length)
        self._head = head
        self.messages: list[Any] = []

    async def start_again(self) -> None:
        self._talk.start_again()
        self.messages = [*self._head, *map(_message, self._talk.records)]

    def add_exchange(self) -> None:
        self._talk.add_exchange()
        self.messages += map(_message, self._talk.records[-2:])


def _message(record: Record) -> dict[str, str]:
    match record.body:
        case Reply(text=text):
            return {"role": "assistant", "content": text}
        case UserTurn(text=text):
            return {"role": "user", "content": text}
        case body:
            raise AssertionError(f"{body!r} is not used in these conversations")


async def _measure_format(port: int, format_: WireFormat, *, long: bool) -> list[Figure]:
    length = HISTORY if long else 1
    link, wire, target = ProviderConnections(), make_provider_format(format_, EncodedContextCache()), _target(port)
    replies = LONG_REPLIES if long else REPLIES
    session = aiohttp.ClientSession()
    base = floor(session, wire, target, length, replies)
    client = retinue_client(link, wire, target, length, replies)
    sdk: MeasuredClient | None = None
    if importlib.util.find_spec(SDKS[format_]) is not None:
        make = openai_sdk if format_ is WireFormat.OPENAI_CHAT else anthropic_sdk
        sdk = make(port, length, SDK_LONG_REPLIES if long else SDK_REPLIES)
    contenders = [each for each in (base, client, sdk) if each is not None]
    for each in contenders:  # not measured: imports, connections, tables
        await each.round()
        each.cpus_s.clear()
    gc.collect()
    gc.freeze()  # the garbage collector skips everything that is loaded by now
    for _ in range(ROUNDS):
        for each in contenders:
            await each.round()
    await link.close()
    await session.close()
    name = FIGURE_NAMES[format_] + ("-history" if long else "")
    return [*_floor_figures(name, base, client), *_sdk_figures(name, SDKS[format_], client, sdk, long=long)]


def _floor_figures(name: str, base: MeasuredClient, client: MeasuredClient) -> list[Figure]:
    ratio = median([retinue_client / theirs for retinue_client, theirs in zip(client.cpus_s, base.cpus_s, strict=True)])
    return [
        Figure(f"{name}-floor-cpu", median(base.cpus_s) * 1000, "ms"),
        Figure(f"{name}-cpu", median(client.cpus_s) * 1000, "ms"),
        Figure(f"{name}-ratio", ratio, "x", FLOOR_RATIO_MAX),
    ]


def _sdk_figures(
    name: str, package: str, client: MeasuredClient, sdk: MeasuredClient | None, *, long: bool
) -> list[Figure]:
    if sdk is None:
        return [
            Figure(f"{name}-sdk-ratio", 0, "x", skipped=f"`{package}` is not installed: requirements/slow.txt has it")
        ]
    ratio = median([theirs / retinue_client for retinue_client, theirs in zip(client.cpus_s, sdk.cpus_s, strict=True)])
    short = long and ratio < SDK_RATIO_MIN
    note = f"less than the expected {SDK_RATIO_MIN:g}x of `{package}`" if short else f"`{package}`"
    return [
        Figure(f"{name}-sdk-cpu", median(sdk.cpus_s) * 1000, "ms"),
        Figure(f"{name}-sdk-ratio", ratio, "x", note=note),  # only reported: no limit
    ]


async def _main(port: int) -> list[Figure]:
    figures: list[Figure] = []
    for long in (False, True):
        for format_ in (WireFormat.OPENAI_CHAT, WireFormat.ANTHROPIC):
            figures += await _measure_format(port, format_, long=long)
    return figures


def measure(port: int) -> list[Figure]:
    """Measure in a separate process, so that other parts do not affect the result."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.clients", str(port)], stdout=subprocess.PIPE, check=True
    ).stdout
    return msgspec.json.decode(found, type=list[Figure])


def main() -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(_main(int(sys.argv[1])))))


if __name__ == "__main__":
    main()
