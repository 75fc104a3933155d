"""A small client for IMAP4rev1: only what a connector needs to read a mailbox."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from retinue.connectors.email.email_transport import Credentials, Line, LineBroke, Place, shown
from retinue.connectors.email.imap_parser import (
    BadWords,
    Response,
    date_of,
    literal_size,
    numbers,
    pairs,
    response_of,
)
from retinue.connectors.email.settings import Login, Security
from retinue.domain.ports import Clock

LITERAL_BYTES_MAX = 128 * 1024 * 1024  # more than any email that we request
RESPONSES_MAX = 100_000  # to one command
LITERALS_MAX = 100  # in one response
LOGOUT_S_MAX = 5.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LOGIN_REFUSED = frozenset({b"AUTHENTICATIONFAILED", b"AUTHORIZATIONFAILED", b"EXPIRED", b"CONTACTADMIN"})


class ImapRefused(Exception):
    """The server understood and refused. With `permanent` a retry does not help."""

    def __init__(self, what: str, said: str, *, for_good: bool = False) -> None:
        super().__init__(f"the server refused to {what}: {said}")
        self.what = what
        self.said = said
        self.for_good = for_good


class Selected(Struct, frozen=True, kw_only=True):
    uid_validity: int
    uid_next: int | None
    read_only: bool


class Fetched(Struct, frozen=True, kw_only=True):
    raw: bytes
    size_bytes: int
    received_at: datetime | None


class Imap:
    """One connection to one account. Commands run one at a time. A caller that interrupts one must
    close the connection."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._tags = 0
        self._capabilities: frozenset[bytes] = frozenset()
        # A server announces a new email once, in any response: during a search, or before it idles.
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, place: Place, credentials: Credentials) -> Imap:
        """Connect and log in."""
        imap = cls(await Line.open(place))
        try:
            await imap._greet(place)
            await imap._log_in(credentials)
        except BaseException:
            await imap.close()
            raise
        return imap

    @property
    def idles(self) -> bool:
        return b"IDLE" in self._capabilities

    async def close(self) -> None:
        await self._line.close()

    async def log_out(self) -> None:
        """Log out, as far as the server still answers."""
        with suppress(LineBroke, ImapRefused, TimeoutError):
            async with asyncio.timeout(LOGOUT_S_MAX):
                await self._command(b"LOGOUT", what="log out")
        await self.close()

    async def select(self, mailbox: str, *, read_only: bool = False) -> Selected:
        verb = b"EXAMINE " if read_only else b"SELECT "
        said = await self._command(verb + _quoted(mailbox), what=f"open the mailbox {mailbox}", for_good=True)
        found: dict[bytes, int] = {}
        for each in said:
            if each.code in (b"UIDVALIDITY", b"UIDNEXT") and each.code_words.isdigit():
                found[each.code] = int(each.code_words)
        if b"UIDVALIDITY" not in found:
            raise LineBroke("the server has no lasting numbers for mail (UIDVALIDITY)")
        return Selected(
            uid_validity=found[b"UIDVALIDITY"],
            uid_next=found.get(b"UIDNEXT"),
            read_only=said[-1].code == b"READ-ONLY",
        )

    async def uids_after(self, uid: int) -> list[int]:
        self._news.clear()
        # `n:*` includes the last email even if n is beyond it.
        found = await self._search(b"UID %d:*" % (uid + 1))
        return [each for each in found if each > uid]

    async def unseen_since(self, day: datetime) -> list[int]:
        said = f"UNSEEN SINCE {day.day}-{_MONTHS[day.month - 1]}-{day.year:04d}"
        return await self._search(said.encode())

    async def _search(self, criteria: bytes) -> list[int]:
        said = await self._command(b"UID SEARCH " + criteria, what="search")
        return sorted({uid for each in said if each.status == b"SEARCH" for uid in numbers(each.words[1:])})

    async def fetch(self, uid: int, *, bytes_max: int) -> Fetched | None:
        """The beginning of an email, without marking it as read; None if it is gone."""
        items = b"UID FETCH %d (UID RFC822.SIZE INTERNALDATE BODY.PEEK[]<0.%d>)" % (uid, bytes_max)
        for each in await self._command(items, what="read a mail"):
            if each.counted[1] != b"FETCH" or not isinstance(each.words[-1], list):
                continue
            found = pairs(each.words[-1])
            raw, size = found.get(b"BODY[]"), found.get(b"RFC822.SIZE")
            if numbers([found.get(b"UID")]) == [uid] and isinstance(raw, bytes):
                sizes = numbers([size]) or [len(raw)]
                return Fetched(raw=raw, size_bytes=sizes[0], received_at=date_of(found.get(b"INTERNALDATE")))
        return None

    async def mark_seen(self, uid: int) -> None:
        await self._command(b"UID STORE %d +FLAGS.SILENT (\\Seen)" % uid, what="mark a mail as read")

    async def look(self) -> None:
        """Let the server report changes."""
        await self._command(b"NOOP", what="look")

    async def idle(self, clock: Clock, wait_s: float) -> None:
        """Wait until the server announces a new email since the last search, or until the time is
        up."""
        if self._news.is_set():
            return
        tag = await self._send(b"IDLE")
        while (said := await self._response()).tag != b"+":
            if said.tag == tag:
                raise ImapRefused("tell what is new", shown(said.rest))
        # Never cancelled in the middle of a response, which would desynchronize the protocol.
        reading = asyncio.ensure_future(self._until(tag, hear=lambda _: None, patience=None))
        waits = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(clock.sleep(wait_s))]
        try:
            await asyncio.wait([reading, *waits], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._line.send(b"DONE\r\n")
            try:
                async with asyncio.timeout(self._line.answer_s):
                    await reading
            except TimeoutError as error:  # half open: our DONE did not arrive
                raise LineBroke("the server was silent for too long") from error
        finally:
            for each in (reading, *waits):
                each.cancel()
            await asyncio.gather(reading, *waits, return_exceptions=True)

    # --- protocol ---

    async def _greet(self, place: Place) -> None:
        greeting = await self._response()
        if greeting.status not in (b"OK", b"PREAUTH"):
            raise LineBroke(f"the server would not have us: {shown(greeting.rest)}")
        await self._learn(greeting)
        if place.security is Security.STARTTLS:
            if b"STARTTLS" not in self._capabilities or greeting.status == b"PREAUTH":
                raise ImapRefused("secure the line", "it does not offer STARTTLS", for_good=True)
            await self._command(b"STARTTLS", what="secure the line")
            await self._line.start_tls(place)
            await self._learn(None)  # capabilities from before TLS may have been forged

    async def _learn(self, said: Response | None) -> None:
        if said is not None and said.code == b"CAPABILITY":
            self._capabilities = frozenset(said.code_words.upper().split())
            return
        for each in await self._command(b"CAPABILITY", what="say what it can"):
            if each.status == b"CAPABILITY":
                self._capabilities = frozenset(word.upper() for word in each.words[1:] if isinstance(word, bytes))

    async def _log_in(self, credentials: Credentials) -> None:
        if credentials.login is Login.XOAUTH2:
            said = await self._authenticate(b"XOAUTH2", credentials.xoauth2())
        elif b"AUTH=PLAIN" in self._capabilities:
            said = await self._authenticate(b"PLAIN", credentials.plain())
        elif b"LOGINDISABLED" in self._capabilities:
            raise ImapRefused("log us in", "it offers no way to log in that we know", for_good=True)
        else:
            words = b"LOGIN " + _quoted(credentials.username) + b" " + _quoted(credentials.secret)
            said = (await self._command(words, what="log us in", for_good=True))[-1]
        await self._learn(said)

    async def _authenticate(self, mechanism: bytes, initial: bytes) -> Response:
        tag = await self._send(b"AUTHENTICATE " + mechanism)
        answers = [b64encode(initial), b""]  # the second one answers a challenge that contains an error text
        while True:
            said = await self._response()
            if said.tag == b"+":
                await self._line.send((answers.pop(0) if answers else b"*") + b"\r\n")
            elif said.tag == tag:
                return _taken(said, what="log us in", for_good=said.code in _LOGIN_REFUSED or not said.code)

    async def _command(self, words: bytes, *, what: str, for_good: bool = False) -> list[Response]:
        """Run a command. Returns all responses, with the tagged status response last."""
        tag = await self._send(words)
        found: list[Response] = []
        verdict = await self._until(tag, hear=found.append)
        return [*found, _taken(verdict, what=what, for_good=for_good)]

    async def _until(self, tag: bytes, *, hear: Callable[[Response], None], patience: float | None = 1.0) -> Response:
        for _ in range(RESPONSES_MAX):
            said = await self._response(patience=patience)
            if said.tag == tag:
                return said
            if said.tag == b"*" and said.status == b"BYE":
                raise LineBroke(f"the server hung up: {shown(said.rest)}")
            hear(said)
        raise LineBroke("the server does not come to an end")

    async def _send(self, words: bytes) -> bytes:
        self._tags += 1
        tag = b"r%d" % self._tags
        await self._line.send(tag + b" " + words + b"\r\n")
        return tag

    async def _response(self, *, patience: float | None = 1.0) -> Response:
        lines = [await self._line.read_line(patience=patience)]
        literals: list[bytes] = []
        while (size := literal_size(lines[-1])) is not None and not _is_free_text(lines[0]):
            if size > LITERAL_BYTES_MAX or len(literals) == LITERALS_MAX:
                raise LineBroke(f"the server sent more than {LITERAL_BYTES_MAX:,} bytes at once")
            literals.append(await self._line.read_bytes(size))
            lines.append(await self._line.read_line())
        try:
            said = response_of(lines, literals)
        except BadWords as error:
            raise LineBroke(f"the server does not speak IMAP: {error}") from error
        if said.counted[1] == b"EXISTS":
            self._news.set()
        return said


def _is_free_text(line: bytes) -> bool:
    """Whether the line is free text, whose end may look like a literal but is none."""
    tag, _, rest = line.partition(b" ")
    return tag == b"+" or rest.partition(b" ")[0].upper() in (b"OK", b"NO", b"BAD", b"BYE", b"PREAUTH")


def _taken(verdict: Response, *, what: str, for_good: bool) -> Response:
    if verdict.status != b"OK":
        raise ImapRefused(
            what, shown(verdict.rest), for_good=for_good and verdict.code not in (b"UNAVAILABLE", b"INUSE")
        )
    return verdict


def _quoted(text: str) -> bytes:
    """A quoted string. Characters that cannot be quoted are refused, which prevents command
    injection."""
    raw = text.encode()
    if any(byte in b"\r\n\0" or byte > 0x7E for byte in raw):
        raise ImapRefused("take a name or password", "it holds characters that IMAP has no quotes for", for_good=True)
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
