"""Who wrote, as far as it is proved, and whether it was a program. Pure: headers in, a judgement with a because out.

Anyone can write any address into a `From`. It counts only where the server that received the mail says that it was
checked; and a mail by a program is never answered, so that two of them do not go on for ever.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from msgspec import Struct

from retinue.connectors.email.email_addresses import Mailbox, claims, mailboxes, message_ids
from retinue.connectors.email.mime import Mail
from retinue.policy.limits.token_bucket import MINUTE_S, Buckets

CORRESPONDENTS_MAX = 10_000  # whose pace is remembered
DATE_SKEW_MAX = timedelta(days=3)  # between when a mail says it was written and when it came
RESULTS_CHARS_MAX = 8_192
UNPROVED = "unverified:"
OWN_ID = "retinue."  # how the local part of our own Message-IDs begins

_PROGRAM_NAMES = re.compile(
    r"(?:mailer-daemon|postmaster|no-?reply|do-?not-?reply|bounces?|notifications?|listserv|majordomo|"
    r"[^@]*-(?:request|bounces|owner|noreply)|owner-[^@]*)(?:[+=-][^@]*)?@",
    re.IGNORECASE,
)
_LISTS = ("list-id", "list-post", "list-unsubscribe", "list-help", "mailing-list")
_PRECEDENCES = frozenset({"bulk", "junk", "list", "auto_reply"})
_COMMENT = re.compile(r"\([^()]*\)")
_QUOTED_WORD = re.compile(r'(?<==)"([A-Za-z0-9+/=]{1,100})"')
_RESULT = re.compile(r"\s*([a-z0-9_.-]{1,40})\s*(?:/\s*\d+\s*)?=\s*([a-z]{1,20})(?=\s|$)", re.IGNORECASE)
_PROPERTY = re.compile(r"([a-z]{1,20}\.[a-z0-9-]{1,40})\s*=\s*\"?([^\s\"]{1,255})", re.IGNORECASE)


class Judgement(Struct, frozen=True, kw_only=True):
    """Who wrote. `because` says why it is a program, or why the address is not proved."""

    author: Mailbox | None  # None: nobody who could be answered
    proved: bool
    is_program: bool
    ours: bool = False  # it is a mail of our own that came back
    because: str = ""

    @property
    def speaker_id(self) -> str:
        """The address where it is proved. Marked where it is not, so that it is never taken for the other."""
        if self.author is None:
            return ""
        return self.author.address if self.proved else UNPROVED + self.author.address


class Guard(Struct, frozen=True, kw_only=True):
    """The rules of one account, and the pace of those who write to it."""

    addresses: frozenset[str]  # our own, the account's first of all
    authserv_id: str
    paces: Buckets

    @staticmethod
    def of(*, addresses: frozenset[str], authserv_id: str, mails_per_hour: int) -> Guard:
        paces = Buckets(per_minute=mails_per_hour, remembered_max=CORRESPONDENTS_MAX)
        return Guard(addresses=addresses, authserv_id=authserv_id, paces=paces)

    def judge(self, mail: Mail, *, received_at: datetime) -> Judgement:
        found = mailboxes(mail.first("from"))
        author = found[0] if found else None
        ours = self._is_ours(mail, author)
        program = program_because(mail, author)
        doubt = self._doubt(mail, author, received_at)
        if not program and not ours and author is not None:
            # Who only claims an address has a pace of their own: they cannot use up that of whose it is.
            whose = UNPROVED + author.address if doubt else author.address
            # The bucket fills by the minute; handed hours as minutes, it fills by the hour.
            if self.paces.take(whose, received_at.timestamp() / MINUTE_S) > 0:
                program = "more mail came from there in an hour than a person writes"
        return Judgement(
            author=author,
            proved=not doubt,
            is_program=bool(program),
            ours=ours,
            because=program or doubt,
        )

    def _is_ours(self, mail: Mail, author: Mailbox | None) -> bool:
        by_id = any(is_own_id(each, self.addresses) for each in message_ids(mail.first("message-id")))
        return by_id or (author is not None and author.address in self.addresses)

    def _doubt(self, mail: Mail, author: Mailbox | None, received_at: datetime) -> str:
        """Why the address is not proved; empty where it is."""
        if author is None:
            return "there is no address in its From"
        if len(mail.all("from")) != 1 or claims(mail.first("from")) != 1:
            return "it claims to be from more than one"
        if not self.authserv_id:
            return "no `authserv_id` is set for this account"
        named = {each.address for name in ("to", "cc") for value in mail.all(name) for each in mailboxes(value)}
        if not named & self.addresses:
            return "it is addressed to somebody else, so it may be an old one sent on"
        written_at = date_of(mail)
        if written_at is None or abs(written_at - received_at) > DATE_SKEW_MAX:
            return "it was not written when it came, so it may be an old one sent again"
        return "" if vouched(mail, self.authserv_id, author.domain) else "the receiving server does not vouch for it"


def is_own_id(message_id: str, addresses: frozenset[str]) -> bool:
    local, _, domain = message_id.rpartition("@")
    return local.startswith(OWN_ID) and any(domain == each.rpartition("@")[2] for each in addresses)


def date_of(mail: Mail) -> datetime | None:
    try:
        found = parsedate_to_datetime(mail.first("date")[:200])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def program_because(mail: Mail, author: Mailbox | None) -> str:
    """Why it was written by a program (RFC 3834 and older habits); empty where a person may have."""
    submitted = mail.first("auto-submitted").partition(";")[0].strip().lower()
    if submitted and submitted != "no":
        return "it says that it was sent automatically"
    if mail.first("precedence").strip().lower() in _PRECEDENCES:
        return "it says that it was sent in bulk"
    if any(mail.first(name) for name in _LISTS):
        return "it came through a mailing list"
    # Set by programs on what they send, so that no other program answers.
    if mail.first("x-auto-response-suppress").strip().lower() not in ("", "none"):
        return "it asks not to be answered automatically"
    if mail.first("x-autoreply") or mail.first("x-autorespond") or mail.first("x-loop"):
        return "an answering machine sent it"
    if mail.first("return-path").strip() == "<>" or mail.first("x-failed-recipients"):
        return "it is a bounce"
    content_type = mail.first("content-type").lower()
    if content_type.startswith(("multipart/report", "message/delivery-status")):
        return "it is a report about another mail"
    if author is not None and _PROGRAM_NAMES.match(author.address):
        return "it comes from an address that programs have"
    return ""


def vouched(mail: Mail, authserv_id: str, domain: str) -> bool:
    """Whether the receiving server says that the `From` was checked: by DMARC, or by DKIM for its own domain.

    Only the topmost header of that server counts: what it wrote stands above all that came with the mail. One that
    cannot be read may be it, so nothing below it counts.
    """
    for value in mail.all("authentication-results"):
        plain = _uncommented(value[:RESULTS_CHARS_MAX])
        if plain is None:
            return False
        who, _, results = plain.partition(";")
        if who.split() and who.split()[0].lower() == authserv_id.lower():
            return any(_passes(each, domain) for each in results.split(";"))
    return False


def _uncommented(value: str) -> str | None:
    """None where it cannot be told what is a comment: a stranger's words may stand in one, or in quotes. A quoted word
    in which nothing begins or ends, such as the key of a signature, is that word."""
    value = _QUOTED_WORD.sub(r"\1", value)
    if "(" in value and ('"' in value or "\\" in value):
        return None
    for _ in range(3):
        value = _COMMENT.sub(" ", value)
    return None if "(" in value else value


def _passes(result: str, domain: str) -> bool:
    found = _RESULT.match(result)
    if found is None or found[2].lower() != "pass":
        return False
    said = {name.lower(): value.lower() for name, value in _PROPERTY.findall(result)}
    match found[1].lower():
        case "dmarc":
            return said.get("header.from", "").rpartition("@")[2] == domain
        case "dkim":
            signer = said.get("header.d") or said.get("header.i", "").rpartition("@")[2]
            # A domain may sign for those below it, which are its own; never the other way round.
            return signer == domain or ("." in signer and domain.endswith(f".{signer}"))
        case _:
            return False
