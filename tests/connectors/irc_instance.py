"""What tests of IRC share: a connector, whoever listens to it, and a server that says what it is told to."""

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
from retinue.testing.fault_kit.kit_server import KitServer
from retinue.testing.fault_kit.peer import BasePeer
from retinue.testing.wait_conditions import wait_until

HOST = "127.0.0.1"
SECRETS = {"password": "open sesame", "account_password": "sésame"}


class _Secrets(BasePeer):
    secrets = SECRETS


def connector_in(folder: Path, port: int, **settings: Any) -> IrcConnector:
    own = IrcSettings(**{"host": HOST, "port": port, "tls": False, "nick": "house", "flood_lines": 1000, **settings})
    made = PLATFORM.make_connector(own, build_context(folder, _Secrets()))  # type: ignore[arg-type]
    assert isinstance(made, IrcConnector)
    return made


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    await wait_until(holds, "it holds")


@asynccontextmanager
async def listening(connector: IrcConnector) -> AsyncGenerator[KitServer]:
    """A house that hears, and calls again when the line broke; entered once it is in all its rooms."""
    house = KitServer()
    task = asyncio.create_task(house.listen_forever(connector))
    try:
        await until(lambda: connector.is_ready)
        yield house
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(slots=True, eq=False)
class ToldServer:
    """Answers as it is told: for what no server that can be installed here does. `answers` is handed each line.

    `read` has the lines of all connections, `current` those of the newest, and none once that one is closed."""

    answers: Callable[[str], list[str]]
    port: int = 0
    read: list[str] = field(default_factory=list[str])
    current: list[str] = field(default_factory=list[str])
    _server: asyncio.Server | None = None
    _writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def __aenter__(self) -> ToldServer:
        self._server = await asyncio.start_server(self._meet, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.current = lines = list[str]()
        try:
            while raw := await reader.readline():
                line = raw.decode().rstrip("\r\n")
                self.read.append(line)
                lines.append(line)
                self.say(*self.answers(line))
        finally:
            lines.clear()

    def say(self, *lines: str) -> None:
        self._writers[-1].write("".join(f"{line}\r\n" for line in lines).encode())
