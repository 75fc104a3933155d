"""Converts a parsed email to an inbound message. Pure, limited, and never raises: strangers write
the input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime

from msgspec import Struct

from retinue.connectors.base import Incoming, OfferedFile, Quoted, Speaker
from retinue.connectors.email.email_addresses import digest, message_ids, shown
from retinue.connectors.email.email_html import words_of
from retinue.connectors.email.mime import Mail, Part
from retinue.connectors.email.quote_stripping import is_forward, without_history
from retinue.connectors.email.sender_auth import Judgement, is_own_id
from retinue.domain.attachment import safe_name
from retinue.domain.envelope import Context
from retinue.domain.session_keys import ChatType
from retinue.domain.storable_text import clipped_bytes, storable

WORDS_BYTES_MAX = 200_000
TEXT_CHARS_MAX = 1_000_000  # of one text part
SUBJECT_LENGTH_MAX = 200
REFERENCES_MAX = 50  # the first and the last ones are kept
FILES_MAX = 32
CHUNK_BYTES = 64 * 1024
SERVICE = "email"


class Letter(Struct, frozen=True, kw_only=True):
    """One parsed email: the inbound message, and what an answer to it needs."""

    incoming: Incoming
    subject: str
    references: tuple[str, ...]  # of the emails before it, oldest first
    starts: bool  # it starts a thread


def read(
    mail: Mail,
    judgement: Judgement,
    *,
    received_at: datetime,
    fallback_id: str,
    cut: bool,
    thread_of: Callable[[str, tuple[str, ...]], str | None],
    addresses: frozenset[str],
) -> Letter | None:
    """Convert an email. Returns None if it has no author.

    `find_thread` finds the thread of an author by message ids. `is_cut` means that the end was not
    read.
    """
    if judgement.author is None:
        return None
    own_id = next(iter(message_ids(mail.first("message-id"))), fallback_id)
    answered = message_ids(mail.first("in-reply-to"))
    references = _bounded((*message_ids(mail.first("references")), *answered[:1]))
    who = judgement.speaker_id
    # The oldest email names the thread, so that it is the same for every reply.
    thread = thread_of(who, references) or digest((*references, own_id)[0])
    subject = shown(mail.first("subject"), SUBJECT_LENGTH_MAX)
    words = _words(mail)
    forwarded = is_forward(subject)
    said = without_history(words) if not forwarded else None
    text = said.own if said else words
    files = _files(mail)
    left_out = mail.left_out + len(files) - len(files[:FILES_MAX])
    incoming = Incoming(
        room=f"{who}/{thread}",
        message_id=own_id,
        text=_with_subject(text, subject, starts=not references) + _left_out(left_out, cut=cut),
        speaker=Speaker(
            id=who,
            name=storable(judgement.author.name),
            username=judgement.author.address,
            is_program=judgement.is_program,
            vouched=judgement.proved,
        ),
        peer=who,
        service=SERVICE,
        parent=who,
        files=files[:FILES_MAX],
        quoted=_quoted(answered, said.history if said else "", addresses),
        mentioned=True,
        forwarded=forwarded,
        said_at=received_at,
        context=Context(sender_name=storable(judgement.author.name), chat_type=ChatType.DIRECT),
    )
    return Letter(incoming=incoming, subject=subject, references=references, starts=not references)


def _bounded(ids: tuple[str, ...]) -> tuple[str, ...]:
    once = tuple(dict.fromkeys(ids))
    return once if len(once) <= REFERENCES_MAX else (once[0], *once[-(REFERENCES_MAX - 1) :])


def _words(mail: Mail) -> str:
    """The plain text if there is one, else the HTML converted to text."""
    texts = [part for part in mail.parts if not part.is_file]
    plain = "\n\n".join(
        part.text()[:TEXT_CHARS_MAX].strip() for part in texts if part.media_type == "text/plain"
    ).strip()
    if plain:
        return plain
    for part in texts:
        if part.media_type == "text/html" and (words := words_of(part.text()[:TEXT_CHARS_MAX])):
            return words
    return "\n\n".join(part.text()[:TEXT_CHARS_MAX].strip() for part in texts if part.media_type != "text/html").strip()


def _with_subject(text: str, subject: str, *, starts: bool) -> str:
    """Prepend the subject of an email that starts a thread, because it is part of the message. A
    command is left alone."""
    words = storable(text)
    if subject and (not words or (starts and not words.startswith("/"))):
        words = f"Subject: {storable(subject)}\n\n{words}" if words else storable(subject)
    return clipped_bytes(words, WORDS_BYTES_MAX)


def _left_out(count: int, *, cut: bool) -> str:
    if cut:
        return "\n[left out: the end of this mail, and files with it, for it is larger than this house reads]"
    return f"\n[left out: {count} more parts]" if count > 0 else ""


def _quoted(answered: tuple[str, ...], history: str, addresses: frozenset[str]) -> Quoted | None:
    if not answered:
        return None
    return Quoted(message_id=answered[0], text=storable(history), ours=is_own_id(answered[0], addresses))


def _files(mail: Mail) -> tuple[OfferedFile, ...]:
    return tuple(_offered(part, number) for number, part in enumerate(mail.parts, start=1) if part.is_file)


def _offered(part: Part, number: int) -> OfferedFile:
    async def fetch() -> AsyncIterator[bytes]:
        content = await asyncio.to_thread(part.content)
        for at in range(0, len(content), CHUNK_BYTES):
            yield content[at : at + CHUNK_BYTES]

    name = safe_name(part.name) if part.name else f"part-{number}"
    size = None if part.encoding in ("base64", "quoted-printable") else len(part.raw)
    return OfferedFile(name=name, media_type=part.media_type[:100], size_bytes=size, fetch=fetch)
