"""The connector itself: hears one mailbox, and sends from one address.

How far it has heard lies on the shelf, as UIDVALIDITY and UID; a mail is marked as read once the house has it. What
came while the house was closed is heard when it opens again.
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
FILE_BYTES_MAX = 15 * 1024 * 1024  # a third more on the way; most servers take 25 MB
FILES_BYTES_MAX = 18 * 1024 * 1024  # of one mail together
ALBUM_MAX = 10
FIRST_BYTES = 256 * 1024  # of a mail, read before we know whether it is worth more
RECOVERED = timedelta(days=7)  # how far back unread mail is looked for where the mailbox was numbered anew
THREAD_APART_BYTES = 256 * 1024  # larger mail is taken apart in a thread

# Hostile mail that gets past the bounds ends here, as one mail that cannot be read, and not as a mailbox that cannot.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

log = logging.getLogger(__name__)


class Progress(Struct, frozen=True):
    """How far a mailbox was heard."""

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
    """An account for e-mail. A room is a thread with one correspondent, `ADDRESS/THREAD`; a new one is `ADDRESS`."""

    abilities = Abilities(
        text_max=TEXT_MAX,
        caption_max=TEXT_MAX,
        files=True,
        file_bytes_max=FILE_BYTES_MAX,
        album_max=ALBUM_MAX,
        quotes=True,
    )
    # The Message-ID of a parcel stays the same, but a server takes the same one twice, and so does a mailbox.
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
        """Read anew for each line: an access token is fresh for an hour."""
        return Credentials(
            username=self._settings.username or self._settings.address,
            secret=self._around.secret("password"),
            login=self._settings.login,
        )

    # What comes in

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
            if again:  # only now: until all of it was heard, it is looked through again
                await self._note(Progress(mailbox.uid_validity, heard))
                again = False
            if imap.idles:
                await imap.idle(self._around.clock, self._settings.idle_s)
            else:
                await self._around.clock.sleep(self._settings.poll_s)
                await imap.look()
            waiting = await imap.uids_after(heard)

    async def _begin(self, imap: Imap, mailbox: Selected) -> tuple[int, list[int], bool]:
        """How far we had heard, what has come since, and whether the mailbox is looked through again for that."""
        stored = await self._around.shelf.get(self._progress_key)
        known = Progress.parse(stored) if stored else None
        if known is not None and known.uid_validity == mailbox.uid_validity:
            return known.uid, await imap.uids_after(known.uid), False
        last = mailbox.uid_next - 1 if mailbox.uid_next else max(await imap.uids_after(0), default=0)
        if stored is None:
            # Somebody's old mail is not a question to this house.
            await self._note(Progress(mailbox.uid_validity, last))
            return last, [], False
        # The server has numbered its mail anew, or our word is damaged. What the house took was marked as read, and
        # what it knows all the same it takes for the same; nothing is lost, and nothing is answered twice.
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
        except _UNREADABLE as error:  # of which only the kind is told: its words may be those of the mail
            what = type(error).__name__
            log.warning("mail cannot be read", extra={"connector": self.instance, "uid": uid, "because": what})
            return
        if letter is None:
            return
        incoming = letter.incoming
        room_thread = incoming.room.rpartition("/")[2]
        # Before the house has it: an answer may be sent before `accept` returns.
        ids = (*letter.references, incoming.message_id)
        self._threads.add(incoming.peer, room_thread, letter.subject, ids)
        receipt = await accept(incoming)
        if receipt is None:
            return  # left unread, for whoever looks into the mailbox
        await self._threads.keep(incoming.peer)
        if not mailbox.read_only:
            try:
                await imap.mark_seen(uid)
            except ImapRefused as error:
                log.warning("mail not marked as read", extra={"connector": self.instance, "because": error.said})

    async def _read(self, imap: Imap, uid: int) -> Letter | None:
        found = await imap.fetch(uid, bytes_max=FIRST_BYTES)
        if found is None:
            return None  # moved or deleted by someone, before we came to it
        received_at = found.received_at or self._around.clock.now()
        fallback_id = f"no-id.{digest(found.raw.decode('latin-1'), 32)}"
        judgement = self._judged(fallback_id, found.raw, received_at)
        if judgement.ours or judgement.author is None:
            why = "our own" if judgement.ours else "from nobody"
            log.info("mail left out", extra={"connector": self.instance, "uid": uid, "because": why})
            return None
        cut = len(found.raw) >= FIRST_BYTES and found.size_bytes > len(found.raw)
        # A program is not answered, whatever it sends along.
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
        """Once for each mail: one that the house could not take yet comes again, and is not two of a hasty writer."""
        if self._last_judged is None or self._last_judged[0] != which:
            self._last_judged = which, self._guard.judge(headers_only(raw), received_at=received_at)
        return self._last_judged[1]

    # What goes out

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
        except RetinueError as error:  # it is sent, whatever we can note of it
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

    # Whether we may come in

    async def check(self) -> Finding:
        """Log in at both places and look at the mailbox; nothing is changed, and nothing sent."""
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
