"""The connection to an IRC server: reads and writes lines, and limits the rate of lines sent."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from retinue.connectors.base import ConnectionLost
from retinue.connectors.irc.irc_message import RAW_LINE_BYTES_MAX, IrcMessage, parse_message
from retinue.domain.ports import Clock

T = TypeVar("T")


async def wait_within(clock: Clock, seconds: float, awaitable: Awaitable[T]) -> T:
    """Await `awaitable`. Raises `TimeoutError` after this many seconds by the given clock."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        take_back = clock.call_later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await awaitable
        finally:
            take_back()


class LineRateLimit:
    """Allows at most `lines` lines in any `window_s` seconds, because servers disconnect clients that send more."""

    def __init__(self, clock: Clock, *, lines: int, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._slots = asyncio.Semaphore(lines)

    async def acquire(self) -> None:
        await self._slots.acquire()
        self._clock.call_later(self._window_s, self._slots.release)


@dataclass(slots=True, eq=False)
class IrcTransport:
    """An open connection to an IRC server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> IrcMessage:
        """Read the next valid message. Raises `ConnectionLost` when the connection has ended."""
        while True:
            try:
                raw = await self.reader.readline()
            except ValueError:
                raise ConnectionLost("the server sent a line that is too long") from None
            except OSError as error:
                raise ConnectionLost(
                    "the connection to the IRC server broke", because=_describe_error(error)
                ) from error
            if not raw.endswith(b"\n"):  # end of stream; a partial line is discarded
                raise ConnectionLost("the server closed the connection")
            if (line := parse_message(raw)) is not None:
                return line

    @property
    def is_closed(self) -> bool:
        return self.writer.is_closing()

    def write(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))

    def close(self) -> None:
        """Close the connection. If the server is still reading, the lines already written are sent first."""
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


async def connect(host: str, port: int, *, tls: bool, ca_file: str) -> IrcTransport:
    trusted = _build_ssl_context(ca_file) if tls else None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=trusted, limit=RAW_LINE_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost(
            f"the certificate of {host} is not trusted",
            because=error.verify_message,
            try_this="set `tls_ca_file` to the certificate of its certificate authority",
            needs_owner=True,
        ) from error
    except OSError as error:
        raise ConnectionLost(f"cannot reach {host} port {port}", because=_describe_error(error)) from error
    return IrcTransport(reader, writer)


def _build_ssl_context(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # also raised for a file without a certificate
            raise ConnectionLost(
                "cannot read the certificate in `tls_ca_file`",
                because=_describe_error(error),
                try_this="set it to a file with a certificate in PEM format",
                needs_owner=True,
            ) from error
    return context


def _describe_error(error: OSError) -> str:
    return error.strerror or type(error).__name__


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, so that no other machine can read the traffic."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
