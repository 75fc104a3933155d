"""Fake providers for flows: real HTTP servers on loopback with scripted answers, which keep the requests they received;
and instances whose settings, parsed from the text of a file, name them.

A reply is written once, as `FakeReply`, and sent in the format of the request.
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
_TLS = b"\x16"  # the first byte of a TLS connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the server received it. Header names are in lower case."""

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
        """The tool results in the request, in either format."""
        if self.path.endswith("/chat/completions"):
            return [message["content"] for message in self.body["messages"] if message["role"] == "tool"]
        blocks = [block for message in self.body["messages"] for block in message["content"] if "tool_use_id" in block]
        return [_content_text(block["content"]) for block in blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP response. It can hang before its status or after its body, or be cut: closed before its end."""

    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    hangs_before: bool = False
    hangs_after: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeReply:
    """A model reply.

    `stop` is the stop reason in the format of the request; empty: the usual one. Without `reports_usage` no usage is
    sent. `begins` is sent before the reply is held (in the `openai-chat` format only).
    """

    begins: str = ""
    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    stop: str = ""
    input_tokens: int = 20
    output_tokens: int = 5
    reports_usage: bool = True
    held: asyncio.Event | None = None  # the rest is sent once this is set


def says(text: str, **kw: Any) -> FakeReply:
    return FakeReply(text=text, **kw)


def calls(*asked: tuple[str, Any], **kw: Any) -> FakeReply:
    return FakeReply(calls=asked, **kw)


def error_answer(
    status: int, message: str = "", *, type_: str = "", headers: Mapping[str, str] | None = None
) -> Answer:
    """An error in the form that most providers use."""
    error = {"message": message, "type": type_, "code": type_ or None}
    return Answer(status=status, headers=headers or {}, body=json.dumps({"error": error}))


Rule = Callable[[Asked], Answer | FakeReply]


def _script_ended(asked: Asked) -> Answer:
    return error_answer(400, "the script has no more lines")


class Provider:
    """One fake provider. It sends its scripted answers in order, then those of its `rule`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.port = 0
        self.scheme = "http"
        self.rule: Rule = _script_ended
        self._script: deque[Answer | FakeReply] = deque()
        self._lines: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._over = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    def add_replies(self, *answers: Answer | FakeReply) -> None:
        self._script.extend(answers)

    def always(self, answer: Answer | FakeReply) -> None:
        self.rule = lambda asked: answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve requests on one connection, which stays open as with real providers."""
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = writer
        try:
            while (asked := await _request(reader, writer)) is not None:
                self.asked.append(asked)
                given = self._script.popleft() if self._script else self.rule(asked)
                if not await self._send_reply(given, asked, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed the connection
        finally:
            del self._lines[task]
            writer.close()

    async def stop(self) -> None:
        self._over.set()
        tasks = list(self._lines)
        for writer in self._lines.values():
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_event(self, event: asyncio.Event) -> None:
        """Wait for the event, or for the end of the server."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _send_reply(self, given: Answer | FakeReply, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        """Send the reply; returns whether the connection can be used again."""
        begins, held = b"", None
        if isinstance(given, FakeReply):
            begins, held = _begin(given, asked), given.held
            given = Answer(body=_stream(given, asked), headers={"content-type": "text/event-stream"})
        if given.hangs_before:
            await self._over.wait()
        if held is not None and not begins:
            await self._wait_for_event(held)
        body = given.body if isinstance(given.body, bytes) else given.body.encode()
        lines = [f"HTTP/1.1 {given.status} {_status_phrase(given.status)}", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in given.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + _chunk(begins))
        if held is not None and begins:
            await writer.drain()
            await self._wait_for_event(held)
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


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


# --- replies in two formats ---


def _begin(said: FakeReply, asked: Asked) -> bytes:
    if not said.begins:
        return b""
    event = {"id": "r", "model": asked.model, "choices": [{"index": 0, "delta": {"content": said.begins}}]}
    return f"data: {json.dumps(event)}\n\n".encode()


def _stream(said: FakeReply, asked: Asked) -> bytes:
    if asked.path.endswith("/messages"):
        return _anthropic(said, asked.model)
    return _openai_chat(said, asked.model)


def _openai_chat(said: FakeReply, model: str) -> bytes:
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
    if said.reports_usage:
        usage = {"prompt_tokens": said.input_tokens, "completion_tokens": said.output_tokens}
        events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps({'id': 'r', 'model': model, **event})}\n\n" for event in events]
    return "".join((*lines, "data: [DONE]\n\n")).encode()


def _anthropic(said: FakeReply, model: str) -> bytes:
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if said.thinking:
        delta = {"type": "thinking_delta", "thinking": said.thinking}
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, delta))
    if said.text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": said.text}))
    for i, (tool, given) in enumerate(said.calls):
        block = {"type": "tool_use", "id": f"toolu_{i}", "name": tool, "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": _json(given)}))
    usage = {"input_tokens": said.input_tokens, "output_tokens": 0} if said.reports_usage else None
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"model": model, "usage": usage}}]
    for i, (block, delta) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": block})
        events.append({"type": "content_block_delta", "index": i, "delta": delta})
        events.append({"type": "content_block_stop", "index": i})
    stop = said.stop or ("tool_use" if said.calls else "end_turn")
    written = {"output_tokens": said.output_tokens} if said.reports_usage else None
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": written})
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def _json(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _content_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# --- servers, and instances that use them ---


@asynccontextmanager
async def provider(*answers: Answer | FakeReply, secure: ssl.SSLContext | None = None) -> AsyncGenerator[Provider]:
    """Run a fake provider with these answers, one for each request."""
    playing = Provider()
    playing.add_replies(*answers)
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


def provider_section(
    name: str, url: str, *, format_: str = "openai-chat", key: str = "MOCK_KEY", more: str = ""
) -> str:
    """The section of retinue.toml that declares a provider."""
    return f'[providers.{name}]\nurl = "{url}"\nformat = "{format_}"\nkey = {{ env = "{key}" }}\n{more}\n'


def parse_settings(root: Path, toml: str, environment: Mapping[str, str]) -> Settings:
    """Parse the settings as the server does."""
    return load_configuration(
        {"RETINUE_HOME": str(root), **environment}, text=f'[server]\nzone = "UTC"\n{toml}'
    ).settings


def build_instance(
    root: Path,
    toml: str,
    *,
    environment: Mapping[str, str] | None = None,
    agents: Sequence[Agent] = (Agent(name="ada", model="mock/m1", instructions="Be brief."),),
    first_byte_s: float | None = None,
    silence_s: float | None = None,
    **kw: Any,
) -> LocalInstance:
    """Create an instance with these settings. A file allows only whole seconds for timeouts; tests need shorter."""
    environment = {"MOCK_KEY": KEY} if environment is None else environment
    settings = parse_settings(root, toml, environment)
    models = settings.models
    timeouts = {
        "first_byte_timeout_s": models.first_byte_timeout_s if first_byte_s is None else first_byte_s,
        "stream_idle_timeout_s": models.stream_idle_timeout_s if silence_s is None else silence_s,
    }
    settings = replace(settings, models=replace(models, **timeouts))
    return LocalInstance(root, settings=settings, environment=environment, agents=agents, **kw)


# --- stored results ---


async def calls_made(server: LocalServer) -> list[Any]:
    """The rows of `model_calls`, in the order of the calls."""
    return await server.execute_sql("SELECT * FROM model_calls ORDER BY at_ms, run, turn, call_index, attempt")


async def list_texts_to(server: LocalServer, person: str = "maria") -> list[str]:
    """The texts of the envelopes that a person received, oldest first."""
    return [envelope.text for envelope in await server.list_envelopes_to(person)]
