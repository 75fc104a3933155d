"""Renders the envelopes of a turn for the model, in a format that no sender can forge.

The server writes the format, and senders write the text. Text that imitates the format is kept, but
visibly escaped: a line that looks like one of the server's lines gets a backslash, and the `<` of a
tag that looks like one of the server's tags becomes `&lt;`. Characters that reorder or hide text are
written as escape sequences. Everything else is unchanged. Each line is checked alone, so `---` in a
code block gets a backslash too. That is safer than guessing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from retinue.domain.address import Address, AddressKind
from retinue.domain.attachment import ATTACHMENT_NAME_LENGTH_MAX, Attachment
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.ids import short_id
from retinue.domain.storable_text import escape_markup
from retinue.domain.times import format_time

NAME_SHOWN_LENGTH_MAX = 80
CACHED_FOLDS_MAX = 4096

_SEPARATOR = "---"
_NO_TEXT = "(none)"
_SYSTEM_KINDS = frozenset({EnvelopeKind.SYSTEM, EnvelopeKind.DECISION, EnvelopeKind.NOTICE})

# Without spaces, as `_fold_text` produces them.
_HEADERS = (
    "now:",
    "pending-envelopes:",
    "envelope-id:",
    "from:",
    "sender:",
    "created-at:",
    "deliver-at:",
    "in-reply-to:",
    "attachments:",
)
_TITLE = "turncontext"
_TAGS = ("systemmessage", "messagecontext")
_CONTEXT_LINE = "<context"

_BRACKETS = "<\uff1c\ufe64\u2039\u02c2\u2329\u3008\u27e8\u276e\u1438"  # characters that look like `<`
_BRACKET = re.compile(f"([{_BRACKETS}])")
# Characters that break lines invisibly, reorder text or cannot be encoded: C0, C1, line and paragraph
# separators, bidi embeddings, overrides and isolates, lone surrogates. Direction marks and joiners are ordinary
# text.
_UNSAFE_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_JOINERS = "\u200c\u200d"
_BLANKS = frozenset("\u115f\u1160\u2800")  # visible by Unicode category, but blank on screen
_DELIMITERS = frozenset('"@()[]{}<>')
_APOSTROPHES = "\u2018\u2019"
# Look-alike characters of other scripts: enough to make imitation hard, never complete.
_LOOKALIKES = {
    "a": "\u0430\u03b1\u0251",
    "c": "\u0441",
    "d": "\u0501",
    "e": "\u0435\u03b5",
    "f": "\u0493",
    "g": "\u0261",
    "h": "\u04bb",
    "i": "\u0456\u03b9\u0131",
    "l": "\u04cf",
    "m": "\u043c\u03bc",
    "n": "\u0438\u043f\u03b7",
    "o": "\u043e\u03bf",
    "p": "\u0440\u03c1",
    "r": "\u0433",
    "s": "\u0455",
    "t": "\u0442\u03c4",
    "u": "\u03c5",
    "v": "\u0475\u03bd",
    "w": "\u0461\u03c9",
    "x": "\u0445",
    "y": "\u0443",
    ":": "\u2236\u02d0\ua789\u0589",
    "-": "\u2212\u2500\u2501",
    "<": _BRACKETS,
}
_LOOKALIKE_OF = {sign: ours for ours, signs in _LOOKALIKES.items() for sign in signs}

_EXTENSIONS = {
    "image": ("jpg", "jpeg", "png", "gif", "webp", "bmp"),
    "video": ("mp4", "mov", "avi", "webm", "mkv"),
    "audio": ("mp3", "wav", "m4a", "ogg", "oga", "opus", "aac", "flac"),
}
_TYPE_OF = {extension: type_ for type_, extensions in _EXTENSIONS.items() for extension in extensions}


def render_turn(envelopes: Sequence[Envelope], *, now: datetime, zone: ZoneInfo) -> str:
    """Render these envelopes in order, each in its own block, with times in `zone`.

    The running time is linear in the length of the texts, whatever they contain.
    """
    head = [
        "## Turn Context",
        "",
        f"now: {format_time(now, zone)}",
        f"pending-envelopes: {len(envelopes)}",
        "",
        _SEPARATOR,
    ]
    blocks = [line for envelope in envelopes for line in ("", *_render_envelope(envelope, zone), "", _SEPARATOR)]
    return "\n".join((*head, *blocks, ""))


def collect_attachments(envelopes: Sequence[Envelope]) -> tuple[Attachment, ...]:
    """Return the attachments of the envelopes, each once."""
    return tuple({each.hash: each for envelope in envelopes for each in envelope.attachments}.values())


def render_job(envelope: Envelope) -> str:
    """Render a background job: its text unchanged, and a list of attachments. Nothing in the text is escaped."""
    lines = [envelope.text]
    if envelope.attachments:
        lines += ["", "attachments:", *map(_attachment_line, envelope.attachments)]
    return "\n".join(lines)


def render_note(envelope: Envelope) -> str:
    """Render a silent envelope as a note for the next turn. The note names the sender."""
    return _with_origin(envelope, _escape_text(envelope.text, sender=envelope.sender))


def _render_envelope(envelope: Envelope, zone: ZoneInfo) -> list[str]:
    lines = [f"envelope-id: {short_id(envelope.id)}", f"from: {_escape_line(str(envelope.sender))}"]
    if sender := _sender_line(envelope):
        lines.append(f"sender: {sender}")
    lines.append(f"created-at: {format_time(envelope.accepted_at, zone)}")
    if envelope.deliver_at is not None:
        lines.append(f"deliver-at: {format_time(envelope.deliver_at, zone)}")
    if envelope.reply_to is not None:
        lines.append(f"in-reply-to: {short_id(envelope.reply_to)}")
    lines += ["", _render_text(envelope)]
    if envelope.attachments:
        lines += ["", "attachments:", *(_attachment_line(attachment) for attachment in envelope.attachments)]
    return lines


def _sender_line(envelope: Envelope) -> str:
    """Return the sender as reported by the connector: `Alice (@alice) [boss] in group "title"`. May be empty."""
    sender, context = envelope.sender, envelope.context
    name = _escape_name(context.sender_name)
    username = _escape_name(context.username.removeprefix("@"))
    title = _escape_name(context.chat_title)
    in_channel = sender.kind is AddressKind.CHANNEL
    if not name and not username and context.from_boss and sender.kind is AddressKind.PERSON:
        name = sender.name  # so that `[boss]`, which appears nowhere else, has a name beside it
    who: list[str] = []
    if name:
        who.append(name)
    if username:
        who.append(f"(@{username})" if name else f"@{username}")
    if context.from_boss:
        who.append("[boss]")
    if title:
        return " ".join((*(who or ["someone"]), f'in group "{title}"'))
    if who and in_channel:
        who.append("in private chat")
    return " ".join(who)


def _render_text(envelope: Envelope) -> str:
    text = _escape_text(envelope.text, sender=envelope.sender) if envelope.text.strip() else _NO_TEXT
    return _with_origin(envelope, text) if envelope.kind in _SYSTEM_KINDS else text


def _with_origin(envelope: Envelope, text: str) -> str:
    origin = escape_markup(_escape_line(str(envelope.sender)))
    return f'<system_message origin="{origin}">{text}</system_message>'


def _attachment_line(attachment: Attachment) -> str:
    type_ = _TYPE_OF.get(attachment.name.rpartition(".")[2].lower(), "file")
    name = _escape_name(attachment.name, length_max=ATTACHMENT_NAME_LENGTH_MAX) or "file"
    return f"- [{type_}] {name} ({_escape_line(attachment.hash)}, {attachment.size_bytes} bytes)"


def _escape_text(text: str, *, sender: Address) -> str:
    """Escape a sender's text so that no line looks like a line of the server. Line ends become newlines."""
    broken = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = _escape_tags(_UNSAFE_CHARACTERS.sub(_spell_out, broken)).split("\n")
    # The web app puts the context line before a person's text, so from a person it is no imitation.
    imitations = _HEADERS if sender.kind is AddressKind.PERSON else (*_HEADERS, _CONTEXT_LINE)
    return "\n".join(f"\\{line}" if _imitates_format(_fold_text(line), imitations) else line for line in lines)


def _imitates_format(folded: str, protected: tuple[str, ...]) -> bool:
    if folded.startswith("#"):  # a heading that reads like one of our lines is as harmful as the line
        return folded.lstrip("#").startswith((_TITLE, *protected))
    if folded.startswith(_SEPARATOR):
        return not folded.strip("-")
    return folded.startswith(protected)


def _escape_tags(text: str) -> str:
    # Each piece is checked once, up to the next bracket: linear in any case.
    first, *rest = _BRACKET.split(text)
    pieces = [first]
    for bracket, piece in zip(rest[::2], rest[1::2], strict=True):
        named = _fold_text(piece).lstrip("/\\").replace("_", "").replace("-", "")
        pieces += ("&lt;" if named.startswith(_TAGS) else bracket, piece)
    return "".join(pieces)


def _escape_line(text: str) -> str:
    """Escape line breaks and tags in a value that a connector parsed and that should be one line."""
    return _escape_tags(_UNSAFE_CHARACTERS.sub(_spell_out, text).replace("\n", "\\u000a").replace("\t", "\\u0009"))


def _escape_name(name: str, *, length_max: int = NAME_SHOWN_LENGTH_MAX) -> str:
    """Return a name that a sender chose, without the punctuation that the server's lines use."""
    if not _fold_text(name[:length_max]) and not _fold_text(name):
        return ""
    plain = " ".join("".join(map(_escape_name_character, name)).split())
    return plain if len(plain) <= length_max else f"{plain[: length_max - 1]}\u2026"


def _escape_name_character(character: str) -> str:
    category = unicodedata.category(character)
    if character in _JOINERS or character in _APOSTROPHES:
        return character
    if character.isspace() or character in _BLANKS:
        return " "
    if category in ("Cc", "Cf", "Cs"):
        return ""
    if category in ("Ps", "Pe", "Pi", "Pf") or not _DELIMITERS.isdisjoint(unicodedata.normalize("NFKD", character)):
        return "_"
    return "_" if character in _BRACKETS else character


def _spell_out(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


class _FoldTable:
    """Table for `str.translate` that replaces each character with the plain characters that it looks like."""

    def __getitem__(self, point: int) -> str:
        return _fold_character(point)


_FOLDS = _FoldTable()


def _fold_text(text: str) -> str:
    """Return the text without case, accents, spaces and invisible characters, with look-alikes replaced."""
    return text.translate(_ASCII_FOLDS if text.isascii() else _FOLDS)


@lru_cache(maxsize=CACHED_FOLDS_MAX)
def _fold_character(point: int) -> str:
    # One character at a time: normalizing a whole text takes quadratic time on hostile runs of accents.
    seen: list[str] = []
    for part in unicodedata.normalize("NFKD", chr(point)).casefold():
        category = unicodedata.category(part)
        if category[0] in "CZ" or category in ("Mn", "Me") or part in _BLANKS:
            continue
        seen.append("-" if category == "Pd" else _LOOKALIKE_OF.get(part, part))
    return "".join(seen)


# Most text is ASCII: a plain table takes the fast path of `str.translate`.
_ASCII_FOLDS = {point: _fold_character(point) or None for point in range(128)}
