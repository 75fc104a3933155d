"""A connection to an email server: limited sizes and times, and never unencrypted beyond this
machine."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from msgspec import Struct

from retinue.config import validators
from retinue.connectors.email.settings import Login, Security
from retinue.domain.errors import Invalid

CONNECT_S_MAX = 30.0
SILENCE_S_MAX = 60.0  # default timeout for an answer of the server
CLOSE_S_MAX = 5.0
LINE_BYTES_MAX = 1024 * 1024
CHUNK_BYTES = 64 * 1024


class LineBroke(ConnectionError):
    """The connection broke, the server was silent for too long, or it does not speak the protocol."""


class Place(Struct, frozen=True, kw_only=True):
    """The address of a server, and how the connection to it is encrypted."""

    host: str
    port: int
    security: Security
    ca_bundle: str = ""
    answer_s: float = SILENCE_S_MAX

    def __post_init__(self) -> None:
        if self.security is Security.NONE and not validators.is_loopback(self.host):
            raise Invalid(
                f"the line to {self.host} would be open to be read",
                because='`security = "none"` sends the password as it is, and is for servers on this machine alone',
                try_this='use "tls" or "starttls"',
            )

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_bundle or None)


class Credentials(Struct, frozen=True, kw_only=True):
    """A login. Its secret stays out of `repr`."""

    username: str
    secret: str
    login: Login = Login.PASSWORD

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"

    def plain(self) -> bytes:
        return f"\0{self.username}\0{self.secret}".encode()

    def xoauth2(self) -> bytes:
        return f"user={self.username}\x01auth=Bearer {self.secret}\x01\x01".encode()


class Line:
    """A connection to an IMAP or SMTP server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self.answer_s = answer_s  # after such a silence the connection counts as broken

    @classmethod
    async def open(cls, place: Place) -> Line:
        tls = place.context() if place.security is Security.TLS else None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                made = await asyncio.open_connection(
                    place.host,
                    place.port,
                    ssl=tls,
                    server_hostname=place.host if tls else None,
                    limit=LINE_BYTES_MAX,
                )
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            raise LineBroke(f"{place.host}:{place.port} cannot be reached: {_said(error)}") from error
        return cls(*made, answer_s=place.answer_s)

    async def start_tls(self, place: Place) -> None:
        """Encrypt the connection. Data that the server sent in the clear before raises an error,
        because it could be injected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                if await self._reader.read(1):
                    raise LineBroke("the server spoke before the line was secured")
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self._writer.start_tls(place.context(), server_hostname=place.host)
        except (OSError, TimeoutError) as error:
            raise LineBroke(f"the line to {place.host}:{place.port} cannot be secured: {_said(error)}") from error

    async def read_line(self, *, patience: float | None = 1.0) -> bytes:
        """The next line, without its end. The timeout is `timeout_factor` times the usual one, or
        none if it is None."""
        try:
            async with asyncio.timeout(None if patience is None else patience * self.answer_s):
                line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise LineBroke("the server closed the line") from error
        except asyncio.LimitOverrunError as error:
            raise LineBroke(f"the server sent a line of more than {LINE_BYTES_MAX:,} bytes") from error
        except TimeoutError as error:
            raise LineBroke("the server was silent for too long") from error
        except OSError as error:
            raise LineBroke(f"the line broke: {_said(error)}") from error
        return line.rstrip(b"\r\n")

    async def read_bytes(self, count: int) -> bytes:
        chunks: list[bytes] = []
        try:
            while count > 0:
                async with asyncio.timeout(self.answer_s):
                    chunk = await self._reader.read(min(count, CHUNK_BYTES))
                if not chunk:
                    raise LineBroke("the server closed the line")
                chunks.append(chunk)
                count -= len(chunk)
        except TimeoutError as error:
            raise LineBroke("the server was silent for too long") from error
        except OSError as error:
            raise error if isinstance(error, LineBroke) else LineBroke(f"the line broke: {_said(error)}") from error
        return b"".join(chunks)

    async def send(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), CHUNK_BYTES):
                self._writer.write(data[at : at + CHUNK_BYTES])
                async with asyncio.timeout(self.answer_s):
                    await self._writer.drain()
        except TimeoutError as error:
            raise LineBroke("the server took nothing for too long") from error
        except OSError as error:
            raise LineBroke(f"the line broke: {_said(error)}") from error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._writer.wait_closed()


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.strerror if isinstance(error, OSError) else "") or "it did not answer in time"


def shown(raw: bytes) -> str:
    """Text of a server, made safe to show."""
    text = raw[:200].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text).strip()
