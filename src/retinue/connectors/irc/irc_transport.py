"""The connection to an IRC server: rate-limited writes, parsed reads, and a timeout for every wait."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from retinue.connectors.base import LineLost
from retinue.connectors.irc.irc_message import LONGEST_BYTES, Line, parsed
from retinue.domain.ports import Clock

T = TypeVar("T")


async def within(clock: Clock, seconds: float, waiting: Awaitable[T]) -> T:
    """Await something. Raises TimeoutError after so many seconds of the given clock."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        take_back = clock.later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await waiting
        finally:
            take_back()


class Pace:
    """At most so many lines in any window of so many seconds: servers disconnect clients that flood
    them."""

    def __init__(self, clock: Clock, *, lines: int, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._free = asyncio.Semaphore(lines)

    async def take(self) -> None:
        await self._free.acquire()
        self._clock.later(self._window_s, self._free.release)


@dataclass(slots=True, eq=False)
class Wire:
    """An open connection to an IRC server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> Line:
        """The next valid message. Raises `ConnectionLost` at the end of the connection."""
        while True:
            try:
                raw = await self.reader.readline()
            except ValueError:
                raise LineLost("the server sent a line without an end") from None
            except OSError as error:
                raise LineLost("the line to the server broke", because=_reason(error)) from error
            if not raw.endswith(b"\n"):  # end of stream; a partial line is discarded
                raise LineLost("the server closed the line")
            if (line := parsed(raw)) is not None:
                return line

    @property
    def is_closed(self) -> bool:
        return self.writer.is_closing()

    def write(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))

    def close(self) -> None:
        """Close after flushing what was written, as far as the other side still reads."""
        self.writer.close()

    def drop(self) -> None:
        self.writer.transport.abort()


async def opened(host: str, port: int, *, tls: bool, ca_file: str) -> Wire:
    trusted = _trusted(ca_file) if tls else None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=trusted, limit=LONGEST_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise LineLost(
            f"the certificate of {host} is not one that we trust",
            because=error.verify_message,
            try_this="set `tls_ca_file` to the certificate of whoever vouches for it",
            needs_owner=True,
        ) from error
    except OSError as error:
        raise LineLost(f"{host} port {port} cannot be reached", because=_reason(error)) from error
    return Wire(reader, writer)


def _trusted(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # also raised for a file without a certificate
            raise LineLost(
                "the certificate in `tls_ca_file` cannot be read",
                because=_reason(error),
                try_this="set it to a file with a certificate in PEM form",
                needs_owner=True,
            ) from error
    return context


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def is_here(host: str) -> bool:
    """Whether the host is this machine, so that the traffic cannot be read on a network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
