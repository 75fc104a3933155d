"""Splits an envelope into delivery parts that its platform accepts.

Files come first, in albums if the platform has albums. The text follows, in several parts if it is
too long for one. If it fits in a caption, it is sent as the caption of the first files instead. A file that
the platform does not accept is named in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from retinue.domain.address import AddressKind
from retinue.domain.attachment import Attachment
from retinue.domain.delivery_part import ConnectorCapabilities, DeliveryPart
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.reply_delivery import DEFAULT_REPLY_DELIVERY, ChunkMode, QuoteMode, ReplyDelivery, StreamMode
from retinue.domain.structs import replace
from retinue.policy.speech import parse_speech_tags
from retinue.text.answer_options import build_buttons, format_numbered_options
from retinue.text.chunking import LIMIT_MIN, measure_length, split_text, truncate_text
from retinue.text.quantity import format_quantity

PARTS_MAX = 100  # per envelope; people would not read more, and most platforms would throttle us
FILES_NAMED_MAX = 10
NO_TEXT = "(no text)"
CURRENT_MESSAGE = "current"

_TAG = re.compile(
    r"[ \t]?\[\[ {0,4}(?:reply_to_current|reply_to {0,4}: {0,4}(?P<id>[^\[\]\n]{1,200}?)|audio_as_voice) {0,4}\]\]",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"\{([A-Za-z.]{1,40})\}")
_AGENT_KINDS = frozenset({EnvelopeKind.MESSAGE, EnvelopeKind.ANSWER, EnvelopeKind.SYSTEM})


class ReplyTags(Struct, frozen=True):
    """An agent's text without its reply tags, and the message to quote according to these tags.

    `reply_to` is a message id, `current` for the message being answered, or empty to quote nothing.
    """

    text: str
    reply_to: str = ""


class DeliveryContext(Struct, frozen=True, kw_only=True):
    """Inputs of the split besides the envelope: the message to quote, and the values of the variables in the prefix."""

    quote: str = ""
    known: Mapping[str, str] = {}


NO_CONTEXT = DeliveryContext()


class SplitInputs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The inputs that determine how an envelope is split: capabilities, reply settings and context.

    These inputs are stored after the delivery of the first part. After a restart, they produce the same split again.
    """

    able: ConnectorCapabilities
    words: ReplyDelivery = DEFAULT_REPLY_DELIVERY
    setting: DeliveryContext = NO_CONTEXT


def parse_reply_tags(text: str) -> ReplyTags:
    """Return an agent's text without reply tags, and the message to quote.

    If there are several `reply_to` tags, the first one counts.
    """
    if "[[" not in text:
        return ReplyTags(text)
    text = parse_speech_tags(text).visible_text  # speech tags are removed even if nothing is spoken
    asked = ""
    for tag in _TAG.finditer(text):
        if not asked and "reply_to" in tag[0].casefold():
            asked = (tag["id"] or CURRENT_MESSAGE).strip()
    return ReplyTags(_TAG.sub("", text).strip("\n") if _TAG.search(text) else text, asked)


def is_written_by_agent(envelope: Envelope) -> bool:
    """Whether an agent wrote the envelope. False for messages that the server writes for an agent, such as notices."""
    return envelope.sender.kind is AddressKind.AGENT and envelope.kind in _AGENT_KINDS


def add_prefix(text: str, prefix: str, values: Mapping[str, str]) -> str:
    """Put a prefix before the text, and replace the variables in the prefix with their values.

    Unknown variables are not replaced, so that the person who set the prefix notices them.
    """
    filled = _VARIABLE.sub(lambda found: values.get(found[1].casefold(), found[0]), prefix)
    return f"{filled} {text}" if filled and text and not text.startswith(filled) else text


def list_prefix_variables(prefix: str) -> frozenset[str]:
    """Return the names of the variables in a message prefix."""
    return frozenset(found.casefold() for found in _VARIABLE.findall(prefix))


def split_envelope(
    envelope: Envelope,
    capabilities: ConnectorCapabilities,
    reply_delivery: ReplyDelivery = DEFAULT_REPLY_DELIVERY,
    context: DeliveryContext = NO_CONTEXT,
) -> tuple[DeliveryPart, ...]:
    """Split an envelope into at least one part.

    The same input gives the same parts, so an interrupted delivery can resume.
    """
    own = is_written_by_agent(envelope)
    text = parse_reply_tags(envelope.text).text if own else envelope.text
    text = add_prefix(text, reply_delivery.prefix, context.known) if own and reply_delivery.prefix else text
    sent, left = _select_files(envelope.attachments, capabilities)
    text = "\n".join((text, *_describe_unsent(left, capabilities))) if left else text
    pressed = build_buttons(envelope) if capabilities.can_show_buttons else ()
    if not capabilities.can_show_buttons and (by_number := format_numbered_options(envelope)):
        text = f"{text}\n{by_number}"
    albums = list(_group_albums(sent, capabilities.album_max))
    beside = bool(albums) and not pressed and _fits_caption(text, capabilities)
    pieces = (
        []
        if beside
        else _split_body(
            text, capabilities, reply_delivery, is_agent_text=own, parts_max=max(1, PARTS_MAX - len(albums))
        )
    )
    parts = [DeliveryPart(envelope=envelope, text="", files=album) for album in albums]
    parts += [DeliveryPart(envelope=envelope, text=piece) for piece in pieces]
    if beside:
        parts[0] = replace(parts[0], text=text.strip())
    if not parts:
        parts = [DeliveryPart(envelope=envelope, text=NO_TEXT)]
    quoted = range(len(parts)) if reply_delivery.quoting is QuoteMode.ALL else range(1)
    quote = context.quote if capabilities.can_quote and reply_delivery.quoting is not QuoteMode.OFF else ""
    last = len(parts) - 1
    return tuple(
        replace(
            part,
            quoted_message_id=quote if index in quoted else "",
            buttons=pressed if index == last else (),
            index=index,
            count=len(parts),
        )
        for index, part in enumerate(parts)
    )


# --- files ---


def _select_files(
    attached: Sequence[Attachment], capabilities: ConnectorCapabilities
) -> tuple[list[Attachment], list[Attachment]]:
    """Return the files that the platform accepts, and those that it does not."""
    sent = [each for each in attached if capabilities.can_send_files and accepts_file(each, capabilities)]
    return sent, [each for each in attached if each not in sent]


def accepts_file(file: Attachment, capabilities: ConnectorCapabilities) -> bool:
    return capabilities.can_send_files and (
        not capabilities.file_bytes_max or file.size_bytes <= capabilities.file_bytes_max
    )


def _describe_unsent(unsent: Sequence[Attachment], capabilities: ConnectorCapabilities) -> Iterator[str]:
    why = (
        "this platform accepts no files"
        if not capabilities.can_send_files
        else f"the limit of this platform is {_format_size(capabilities.file_bytes_max)}"
    )
    for each in unsent[:FILES_NAMED_MAX]:
        yield f"[not sent: {each.name}, {_format_size(each.size_bytes)}: {why}]"
    if len(unsent) > FILES_NAMED_MAX:
        yield f"[not sent: {format_quantity(len(unsent) - FILES_NAMED_MAX, 'more file')}]"


def _format_size(size_bytes: int) -> str:
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


def _group_albums(files: Sequence[Attachment], album_max: int) -> Iterator[tuple[Attachment, ...]]:
    """Group consecutive files of the same media family into albums, up to the platform's maximum."""
    album: list[Attachment] = []
    for file in files:
        if album and (len(album) >= max(1, album_max) or _media_family(file) != _media_family(album[0])):
            yield tuple(album)
            album = []
        album.append(file)
    if album:
        yield tuple(album)


def _media_family(file: Attachment) -> str:
    """Return the media family of a file: images and videos, audio, or other files.

    Only files of the same family can share an album.
    """
    kind = file.media_type.partition("/")[0]
    return "seen" if kind in ("image", "video") else "heard" if kind == "audio" else "read"


def _fits_caption(text: str, capabilities: ConnectorCapabilities) -> bool:
    stripped = text.strip()
    if not stripped:
        return True
    return measure_length(stripped, capabilities.unit) <= capabilities.caption_max and (
        capabilities.can_break_lines or "\n" not in stripped
    )


# --- text ---


def _split_body(
    text: str,
    capabilities: ConnectorCapabilities,
    reply_delivery: ReplyDelivery,
    *,
    is_agent_text: bool,
    parts_max: int,
) -> list[str]:
    limit = max(LIMIT_MIN, min(capabilities.text_max, reply_delivery.text_max or capabilities.text_max))
    if not capabilities.can_break_lines:
        found = [piece for line in text.splitlines() for piece in split_text(line, limit, unit=capabilities.unit)]
    elif is_agent_text and reply_delivery.stream is StreamMode.BLOCKS:
        found = split_text(
            text,
            min(limit, max(LIMIT_MIN, reply_delivery.block_max)),
            unit=capabilities.unit,
            mode=reply_delivery.chunk_mode,
            preferred_break=reply_delivery.block_break,
            min_length=reply_delivery.block_min,
        )
    else:
        mode = reply_delivery.chunk_mode if is_agent_text else ChunkMode.LENGTH
        found = split_text(text, limit, unit=capabilities.unit, mode=mode)
    if (
        len(found) > parts_max and capabilities.can_break_lines
    ):  # many short paragraphs: use as few messages as possible
        found = split_text(text, limit, unit=capabilities.unit)
    if len(found) <= parts_max:
        return found
    left_out = sum(len(piece) for piece in found[parts_max - 1 :])
    note = f"[cut: {left_out:,} more characters, which exceed the limit of this platform, are stored on the server]"
    return [*found[: parts_max - 1], truncate_text(note, limit, unit=capabilities.unit)]
