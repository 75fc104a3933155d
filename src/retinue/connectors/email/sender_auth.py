"""Authenticates the sender of an email and detects automated senders. Pure: headers in, a result
with a reason out.

Anyone can write any address into a `From`. It counts only if the receiving server says that it was
verified. An automated email is never answered, to prevent an endless exchange.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from msgspec import Struct

from retinue.connectors.email.email_addresses import Mailbox, claims, mailboxes, message_ids
from retinue.connectors.email.mime import Mail
from retinue.policy.limits.token_bucket import MINUTE_S, Buckets

CORRESPONDENTS_MAX = 10_000  # whose rate is tracked
DATE_SKEW_MAX = timedelta(days=3)  # between the date in an email and its arrival
RESULTS_CHARS_MAX = 8_192
UNPROVED = "unverified:"
OWN_ID = "retinue."  # prefix of the local part of our own Message-IDs

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
    """The authenticated author. `because` says why it is automated, or why the address is not
    verified."""

    author: Mailbox | None  # None: no address that could be answered
    proved: bool
    is_program: bool
    ours: bool = False  # one of our own emails that came back
    because: str = ""

    @property
    def speaker_id(self) -> str:
        """The address if it is verified, else the address with a prefix, so that the two are never
        confused."""
        if self.author is None:
            return ""
        return self.author.address if self.proved else UNPROVED + self.author.address


class Guard(Struct, frozen=True, kw_only=True):
    """The rules of one account, and the rate limit of each sender."""

    addresses: frozenset[str]  # our own, including aliases
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
            # An unverified sender has a separate rate limit and cannot use up that of the real
            # owner of the address.
            whose = UNPROVED + author.address if doubt else author.address
            # The buckets fill per minute; scaled time makes them fill per hour.
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
        """Why the address is not verified; empty if it is."""
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
    """Why it was sent by a program (RFC 3834 and older conventions); empty if a person may have
    sent it."""
    submitted = mail.first("auto-submitted").partition(";")[0].strip().lower()
    if submitted and submitted != "no":
        return "it says that it was sent automatically"
    if mail.first("precedence").strip().lower() in _PRECEDENCES:
        return "it says that it was sent in bulk"
    if any(mail.first(name) for name in _LISTS):
        return "it came through a mailing list"
    # Programs set it so that no other program answers.
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
    """Whether the receiving server says that the `From` was verified, by DMARC or by DKIM for its
    domain.

    Only the topmost header of that server counts, because it is above everything that came with the
    email. An unreadable header could be that one, so nothing below it counts.
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
    """Remove comments. Returns None if they are ambiguous, because a stranger's text may be in one
    or in quotes.

    A quoted token without special characters, such as a signature key, is kept without its quotes.
    """
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
            # A domain may sign for its subdomains, never the reverse.
            return signer == domain or ("." in signer and domain.endswith(f".{signer}"))
        case _:
            return False
