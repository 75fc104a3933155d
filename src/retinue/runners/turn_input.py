"""What an agent reads when its turn begins: the envelopes that arrived, one by one, in a form that no sender can forge.

The form belongs to the house and the words to whoever sent them. So a word that would read as form is kept, but marked
visibly: a line that imitates one of ours gets a backslash before it, a tag of ours loses its bracket to `&lt;`, and
characters that reorder or hide text are spelled out. Everything else is handed on byte for byte. The guard looks at
each line alone, so `---` inside a code block gets its backslash too: better one backslash than a second reading.
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
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.ids import short
from retinue.domain.storable_text import escaped
from retinue.domain.times import show

NAME_SHOWN_LENGTH_MAX = 80
FOLDS_KEPT_MAX = 4096

_RULE = "---"
_NOTHING = "(none)"
_SYSTEM_KINDS = frozenset({Kind.SYSTEM, Kind.DECISION, Kind.NOTICE})

# Written without spaces, as `_folded` leaves them.
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

_BRACKETS = "<\uff1c\ufe64\u2039\u02c2\u2329\u3008\u27e8\u276e\u1438"  # all that can pass for `<`
_BRACKET = re.compile(f"([{_BRACKETS}])")
# What would break a line where we see none, reorder the words, or cannot be encoded: C0, C1, line and paragraph
# separators, bidi embeddings, overrides and isolates, lone surrogates. Direction marks and joiners are plain writing.
_TREACHEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_JOINERS = "\u200c\u200d"
_BLANKS = frozenset("\u115f\u1160\u2800")  # visible by category, blank on the screen
_DELIMITERS = frozenset('"@()[]{}<>')
_APOSTROPHES = "\u2018\u2019"
# Letters and signs of other scripts that pass for ours: enough to make imitation a chore, never complete.
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
_READS_AS = {sign: ours for ours, signs in _LOOKALIKES.items() for sign in signs}

_EXTENSIONS = {
    "image": ("jpg", "jpeg", "png", "gif", "webp", "bmp"),
    "video": ("mp4", "mov", "avi", "webm", "mkv"),
    "audio": ("mp3", "wav", "m4a", "ogg", "oga", "opus", "aac", "flac"),
}
_TYPE_OF = {extension: type_ for type_, extensions in _EXTENSIONS.items() for extension in extensions}


def render(envelopes: Sequence[Envelope], *, now: datetime, zone: ZoneInfo) -> str:
    """The turn as the model reads it: these envelopes in this order, each in a block of its own, times in `zone`.

    Takes time in proportion to the length of the texts, whatever is in them.
    """
    head = ["## Turn Context", "", f"now: {show(now, zone)}", f"pending-envelopes: {len(envelopes)}", "", _RULE]
    blocks = [line for envelope in envelopes for line in ("", *_block(envelope, zone), "", _RULE)]
    return "\n".join((*head, *blocks, ""))


def shown(envelopes: Sequence[Envelope]) -> tuple[Attachment, ...]:
    """What came with the envelopes, each once, for a model that can look at it."""
    return tuple({each.hash: each for envelope in envelopes for each in envelope.attachments}.values())


def render_job(envelope: Envelope) -> str:
    """A job as the model reads it: its words as they are, and the list of what came with them. Nothing else is there
    that they could be taken for."""
    lines = [envelope.text]
    if envelope.attachments:
        lines += ["", "attachments:", *map(_attachment_line, envelope.attachments)]
    return "\n".join(lines)


def render_note(envelope: Envelope) -> str:
    """Silent mail, as it is written down for the next turn: with its origin, and no turn of its own."""
    return _with_origin(envelope, _guarded(envelope.text, sender=envelope.sender))


def _block(envelope: Envelope, zone: ZoneInfo) -> list[str]:
    lines = [f"envelope-id: {short(envelope.id)}", f"from: {_one_line(str(envelope.sender))}"]
    if sender := _sender_line(envelope):
        lines.append(f"sender: {sender}")
    lines.append(f"created-at: {show(envelope.accepted_at, zone)}")
    if envelope.deliver_at is not None:
        lines.append(f"deliver-at: {show(envelope.deliver_at, zone)}")
    if envelope.reply_to is not None:
        lines.append(f"in-reply-to: {short(envelope.reply_to)}")
    lines += ["", _text(envelope)]
    if envelope.attachments:
        lines += ["", "attachments:", *(_attachment_line(attachment) for attachment in envelope.attachments)]
    return lines


def _sender_line(envelope: Envelope) -> str:
    """Who a door says it was: `Alice (@alice) [boss] in group "title"`. Empty where the address has said it all."""
    sender, context = envelope.sender, envelope.context
    name = _plain(context.sender_name)
    username = _plain(context.username.removeprefix("@"))
    title = _plain(context.chat_title)
    in_channel = sender.kind is AddressKind.CHANNEL
    if not name and not username and context.from_boss and sender.kind is AddressKind.PERSON:
        name = sender.name  # So that the mark, which stands nowhere else, has someone to stand beside.
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


def _text(envelope: Envelope) -> str:
    text = _guarded(envelope.text, sender=envelope.sender) if envelope.text.strip() else _NOTHING
    return _with_origin(envelope, text) if envelope.kind in _SYSTEM_KINDS else text


def _with_origin(envelope: Envelope, text: str) -> str:
    origin = escaped(_one_line(str(envelope.sender)))
    return f'<system_message origin="{origin}">{text}</system_message>'


def _attachment_line(attachment: Attachment) -> str:
    type_ = _TYPE_OF.get(attachment.name.rpartition(".")[2].lower(), "file")
    name = _plain(attachment.name, length_max=ATTACHMENT_NAME_LENGTH_MAX) or "file"
    return f"- [{type_}] {name} ({_one_line(attachment.hash)}, {attachment.size_bytes} bytes)"


def _guarded(text: str, *, sender: Address) -> str:
    """A sender's words, in which nothing reads as ours. Line ends of any system become newlines."""
    broken = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = _untagged(_TREACHEROUS.sub(_spelled, broken)).split("\n")
    # The page puts the context line before a person's words, so from a person it is no imitation.
    imitations = _HEADERS if sender.kind is AddressKind.PERSON else (*_HEADERS, _CONTEXT_LINE)
    return "\n".join(f"\\{line}" if _imitates(_folded(line), imitations) else line for line in lines)


def _imitates(folded: str, imitations: tuple[str, ...]) -> bool:
    if folded.startswith("#"):  # a heading that reads as one of our lines is as good as the line
        return folded.lstrip("#").startswith((_TITLE, *imitations))
    if folded.startswith(_RULE):
        return not folded.strip("-")
    return folded.startswith(imitations)


def _untagged(text: str) -> str:
    # Each piece is looked at once, from its bracket to the next: linear, however many brackets there are.
    first, *rest = _BRACKET.split(text)
    pieces = [first]
    for bracket, piece in zip(rest[::2], rest[1::2], strict=True):
        named = _folded(piece).lstrip("/\\").replace("_", "").replace("-", "")
        pieces += ("&lt;" if named.startswith(_TAGS) else bracket, piece)
    return "".join(pieces)


def _one_line(text: str) -> str:
    """What was parsed at a door and holds no line breaks; if it does after all, they are spelled out."""
    return _untagged(_TREACHEROUS.sub(_spelled, text).replace("\n", "\\u000a").replace("\t", "\\u0009"))


def _plain(name: str, *, length_max: int = NAME_SHOWN_LENGTH_MAX) -> str:
    """A name someone chose for themselves, as part of our line: without anything that our lines are punctuated with."""
    if not _folded(name[:length_max]) and not _folded(name):
        return ""
    plain = " ".join("".join(map(_plain_character, name)).split())
    return plain if len(plain) <= length_max else f"{plain[: length_max - 1]}\u2026"


def _plain_character(character: str) -> str:
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


def _spelled(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


class _Folds:
    """For `str.translate`: each character as a hasty reader sees it."""

    def __getitem__(self, point: int) -> str:
        return _fold(point)


_FOLDS = _Folds()


def _folded(text: str) -> str:
    """A text without case, accents, spaces or anything invisible, and with lookalikes as what they look like."""
    return text.translate(_ASCII_FOLDS if text.isascii() else _FOLDS)


@lru_cache(maxsize=FOLDS_KEPT_MAX)
def _fold(point: int) -> str:
    # One character at a time on purpose: normalizing a whole text takes quadratic time on hostile runs of accents.
    seen: list[str] = []
    for part in unicodedata.normalize("NFKD", chr(point)).casefold():
        category = unicodedata.category(part)
        if category[0] in "CZ" or category in ("Mn", "Me") or part in _BLANKS:
            continue
        seen.append("-" if category == "Pd" else _READS_AS.get(part, part))
    return "".join(seen)


# Most texts are plain: for those a table of single characters takes the quick road through `str.translate`.
_ASCII_FOLDS = {point: _fold(point) or None for point in range(128)}
