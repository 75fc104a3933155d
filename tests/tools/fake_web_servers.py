"""Servers on loopback that stand in for the web, and setups of agents that use them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from retinue.config.web import WebSettings
from retinue.domain.agent import Agent
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.tools.base import ToolContext
from retinue.tools.web.url_guard import UrlGuard, build_guard

LOOPBACK = (IPv4Network("127.0.0.0/8"),)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    path: str
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    body: bytes | str = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    type: str = "text/html; charset=utf-8"

    def raw(self) -> bytes:
        body = self.body.encode() if isinstance(self.body, str) else self.body
        lines = [f"HTTP/1.1 {self.status} Reply", "Connection: close"]
        headers = {"Content-Type": self.type, "Content-Length": str(len(body)), **self.headers}
        lines += [f"{name}: {value}" for name, value in headers.items() if value]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


WriteReply = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A web server. A path without a reply returns 404; a `WriteReply` may write any bytes to the connection."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply | WriteReply] = {}
        self.asked: list[ReceivedRequest] = []
        self.connections = 0
        self.host = "127.0.0.1"
        self.port = 0

    def url(self, path: str = "/", *, host: str = "", scheme: str = "http") -> str:
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.asked.append(ReceivedRequest(path, headers, method, body))
            reply = self.replies.get(path.partition("?")[0], Reply("nothing here", 404, type="text/plain"))
            if isinstance(reply, Reply):
                writer.write(reply.raw())
                await writer.drain()
            else:
                await reply(writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def site(
    replies: Mapping[str, Reply | WriteReply] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Site]:
    made = Site()
    made.replies.update(replies or {})
    made.host = host
    server = await asyncio.start_server(made.serve, host, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


class FakeResolver:
    """A resolver. It returns the answers of each name in order, and then repeats the last one."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._left = {name: list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self._left:
            raise OSError(-2, "Name or service not known")
        answers = self._left[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def loopback_guard(
    names: FakeResolver | None = None, networks: Sequence[IPv4Network] = LOOPBACK
) -> Callable[[WebSettings], UrlGuard]:
    """Return the URL guard of the settings, except that these networks count as public."""

    def made(settings: WebSettings) -> UrlGuard:
        if names is None:
            return build_guard(settings, allowed_networks=networks)
        return build_guard(settings, allowed_networks=networks, resolve=names)

    return made


def make_tool_context(folder: Path = Path("/nonexistent"), *, web: bool = True, session: str = "5" * 32) -> ToolContext:
    return ToolContext(
        agent=Agent(name="ada"),
        session=SessionId(session),
        run=RunId("7" * 32),
        call="c1",
        agent_directory=folder,
        rights=AgentRights(workspace=folder, web=web),
    )


class CountingIds:
    """Ids that count up."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        self._last += 1
        return f"{self._last:032x}"
