"""A small client for SMTP submission. It sends one email per connection.

After a failure, the caller can see whether the server may have accepted the email. Before the final
dot is sent, it cannot have accepted the email. After that, the result is unknown until the server
answers.
"""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress

from msgspec import Struct

from retinue.connectors.base import DeliveryFailed, FailureKind
from retinue.connectors.email.email_transport import (
    EmailConnection,
    EmailConnectionBroke,
    EmailCredentials,
    EmailServer,
    to_printable,
)
from retinue.connectors.email.settings import EmailLogin, EmailSecurity

REPLY_LINES_MAX = 100
# After the final dot, as a multiple of the usual timeout: RFC 5321 allows ten minutes, and the
# server may still deliver.
FINAL_TIMEOUT_FACTOR = 10.0
_ENHANCED = re.compile(rb"([245])\.(\d{1,3})\.(\d{1,3})\b")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT = re.compile(rb"(?:\A|(?<=\r\n))\.")


class SendResultUnknown(ConnectionError):
    """The whole email was sent, but it is unknown whether the server accepted it."""


class SmtpReply(Struct, frozen=True, kw_only=True):
    code: int
    lines: list[bytes]

    @property
    def enhanced_code(self) -> str:
        """The enhanced status code of RFC 3463, such as `5.7.8`. Empty if the server sends none."""
        found = _ENHANCED.match(self.lines[0])
        return found[0].decode() if found else ""

    @property
    def text(self) -> str:
        return f"{self.code} {to_printable(b' '.join(self.lines))}"


class SmtpRefused(Exception):
    """The SMTP server refused a command or the email, so it certainly did not accept the email."""

    def __init__(self, stage: str, reply: SmtpReply | None, server_text: str = "") -> None:
        super().__init__(f"the server refused {stage}: {reply.text if reply else server_text}")
        self.stage = stage
        self.reply = reply
        self.server_text = reply.text if reply else server_text


class TooLargeForServer(Exception):
    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"it is {size_bytes:,} bytes, and the limit of the server is {bytes_max:,} bytes")
        self.bytes_max = bytes_max


class SmtpClient:
    def __init__(self, connection: EmailConnection) -> None:
        self._connection = connection
        self._extensions: dict[str, str] = {}

    @classmethod
    async def open(cls, server: EmailServer, credentials: EmailCredentials, *, client_name: str) -> SmtpClient:
        """Connect to the SMTP server and log in."""
        smtp = cls(await EmailConnection.open(server))
        try:
            await smtp._read_greeting(server, client_name)
            await smtp._log_in(credentials, server)
        except BaseException:
            await smtp.close()
            raise
        return smtp

    async def close(self) -> None:
        await self._connection.close()

    async def quit(self) -> None:
        with suppress(EmailConnectionBroke, SmtpRefused):
            await self._run_command(b"QUIT", stage="QUIT")
        await self.close()

    async def send(self, message: bytes, *, sender: str, recipient: str) -> str:
        """Send one email, and return the server's confirmation.

        `SmtpRefused`, `TooLargeForServer` and `EmailConnectionBroke` mean that the server certainly did not accept the
        email. `SendResultUnknown` means that the server may have accepted it.
        """
        data = _DOT.sub(b"..", _LINE_END.sub(b"\r\n", message))
        if not data.endswith(b"\r\n"):
            data += b"\r\n"
        size = ""
        if "SIZE" in self._extensions:
            bytes_max = int(found) if (found := self._extensions["SIZE"]).isdigit() else 0
            if 0 < bytes_max < len(data):
                raise TooLargeForServer(len(data), bytes_max)
            size = f" SIZE={len(data)}"
        await self._run_command(f"MAIL FROM:<{sender}>{size}".encode("ascii"), stage="the sender address")
        await self._run_command(f"RCPT TO:<{recipient}>".encode("ascii"), stage="the recipient")
        await self._run_command(b"DATA", stage="the email", expected=3)
        await self._connection.send(data)
        try:
            await self._connection.send(b".\r\n")
            reply = await self._read_reply(timeout_factor=FINAL_TIMEOUT_FACTOR)
        except EmailConnectionBroke as error:
            raise SendResultUnknown("the connection broke after the email was sent") from error
        if reply.code // 100 in (4, 5):
            raise SmtpRefused("the email", reply)
        if reply.code // 100 != 2:
            raise SendResultUnknown(f"the server answered the email with the unexpected code {reply.code}")
        return to_printable(reply.lines[-1])

    async def _read_greeting(self, server: EmailServer, client_name: str) -> None:
        greeting = await self._read_reply()
        if greeting.code // 100 != 2:
            raise SmtpRefused("the connection", greeting)
        await self._send_ehlo(client_name)
        if server.security is EmailSecurity.STARTTLS:
            if "STARTTLS" not in self._extensions:
                raise SmtpRefused("STARTTLS", None, "the server does not offer STARTTLS")
            await self._run_command(b"STARTTLS", stage="STARTTLS")
            await self._connection.start_tls(server)
            await self._send_ehlo(client_name)  # capabilities from before TLS may have been forged

    async def _send_ehlo(self, client_name: str) -> None:
        reply = await self._run_command(f"EHLO {client_name}".encode("ascii"), stage="the greeting")
        self._extensions = {}
        for line in reply.lines[1:]:
            name, _, rest = line.decode("ascii", "replace").partition(" ")
            self._extensions[name.upper()] = rest.strip()

    async def _log_in(self, credentials: EmailCredentials, server: EmailServer) -> None:
        offered = self._extensions.get("AUTH", "").upper().split()
        if credentials.login is EmailLogin.XOAUTH2:
            await self._authenticate("XOAUTH2", [credentials.xoauth2()])
        elif "PLAIN" in offered:
            await self._authenticate("PLAIN", [credentials.plain()])
        elif "LOGIN" in offered:
            await self._authenticate(
                "LOGIN", [credentials.username.encode(), credentials.secret.encode()], initial=False
            )
        elif server.security is not EmailSecurity.NONE:  # a local server may identify us by the connection
            raise SmtpRefused("the login", None, "the server offers no supported login method")

    async def _authenticate(self, mechanism: str, answers: list[bytes], *, initial: bool = True) -> None:
        """Log in by answering the server's challenges.

        An extra challenge gets an empty answer, to which the server replies with its error.
        """
        left = [b64encode(each) for each in answers]
        first = b"AUTH " + mechanism.encode()
        await self._connection.send(first + (b" " + left.pop(0) if initial else b"") + b"\r\n")
        for _ in range(len(answers) + 2):
            reply = await self._read_reply()
            if reply.code == 235:
                return
            if reply.code != 334:
                raise SmtpRefused("the login", reply)
            await self._connection.send((left.pop(0) if left else b"") + b"\r\n")
        raise SmtpRefused("the login", None, "the server keeps asking for login data")

    async def _run_command(self, command: bytes, *, stage: str, expected: int = 2) -> SmtpReply:
        if any(byte in b"\r\n\0" for byte in command):
            raise SmtpRefused(stage, None, "it has a line break or a NUL character")
        await self._connection.send(command + b"\r\n")
        reply = await self._read_reply()
        if reply.code // 100 != expected:
            raise SmtpRefused(stage, reply)
        return reply

    async def _read_reply(self, *, timeout_factor: float = 1.0) -> SmtpReply:
        lines: list[bytes] = []
        while len(lines) < REPLY_LINES_MAX:
            line = await self._connection.read_line(timeout_factor=timeout_factor)
            if not line[:3].isdigit() or line[3:4] not in (b" ", b"-", b""):
                raise EmailConnectionBroke("the server does not speak SMTP")
            lines.append(line[4:])
            if line[3:4] != b"-":
                return SmtpReply(code=int(line[:3]), lines=lines)
        raise EmailConnectionBroke("the server's response does not end")


def build_delivery_failed(error: SmtpRefused | TooLargeForServer | EmailConnectionBroke) -> DeliveryFailed:
    """Return the delivery failure for an error after which the server certainly did not accept the email."""
    if isinstance(error, TooLargeForServer):
        return DeliveryFailed("the email is too large", kind=FailureKind.TOO_LARGE, permanent=True, because=str(error))
    if isinstance(error, EmailConnectionBroke):
        return DeliveryFailed("cannot reach the email server", because=str(error))
    sentence = f"the email server refused {error.stage}"
    kind, permanent = FailureKind.SEND_FAILED, False
    if error.reply is not None:
        kind, permanent = _classify_refusal(error.stage, error.reply)
    try_this = "test the connector: retinue connector test NAME" if kind is FailureKind.INVALID_SENDER else ""
    return DeliveryFailed(sentence, kind=kind, permanent=permanent, because=error.server_text, try_this=try_this)


def _classify_refusal(stage: str, reply: SmtpReply) -> tuple[FailureKind, bool]:
    permanent = reply.code // 100 == 5
    if reply.code == 552 or reply.enhanced_code in ("5.3.4", "5.2.3"):
        return FailureKind.TOO_LARGE, permanent
    match stage:
        case "the login":
            return FailureKind.INVALID_SENDER, False  # the owner can correct the login, and the email waits until then
        case "the sender address":
            return (FailureKind.INVALID_SENDER if permanent else FailureKind.THROTTLED), permanent
        case "the recipient":
            return (FailureKind.INVALID_ADDRESS if permanent else FailureKind.THROTTLED), permanent
        case "the email":
            return (FailureKind.SEND_FAILED if permanent else FailureKind.THROTTLED), permanent
        case _:
            return FailureKind.SEND_FAILED, False
