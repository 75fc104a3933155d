"""The IRC peer: ngIRCd as an independent server, and a person with a separate, minimal client."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retinue.connectors.base import Connector, Surroundings
from retinue.connectors.irc import KIND
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.settings import IrcSettings
from retinue.testing.fault_kit.peer import At, PlainBench, Trouble
from retinue.testing.free_ports import HOST, free_port
from retinue.testing.waiting import WAIT_LIMIT_S, wait_until

NICK = "house"
PERSON = "maria"
PASSWORD = "open sesame"
OTHER_PASSWORD = "something else"

_SETTINGS = """
[Global]
Name = irc.test
Info = a server for tests
Listen = 127.0.0.1
Ports = {port}
Password = {password}
AdminInfo1 = nobody
AdminInfo2 = nowhere
AdminEMail = nobody@irc.test
MotdPhrase = hello
[Options]
DNS = no
Ident = no
PAM = no
[Limits]
MaxPenaltyTime = 0
MaxConnectionsIP = 0
MaxJoins = 0
PingTimeout = 120
PongTimeout = 20
"""


_TLS = """
[SSL]
Ports = {port}
CertFile = {certificate}
KeyFile = {key}
DHFile = {known}
"""


class NgircdMissing(RuntimeError):
    """The program `ngircd` is not installed."""

    def __init__(self) -> None:
        super().__init__("ngircd is not installed: sudo apt-get install -y ngircd")


@dataclass(slots=True, eq=False)
class Ngircd:
    """One ngIRCd process in its own folder, on its own port."""

    folder: Path
    password: str = ""
    port: int = 0
    certificate: Path | None = None  # its `.key` and `.dh` are beside it: then there is a TLS port, too
    tls_port: int = 0
    _process: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        program = shutil.which("ngircd") or shutil.which("ngircd", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise NgircdMissing
        self.port = self.port or free_port()
        settings = self.folder / "ngircd.conf"
        settings.write_text(_SETTINGS.format(port=self.port, password=self.password) + self._tls())
        nowhere = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            program, "-n", "-f", str(settings), stdin=nowhere, stdout=nowhere, stderr=nowhere
        )
        await wait_until(lambda: _answers(self.port), "ngircd answers")

    def _tls(self) -> str:
        if self.certificate is None:
            return ""
        self.tls_port = self.tls_port or free_port()
        return _TLS.format(
            port=self.tls_port,
            certificate=self.certificate,
            key=self.certificate.with_suffix(".key"),
            known=self.certificate.with_suffix(".dh"),
        )

    async def close(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.terminate()  # regularly: messages it accepted still reach their readers
            await self._process.wait()
            self._process = None


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


@dataclass(slots=True, eq=False)
class Person:
    """A person with an IRC client. It shares no code with the connector, so that they cannot share a bug."""

    port: int
    nick: str = PERSON
    password: str = ""
    read: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # who, where, what
    lines: list[str] = field(default_factory=list[str])
    names: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    _writer: asyncio.StreamWriter | None = None
    _reading: asyncio.Task[None] | None = None
    _pings: int = 0

    async def come(self, *rooms: str) -> None:
        reader, self._writer = await asyncio.open_connection(HOST, self.port)
        self._reading = asyncio.create_task(self._read(reader))
        self.type(*([f"PASS :{self.password}"] if self.password else []))
        self.type(f"NICK {self.nick}", f"USER {self.nick} 0 * :{self.nick}")
        await self.until(lambda: any(" 376 " in line or " 422 " in line for line in self.lines))
        for room in rooms:
            self.type(f"JOIN {room}")
        await self.settle()

    async def go(self) -> None:
        """Close the connection, after reading what the server still sends."""
        if self._writer is not None and self._writer.can_write_eof():
            self._writer.write_eof()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=WAIT_LIMIT_S)
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()

    def type(self, *lines: str) -> None:
        assert self._writer is not None
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())

    async def say(self, room: str, text: str) -> None:
        self.type(f"PRIVMSG {room} :{text}")
        await self.settle()

    async def settle(self) -> None:
        """Wait until the server has read everything that was sent."""
        self._pings += 1
        token = f"{self.nick}{self._pings}"
        self.type(f"PING :{token}")
        await self.until(lambda: any(" PONG " in line and line.endswith(f":{token}") for line in self.lines[-50:]))

    async def present(self, room: str) -> set[str]:
        """Returns who is in a channel now, according to the server."""
        self.names[room] = set()
        self.type(f"NAMES {room}")
        await self.settle()
        return self.names[room]

    async def until(self, holds: Callable[[], bool]) -> None:
        await wait_until(holds, "the server has said it", poll_s=0.001, describe=lambda: self.lines[-50:])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while raw := await _next(reader):
            line = raw.decode().rstrip("\r\n")
            self.lines.append(line)
            head, _, last = line.removeprefix(":").partition(" :")
            words = head.split()
            match words:
                case ["PING"]:
                    self.type(f"PONG :{last}")
                case [source, "PRIVMSG" | "NOTICE", room]:
                    self.read.append((source, room, last))
                case [_, "353", _, _, room]:
                    self.names.setdefault(room, set()).update(name.lstrip("@+") for name in last.split())
                case _:
                    pass


async def _next(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except OSError:
        return b""


class IrcBench(PlainBench):
    """IRC over ngIRCd."""

    kind = KIND.name
    made_by = "irc"
    room = "#kitchen"
    other_room = "#garden"
    keeps = False
    secrets: Mapping[str, str] = {"password": PASSWORD}
    exempt: Mapping[str, str] = {
        **dict.fromkeys(
            ("said-while-away", "crash-before-commit", "killed-before-commit"),
            "an IRC server hands each line out once, and keeps nothing for those who are away",
        ),
        "place-refuses": "an IRC server takes a line or refuses it for good; it knows no bad moment but a closed line",
        "throttled": "ngIRCd reads more slowly, or closes the line; servers that ask for patience are tested apart",
        "told-twice": "an IRC server never repeats a line, and a line that was sent has no way to arrive twice",
        "told-out-of-order": "all lines come over one connection, whose bytes are in order",
    }

    def __init__(self) -> None:
        self._server: Ngircd | None = None
        self._person: Person | None = None
        self._before: dict[str, list[str]] = {}

    @property
    def server(self) -> Ngircd:
        assert self._server is not None, "the place is not open"
        return self._server

    @property
    def person(self) -> Person:
        assert self._person is not None, "the place is not open"
        return self._person

    async def open(self, folder: Path) -> Mapping[str, At]:
        self._server = Ngircd(folder, password=PASSWORD)
        await self._server.open()
        await self._come()
        return {"irc": (HOST, self._server.port)}

    async def _come(self) -> None:
        self._person = Person(self.server.port, password=self.server.password)
        await self._person.come(self.room, self.other_room)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._person is not None:
            await self._person.go()

    async def restart(self) -> None:
        await self.server.close()
        await self.person.go()
        for room in (self.room, self.other_room):
            self._before[room] = self._stood(room)  # texts that were read stay read when the server forgets them
        self._person = None
        await self.server.open()
        await self._come()

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        host, port = at["irc"]
        settings = IrcSettings(
            host=host,
            port=port,
            tls=False,
            nick=NICK,
            rooms=(self.room, self.other_room),
            password_env="PASSWORD",
            silence_s=1200.0,
            answer_s=60.0,
            flood_lines=1000,
        )
        return KIND.make(settings, surroundings)

    async def ready(self, connector: Connector | None) -> None:
        rooms = {self.room, self.other_room}
        if isinstance(connector, IrcConnector):
            await wait_until(lambda: rooms <= connector.inside, "the connector is in its rooms")
        else:
            await wait_until(self._somebody_came, "the connector of another process is in its rooms")

    async def _somebody_came(self) -> bool:
        present = [await self.person.present(room) for room in (self.room, self.other_room)]
        return all(NICK in names for names in present)

    async def say(self, room: str, text: str) -> None:
        await self.person.say(room, text)

    async def standing(self, room: str) -> list[str]:
        if self._person is not None:
            await self._person.settle()
        return self._stood(room)

    def _stood(self, room: str) -> list[str]:
        now = [text for _, where, text in self._person.read if where == room] if self._person else []
        return [*self._before.get(room, []), *now]

    async def begin(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.FORBIDS:
                await self._mode("+m")  # only users with voice may speak
            case Trouble.REVOKED:
                await self._new_password(OTHER_PASSWORD)
            case _:
                await super().begin(trouble)

    async def end(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.FORBIDS:
                await self._mode("-m")
            case Trouble.REVOKED:
                await self._new_password(PASSWORD)
            case _:
                pass

    async def _mode(self, mode: str) -> None:
        self.person.type(f"MODE {self.room} {mode}")
        await self.person.settle()

    async def _new_password(self, password: str) -> None:
        self.server.password = password
        await self.restart()
