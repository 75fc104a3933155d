"""Builds an email from a delivery part. A part that is sent again has the same Message-ID.

The subject is the only header that contains text from an agent, and it is limited to one line. This
prevents header injection.
"""

from __future__ import annotations

import re
from datetime import datetime
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from msgspec import Struct

from retinue.connectors.email.email_addresses import digest, is_message_id, parse_address
from retinue.connectors.email.sender_auth import OWN_ID_PREFIX, UNVERIFIED_PREFIX
from retinue.domain.attachment import Attachment, safe_file_name

SUBJECT_LENGTH_MAX = 200
FIRST_LINE_LENGTH_MAX = 70  # for the first line of the text, if it is used as the subject
REFERENCES_MAX = 20
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_REPLY_PREFIX = re.compile(r"\s*(?:re|aw|sv|antw|odp|vs)\s*(?:\[\d+\])?\s*:", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"([a-z0-9][a-z0-9.+-]{0,60})/([a-z0-9][a-z0-9.+-]{0,60})")


class EmailThread(Struct, frozen=True, kw_only=True):
    """The subject and the Message-IDs of a thread, which a reply in the thread needs."""

    subject: str = ""
    ids: tuple[str, ...] = ()  # Message-IDs of its emails, oldest first, including ours


NEW_THREAD = EmailThread()


class EmailSender(Struct, frozen=True):
    address: str
    name: str = ""

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]


class EmailChannel(Struct, frozen=True):
    """A parsed email channel: the correspondent and the thread."""

    correspondent: str  # the address, with a prefix if it is unverified
    address: str
    thread: str = ""  # empty: a new thread


def parse_channel(text: str) -> EmailChannel | None:
    """Parse a channel `ADDRESS` or `ADDRESS/THREAD`. Returns None if there is no valid address.

    The address may have the prefix for an unverified sender.
    """
    mark = UNVERIFIED_PREFIX if text.startswith(UNVERIFIED_PREFIX) else ""
    # A local part may contain a slash, a domain may not.
    local, at, rest = text.removeprefix(UNVERIFIED_PREFIX).rpartition("@")
    domain, slash, thread = rest.partition("/")
    address = parse_address(f"{local}{at}{domain}")
    if address is None or (slash and not (thread.isascii() and thread.isalnum())):
        return None
    return EmailChannel(mark + address, address, thread)


def make_message_id(key: str, sender: EmailSender) -> str:
    """Return the Message-ID of a delivery part.

    It is deterministic, so that an email program that deduplicates shows a repeated email once.
    """
    plain = key.replace("/", ".")
    return f"{OWN_ID_PREFIX}{plain if re.fullmatch(r'[A-Za-z0-9.-]{1,80}', plain) else digest(key, 32)}@{sender.domain}"


def build_email(
    *,
    key: str,
    text: str,
    to: str,
    sender: EmailSender,
    thread: EmailThread,
    quoted_message_id: str,
    files: tuple[tuple[Attachment, bytes], ...],
    now: datetime,
) -> bytes:
    """Build a complete email for a delivery part, with CRLF line ends."""
    before = _build_references(thread, quoted_message_id)
    fields = [
        ("From", _format_sender(sender)),
        ("To", to),
        ("Subject", _encode_header(build_subject(thread, text, is_reply=bool(before)), "Subject")),
        ("Date", format_datetime(now)),
        ("Message-ID", f"<{make_message_id(key, sender)}>"),
    ]
    if before:
        fields += [
            ("In-Reply-To", f"<{before[-1]}>"),
            ("References", "\r\n ".join(f"<{each}>" for each in before)),
        ]
    fields += [
        # No program may answer this email (RFC 3834), not even with an out-of-office reply.
        ("Auto-Submitted", "auto-replied" if before else "auto-generated"),
        ("X-Auto-Response-Suppress", "OOF, AutoReply"),
        ("MIME-Version", "1.0"),
    ]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return head.encode("ascii") + _build_body(text, files, boundary=f"=_retinue_{digest(key, 32)}")


def _build_references(thread: EmailThread, quoted_message_id: str) -> tuple[str, ...]:
    """Return the Message-IDs of the earlier emails in the thread. The last one is the email being answered."""
    ids = [each for each in thread.ids if each != quoted_message_id and is_message_id(each)]
    if is_message_id(quoted_message_id):
        ids.append(quoted_message_id)
    return tuple(ids) if len(ids) <= REFERENCES_MAX else (ids[0], *ids[-(REFERENCES_MAX - 1) :])


def build_subject(thread: EmailThread, text: str, *, is_reply: bool) -> str:
    """Return the subject of the thread, with `Re:` for a reply. A new thread gets the first line of the text."""
    subject = _INVISIBLE.sub(" ", thread.subject).strip()[:SUBJECT_LENGTH_MAX]
    if subject:
        return subject if _REPLY_PREFIX.match(subject) or not is_reply else f"Re: {subject}"
    if is_reply:
        return "Re: your email"
    first = _INVISIBLE.sub(" ", text.strip().partition("\n")[0]).strip(" #*")
    return first if len(first) <= FIRST_LINE_LENGTH_MAX else first[: FIRST_LINE_LENGTH_MAX - 1] + "…"


def _encode_header(text: str, name: str) -> str:
    clean = _INVISIBLE.sub(" ", text).strip()
    if clean.isascii() and len(clean) <= 70 and "=?" not in clean:
        return clean
    return Header(clean, "utf-8", header_name=name).encode(linesep="\r\n")


def _format_sender(sender: EmailSender) -> str:
    if not sender.name:
        return sender.address
    name = _INVISIBLE.sub(" ", sender.name).replace("\\", "").replace('"', "'").strip()
    shown = f'"{name}"' if name.isascii() and "=?" not in name else _encode_header(name, "From")
    return f"{shown} <{sender.address}>"


def _build_body(text: str, files: tuple[tuple[Attachment, bytes], ...], *, boundary: str) -> bytes:
    """Build the content headers and the body, encoded as short lines of ASCII, which every server accepts."""
    message = EmailMessage(policy=SMTP)
    words = text.encode("utf-8", "replace").decode()
    message.set_content(words if words.endswith("\n") else words + "\n", charset="utf-8", cte="quoted-printable")
    for attachment, content in files:
        found = _MEDIA_TYPE.fullmatch(attachment.media_type.lower())
        main, sub = (
            (found[1], found[2])
            if found and found[1] not in ("multipart", "message")
            else ("application", "octet-stream")
        )
        message.add_attachment(content, maintype=main, subtype=sub, filename=safe_file_name(attachment.name))
    if files:
        # The library would choose a random boundary. `=_` occurs neither in base64 nor in
        # quoted-printable.
        message.set_boundary(boundary)
    del message["MIME-Version"]
    return message.as_bytes()
