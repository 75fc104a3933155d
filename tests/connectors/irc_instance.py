"""Helpers for IRC tests: a connector, a listener for it, and a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.connectors.irc import PLATFORM
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.settings import IrcSettings
from retinue.testing.fault_kit.harness import build_context
from retinue.testing.fault_kit.kit_server import SPEEDUP, KitServer
from retinue.testing.fault_kit.peer import BasePeer
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

HOST = "127.0.0.1"
SECRETS = {"password": "open sesame", "account_password": "sésame"}


class _Secrets(BasePeer):
    secrets = SECRETS


def make_irc_connector(folder: Path, port: int, **settings: Any) -> IrcConnector:
    known: dict[str, Any] = {
        "host": HOST,
        "port": port,
        "tls": False,
        "nick": "retinue",
        "flood_lines": 1000,
        # The clock shortens this pause too, and a busy IRC server must have time to answer a ping.
        "answer_timeout_s": WAIT_LIMIT_S * SPEEDUP,
    }
    own = IrcSettings(**{**known, **settings})
    made = PLATFORM.make_connector(own, build_context(folder, _Secrets()))  # type: ignore[arg-type]
    assert isinstance(made, IrcConnector)
    return made


async def wait_until_true(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    await wait_until(condition, "the condition is true")


@asynccontextmanager
async def listen_in_background(connector: IrcConnector) -> AsyncGenerator[KitServer]:
    """Listen as the server does: again after a lost connection. The block starts when the connector is in all its
    channels."""
    server = KitServer()
    task = asyncio.create_task(server.listen_forever(connector))
    try:
        await wait_until_true(lambda: connector.is_ready)
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(slots=True, eq=False)
class ScriptedIrcServer:
    """A scripted server, for features that no installable IRC server has. `get_replies` is called with each line.

    `read` has the lines of all connections, `current` those of the newest one. `current` is empty once it is closed.
    """

    get_replies: Callable[[str], list[str]]
    port: int = 0
    read: list[str] = field(default_factory=list[str])
    current: list[str] = field(default_factory=list[str])
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def __aenter__(self) -> ScriptedIrcServer:
        self._server = await asyncio.start_server(self._handle_connection, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.current = lines = list[str]()
        try:
            while raw := await reader.readline():
                line = raw.decode().rstrip("\r\n")
                self.read.append(line)
                lines.append(line)
                self.say(*self.get_replies(line))
        finally:
            lines.clear()

    def say(self, *lines: str) -> None:
        self._writers[-1].write("".join(f"{line}\r\n" for line in lines).encode())
