"""The email connector: reads one mailbox and sends from one address.

Its read position (UIDVALIDITY and UID) is in the connector state. An email is marked as read once
it is accepted. Emails that arrived while the server was down are read at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from msgspec import Struct

from retinue.connectors.base import (
    REMOTE_ATTEMPTS_MAX,
    Accept,
    ConnectionLost,
    ConnectorCapabilities,
    ConnectorCheckResult,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
)
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.email_threads import ThreadCache
from retinue.connectors.email.email_transport import EmailConnectionBroke, EmailCredentials, EmailServer
from retinue.connectors.email.errors import EmailSettingMissing
from retinue.connectors.email.imap import ImapClient, ImapRefused, SelectedMailbox
from retinue.connectors.email.message_builder import (
    EmailSender,
    build_email,
    build_subject,
    make_message_id,
    parse_channel,
)
from retinue.connectors.email.message_parser import ParsedEmail, to_inbound
from retinue.connectors.email.mime import MimeMessage, parse_headers, parse_message
from retinue.connectors.email.sender_auth import SenderAuthenticator, SenderAuthResult
from retinue.connectors.email.settings import EmailSecurity, EmailSettings
from retinue.connectors.email.smtp import SmtpClient, SmtpRefused, TooLargeForServer, build_delivery_failed
from retinue.domain.attachment import Attachment
from retinue.domain.errors import RetinueError

TEXT_MAX = 200_000  # characters
FILE_BYTES_MAX = 15 * 1024 * 1024  # encoding adds a third; most servers accept 25 MB
FILES_BYTES_MAX = 18 * 1024 * 1024  # all files of one email together
ALBUM_MAX = 10
FIRST_FETCH_BYTES = 256 * 1024  # the part of an email that is fetched first, to decide whether to fetch the rest
RECOVERY_PERIOD = timedelta(days=7)  # how far back to search for unread emails after UIDVALIDITY changed
INLINE_PARSE_BYTES_MAX = 256 * 1024  # larger emails are parsed in a thread

# Errors raised by a hostile email that gets past the limits. The email is skipped, so that it does
# not block the mailbox.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

log = logging.getLogger(__name__)


class ReadPosition(Struct, frozen=True):
    """How far a mailbox has been read: its UIDVALIDITY and the last UID."""

    uid_validity: int
    uid: int

    def __str__(self) -> str:
        return f"{self.uid_validity}:{self.uid}"

    @staticmethod
    def parse(text: str) -> ReadPosition | None:
        validity, _, uid = text.partition(":")
        if validity.isdecimal() and uid.isdecimal() and len(text) <= 40:
            return ReadPosition(int(validity), int(uid))
        return None


class EmailConnector:
    """Connects to an email account. A channel, `ADDRESS/THREAD`, is a thread with one correspondent.

    A delivery to `ADDRESS` starts a new thread.
    """

    capabilities = ConnectorCapabilities(
        text_max=TEXT_MAX,
        caption_max=TEXT_MAX,
        can_send_files=True,
        file_bytes_max=FILE_BYTES_MAX,
        album_max=ALBUM_MAX,
        can_quote=True,
    )
    # A repeated part has the same Message-ID, but email servers do not deduplicate by it.
    repeats_safely = False
    attempts_max = REMOTE_ATTEMPTS_MAX

    def __init__(
        self,
        *,
        settings: EmailSettings,
        context: ConnectorContext,
        imap_server: EmailServer,
        smtp_server: EmailServer,
    ) -> None:
        self.name = context.name
        self._settings = settings
        self._context = context
        self._imap_server = imap_server
        self._smtp_server = smtp_server
        self._sender = EmailSender(settings.address.lower(), settings.display_name)
        self._addresses = frozenset({settings.address.lower(), *(each.lower() for each in settings.aliases)})
        self._authenticator = SenderAuthenticator.create(
            addresses=self._addresses, authserv_id=settings.authserv_id, emails_per_hour=settings.emails_per_hour
        )
        self._threads = ThreadCache(context.state)
        self._last_authenticated: tuple[str, SenderAuthResult] | None = None

    @classmethod
    def create(cls, settings: EmailSettings, context: ConnectorContext) -> EmailConnector:
        for key in ("address", "imap_host", "smtp_host"):
            if not getattr(settings, key):
                raise EmailSettingMissing(context.name, key)
        return cls(
            settings=settings,
            context=context,
            imap_server=EmailServer(
                host=settings.imap_host,
                port=settings.imap_port,
                security=EmailSecurity(settings.imap_security),
                ca_bundle=settings.ca_bundle,
                answer_timeout_s=settings.answer_timeout_s,
            ),
            smtp_server=EmailServer(
                host=settings.smtp_host,
                port=settings.smtp_port,
                security=EmailSecurity(settings.smtp_security),
                ca_bundle=settings.ca_bundle,
                answer_timeout_s=settings.answer_timeout_s,
            ),
        )

    def _read_credentials(self) -> EmailCredentials:
        """Read the username and secret. Called for each connection, because an access token may expire soon."""
        return EmailCredentials(
            username=self._settings.username or self._settings.address,
            secret=self._context.read_secret("password"),
            login=self._settings.login,
        )

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        try:
            credentials = self._read_credentials()
        except RetinueError as error:
            raise ConnectionLost(
                "cannot read the password of the email account",
                because=error.sentence,
                try_this=error.try_this,
                needs_owner=True,
            ) from error
        try:
            imap = await ImapClient.open(self._imap_server, credentials)
            try:
                await self._read_mailbox(imap, accept)
            finally:
                await imap.close()
        except EmailConnectionBroke as error:
            raise ConnectionLost(f"lost the connection to {self._imap_server.host}", because=str(error)) from error
        except ImapRefused as error:
            raise ConnectionLost(
                f"cannot {error.action} at {self._imap_server.host}",
                because=error.server_text,
                try_this=f"retinue connector test {self.name}",
                needs_owner=error.permanent,
            ) from error

    async def _read_mailbox(self, imap: ImapClient, accept: Accept) -> None:
        mailbox = await imap.select(self._settings.mailbox)
        self._context.on_connected()
        heard, waiting, again = await self._find_start(imap, mailbox)
        while True:
            for uid in waiting:
                await self._accept_email(imap, mailbox, uid, accept)
                if uid > heard:
                    heard = uid
                    await self._store_position(ReadPosition(mailbox.uid_validity, heard))
            if again:  # stored only after all emails are processed: until then, a restart must search again
                await self._store_position(ReadPosition(mailbox.uid_validity, heard))
                again = False
            if imap.supports_idle:
                await imap.idle(self._context.clock, self._settings.idle_s)
            else:
                await self._context.clock.sleep(self._settings.poll_s)
                await imap.poll()
            waiting = await imap.search_after(heard)

    async def _find_start(self, imap: ImapClient, mailbox: SelectedMailbox) -> tuple[int, list[int], bool]:
        """Return the read position, the UIDs to read first, and whether the UIDs come from a new search.

        A new search is needed if the stored position is no longer valid.
        """
        stored = await self._context.state.get(self._position_key)
        known = ReadPosition.parse(stored) if stored else None
        if known is not None and known.uid_validity == mailbox.uid_validity:
            return known.uid, await imap.search_after(known.uid), False
        last = mailbox.uid_next - 1 if mailbox.uid_next else max(await imap.search_after(0), default=0)
        if stored is None:
            # Emails from before the first start are not meant for this server.
            await self._store_position(ReadPosition(mailbox.uid_validity, last))
            return last, [], False
        # The server renumbered its emails, or the stored position is damaged. Search for unread
        # emails: accepted emails were marked as read, and the idempotency key recognizes an accepted
        # email that was not. So nothing is lost or answered twice.
        log.warning("mailbox searched again", extra={"connector": self.name, "damaged": known is None})
        return last, await imap.search_unseen(self._context.clock.now() - RECOVERY_PERIOD), True

    @property
    def _position_key(self) -> str:
        return f"heard/{self._settings.mailbox}"

    async def _store_position(self, position: ReadPosition) -> None:
        await self._context.state.put(self._position_key, str(position))

    async def _accept_email(self, imap: ImapClient, mailbox: SelectedMailbox, uid: int, accept: Accept) -> None:
        try:
            email = await self._read_email(imap, uid)
        except _UNREADABLE as error:  # only the class is logged: the error's text may contain text of the email
            log.warning(
                "email cannot be read", extra={"connector": self.name, "uid": uid, "because": type(error).__name__}
            )
            return
        if email is None:
            return
        incoming = email.incoming
        thread_id = incoming.channel.rpartition("/")[2]
        # Before `accept` returns, an answer may already be sent.
        ids = (*email.references, incoming.message_id)
        self._threads.add(incoming.peer, thread_id, email.subject, ids)
        receipt = await accept(incoming)
        if receipt is None:
            return  # left unread, for people who look into the mailbox
        await self._threads.save(incoming.peer)
        if not mailbox.read_only:
            try:
                await imap.mark_seen(uid)
            except ImapRefused as error:
                log.warning("email not marked as read", extra={"connector": self.name, "because": error.server_text})

    async def _read_email(self, imap: ImapClient, uid: int) -> ParsedEmail | None:
        found = await imap.fetch(uid, bytes_max=FIRST_FETCH_BYTES)
        if found is None:
            return None  # moved or deleted before we read it
        received_at = found.received_at or self._context.clock.now()
        fallback_id = f"no-id.{digest(found.raw.decode('latin-1'), 32)}"
        judgement = self._authenticate_once(fallback_id, found.raw, received_at)
        if judgement.is_own or judgement.author is None:
            why = "sent by us" if judgement.is_own else "no sender"
            log.info("email skipped", extra={"connector": self.name, "uid": uid, "because": why})
            return None
        cut = len(found.raw) >= FIRST_FETCH_BYTES and found.size_bytes > len(found.raw)
        # An automated sender is not answered, whatever it attaches.
        if cut and not judgement.is_automated and found.size_bytes <= self._settings.email_bytes_max:
            whole = await imap.fetch(uid, bytes_max=self._settings.email_bytes_max)
            if whole is None:
                return None
            found, cut = whole, False
        await self._threads.load(judgement.sender_id)
        return to_inbound(
            await _parse_message(found.raw),
            judgement,
            received_at=received_at,
            fallback_id=fallback_id,
            is_cut=cut,
            find_thread=self._threads.find_thread,
            addresses=self._addresses,
        )

    def _authenticate_once(self, email_id: str, raw: bytes, received_at: datetime) -> SenderAuthResult:
        """Authenticate the sender of an email, once for each email.

        A retry after a failed `accept` must not count again toward the sender's rate limit.
        """
        if self._last_authenticated is None or self._last_authenticated[0] != email_id:
            self._last_authenticated = (
                email_id,
                self._authenticator.authenticate(parse_headers(raw), received_at=received_at),
            )
        return self._last_authenticated[1]

    # --- outbound ---

    async def deliver(self, part: DeliveryPart) -> Delivery:
        channel = parse_channel(part.channel)
        if channel is None:
            raise DeliveryFailed(
                "invalid email channel",
                kind=FailureKind.INVALID_ADDRESS,
                permanent=True,
                because="it must be ADDRESS, or ADDRESS/THREAD for a thread in which this address has written",
                try_this="use an email address, such as channel:NAME:maria@example.org",
            )
        await self._threads.load(channel.correspondent)
        thread = self._threads.get_thread(channel.correspondent, channel.thread)
        message = build_email(
            key=part.key,
            text=part.text,
            to=channel.address,
            sender=self._sender,
            thread=thread,
            quoted_message_id=part.quoted_message_id,
            files=await self._read_files(part.files),
            now=self._context.clock.now(),
        )
        await self._send(message, channel.address)
        message_id = make_message_id(part.key, self._sender)
        subject = thread.subject or build_subject(thread, part.text, is_reply=bool(part.quoted_message_id))
        self._threads.add(channel.correspondent, channel.thread or digest(message_id), subject, (message_id,))
        try:
            await self._threads.save(channel.correspondent)
        except RetinueError as error:  # the email was sent, even if its thread cannot be stored
            log.warning("thread not stored", extra={"connector": self.name, "because": error.code})
        return Delivery(message_id)

    async def _send(self, message: bytes, to: str) -> None:
        try:
            credentials = self._read_credentials()
        except RetinueError as error:
            raise DeliveryFailed(
                "cannot read the password of the email account",
                kind=FailureKind.INVALID_SENDER,
                because=error.sentence,
                try_this=error.try_this,
            ) from error
        try:
            smtp = await SmtpClient.open(self._smtp_server, credentials, client_name=self._sender.domain)
            try:
                await smtp.send(message, sender=self._sender.address, recipient=to)
            except BaseException:
                await smtp.close()
                raise
        except (SmtpRefused, TooLargeForServer, EmailConnectionBroke) as error:
            raise build_delivery_failed(error) from error
        await smtp.quit()

    async def _read_files(self, files: tuple[Attachment, ...]) -> tuple[tuple[Attachment, bytes], ...]:
        total = sum(each.size_bytes for each in files)
        if total > FILES_BYTES_MAX:
            raise DeliveryFailed(
                "the files are too large for one email",
                kind=FailureKind.TOO_LARGE,
                permanent=True,
                because=f"together they are {total:,} bytes, and the limit is {FILES_BYTES_MAX:,} bytes",
                try_this="send them in several messages",
            )
        try:
            return tuple(
                [(each, await asyncio.to_thread(self._context.get_attachment_path(each).read_bytes)) for each in files]
            )
        except OSError as error:
            raise DeliveryFailed(
                "cannot read a file to send",
                permanent=True,
                because=error.strerror or "it does not exist",
                try_this="create it again",
            ) from error

    # --- check ---

    async def check(self) -> ConnectorCheckResult:
        """Log in to both servers and open the mailbox, without changing or sending anything."""
        account = self._sender.address
        for server, log_in in ((self._imap_server, self._check_imap), (self._smtp_server, self._check_smtp)):
            if (problem := await _find_problem(log_in)) is not None:
                return ConnectorCheckResult(
                    ok=False,
                    account=account,
                    sentence=f"cannot log in at {server.host}:{server.port}",
                    because=problem,
                    try_this="check the host, port, security and password of this connector",
                )
        if not self._settings.authserv_id:
            return ConnectorCheckResult(
                ok=True,
                account=account,
                sentence="email can be read and sent, but no sender can be verified",
                because="`authserv_id` is not set, so anyone could use any sender address",
                try_this="set it to the first word of the Authentication-Results header of a received email",
            )
        return ConnectorCheckResult(ok=True, account=account, sentence="email can be read and sent")

    async def _check_imap(self) -> None:
        imap = await ImapClient.open(self._imap_server, self._read_credentials())
        try:
            await imap.select(self._settings.mailbox, read_only=True)
        finally:
            await imap.log_out()

    async def _check_smtp(self) -> None:
        await (
            await SmtpClient.open(self._smtp_server, self._read_credentials(), client_name=self._sender.domain)
        ).quit()


async def _find_problem(check: Callable[[], Awaitable[None]]) -> str | None:
    try:
        await check()
    except (EmailConnectionBroke, ImapRefused, SmtpRefused) as error:
        return str(error)
    except RetinueError as error:
        return error.sentence
    return None


async def _parse_message(raw: bytes) -> MimeMessage:
    return parse_message(raw) if len(raw) <= INLINE_PARSE_BYTES_MAX else await asyncio.to_thread(parse_message, raw)
