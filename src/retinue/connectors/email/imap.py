"""A small IMAP4rev1 client, with only the commands that the email connector needs."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from retinue.connectors.email.email_transport import (
    EmailConnection,
    EmailConnectionBroke,
    EmailCredentials,
    EmailServer,
    to_printable,
)
from retinue.connectors.email.imap_parser import (
    ImapResponse,
    ImapSyntaxError,
    get_numbers,
    literal_size,
    parse_fetch_items,
    parse_internal_date,
    parse_response,
)
from retinue.connectors.email.settings import EmailLogin, EmailSecurity
from retinue.domain.ports import Clock

LITERAL_BYTES_MAX = 128 * 1024 * 1024  # more than any email that we request
RESPONSES_MAX = 100_000  # to one command
LITERALS_MAX = 100  # in one response
LOGOUT_S_MAX = 5.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LOGIN_REFUSED = frozenset({b"AUTHENTICATIONFAILED", b"AUTHORIZATIONFAILED", b"EXPIRED", b"CONTACTADMIN"})


class ImapRefused(Exception):
    """The IMAP server refused a command. With `permanent`, a retry cannot succeed."""

    def __init__(self, action: str, server_text: str, *, permanent: bool = False) -> None:
        super().__init__(f"cannot {action}: {server_text}")
        self.action = action
        self.server_text = server_text
        self.permanent = permanent


class SelectedMailbox(Struct, frozen=True, kw_only=True):
    uid_validity: int
    uid_next: int | None
    read_only: bool


class FetchedEmail(Struct, frozen=True, kw_only=True):
    raw: bytes
    size_bytes: int
    received_at: datetime | None


class ImapClient:
    """One IMAP connection to one account. Commands run one at a time.

    A caller that cancels a command must close the connection.
    """

    def __init__(self, connection: EmailConnection) -> None:
        self._connection = connection
        self._tag_count = 0
        self._capabilities: frozenset[bytes] = frozenset()
        # A server announces a new email only once, in any response, for example during a search or before IDLE.
        self._has_new = asyncio.Event()

    @classmethod
    async def open(cls, server: EmailServer, credentials: EmailCredentials) -> ImapClient:
        """Connect to the IMAP server and log in."""
        imap = cls(await EmailConnection.open(server))
        try:
            await imap._read_greeting(server)
            await imap._log_in(credentials)
        except BaseException:
            await imap.close()
            raise
        return imap

    @property
    def supports_idle(self) -> bool:
        return b"IDLE" in self._capabilities

    async def close(self) -> None:
        await self._connection.close()

    async def log_out(self) -> None:
        """Log out if the server is still responding, and close the connection."""
        with suppress(EmailConnectionBroke, ImapRefused, TimeoutError):
            async with asyncio.timeout(LOGOUT_S_MAX):
                await self._run_command(b"LOGOUT", action="log out")
        await self.close()

    async def select(self, mailbox: str, *, read_only: bool = False) -> SelectedMailbox:
        verb = b"EXAMINE " if read_only else b"SELECT "
        responses = await self._run_command(
            verb + _quote_string(mailbox), action=f"open the mailbox {mailbox}", permanent=True
        )
        found: dict[bytes, int] = {}
        for each in responses:
            if each.code in (b"UIDVALIDITY", b"UIDNEXT") and each.code_arguments.isdigit():
                found[each.code] = int(each.code_arguments)
        if b"UIDVALIDITY" not in found:
            raise EmailConnectionBroke("the server does not support UIDVALIDITY")
        return SelectedMailbox(
            uid_validity=found[b"UIDVALIDITY"],
            uid_next=found.get(b"UIDNEXT"),
            read_only=responses[-1].code == b"READ-ONLY",
        )

    async def search_after(self, uid: int) -> list[int]:
        self._has_new.clear()
        # `n:*` includes the last email even if n is beyond it.
        found = await self._search(b"UID %d:*" % (uid + 1))
        return [each for each in found if each > uid]

    async def search_unseen(self, day: datetime) -> list[int]:
        criteria = f"UNSEEN SINCE {day.day}-{_MONTHS[day.month - 1]}-{day.year:04d}"
        return await self._search(criteria.encode())

    async def _search(self, criteria: bytes) -> list[int]:
        responses = await self._run_command(b"UID SEARCH " + criteria, action="search the mailbox")
        return sorted({uid for each in responses if each.status == b"SEARCH" for uid in get_numbers(each.values[1:])})

    async def fetch(self, uid: int, *, bytes_max: int) -> FetchedEmail | None:
        """Fetch at most `bytes_max` bytes of an email, without marking it as read.

        Returns None if the email no longer exists.
        """
        items = b"UID FETCH %d (UID RFC822.SIZE INTERNALDATE BODY.PEEK[]<0.%d>)" % (uid, bytes_max)
        for each in await self._run_command(items, action="read an email"):
            if each.numbered[1] != b"FETCH" or not isinstance(each.values[-1], list):
                continue
            found = parse_fetch_items(each.values[-1])
            raw, size = found.get(b"BODY[]"), found.get(b"RFC822.SIZE")
            if get_numbers([found.get(b"UID")]) == [uid] and isinstance(raw, bytes):
                sizes = get_numbers([size]) or [len(raw)]
                return FetchedEmail(
                    raw=raw, size_bytes=sizes[0], received_at=parse_internal_date(found.get(b"INTERNALDATE"))
                )
        return None

    async def mark_seen(self, uid: int) -> None:
        await self._run_command(b"UID STORE %d +FLAGS.SILENT (\\Seen)" % uid, action="mark an email as read")

    async def poll(self) -> None:
        """Send a NOOP command, so that the server reports changes."""
        await self._run_command(b"NOOP", action="check for new email")

    async def idle(self, clock: Clock, wait_s: float) -> None:
        """Wait until the server announces a new email, for at most `wait_s`.

        Returns at once if the server has announced an email since the last search.
        """
        if self._has_new.is_set():
            return
        tag = await self._send(b"IDLE")
        while (response := await self._read_response()).tag != b"+":
            if response.tag == tag:
                raise ImapRefused("wait for new email (IDLE)", to_printable(response.rest))
        # Never cancelled in the middle of a response, which would desynchronize the protocol.
        reading = asyncio.ensure_future(self._read_until(tag, on_response=lambda _: None, timeout_factor=None))
        waits = [asyncio.ensure_future(self._has_new.wait()), asyncio.ensure_future(clock.sleep(wait_s))]
        try:
            await asyncio.wait([reading, *waits], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._connection.send(b"DONE\r\n")
            try:
                async with asyncio.timeout(self._connection.answer_timeout_s):
                    await reading
            except TimeoutError as error:  # half open: our DONE did not arrive
                raise EmailConnectionBroke("the server did not answer in time") from error
        finally:
            for each in (reading, *waits):
                each.cancel()
            await asyncio.gather(reading, *waits, return_exceptions=True)

    # --- protocol ---

    async def _read_greeting(self, server: EmailServer) -> None:
        greeting = await self._read_response()
        if greeting.status not in (b"OK", b"PREAUTH"):
            raise EmailConnectionBroke(f"the server refused the connection: {to_printable(greeting.rest)}")
        await self._read_capabilities(greeting)
        if server.security is EmailSecurity.STARTTLS:
            if b"STARTTLS" not in self._capabilities or greeting.status == b"PREAUTH":
                raise ImapRefused("start TLS", "the server does not offer STARTTLS", permanent=True)
            await self._run_command(b"STARTTLS", action="start TLS")
            await self._connection.start_tls(server)
            await self._read_capabilities(None)  # capabilities from before TLS may have been forged

    async def _read_capabilities(self, response: ImapResponse | None) -> None:
        if response is not None and response.code == b"CAPABILITY":
            self._capabilities = frozenset(response.code_arguments.upper().split())
            return
        for each in await self._run_command(b"CAPABILITY", action="read the capabilities"):
            if each.status == b"CAPABILITY":
                self._capabilities = frozenset(word.upper() for word in each.values[1:] if isinstance(word, bytes))

    async def _log_in(self, credentials: EmailCredentials) -> None:
        if credentials.login is EmailLogin.XOAUTH2:
            response = await self._authenticate(b"XOAUTH2", credentials.xoauth2())
        elif b"AUTH=PLAIN" in self._capabilities:
            response = await self._authenticate(b"PLAIN", credentials.plain())
        elif b"LOGINDISABLED" in self._capabilities:
            raise ImapRefused("log in", "the server offers no supported login method", permanent=True)
        else:
            words = b"LOGIN " + _quote_string(credentials.username) + b" " + _quote_string(credentials.secret)
            response = (await self._run_command(words, action="log in", permanent=True))[-1]
        await self._read_capabilities(response)

    async def _authenticate(self, mechanism: bytes, initial: bytes) -> ImapResponse:
        tag = await self._send(b"AUTHENTICATE " + mechanism)
        answers = [b64encode(initial), b""]  # the second one answers a challenge that contains an error text
        while True:
            response = await self._read_response()
            if response.tag == b"+":
                await self._connection.send((answers.pop(0) if answers else b"*") + b"\r\n")
            elif response.tag == tag:
                return _require_ok(
                    response, action="log in", permanent=response.code in _LOGIN_REFUSED or not response.code
                )

    async def _run_command(self, command: bytes, *, action: str, permanent: bool = False) -> list[ImapResponse]:
        """Run an IMAP command and return all responses. The tagged status response is last."""
        tag = await self._send(command)
        found: list[ImapResponse] = []
        verdict = await self._read_until(tag, on_response=found.append)
        return [*found, _require_ok(verdict, action=action, permanent=permanent)]

    async def _read_until(
        self, tag: bytes, *, on_response: Callable[[ImapResponse], None], timeout_factor: float | None = 1.0
    ) -> ImapResponse:
        for _ in range(RESPONSES_MAX):
            response = await self._read_response(timeout_factor=timeout_factor)
            if response.tag == tag:
                return response
            if response.tag == b"*" and response.status == b"BYE":
                raise EmailConnectionBroke(f"the server closed the connection: {to_printable(response.rest)}")
            on_response(response)
        raise EmailConnectionBroke("the server's response does not end")

    async def _send(self, command: bytes) -> bytes:
        self._tag_count += 1
        tag = b"r%d" % self._tag_count
        await self._connection.send(tag + b" " + command + b"\r\n")
        return tag

    async def _read_response(self, *, timeout_factor: float | None = 1.0) -> ImapResponse:
        lines = [await self._connection.read_line(timeout_factor=timeout_factor)]
        literals: list[bytes] = []
        while (size := literal_size(lines[-1])) is not None and not _is_free_text(lines[0]):
            if size > LITERAL_BYTES_MAX or len(literals) == LITERALS_MAX:
                raise EmailConnectionBroke(f"the server sent more than {LITERAL_BYTES_MAX:,} bytes at once")
            literals.append(await self._connection.read_bytes(size))
            lines.append(await self._connection.read_line())
        try:
            response = parse_response(lines, literals)
        except ImapSyntaxError as error:
            raise EmailConnectionBroke(f"the server does not speak IMAP: {error}") from error
        if response.numbered[1] == b"EXISTS":
            self._has_new.set()
        return response


def _is_free_text(line: bytes) -> bool:
    """Whether the line ends with free text for people, such as the line of a status response.

    The end of such text may look like the announcement of a literal, but no literal follows.
    """
    tag, _, rest = line.partition(b" ")
    return tag == b"+" or rest.partition(b" ")[0].upper() in (b"OK", b"NO", b"BAD", b"BYE", b"PREAUTH")


def _require_ok(response: ImapResponse, *, action: str, permanent: bool) -> ImapResponse:
    if response.status != b"OK":
        raise ImapRefused(
            action, to_printable(response.rest), permanent=permanent and response.code not in (b"UNAVAILABLE", b"INUSE")
        )
    return response


def _quote_string(text: str) -> bytes:
    """Quote text as an IMAP string.

    Characters that cannot be quoted are refused, which prevents command injection.
    """
    raw = text.encode()
    if any(byte in b"\r\n\0" or byte > 0x7E for byte in raw):
        raise ImapRefused("use the username or password", "it has characters that IMAP cannot quote", permanent=True)
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
