"""The line to a server: bytes out at a measured pace, lines in, and every wait with an end."""

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
    """What is waited for; TimeoutError once the clock has gone on for so long."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        take_back = clock.later(seconds, lambda: limit.reschedule(loop.time()))
        try:
            return await waiting
        finally:
            take_back()


class Pace:
    """At most so many lines in any stretch of so many seconds: servers throw out whoever floods them."""

    def __init__(self, clock: Clock, *, lines: int, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._free = asyncio.Semaphore(lines)

    async def take(self) -> None:
        await self._free.acquire()
        self._clock.later(self._window_s, self._free.release)


@dataclass(slots=True, eq=False)
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> Line:
        """The next line that is one. Raises LineLost where there will be no more."""
        while True:
            try:
                raw = await self.reader.readline()
            except ValueError:
                raise LineLost("the server sent a line without an end") from None
            except OSError as error:
                raise LineLost("the line to the server broke", because=_reason(error)) from error
            if not raw.endswith(b"\n"):  # the end of it all; half a line says nothing
                raise LineLost("the server closed the line")
            if (line := parsed(raw)) is not None:
                return line

    @property
    def is_closed(self) -> bool:
        return self.writer.is_closing()

    def write(self, *lines: bytes) -> None:
        self.writer.write(b"".join(lines))

    def close(self) -> None:
        """With what was written on its way, as far as the other side still takes it."""
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
        except OSError as error:  # also of a file that holds no certificate
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
    """Whether it is this machine, so that nobody listens on the way."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
