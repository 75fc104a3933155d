"""Connects to email servers. Sizes and times are limited. A connection to another machine is always encrypted."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from msgspec import Struct

from retinue.config import validators
from retinue.connectors.email.errors import EmailConnectionUnencrypted
from retinue.connectors.email.settings import EmailLogin, EmailSecurity

CONNECT_S_MAX = 30.0
ANSWER_S_MAX = 60.0  # default timeout for an answer from the server
CLOSE_S_MAX = 5.0
LINE_BYTES_MAX = 1024 * 1024
CHUNK_BYTES = 64 * 1024


class EmailConnectionBroke(ConnectionError):
    """The connection broke, or the server was silent for too long or violated the protocol."""


class EmailServer(Struct, frozen=True, kw_only=True):
    """The address of an email server, and how the connection to it is encrypted."""

    host: str
    port: int
    security: EmailSecurity
    ca_bundle: str = ""
    answer_timeout_s: float = ANSWER_S_MAX

    def __post_init__(self) -> None:
        if self.security is EmailSecurity.NONE and not validators.is_loopback(self.host):
            raise EmailConnectionUnencrypted(self.host)

    def build_ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_bundle or None)


class EmailCredentials(Struct, frozen=True, kw_only=True):
    """The user name and secret for a login. `repr` does not show the secret."""

    username: str
    secret: str
    login: EmailLogin = EmailLogin.PASSWORD

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"

    def plain(self) -> bytes:
        return f"\0{self.username}\0{self.secret}".encode()

    def xoauth2(self) -> bytes:
        return f"user={self.username}\x01auth=Bearer {self.secret}\x01\x01".encode()


class EmailConnection:
    """A connection to an IMAP or SMTP server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer_timeout_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self.answer_timeout_s = answer_timeout_s  # after this time without an answer, the connection counts as broken

    @classmethod
    async def open(cls, server: EmailServer) -> EmailConnection:
        tls = server.build_ssl_context() if server.security is EmailSecurity.TLS else None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                made = await asyncio.open_connection(
                    server.host,
                    server.port,
                    ssl=tls,
                    server_hostname=server.host if tls else None,
                    limit=LINE_BYTES_MAX,
                )
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            raise EmailConnectionBroke(f"cannot reach {server.host}:{server.port}: {_describe_error(error)}") from error
        return cls(*made, answer_timeout_s=server.answer_timeout_s)

    async def start_tls(self, server: EmailServer) -> None:
        """Encrypt the connection.

        Raises an error if unencrypted data is still unread, because an attacker could have injected it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                if await self._reader.read(1):
                    raise EmailConnectionBroke("the server sent data before TLS was started")
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self._writer.start_tls(server.build_ssl_context(), server_hostname=server.host)
        except (OSError, TimeoutError) as error:
            raise EmailConnectionBroke(
                f"cannot start TLS with {server.host}:{server.port}: {_describe_error(error)}"
            ) from error

    async def read_line(self, *, timeout_factor: float | None = 1.0) -> bytes:
        """Read the next line, without its line end.

        The timeout is `timeout_factor` times the usual timeout; None means no timeout.
        """
        try:
            async with asyncio.timeout(None if timeout_factor is None else timeout_factor * self.answer_timeout_s):
                line = await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise EmailConnectionBroke("the server closed the connection") from error
        except asyncio.LimitOverrunError as error:
            raise EmailConnectionBroke(f"the server sent a line of more than {LINE_BYTES_MAX:,} bytes") from error
        except TimeoutError as error:
            raise EmailConnectionBroke("the server did not answer in time") from error
        except OSError as error:
            raise EmailConnectionBroke(f"the connection broke: {_describe_error(error)}") from error
        return line.rstrip(b"\r\n")

    async def read_bytes(self, count: int) -> bytes:
        chunks: list[bytes] = []
        try:
            while count > 0:
                async with asyncio.timeout(self.answer_timeout_s):
                    chunk = await self._reader.read(min(count, CHUNK_BYTES))
                if not chunk:
                    raise EmailConnectionBroke("the server closed the connection")
                chunks.append(chunk)
                count -= len(chunk)
        except TimeoutError as error:
            raise EmailConnectionBroke("the server did not answer in time") from error
        except OSError as error:
            raise (
                error
                if isinstance(error, EmailConnectionBroke)
                else EmailConnectionBroke(f"the connection broke: {_describe_error(error)}")
            ) from error
        return b"".join(chunks)

    async def send(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), CHUNK_BYTES):
                self._writer.write(data[at : at + CHUNK_BYTES])
                async with asyncio.timeout(self.answer_timeout_s):
                    await self._writer.drain()
        except TimeoutError as error:
            raise EmailConnectionBroke("sending timed out") from error
        except OSError as error:
            raise EmailConnectionBroke(f"the connection broke: {_describe_error(error)}") from error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._writer.wait_closed()


def _describe_error(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return (error.strerror if isinstance(error, OSError) else "") or "it timed out"


def to_printable(raw: bytes) -> str:
    """Return text from a server in a form that is safe to show: truncated, and without control characters."""
    text = raw[:200].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text).strip()
