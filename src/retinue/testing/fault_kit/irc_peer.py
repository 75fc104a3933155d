"""The IRC peer of the fault test suite: a real ngIRCd server, and a person with a separate, minimal client."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retinue.connectors.base import Connector, ConnectorContext
from retinue.connectors.irc import PLATFORM
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.settings import IrcSettings
from retinue.testing.fault_kit.peer import BasePeer, HostPort, PeerFault
from retinue.testing.free_ports import HOST, free_port
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

NICK = "retinue"
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
AdminInfo1 = test
AdminInfo2 = test
AdminEMail = admin@irc.test
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
class NgircdServer:
    """One ngIRCd process in its own folder, on its own port."""

    folder: Path
    password: str = ""
    port: int = 0
    certificate: Path | None = None  # with its `.key` and `.dh` beside it; if set, there is a TLS port, too
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
        await wait_until(lambda: _accepts_connections(self.port), "ngircd answers")

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
                self._process.terminate()  # an orderly stop: messages that it accepted still reach their readers
            await self._process.wait()
            self._process = None


async def _accepts_connections(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


@dataclass(slots=True, eq=False)
class IrcPerson:
    """A person with an IRC client. The client shares no code with the connector, so the two cannot share a bug."""

    port: int
    nick: str = PERSON
    password: str = ""
    received: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # who, where, what
    lines: list[str] = field(default_factory=list[str])
    names: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    _writer: asyncio.StreamWriter | None = None
    _reading: asyncio.Task[None] | None = None
    _pings: int = 0

    async def connect(self, *channels: str) -> None:
        reader, self._writer = await asyncio.open_connection(HOST, self.port)
        self._reading = asyncio.create_task(self._read(reader))
        self.send_lines(*([f"PASS :{self.password}"] if self.password else []))
        self.send_lines(f"NICK {self.nick}", f"USER {self.nick} 0 * :{self.nick}")
        await self.wait_for(lambda: any(" 376 " in line or " 422 " in line for line in self.lines))
        for channel in channels:
            self.send_lines(f"JOIN {channel}")
        await self.wait_until_read()

    async def disconnect(self) -> None:
        """Close the connection, after reading everything that the server still sends."""
        if self._writer is not None and self._writer.can_write_eof():
            self._writer.write_eof()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=WAIT_LIMIT_S)
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()

    def send_lines(self, *lines: str) -> None:
        assert self._writer is not None
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())

    async def say(self, channel: str, text: str) -> None:
        self.send_lines(f"PRIVMSG {channel} :{text}")
        await self.wait_until_read()

    async def wait_until_read(self) -> None:
        """Wait until the IRC server has read everything that this client has sent."""
        self._pings += 1
        token = f"{self.nick}{self._pings}"
        self.send_lines(f"PING :{token}")
        await self.wait_for(lambda: any(" PONG " in line and line.endswith(f":{token}") for line in self.lines[-50:]))

    async def list_names(self, channel: str) -> set[str]:
        """Return the users who are in a channel now, as the IRC server lists them."""
        self.names[channel] = set()
        self.send_lines(f"NAMES {channel}")
        await self.wait_until_read()
        return self.names[channel]

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        await wait_until(holds, "the server has sent it", poll_s=0.001, describe=lambda: self.lines[-50:])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while raw := await _read_line(reader):
            line = raw.decode().rstrip("\r\n")
            self.lines.append(line)
            head, _, last = line.removeprefix(":").partition(" :")
            words = head.split()
            match words:
                case ["PING"]:
                    self.send_lines(f"PONG :{last}")
                case [source, "PRIVMSG" | "NOTICE", room]:
                    self.received.append((source, room, last))
                case [_, "353", _, _, room]:
                    self.names.setdefault(room, set()).update(name.lstrip("@+") for name in last.split())
                case _:
                    pass


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except OSError:
        return b""


class IrcPeer(BasePeer):
    """Connects the fault test suite to the IRC connector, with an ngIRCd server."""

    platform = PLATFORM.name
    factory = "irc"
    channel = "#kitchen"
    other_channel = "#garden"
    keeps_messages = False
    secrets: Mapping[str, str] = {"password": PASSWORD}
    exemptions: Mapping[str, str] = {
        **dict.fromkeys(
            ("message-while-offline", "crash-before-commit", "killed-before-commit"),
            "an IRC server sends each line once, and stores nothing for absent users",
        ),
        "platform-refuses": (
            "an IRC server accepts a line or refuses it permanently; its only temporary failure is a closed connection"
        ),
        "throttled": "ngIRCd reads more slowly, or closes the connection; servers that throttle are tested separately",
        "message-repeated": "an IRC server never repeats a line, and a sent line cannot arrive twice",
        "messages-reordered": "all lines arrive over one connection, whose bytes are in order",
    }

    def __init__(self) -> None:
        self._server: NgircdServer | None = None
        self._person: IrcPerson | None = None
        self._texts_before_restart: dict[str, list[str]] = {}

    @property
    def server(self) -> NgircdServer:
        assert self._server is not None, "the platform is not running"
        return self._server

    @property
    def person(self) -> IrcPerson:
        assert self._person is not None, "the platform is not running"
        return self._person

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        self._server = NgircdServer(folder, password=PASSWORD)
        await self._server.open()
        await self._connect_person()
        return {"irc": (HOST, self._server.port)}

    async def _connect_person(self) -> None:
        self._person = IrcPerson(self.server.port, password=self.server.password)
        await self._person.connect(self.channel, self.other_channel)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self._person is not None:
            await self._person.disconnect()

    async def restart(self) -> None:
        await self.server.close()
        await self.person.disconnect()
        for channel in (self.channel, self.other_channel):
            self._texts_before_restart[channel] = self._list_texts(
                channel
            )  # texts that were read stay read when the server forgets them
        self._person = None
        await self.server.open()
        await self._connect_person()

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        host, port = addresses["irc"]
        settings = IrcSettings(
            host=host,
            port=port,
            tls=False,
            nick=NICK,
            channels=(self.channel, self.other_channel),
            password_env="PASSWORD",
            ping_after_s=1200.0,
            answer_timeout_s=60.0,
            flood_lines=1000,
        )
        return PLATFORM.make_connector(settings, context)

    async def wait_until_ready(self, connector: Connector | None) -> None:
        channels = {self.channel, self.other_channel}
        if isinstance(connector, IrcConnector):
            await wait_until(lambda: channels <= connector.joined_channels, "the connector has joined its channels")
        else:
            await wait_until(self._is_nick_present, "the connector of another process has joined its channels")

    async def _is_nick_present(self) -> bool:
        present = [await self.person.list_names(channel) for channel in (self.channel, self.other_channel)]
        return all(NICK in names for names in present)

    async def send_as_person(self, channel: str, text: str) -> None:
        await self.person.say(channel, text)

    async def list_texts(self, channel: str) -> list[str]:
        if self._person is not None:
            await self._person.wait_until_read()
        return self._list_texts(channel)

    def _list_texts(self, channel: str) -> list[str]:
        now = [text for _, where, text in self._person.received if where == channel] if self._person else []
        return [*self._texts_before_restart.get(channel, []), *now]

    async def start_fault(self, fault: PeerFault) -> None:
        match fault:
            case PeerFault.FORBIDS:
                await self._set_mode("+m")  # only users with voice may speak
            case PeerFault.REVOKED:
                await self._change_password(OTHER_PASSWORD)
            case _:
                await super().start_fault(fault)

    async def stop_fault(self, fault: PeerFault) -> None:
        match fault:
            case PeerFault.FORBIDS:
                await self._set_mode("-m")
            case PeerFault.REVOKED:
                await self._change_password(PASSWORD)
            case _:
                pass

    async def _set_mode(self, mode: str) -> None:
        self.person.send_lines(f"MODE {self.channel} {mode}")
        await self.person.wait_until_read()

    async def _change_password(self, password: str) -> None:
        self.server.password = password
        await self.restart()
