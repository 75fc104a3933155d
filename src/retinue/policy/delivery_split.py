"""Splits an envelope into delivery parts that its platform accepts.

Pure. Files go first, in albums where the platform has them. Then the text follows in pieces, or as a
caption if it fits. A file that the platform does not accept is named in the text instead of being
dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from retinue.domain.address import AddressKind
from retinue.domain.attachment import Attachment
from retinue.domain.delivery_part import Abilities, Parcel
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.reply_delivery import PLAIN_WORDS, ChunkMode, Quoting, Stream, Words
from retinue.domain.structs import replace
from retinue.policy.speech import read_tags
from retinue.text.answer_options import buttons, numbers
from retinue.text.chunking import LIMIT_MIN, chunks, clipped, measure

PARTS_MAX = 100  # per envelope: more would not be read, and most platforms would throttle us
FILES_NAMED_MAX = 10
NO_WORDS = "(no words)"
CURRENT = "current"

_TAG = re.compile(
    r"[ \t]?\[\[ {0,4}(?:reply_to_current|reply_to {0,4}: {0,4}(?P<id>[^\[\]\n]{1,200}?)|audio_as_voice) {0,4}\]\]",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\{([A-Za-z.]{1,40})\}")
_AGENTS_WORDS = frozenset({Kind.MESSAGE, Kind.ANSWER, Kind.SYSTEM})


class Tagged(Struct, frozen=True):
    """An agent's text without its tags. `reply_to` is the message to quote: an id, `current`, or empty."""

    text: str
    reply_to: str = ""


class Setting(Struct, frozen=True, kw_only=True):
    """What is known about an envelope besides its text: the message it quotes, and the values of prefix variables."""

    quote: str = ""
    known: Mapping[str, str] = {}


NOTHING_KNOWN = Setting()


class Cut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The inputs of a split.

    Stored once a part was delivered: split differently, the second part would not continue the
    first.
    """

    able: Abilities
    words: Words = PLAIN_WORDS
    setting: Setting = NOTHING_KNOWN


def untagged(text: str) -> Tagged:
    """Remove the tags, which say how a message is sent and are not part of it. The first `reply_to` tag counts."""
    if "[[" not in text:
        return Tagged(text)
    text = read_tags(text).shown  # also if nothing is spoken
    asked = ""
    for tag in _TAG.finditer(text):
        if not asked and "reply_to" in tag[0].casefold():
            asked = (tag["id"] or CURRENT).strip()
    return Tagged(_TAG.sub("", text).strip("\n") if _TAG.search(text) else text, asked)


def is_agents_own(envelope: Envelope) -> bool:
    """Whether an agent wrote it itself. False for messages from the server about an agent."""
    return envelope.sender.kind is AddressKind.AGENT and envelope.kind in _AGENTS_WORDS


def prefixed(text: str, prefix: str, known: Mapping[str, str]) -> str:
    """Add the prefix with its variables filled in.

    Unknown variables stay as written, so that the person who set them notices.
    """
    filled = _VARIABLE.sub(lambda found: known.get(found[1].casefold(), found[0]), prefix)
    return f"{filled} {text}" if filled and text and not text.startswith(filled) else text


def variables(prefix: str) -> frozenset[str]:
    """Return the names of the variables in a prefix."""
    return frozenset(found.casefold() for found in _VARIABLE.findall(prefix))


def shape(
    envelope: Envelope, able: Abilities, words: Words = PLAIN_WORDS, setting: Setting = NOTHING_KNOWN
) -> tuple[Parcel, ...]:
    """Split an envelope into at least one part.

    The same input gives the same parts, so an interrupted delivery can resume.
    """
    own = is_agents_own(envelope)
    text = untagged(envelope.text).text if own else envelope.text
    text = prefixed(text, words.prefix, setting.known) if own and words.prefix else text
    sent, left = _files(envelope.attachments, able)
    text = "\n".join((text, *_named(left, able))) if left else text
    pressed = buttons(envelope) if able.buttons else ()
    if not able.buttons and (by_number := numbers(envelope)):
        text = f"{text}\n{by_number}"
    albums = list(_albums(sent, able.album_max))
    beside = bool(albums) and not pressed and _fits_beside(text, able)
    pieces = [] if beside else _pieces(text, able, words, own=own, parts_max=max(1, PARTS_MAX - len(albums)))
    parcels = [Parcel(envelope=envelope, text="", files=album) for album in albums]
    parcels += [Parcel(envelope=envelope, text=piece) for piece in pieces]
    if beside:
        parcels[0] = replace(parcels[0], text=text.strip())
    if not parcels:
        parcels = [Parcel(envelope=envelope, text=NO_WORDS)]
    quoted = range(len(parcels)) if words.quoting is Quoting.ALL else range(1)
    quote = setting.quote if able.quotes and words.quoting is not Quoting.OFF else ""
    last = len(parcels) - 1
    return tuple(
        replace(
            parcel,
            quote=quote if index in quoted else "",
            buttons=pressed if index == last else (),
            index=index,
            count=len(parcels),
        )
        for index, parcel in enumerate(parcels)
    )


# --- files ---


def _files(attached: Sequence[Attachment], able: Abilities) -> tuple[list[Attachment], list[Attachment]]:
    """Return the files that the platform accepts, and those that it does not."""
    sent = [each for each in attached if able.files and takes(each, able)]
    return sent, [each for each in attached if each not in sent]


def takes(file: Attachment, able: Abilities) -> bool:
    return able.files and (not able.file_bytes_max or file.size_bytes <= able.file_bytes_max)


def _named(left: Sequence[Attachment], able: Abilities) -> Iterator[str]:
    why = "this place takes no files" if not able.files else f"this place takes {_size(able.file_bytes_max)} at most"
    for each in left[:FILES_NAMED_MAX]:
        yield f"[not sent: {each.name}, {_size(each.size_bytes)}: {why}]"
    if len(left) > FILES_NAMED_MAX:
        yield f"[not sent: {len(left) - FILES_NAMED_MAX} more files]"


def _size(size_bytes: int) -> str:
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


def _albums(files: Sequence[Attachment], album_max: int) -> Iterator[tuple[Attachment, ...]]:
    """Group neighboring files of one media family into albums, in order, up to the platform's maximum."""
    album: list[Attachment] = []
    for file in files:
        if album and (len(album) >= max(1, album_max) or _family(file) != _family(album[0])):
            yield tuple(album)
            album = []
        album.append(file)
    if album:
        yield tuple(album)


def _family(file: Attachment) -> str:
    """Return the family of files that share an album: pictures with videos, audio with audio, everything else."""
    kind = file.media_type.partition("/")[0]
    return "seen" if kind in ("image", "video") else "heard" if kind == "audio" else "read"


def _fits_beside(text: str, able: Abilities) -> bool:
    stripped = text.strip()
    if not stripped:
        return True
    return measure(stripped, able.unit) <= able.caption_max and (able.lines or "\n" not in stripped)


# --- text ---


def _pieces(text: str, able: Abilities, words: Words, *, own: bool, parts_max: int) -> list[str]:
    limit = max(LIMIT_MIN, min(able.text_max, words.text_max or able.text_max))
    if not able.lines:
        found = [piece for line in text.splitlines() for piece in chunks(line, limit, unit=able.unit)]
    elif own and words.stream is Stream.BLOCKS:
        found = chunks(
            text,
            min(limit, max(LIMIT_MIN, words.block_max)),
            unit=able.unit,
            mode=words.chunk_mode,
            prefer=words.block_break,
            least=words.block_min,
        )
    else:
        mode = words.chunk_mode if own else ChunkMode.LENGTH
        found = chunks(text, limit, unit=able.unit, mode=mode)
    if len(found) > parts_max and able.lines:  # many short paragraphs: use as few messages as possible
        found = chunks(text, limit, unit=able.unit)
    if len(found) <= parts_max:
        return found
    left_out = sum(len(piece) for piece in found[parts_max - 1 :])
    note = f"[cut: {left_out:,} more characters are kept in the house, and too many for this place]"
    return [*found[: parts_max - 1], clipped(note, limit, unit=able.unit)]
