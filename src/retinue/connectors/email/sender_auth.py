"""Verifies the sender of an email, and detects automated emails.

Anyone can write any address in a `From` header. An address is trusted only if the receiving server
reports that it verified the address. An automated email is never answered, to prevent mail loops.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from msgspec import Struct

from retinue.connectors.email.email_addresses import Mailbox, count_addresses, parse_mailboxes, parse_message_ids
from retinue.connectors.email.mime import MimeMessage
from retinue.policy.limits.token_bucket import MINUTE_S, TokenBuckets

CORRESPONDENTS_MAX = 10_000  # senders whose rate is tracked
DATE_SKEW_MAX = timedelta(days=3)  # between the date in an email and its arrival
RESULTS_CHARS_MAX = 8_192
UNVERIFIED_PREFIX = "unverified:"
OWN_ID_PREFIX = "retinue."  # prefix of the local part of our own Message-IDs

_AUTOMATED_ADDRESS = re.compile(
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


class SenderAuthResult(Struct, frozen=True, kw_only=True):
    """Whether the author of an email is verified, and whether the email is automated. `because` is the reason."""

    author: Mailbox | None  # None: the email has no address that could be answered
    is_verified: bool
    is_automated: bool
    is_own: bool = False  # one of our own emails that came back
    because: str = ""

    @property
    def sender_id(self) -> str:
        """The author's address. An unverified address gets a prefix, so that it differs from every verified address."""
        if self.author is None:
            return ""
        return self.author.address if self.is_verified else UNVERIFIED_PREFIX + self.author.address


class SenderAuthenticator(Struct, frozen=True, kw_only=True):
    """Verifies senders by the rules of one account, and limits the rate of each sender."""

    addresses: frozenset[str]  # our own, including aliases
    authserv_id: str
    rate_limits: TokenBuckets

    @staticmethod
    def create(*, addresses: frozenset[str], authserv_id: str, emails_per_hour: int) -> SenderAuthenticator:
        paces = TokenBuckets(per_minute=emails_per_hour, buckets_max=CORRESPONDENTS_MAX)
        return SenderAuthenticator(addresses=addresses, authserv_id=authserv_id, rate_limits=paces)

    def authenticate(self, message: MimeMessage, *, received_at: datetime) -> SenderAuthResult:
        found = parse_mailboxes(message.get_first("from"))
        author = found[0] if found else None
        ours = self._is_own(message, author)
        program = get_automated_reason(message, author)
        doubt = self._get_unverified_reason(message, author, received_at)
        if not program and not ours and author is not None:
            # An unverified sender has a separate rate limit and cannot use up that of the real
            # owner of the address.
            whose = UNVERIFIED_PREFIX + author.address if doubt else author.address
            # The buckets fill per minute; scaled time makes them fill per hour.
            if self.rate_limits.take(whose, received_at.timestamp() / MINUTE_S) > 0:
                program = "it exceeds the hourly limit of emails from one address"
        return SenderAuthResult(
            author=author,
            is_verified=not doubt,
            is_automated=bool(program),
            is_own=ours,
            because=program or doubt,
        )

    def _is_own(self, message: MimeMessage, author: Mailbox | None) -> bool:
        by_id = any(is_own_id(each, self.addresses) for each in parse_message_ids(message.get_first("message-id")))
        return by_id or (author is not None and author.address in self.addresses)

    def _get_unverified_reason(self, message: MimeMessage, author: Mailbox | None, received_at: datetime) -> str:
        """Return why the author's address is not verified, or an empty string if it is verified."""
        if author is None:
            return "the From header has no address"
        if len(message.get_all("from")) != 1 or count_addresses(message.get_first("from")) != 1:
            return "the From header has several addresses"
        if not self.authserv_id:
            return "`authserv_id` of this connector is not set"
        named = {
            each.address for name in ("to", "cc") for value in message.get_all(name) for each in parse_mailboxes(value)
        }
        if not named & self.addresses:
            return "it is not addressed to this account, so it may be a replayed email"
        written_at = parse_date(message)
        if written_at is None or abs(written_at - received_at) > DATE_SKEW_MAX:
            return "its Date differs from the time of arrival, so it may be a replayed email"
        return (
            ""
            if is_vouched_for(message, self.authserv_id, author.domain)
            else "the receiving server did not authenticate the sender"
        )


def is_own_id(message_id: str, addresses: frozenset[str]) -> bool:
    local, _, domain = message_id.rpartition("@")
    return local.startswith(OWN_ID_PREFIX) and any(domain == each.rpartition("@")[2] for each in addresses)


def parse_date(message: MimeMessage) -> datetime | None:
    try:
        found = parsedate_to_datetime(message.get_first("date")[:200])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def get_automated_reason(message: MimeMessage, author: Mailbox | None) -> str:
    """Return why an email counts as sent by a program, or an empty string if a person may have sent it.

    The rules are those of RFC 3834 and older conventions.
    """
    submitted = message.get_first("auto-submitted").partition(";")[0].strip().lower()
    if submitted and submitted != "no":
        return "its headers say that it was sent automatically"
    if message.get_first("precedence").strip().lower() in _PRECEDENCES:
        return "its headers say that it was sent in bulk"
    if any(message.get_first(name) for name in _LISTS):
        return "it came through a mailing list"
    # Programs set it so that no other program answers.
    if message.get_first("x-auto-response-suppress").strip().lower() not in ("", "none"):
        return "its headers ask for no automatic replies"
    if message.get_first("x-autoreply") or message.get_first("x-autorespond") or message.get_first("x-loop"):
        return "it is an automatic reply"
    if message.get_first("return-path").strip() == "<>" or message.get_first("x-failed-recipients"):
        return "it is a bounce"
    content_type = message.get_first("content-type").lower()
    if content_type.startswith(("multipart/report", "message/delivery-status")):
        return "it is a report about another email"
    if author is not None and _AUTOMATED_ADDRESS.match(author.address):
        return "its address is typical of programs"
    return ""


def is_vouched_for(message: MimeMessage, authserv_id: str, domain: str) -> bool:
    """Whether the receiving server reports that it verified the author's domain, by DMARC or DKIM.

    Only the topmost `Authentication-Results` header of that server counts, because the sender may
    have written the headers below it. If a header above it cannot be parsed, the result is false.
    """
    for value in message.get_all("authentication-results"):
        plain = _strip_comments(value[:RESULTS_CHARS_MAX])
        if plain is None:
            return False
        who, _, results = plain.partition(";")
        if who.split() and who.split()[0].lower() == authserv_id.lower():
            return any(_passes(each, domain) for each in results.split(";"))
    return False


def _strip_comments(value: str) -> str | None:
    """Remove the comments of a header.

    Returns None if quotes make the comments ambiguous, because a stranger may have chosen the quoted text. A quoted
    token without special characters, such as a signature key, is kept without its quotes.
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
    properties = {name.lower(): value.lower() for name, value in _PROPERTY.findall(result)}
    match found[1].lower():
        case "dmarc":
            return properties.get("header.from", "").rpartition("@")[2] == domain
        case "dkim":
            signer = properties.get("header.d") or properties.get("header.i", "").rpartition("@")[2]
            # A domain may sign for its subdomains, never the reverse.
            return signer == domain or ("." in signer and domain.endswith(f".{signer}"))
        case _:
            return False
