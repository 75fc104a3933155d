"""MCP servers for tests: real ones made with `mcp`, and small hand-written ones that violate the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import uvicorn

from retinue.app.clock_and_ids import RandomIds, RealClock
from retinue.config.mcp import McpServerSettings
from retinue.domain.agent import Agent
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.ports import Clock
from retinue.sandbox.base import Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.host import HostSandbox
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import open_store
from retinue.testing.wait_conditions import wait_until
from retinue.tools.base import Tool, ToolContext, ToolOutput
from retinue.tools.mcp.server_pool import SERVERS_FOLDER, McpServerPool
from retinue.tools.mcp.server_status import FindServerSandbox, McpConnectionState, McpConnectionStatus

# A server made with the `mcp` package.
REAL_SERVER_SOURCE = '''
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer, Image
from mcp_types import ToolAnnotations

server = MCPServer("kitchen")

@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@server.tool()
def environment() -> str:
    """Its environment."""
    return repr(sorted(os.environ))

@server.tool()
def secret() -> str:
    """One variable."""
    return os.environ["KITCHEN_KEY"]

@server.tool()
def look(path: str) -> str:
    """What lies there."""
    return repr(sorted(os.listdir(path)))

@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\\x89PNG\\r\\n\\x1a\\n" + b"0" * 20, format="png")

@server.tool()
def fail() -> str:
    """Cannot."""
    raise ValueError("the oven is cold")

@server.resource("kitchen://menu")
def menu() -> str:
    """What there is."""
    return "soup"

if __name__ == "__main__":
    print("a line for the log", file=sys.stderr)
    server.run()
'''

# A server that knows just enough of the protocol to violate it. Its behavior is in its `on_call`.
SMALL_SERVER_SOURCE = """
import json, os, sys, threading, time
BEGUN = time.monotonic()

def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

def tool(name="act", description="Acts.", schema=None, **annotations):
    return {"name": name, "description": description, "annotations": annotations,
            "inputSchema": schema or {"type": "object", "properties": {}}}

def text(words):
    return {"content": [{"type": "text", "text": words}]}

def serve(tools, on_call):
    for line in sys.stdin:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if method == "initialize":
            say({"id": id, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
                                      "serverInfo": {"name": "small", "version": "1"}}})
        elif method == "tools/list":
            say({"id": id, "result": {"tools": tools()}})
        elif method == "tools/call":
            result = on_call(message["params"], id)
            if result is not None:
                say({"id": id, "result": result})
        elif id is not None:
            say({"id": id, "error": {"code": -32601, "message": "no such method"}})
"""


@dataclass(slots=True)
class McpServersUnderTest:
    """Servers on a real store and in a real sandbox."""

    servers: McpServerPool
    store: Store
    home: Path
    settings: dict[str, McpServerSettings]
    changes: list[int] = field(default_factory=list[int])

    def connection_status(self, name: str) -> McpConnectionStatus:
        return next(each for each in self.servers.list_statuses() if each.name == name)

    async def until(self, name: str, *states: McpConnectionState) -> McpConnectionStatus:
        await until(lambda: self.connection_status(name).state in states, lambda: self.connection_status(name))
        return self.connection_status(name)

    async def approve(self, name: str) -> None:
        """Approve the tool list of a server, as the owner would, once the server has sent it."""
        await until(
            lambda: (
                self.connection_status(name).tool_list is not None
                and self.connection_status(name).state is McpConnectionState.WAITING
            )
        )
        offered = self.connection_status(name).tool_list
        assert offered is not None
        assert await self.servers.approve(name, offered.hash, by="person:owner")
        await self.until(name, McpConnectionState.READY)

    def tool(self, name: str) -> Tool:
        return next(each for each in self.servers.list_tools() if each.spec.name == name)

    def names(self) -> list[str]:
        return [each.spec.name for each in self.servers.list_tools()]

    async def call(self, name: str, *, agent: str = "ada", **arguments: Any) -> ToolOutput:
        output = await self.tool(name).perform(arguments, tool_context(agent))
        assert isinstance(output, ToolOutput)
        return output


async def until(holds: Callable[[], Any], seen: Callable[[], object] = lambda: "") -> Any:
    return await wait_until(holds, "it holds", describe=seen)


def tool_context(agent: str = "ada") -> ToolContext:
    home = Path("/tmp")
    return ToolContext(
        agent=Agent(name=agent),
        session=SessionId("5e" * 16),
        run=RunId("1f" * 16),
        call="c1",
        agent_directory=home,
        rights=AgentRights(workspace=home),
    )


def small(folder: Path, body: str) -> tuple[str, ...]:
    """Return the command of a hand-written server. `body` calls `serve`."""
    file = folder / "small.py"
    file.write_text(SMALL_SERVER_SOURCE + textwrap.dedent(body))
    return ("/usr/bin/python3", "-S", str(file)) if Path("/usr/bin/python3").exists() else (sys.executable, str(file))


def write_real_server(folder: Path) -> tuple[str, ...]:
    file = folder / "kitchen.py"
    file.write_text(REAL_SERVER_SOURCE)
    return (sys.executable, "-B", str(file))


def real_server_paths(folder: Path) -> tuple[Path, ...]:
    """Return the paths that a real server needs: its script and the packages that it imports."""
    made_with = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    return (folder.resolve(), *(path for path in made_with if not path.is_relative_to("/usr")))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@asynccontextmanager
async def open_mcp_servers(
    root: Path,
    settings: Mapping[str, McpServerSettings],
    *,
    sandboxed: bool = False,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    find_sandbox: FindServerSandbox | None = None,
) -> AsyncGenerator[McpServersUnderTest]:
    """Open MCP servers on a real store. Unless `sandboxed`, their commands run on the host and start faster."""
    home = (root / "data").resolve()
    home.mkdir(exist_ok=True)
    store = await open_store(home / "retinue.db")
    sandbox: Sandbox = (
        BubblewrapSandbox(
            folder=Path(tempfile.mkdtemp(dir=root)), private_paths=(home,), shareable_parents=(home / SERVERS_FOLDER,)
        )
        if sandboxed
        else HostSandbox()
    )
    changing = dict(settings)

    async def sandbox_now(_server: str) -> Sandbox:
        return sandbox

    servers = McpServerPool(
        lambda: changing,
        data_directory=home,
        store=store,
        sandbox=find_sandbox or sandbox_now,
        clock=clock or RealClock(),
        ids=RandomIds(),
        random=Random(7),
        environment=environment or {},
        files=AttachmentFiles(home / "files"),
    )
    made = McpServersUnderTest(servers, store, home, changing)
    servers.on_change(lambda: made.changes.append(1))
    try:
        await servers.sync()
        yield made
    finally:
        await servers.close()
        await store.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class HttpMcpServer:
    """A hand-written HTTP server. `answers` returns a status, headers and a body for a method."""

    def __init__(self) -> None:
        self.tools: list[dict[str, Any]] = [
            {"name": "act", "description": "Acts.", "inputSchema": {"type": "object", "properties": {}}}
        ]
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.hangs_on_delete = False  # when a client ends its session
        self.delete_requests: list[str] = []
        self.answers: dict[str, Callable[[Any], tuple[int, dict[str, str], bytes]]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "DELETE" and self.hangs_on_delete:
            self.delete_requests.append(scope["method"])
            await asyncio.Event().wait()
        status, headers, content = 405, {}, b""
        if scope["method"] == "POST":
            asked = json.loads(body)
            self.requests.append(({k.decode(): v.decode() for k, v in scope["headers"]}, asked))
            status, headers, content = self._answer(asked)
        response_headers = {"content-type": "application/json", **headers}
        raw = [(k.encode(), v.encode()) for k, v in response_headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, asked: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        method = asked["method"]
        if method in self.answers:
            return self.answers[method](asked["id"])
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "site", "version": "1"},
            },
            "tools/list": {"tools": self.tools},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if "id" not in asked:
            return 202, {}, b""
        if method not in results:
            return 200, {}, json_rpc_message(asked["id"], error={"code": -32601, "message": "no such method"})
        return 200, {}, json_rpc_message(asked["id"], result=results[method])


def json_rpc_message(id: Any, **what: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, **what}).encode()


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI app on loopback and yield its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="auto")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task
        listener.close()
