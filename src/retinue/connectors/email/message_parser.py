"""Converts a parsed email to an inbound message.

Anyone can send an email, so sizes are limited and no input raises an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from msgspec import Struct

from retinue.connectors.base import InboundMessage, PlatformUser, QuotedMessage, RemoteFile
from retinue.connectors.email.email_addresses import digest, parse_message_ids, to_display_text
from retinue.connectors.email.email_html import html_to_text
from retinue.connectors.email.mime import MimeMessage, MimePart
from retinue.connectors.email.quote_stripping import is_forwarded, strip_history
from retinue.connectors.email.sender_auth import SenderAuthResult, is_own_id
from retinue.domain.attachment import safe_file_name
from retinue.domain.envelope import EnvelopeContext
from retinue.domain.session_keys import ChatType
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.text.quantity import format_quantity

TEXT_BYTES_MAX = 200_000
TEXT_CHARS_MAX = 1_000_000  # of one text part
SUBJECT_LENGTH_MAX = 200
REFERENCES_MAX = 50  # the first and the last ones are kept
FILES_MAX = 32
CHUNK_BYTES = 64 * 1024
SERVICE = "email"


class ParsedEmail(Struct, frozen=True, kw_only=True):
    """A parsed email: the inbound message, and the data that a reply in its thread needs."""

    incoming: InboundMessage
    subject: str
    references: tuple[str, ...]  # Message-IDs of the earlier emails in the thread, oldest first
    starts_thread: bool  # it refers to no earlier email


def to_inbound(
    message: MimeMessage,
    sender: SenderAuthResult,
    *,
    received_at: datetime,
    fallback_id: str,
    is_cut: bool,
    find_thread: Callable[[str, tuple[str, ...]], str | None],
    addresses: frozenset[str],
) -> ParsedEmail | None:
    """Convert an email to an inbound message. Returns None if the email has no author.

    `find_thread` finds the thread of an author by message ids. `is_cut` means that the email is too
    large, so its end was not read.
    """
    if sender.author is None:
        return None
    own_id = next(iter(parse_message_ids(message.get_first("message-id"))), fallback_id)
    answered = parse_message_ids(message.get_first("in-reply-to"))
    references = _limit_references((*parse_message_ids(message.get_first("references")), *answered[:1]))
    who = sender.sender_id
    # The name of the thread is derived from its oldest email, so it is the same for every reply.
    thread = find_thread(who, references) or digest((*references, own_id)[0])
    subject = to_display_text(message.get_first("subject"), SUBJECT_LENGTH_MAX)
    words = _get_text(message)
    forwarded = is_forwarded(subject)
    stripped = strip_history(words) if not forwarded else None
    text = stripped.text if stripped else words
    files = _get_files(message)
    left_out = message.left_out + len(files) - len(files[:FILES_MAX])
    incoming = InboundMessage(
        channel=f"{who}/{thread}",
        message_id=own_id,
        text=_add_subject(text, subject, starts_thread=not references) + _format_left_out(left_out, is_cut=is_cut),
        sender=PlatformUser(
            id=who,
            name=make_storable(sender.author.name),
            username=sender.author.address,
            is_program=sender.is_automated,
            is_verified=sender.is_verified,
        ),
        peer=who,
        service=SERVICE,
        parent=who,
        files=files[:FILES_MAX],
        quoted=_build_quoted(answered, stripped.history if stripped else "", addresses),
        mentioned=True,
        forwarded=forwarded,
        sent_at=received_at,
        context=EnvelopeContext(sender_name=make_storable(sender.author.name), chat_type=ChatType.DIRECT),
    )
    return ParsedEmail(incoming=incoming, subject=subject, references=references, starts_thread=not references)


def _limit_references(ids: tuple[str, ...]) -> tuple[str, ...]:
    once = tuple(dict.fromkeys(ids))
    return once if len(once) <= REFERENCES_MAX else (once[0], *once[-(REFERENCES_MAX - 1) :])


def _get_text(message: MimeMessage) -> str:
    """Return the plain text of an email if there is one, or else the HTML converted to text."""
    texts = [part for part in message.parts if not part.is_file]
    plain = "\n\n".join(
        part.text()[:TEXT_CHARS_MAX].strip() for part in texts if part.media_type == "text/plain"
    ).strip()
    if plain:
        return plain
    for part in texts:
        if part.media_type == "text/html" and (words := html_to_text(part.text()[:TEXT_CHARS_MAX])):
            return words
    return "\n\n".join(part.text()[:TEXT_CHARS_MAX].strip() for part in texts if part.media_type != "text/html").strip()


def _add_subject(text: str, subject: str, *, starts_thread: bool) -> str:
    """Put the subject before the text if the email starts a thread: people write part of the message in the subject.

    An empty text is replaced by the subject. The subject is never added to a command.
    """
    words = make_storable(text)
    if subject and (not words or (starts_thread and not words.startswith("/"))):
        words = f"Subject: {make_storable(subject)}\n\n{words}" if words else make_storable(subject)
    return truncate_bytes(words, TEXT_BYTES_MAX)


def _format_left_out(count: int, *, is_cut: bool) -> str:
    if is_cut:
        return "\n[left out: the end of this email and its files, because it is larger than the limit]"
    return f"\n[left out: {format_quantity(count, 'more part')}]" if count > 0 else ""


def _build_quoted(reply_ids: tuple[str, ...], history: str, addresses: frozenset[str]) -> QuotedMessage | None:
    if not reply_ids:
        return None
    return QuotedMessage(message_id=reply_ids[0], text=make_storable(history), ours=is_own_id(reply_ids[0], addresses))


def _get_files(message: MimeMessage) -> tuple[RemoteFile, ...]:
    return tuple(_build_remote_file(part, number) for number, part in enumerate(message.parts, start=1) if part.is_file)


def _build_remote_file(part: MimePart, number: int) -> RemoteFile:
    async def fetch() -> AsyncIterator[bytes]:
        content = await asyncio.to_thread(part.content)
        for at in range(0, len(content), CHUNK_BYTES):
            yield content[at : at + CHUNK_BYTES]

    name = safe_file_name(part.name) if part.name else f"part-{number}"
    size = None if part.encoding in ("base64", "quoted-printable") else len(part.raw)
    return RemoteFile(name=name, media_type=part.media_type[:100], size_bytes=size, fetch=fetch)
