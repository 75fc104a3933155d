"""Providers for flows: real HTTP servers on loopback, each with a script of answers, who keep what they were asked; and
houses whose settings, read from a file's text, name them.

What is said is written down once, as `Said`, and goes out in the format that a request came in.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from retinue.config import Settings, load_configuration
from retinue.domain.agent import Agent
from retinue.domain.structs import replace
from retinue.testing.local_instance import LocalInstance, LocalServer

KEY = "sk-flows-0123456789abcdefghij"
REQUEST_BYTES_MAX = 8 * 1024 * 1024
_TLS = b"\x16"  # how someone begins who takes us for a secure server


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the server got it. The names of headers are in small letters."""

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def key(self) -> str:
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def model(self) -> str:
        return self.body["model"]

    @property
    def output_tokens_max(self) -> int:
        return self.body["max_tokens"]

    @property
    def results(self) -> list[str]:
        """The results of tools that were read with it, in whichever way its format has them."""
        if self.path.endswith("/chat/completions"):
            return [message["content"] for message in self.body["messages"] if message["role"] == "tool"]
        blocks = [block for message in self.body["messages"] for block in message["content"] if "tool_use_id" in block]
        return [_words(block["content"]) for block in blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Any answer at all. `hangs`: without a status, or after its body; `cut`: the line breaks instead."""

    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    hangs_before: bool = False
    hangs_after: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A reply. `stop` is what its format calls it; not set: what is usual. Without `tells` no usage is told. What it
    `begins` with is said before it is held (in the format of OpenAI's chat only)."""

    begins: str = ""
    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    stop: str = ""
    input_tokens: int = 20
    output_tokens: int = 5
    tells: bool = True
    held: asyncio.Event | None = None  # said only once this is set


def says(text: str, **kw: Any) -> Said:
    return Said(text=text, **kw)


def calls(*asked: tuple[str, Any], **kw: Any) -> Said:
    return Said(calls=asked, **kw)


def refuses(status: int, message: str = "", *, type_: str = "", headers: Mapping[str, str] | None = None) -> Answer:
    """An error in the shape in which most providers give it."""
    error = {"message": message, "type": type_, "code": type_ or None}
    return Answer(status=status, headers=headers or {}, body=json.dumps({"error": error}))


Rule = Callable[[Asked], Answer | Said]


def _script_ended(asked: Asked) -> Answer:
    return refuses(400, "the script has no more lines")


class Provider:
    """One server. Gives its answers in their order, then by its `rule`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.port = 0
        self.scheme = "http"
        self.rule: Rule = _script_ended
        self._script: deque[Answer | Said] = deque()
        self._lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._over = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    def will(self, *answers: Answer | Said) -> None:
        self._script.extend(answers)

    def always(self, answer: Answer | Said) -> None:
        self.rule = lambda asked: answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lines are kept open, as those of providers are."""
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = writer
        try:
            while (asked := await _request(reader, writer)) is not None:
                self.asked.append(asked)
                given = self._script.popleft() if self._script else self.rule(asked)
                if not await self._give(given, asked, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as clients do
        finally:
            del self._lines[task]
            writer.close()

    async def stop(self) -> None:
        self._over.set()
        tasks = list(self._lines)
        for writer in self._lines.values():
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until(self, event: asyncio.Event) -> None:
        """Or until it is all over."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _give(self, given: Answer | Said, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Whether the line can be used again."""
        begins, held = b"", None
        if isinstance(given, Said):
            begins, held = _begin(given, asked), given.held
            given = Answer(body=_stream(given, asked), headers={"content-type": "text/event-stream"})
        if given.hangs_before:
            await self._over.wait()
        if held is not None and not begins:
            await self._until(held)
        body = given.body if isinstance(given.body, bytes) else given.body.encode()
        lines = [f"HTTP/1.1 {given.status} {_phrase(given.status)}", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in given.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + _chunk(begins))
        if held is not None and begins:
            await writer.drain()
            await self._until(held)
        writer.write(_chunk(body))
        await writer.drain()
        if given.hangs_after:
            await self._over.wait()
        if given.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        if (begins := await reader.readexactly(1)) == _TLS:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nnot here")
            return None
        head = (begins + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(path=first.split(" ")[1], headers=headers, raw=raw)


def _chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


# What is said, in two formats


def _begin(said: Said, asked: Asked) -> bytes:
    if not said.begins:
        return b""
    event = {"id": "r", "model": asked.model, "choices": [{"index": 0, "delta": {"content": said.begins}}]}
    return f"data: {json.dumps(event)}\n\n".encode()


def _stream(said: Said, asked: Asked) -> bytes:
    if asked.path.endswith("/messages"):
        return _anthropic(said, asked.model)
    return _openai_chat(said, asked.model)


def _openai_chat(said: Said, model: str) -> bytes:
    deltas: list[dict[str, Any]] = [{"reasoning_content": said.thinking}] if said.thinking else []
    deltas += [{"content": word} for word in said.text.split(" ", 1)[:1] if word]
    deltas += [{"content": f" {rest}"} for rest in said.text.split(" ", 1)[1:]]
    deltas += [
        {
            "tool_calls": [
                {
                    "index": i,
                    "id": f"call_{i}",
                    "type": "function",
                    "function": {"name": tool, "arguments": _json(given)},
                }
            ]
        }
        for i, (tool, given) in enumerate(said.calls)
    ]
    stop = said.stop or ("tool_calls" if said.calls else "stop")
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})
    if said.tells:
        usage = {"prompt_tokens": said.input_tokens, "completion_tokens": said.output_tokens}
        events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps({'id': 'r', 'model': model, **event})}\n\n" for event in events]
    return "".join((*lines, "data: [DONE]\n\n")).encode()


def _anthropic(said: Said, model: str) -> bytes:
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if said.thinking:
        delta = {"type": "thinking_delta", "thinking": said.thinking}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, delta))
    if said.text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": said.text}))
    for i, (tool, given) in enumerate(said.calls):
        block = {"type": "tool_use", "id": f"toolu_{i}", "name": tool, "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": _json(given)}))
    usage = {"input_tokens": said.input_tokens, "output_tokens": 0} if said.tells else None
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": model, "usage": usage}}]
    for i, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": block})
        events.append({"type": "content_block_delta", "index": i, "delta": delta})
        events.append({"type": "content_block_stop", "index": i})
    stop = said.stop or ("tool_use" if said.calls else "end_turn")
    written = {"output_tokens": said.output_tokens} if said.tells else None
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": written})
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _json(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# Servers, and houses that ask them


@asynccontextmanager
async def provider(*answers: Answer | Said, secure: ssl.SSLContext | None = None) -> AsyncGenerator[Provider]:
    """A server that gives these answers, one for each request."""
    playing = Provider()
    playing.will(*answers)
    server = await asyncio.start_server(playing.serve, "127.0.0.1", 0, ssl=secure, limit=REQUEST_BYTES_MAX)
    playing.port = server.sockets[0].getsockname()[1]
    playing.scheme = "https" if secure else "http"
    try:
        yield playing
    finally:
        server.close()
        await playing.stop()


@asynccontextmanager
async def providers(count: int) -> AsyncGenerator[list[Provider]]:
    async with provider() as first:
        if count == 1:
            yield [first]
            return
        async with providers(count - 1) as others:
            yield [first, *others]


def section(name: str, url: str, *, format_: str = "openai-chat", key: str = "MOCK_KEY", more: str = "") -> str:
    """The section of retinue.toml that declares a provider."""
    return f'[providers.{name}]\nurl = "{url}"\nformat = "{format_}"\nkey = {{ env = "{key}" }}\n{more}\n'


def settings_of(root: Path, toml: str, environment: Mapping[str, str]) -> Settings:
    """As the house itself would read them."""
    return load_configuration(
        {"RETINUE_HOME": str(root), **environment}, text=f'[house]\nzone = "UTC"\n{toml}'
    ).settings


def household_of(
    root: Path,
    toml: str,
    *,
    environment: Mapping[str, str] | None = None,
    agents: Sequence[Agent] = (Agent(name="ada", model="mock/m1", instructions="Be brief."),),
    first_byte_s: float | None = None,
    silence_s: float | None = None,
    **kw: Any,
) -> LocalInstance:
    """A house with these settings. A file may ask for whole seconds of patience; a test has less of it."""
    environment = {"MOCK_KEY": KEY} if environment is None else environment
    settings = settings_of(root, toml, environment)
    models = settings.models
    patience = {
        "first_byte_s": models.first_byte_s if first_byte_s is None else first_byte_s,
        "silence_s": models.silence_s if silence_s is None else silence_s,
    }
    settings = replace(settings, models=replace(models, **patience))
    return LocalInstance(root, settings=settings, environment=environment, agents=agents, **kw)


# What was kept of it


async def calls_made(house: LocalServer) -> list[Any]:
    """The rows of `money`, in the order of the calls."""
    return await house.execute_sql("SELECT * FROM money ORDER BY at_ms, run, turn, idx, attempt")


async def told(house: LocalServer, person: str = "maria") -> list[str]:
    """What a person was sent, oldest first."""
    return [envelope.text for envelope in await house.list_envelopes_to(person)]
