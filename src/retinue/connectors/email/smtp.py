"""A small client for SMTP submission: one email per connection, and certainty about what was not
accepted.

Until the final dot is sent, the server cannot have accepted the email. After it, the result is
unknown until the server answers.
"""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress

from msgspec import Struct

from retinue.connectors.base import DeliveryFailed, FailureKind
from retinue.connectors.email.email_transport import Credentials, Line, LineBroke, Place, shown
from retinue.connectors.email.settings import Login, Security

REPLY_LINES_MAX = 100
# After the final dot, as a multiple of the usual timeout: RFC 5321 allows ten minutes, and the
# server may still deliver.
TAKING_PATIENCE = 10.0
_ENHANCED = re.compile(rb"([245])\.(\d{1,3})\.(\d{1,3})\b")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DOT = re.compile(rb"(?:\A|(?<=\r\n))\.")


class InDoubt(ConnectionError):
    """The whole email was sent, and it is unknown whether the server accepted it."""


class Reply(Struct, frozen=True, kw_only=True):
    code: int
    lines: list[bytes]

    @property
    def enhanced(self) -> str:
        """The enhanced status code of RFC 3463, such as `5.7.8`; empty if the server sends none."""
        found = _ENHANCED.match(self.lines[0])
        return found[0].decode() if found else ""

    @property
    def said(self) -> str:
        return f"{self.code} {shown(b' '.join(self.lines))}"


class SmtpRefused(Exception):
    """The server refused at this stage, so it accepted nothing."""

    def __init__(self, stage: str, reply: Reply | None, said: str = "") -> None:
        super().__init__(f"the server refused {stage}: {reply.said if reply else said}")
        self.stage = stage
        self.reply = reply
        self.said = reply.said if reply else said


class TooLargeForServer(Exception):
    def __init__(self, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"{size_bytes:,} bytes, and the server takes {bytes_max:,}")
        self.bytes_max = bytes_max


class Smtp:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._abilities: dict[str, str] = {}

    @classmethod
    async def open(cls, place: Place, credentials: Credentials, *, we_are: str) -> Smtp:
        """Connect and log in."""
        smtp = cls(await Line.open(place))
        try:
            await smtp._greet(place, we_are)
            await smtp._log_in(credentials, place)
        except BaseException:
            await smtp.close()
            raise
        return smtp

    async def close(self) -> None:
        await self._line.close()

    async def quit(self) -> None:
        with suppress(LineBroke, SmtpRefused):
            await self._ask(b"QUIT", stage="to close the line")
        await self.close()

    async def send(self, message: bytes, *, sender: str, recipient: str) -> str:
        """Send one email, and return the server's confirmation.

        `SmtpRefused`, `TooLargeForServer` and `EmailConnectionBroke` mean that it was certainly not
        accepted, `SendResultUnknown` that it may have been.
        """
        data = _DOT.sub(b"..", _LINE_END.sub(b"\r\n", message))
        if not data.endswith(b"\r\n"):
            data += b"\r\n"
        size = ""
        if "SIZE" in self._abilities:
            bytes_max = int(found) if (found := self._abilities["SIZE"]).isdigit() else 0
            if 0 < bytes_max < len(data):
                raise TooLargeForServer(len(data), bytes_max)
            size = f" SIZE={len(data)}"
        await self._ask(f"MAIL FROM:<{sender}>{size}".encode("ascii"), stage="our address")
        await self._ask(f"RCPT TO:<{recipient}>".encode("ascii"), stage="the recipient")
        await self._ask(b"DATA", stage="the mail", wanted=3)
        await self._line.send(data)
        try:
            await self._line.send(b".\r\n")
            reply = await self._reply(patience=TAKING_PATIENCE)
        except LineBroke as error:
            raise InDoubt("the line broke after the whole mail was sent") from error
        if reply.code // 100 in (4, 5):
            raise SmtpRefused("the mail", reply)
        if reply.code // 100 != 2:
            raise InDoubt(f"the server answered the mail with {reply.code}, which says neither yes nor no")
        return shown(reply.lines[-1])

    async def _greet(self, place: Place, we_are: str) -> None:
        greeting = await self._reply()
        if greeting.code // 100 != 2:
            raise SmtpRefused("us", greeting)
        await self._introduce(we_are)
        if place.security is Security.STARTTLS:
            if "STARTTLS" not in self._abilities:
                raise SmtpRefused("to secure the line", None, "it does not offer STARTTLS")
            await self._ask(b"STARTTLS", stage="to secure the line")
            await self._line.start_tls(place)
            await self._introduce(we_are)  # capabilities from before TLS may have been forged

    async def _introduce(self, we_are: str) -> None:
        reply = await self._ask(f"EHLO {we_are}".encode("ascii"), stage="us")
        self._abilities = {}
        for line in reply.lines[1:]:
            name, _, rest = line.decode("ascii", "replace").partition(" ")
            self._abilities[name.upper()] = rest.strip()

    async def _log_in(self, credentials: Credentials, place: Place) -> None:
        offered = self._abilities.get("AUTH", "").upper().split()
        if credentials.login is Login.XOAUTH2:
            await self._authenticate("XOAUTH2", [credentials.xoauth2()])
        elif "PLAIN" in offered:
            await self._authenticate("PLAIN", [credentials.plain()])
        elif "LOGIN" in offered:
            await self._authenticate(
                "LOGIN", [credentials.username.encode(), credentials.secret.encode()], initial=False
            )
        elif place.security is not Security.NONE:  # a local server may identify us by the connection
            raise SmtpRefused("to log us in", None, "it offers no way to log in that we know")

    async def _authenticate(self, mechanism: str, answers: list[bytes], *, initial: bool = True) -> None:
        """Answer the challenges. An extra challenge gets an empty answer, to which the server
        reports its error."""
        left = [b64encode(each) for each in answers]
        first = b"AUTH " + mechanism.encode()
        await self._line.send(first + (b" " + left.pop(0) if initial else b"") + b"\r\n")
        for _ in range(len(answers) + 2):
            reply = await self._reply()
            if reply.code == 235:
                return
            if reply.code != 334:
                raise SmtpRefused("to log us in", reply)
            await self._line.send((left.pop(0) if left else b"") + b"\r\n")
        raise SmtpRefused("to log us in", None, "it does not come to an end")

    async def _ask(self, words: bytes, *, stage: str, wanted: int = 2) -> Reply:
        if any(byte in b"\r\n\0" for byte in words):
            raise SmtpRefused(stage, None, "it would be more than one command")
        await self._line.send(words + b"\r\n")
        reply = await self._reply()
        if reply.code // 100 != wanted:
            raise SmtpRefused(stage, reply)
        return reply

    async def _reply(self, *, patience: float = 1.0) -> Reply:
        lines: list[bytes] = []
        while len(lines) < REPLY_LINES_MAX:
            line = await self._line.read_line(patience=patience)
            if not line[:3].isdigit() or line[3:4] not in (b" ", b"-", b""):
                raise LineBroke("the server does not speak SMTP")
            lines.append(line[4:])
            if line[3:4] != b"-":
                return Reply(code=int(line[:3]), lines=lines)
        raise LineBroke("the server does not come to an end")


def failure_of(error: SmtpRefused | TooLargeForServer | LineBroke) -> DeliveryFailed:
    """The delivery failure. In all these cases the server certainly did not accept the email."""
    if isinstance(error, TooLargeForServer):
        return DeliveryFailed("the mail is too large", kind=FailureKind.TOO_LARGE, permanent=True, because=str(error))
    if isinstance(error, LineBroke):
        return DeliveryFailed("the mail server cannot be reached", because=str(error))
    sentence = f"the mail server refused {error.stage}"
    kind, permanent = FailureKind.SEND_FAILED, False
    if error.reply is not None:
        kind, permanent = _meaning(error.stage, error.reply)
    try_this = "retinue connector test NAME" if kind is FailureKind.INVALID_SENDER else ""
    return DeliveryFailed(sentence, kind=kind, permanent=permanent, because=error.said, try_this=try_this)


def _meaning(stage: str, reply: Reply) -> tuple[FailureKind, bool]:
    permanent = reply.code // 100 == 5
    if reply.code == 552 or reply.enhanced in ("5.3.4", "5.2.3"):
        return FailureKind.TOO_LARGE, permanent
    match stage:
        case "to log us in":
            return FailureKind.INVALID_SENDER, False  # the owner can change that, and the email waits
        case "our address":
            return (FailureKind.INVALID_SENDER if permanent else FailureKind.THROTTLED), permanent
        case "the recipient":
            return (FailureKind.INVALID_ADDRESS if permanent else FailureKind.THROTTLED), permanent
        case "the mail":
            return (FailureKind.SEND_FAILED if permanent else FailureKind.THROTTLED), permanent
        case _:
            return FailureKind.SEND_FAILED, False
