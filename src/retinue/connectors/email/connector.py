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
    PATIENT_ATTEMPTS_MAX,
    Abilities,
    Accept,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    LineLost,
    Parcel,
    Surroundings,
)
from retinue.connectors.email.email_addresses import digest
from retinue.connectors.email.email_threads import Threads
from retinue.connectors.email.email_transport import Credentials, LineBroke, Place
from retinue.connectors.email.imap import Imap, ImapRefused, Selected
from retinue.connectors.email.message_builder import Sender, message_id_of, room_of, subject_of, write
from retinue.connectors.email.message_parser import Letter, read
from retinue.connectors.email.mime import Mail, headers_only, take_apart
from retinue.connectors.email.sender_auth import Guard, Judgement
from retinue.connectors.email.settings import MailSettings, Security
from retinue.connectors.email.smtp import Smtp, SmtpRefused, TooLargeForServer, failure_of
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Invalid, RetinueError

TEXT_MAX = 200_000  # characters
FILE_BYTES_MAX = 15 * 1024 * 1024  # encoding adds a third; most servers accept 25 MB
FILES_BYTES_MAX = 18 * 1024 * 1024  # of one email together
ALBUM_MAX = 10
FIRST_BYTES = 256 * 1024  # of an email, read before deciding whether to read all of it
RECOVERED = timedelta(days=7)  # how far back to search for unread emails after UIDVALIDITY changed
THREAD_APART_BYTES = 256 * 1024  # larger emails are parsed in a thread

# A hostile email that gets past the limits fails alone, and does not block the mailbox.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

log = logging.getLogger(__name__)


class Progress(Struct, frozen=True):
    """The read position in a mailbox."""

    uid_validity: int
    uid: int

    def __str__(self) -> str:
        return f"{self.uid_validity}:{self.uid}"

    @staticmethod
    def parse(text: str) -> Progress | None:
        validity, _, uid = text.partition(":")
        if validity.isdecimal() and uid.isdecimal() and len(text) <= 40:
            return Progress(int(validity), int(uid))
        return None


class MailConnector:
    """Connects an email account. A channel is a thread with one correspondent, `ADDRESS/THREAD`; a
    new thread is `ADDRESS`."""

    abilities = Abilities(
        text_max=TEXT_MAX,
        caption_max=TEXT_MAX,
        files=True,
        file_bytes_max=FILE_BYTES_MAX,
        album_max=ALBUM_MAX,
        quotes=True,
    )
    # The Message-ID of a part stays the same, but servers and mailboxes accept the same one twice.
    repeats_safely = False
    attempts_max = PATIENT_ATTEMPTS_MAX

    def __init__(
        self,
        *,
        settings: MailSettings,
        surroundings: Surroundings,
        imap: Place,
        smtp: Place,
    ) -> None:
        self.instance = surroundings.instance
        self._settings = settings
        self._around = surroundings
        self._imap = imap
        self._smtp = smtp
        self._sender = Sender(settings.address.lower(), settings.display_name)
        self._addresses = frozenset({settings.address.lower(), *(each.lower() for each in settings.aliases)})
        self._guard = Guard.of(
            addresses=self._addresses, authserv_id=settings.authserv_id, mails_per_hour=settings.mails_per_hour
        )
        self._threads = Threads(surroundings.shelf)
        self._last_judged: tuple[str, Judgement] | None = None

    @classmethod
    def of(cls, settings: MailSettings, surroundings: Surroundings) -> MailConnector:
        for key in ("address", "imap_host", "smtp_host"):
            if not getattr(settings, key):
                raise Invalid(
                    f"connectors.{surroundings.instance}.{key} is missing",
                    because="an account is read at one place and sends at another, under an address",
                    try_this=f"set {key}, or add it anew: retinue connector add email",
                )
        return cls(
            settings=settings,
            surroundings=surroundings,
            imap=Place(
                host=settings.imap_host,
                port=settings.imap_port,
                security=Security(settings.imap_security),
                ca_bundle=settings.ca_bundle,
                answer_s=settings.answer_s,
            ),
            smtp=Place(
                host=settings.smtp_host,
                port=settings.smtp_port,
                security=Security(settings.smtp_security),
                ca_bundle=settings.ca_bundle,
                answer_s=settings.answer_s,
            ),
        )

    def _credentials(self) -> Credentials:
        """Read for each connection, because an access token is valid for about an hour."""
        return Credentials(
            username=self._settings.username or self._settings.address,
            secret=self._around.secret("password"),
            login=self._settings.login,
        )

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        try:
            credentials = self._credentials()
        except RetinueError as error:
            raise LineLost(
                "the password of the account cannot be had",
                because=error.sentence,
                try_this=error.try_this,
                needs_owner=True,
            ) from error
        try:
            imap = await Imap.open(self._imap, credentials)
            try:
                await self._hear(imap, accept)
            finally:
                await imap.close()
        except LineBroke as error:
            raise LineLost(f"the line to {self._imap.host} broke", because=str(error)) from error
        except ImapRefused as error:
            raise LineLost(
                f"{self._imap.host} refused to {error.what}",
                because=error.said,
                try_this=f"retinue connector test {self.instance}",
                needs_owner=error.for_good,
            ) from error

    async def _hear(self, imap: Imap, accept: Accept) -> None:
        mailbox = await imap.select(self._settings.mailbox)
        self._around.stands()
        heard, waiting, again = await self._begin(imap, mailbox)
        while True:
            for uid in waiting:
                await self._hear_one(imap, mailbox, uid, accept)
                if uid > heard:
                    heard = uid
                    await self._note(Progress(mailbox.uid_validity, heard))
            if again:  # only now: until all of them are processed, a restart must search again
                await self._note(Progress(mailbox.uid_validity, heard))
                again = False
            if imap.idles:
                await imap.idle(self._around.clock, self._settings.idle_s)
            else:
                await self._around.clock.sleep(self._settings.poll_s)
                await imap.look()
            waiting = await imap.uids_after(heard)

    async def _begin(self, imap: Imap, mailbox: Selected) -> tuple[int, list[int], bool]:
        """The read position, the UIDs that arrived since, and whether the mailbox is searched
        again."""
        stored = await self._around.shelf.get(self._progress_key)
        known = Progress.parse(stored) if stored else None
        if known is not None and known.uid_validity == mailbox.uid_validity:
            return known.uid, await imap.uids_after(known.uid), False
        last = mailbox.uid_next - 1 if mailbox.uid_next else max(await imap.uids_after(0), default=0)
        if stored is None:
            # Emails from before the first start are not meant for this server.
            await self._note(Progress(mailbox.uid_validity, last))
            return last, [], False
        # The server renumbered its emails, or the stored position is damaged. Accepted emails were
        # marked as read, and the idempotency key catches the others. So nothing is lost or answered
        # twice.
        log.warning("mailbox looked through again", extra={"connector": self.instance, "damaged": known is None})
        return last, await imap.unseen_since(self._around.clock.now() - RECOVERED), True

    @property
    def _progress_key(self) -> str:
        return f"heard/{self._settings.mailbox}"

    async def _note(self, progress: Progress) -> None:
        await self._around.shelf.put(self._progress_key, str(progress))

    async def _hear_one(self, imap: Imap, mailbox: Selected, uid: int, accept: Accept) -> None:
        try:
            letter = await self._read(imap, uid)
        except _UNREADABLE as error:  # only the class is logged: the error's text may contain text of the email
            what = type(error).__name__
            log.warning("mail cannot be read", extra={"connector": self.instance, "uid": uid, "because": what})
            return
        if letter is None:
            return
        incoming = letter.incoming
        room_thread = incoming.room.rpartition("/")[2]
        # Before `accept` returns, an answer may already be sent.
        ids = (*letter.references, incoming.message_id)
        self._threads.add(incoming.peer, room_thread, letter.subject, ids)
        receipt = await accept(incoming)
        if receipt is None:
            return  # left unread, for people who look into the mailbox
        await self._threads.keep(incoming.peer)
        if not mailbox.read_only:
            try:
                await imap.mark_seen(uid)
            except ImapRefused as error:
                log.warning("mail not marked as read", extra={"connector": self.instance, "because": error.said})

    async def _read(self, imap: Imap, uid: int) -> Letter | None:
        found = await imap.fetch(uid, bytes_max=FIRST_BYTES)
        if found is None:
            return None  # moved or deleted before we read it
        received_at = found.received_at or self._around.clock.now()
        fallback_id = f"no-id.{digest(found.raw.decode('latin-1'), 32)}"
        judgement = self._judged(fallback_id, found.raw, received_at)
        if judgement.ours or judgement.author is None:
            why = "our own" if judgement.ours else "from nobody"
            log.info("mail left out", extra={"connector": self.instance, "uid": uid, "because": why})
            return None
        cut = len(found.raw) >= FIRST_BYTES and found.size_bytes > len(found.raw)
        # An automated sender is not answered, whatever it attaches.
        if cut and not judgement.is_program and found.size_bytes <= self._settings.mail_bytes_max:
            whole = await imap.fetch(uid, bytes_max=self._settings.mail_bytes_max)
            if whole is None:
                return None
            found, cut = whole, False
        await self._threads.meet(judgement.speaker_id)
        return read(
            await _taken_apart(found.raw),
            judgement,
            received_at=received_at,
            fallback_id=fallback_id,
            cut=cut,
            thread_of=self._threads.thread_of,
            addresses=self._addresses,
        )

    def _judged(self, which: str, raw: bytes, received_at: datetime) -> Judgement:
        """Authenticate each email once. A retry after a failed `accept` must not count twice
        against the sender's rate limit."""
        if self._last_judged is None or self._last_judged[0] != which:
            self._last_judged = which, self._guard.judge(headers_only(raw), received_at=received_at)
        return self._last_judged[1]

    # --- outbound ---

    async def deliver(self, parcel: Parcel) -> Delivery:
        room = room_of(parcel.room)
        if room is None:
            raise DeliveryFailed(
                "this is no address for e-mail",
                kind=FailureKind.INVALID_ADDRESS,
                permanent=True,
                because="a room is ADDRESS, or ADDRESS/THREAD of a thread that somebody wrote in",
            )
        await self._threads.meet(room.who)
        thread = self._threads.thread(room.who, room.thread)
        message = write(
            key=parcel.key,
            text=parcel.text,
            to=room.address,
            sender=self._sender,
            thread=thread,
            quote=parcel.quote,
            files=await self._files(parcel.files),
            now=self._around.clock.now(),
        )
        await self._send(message, room.address)
        message_id = message_id_of(parcel.key, self._sender)
        subject = thread.subject or subject_of(thread, parcel.text, answers=bool(parcel.quote))
        self._threads.add(room.who, room.thread or digest(message_id), subject, (message_id,))
        try:
            await self._threads.keep(room.who)
        except RetinueError as error:  # it is sent, even if this cannot be stored
            log.warning("thread not noted", extra={"connector": self.instance, "because": error.code})
        return Delivery(message_id)

    async def _send(self, message: bytes, to: str) -> None:
        try:
            credentials = self._credentials()
        except RetinueError as error:
            raise DeliveryFailed(
                "the password of the account cannot be had",
                kind=FailureKind.INVALID_SENDER,
                because=error.sentence,
                try_this=error.try_this,
            ) from error
        try:
            smtp = await Smtp.open(self._smtp, credentials, we_are=self._sender.domain)
            try:
                await smtp.send(message, sender=self._sender.address, recipient=to)
            except BaseException:
                await smtp.close()
                raise
        except (SmtpRefused, TooLargeForServer, LineBroke) as error:
            raise failure_of(error) from error
        await smtp.quit()

    async def _files(self, files: tuple[Attachment, ...]) -> tuple[tuple[Attachment, bytes], ...]:
        total = sum(each.size_bytes for each in files)
        if total > FILES_BYTES_MAX:
            raise DeliveryFailed(
                "the files are too large for one mail",
                kind=FailureKind.TOO_LARGE,
                permanent=True,
                because=f"they have {total:,} bytes together, and {FILES_BYTES_MAX:,} go into one",
            )
        try:
            return tuple([(each, await asyncio.to_thread(self._around.path_of(each).read_bytes)) for each in files])
        except OSError as error:
            raise DeliveryFailed(
                "a file that was to be sent cannot be read", permanent=True, because=error.strerror or "it is not there"
            ) from error

    # --- check ---

    async def check(self) -> Finding:
        """Log in to both servers and open the mailbox. Changes and sends nothing."""
        account = self._sender.address
        for where, come_in in ((self._imap, self._look_in), (self._smtp, self._knock)):
            if (problem := await _problem(come_in)) is not None:
                return Finding(
                    ok=False,
                    account=account,
                    sentence=f"{where.host}:{where.port} did not let us in",
                    because=problem,
                    try_this="look at the host, the port, the security and the password of this connector",
                )
        if not self._settings.authserv_id:
            return Finding(
                ok=True,
                account=account,
                sentence="mail can be read and sent, and nobody's address counts as proved",
                because="no `authserv_id` is set, so anybody could claim to be anybody",
                try_this="set it to the first word of Authentication-Results in a mail that you received there",
            )
        return Finding(ok=True, account=account, sentence="mail can be read and sent")

    async def _look_in(self) -> None:
        imap = await Imap.open(self._imap, self._credentials())
        try:
            await imap.select(self._settings.mailbox, read_only=True)
        finally:
            await imap.log_out()

    async def _knock(self) -> None:
        await (await Smtp.open(self._smtp, self._credentials(), we_are=self._sender.domain)).quit()


async def _problem(come_in: Callable[[], Awaitable[None]]) -> str | None:
    try:
        await come_in()
    except (LineBroke, ImapRefused, SmtpRefused) as error:
        return str(error)
    except RetinueError as error:
        return error.sentence
    return None


async def _taken_apart(raw: bytes) -> Mail:
    return take_apart(raw) if len(raw) <= THREAD_APART_BYTES else await asyncio.to_thread(take_apart, raw)
