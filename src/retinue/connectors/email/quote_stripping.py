"""Separates the text that a person wrote from the quoted history of an email."""

from __future__ import annotations

import re

from msgspec import Struct

QUOTED_CHARS_MAX = 20_000
ATTRIBUTION_LINES_MAX = 4  # some programs fold "On ... wrote:"
_LINE_CHARS = 400  # longer lines are no separators

_ATTRIBUTION = re.compile(
    r"(?:On\b.{4,}\bwrote|Am\b.{4,}\bschrieb\b.*|Le\b.{4,}\ba écrit|El\b.{4,}\bescribió|Il\b.{4,}\bha scritto|"
    r"Op\b.{4,}\bschreef\b.*|Em\b.{4,}\bescreveu|.{4,}<[^<>@\s]+@[^<>@\s]+>.{0,20})\s?:$",
    re.IGNORECASE,
)
_BEGINS = re.compile(r"(?:On|Am|Le|El|Il|Op|Em)\b", re.IGNORECASE)
_SEPARATOR = re.compile(
    r"-{2,}\s?(?:Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original|Messaggio originale|"
    r"Oorspronkelijk bericht)\s?-{2,}|_{20,}",
    re.IGNORECASE,
)
_FROM_LINE = re.compile(r"\*?(?:From|Von|De|Da|Van)\s?:\*?\s.*", re.IGNORECASE)
_SENT_LINE = re.compile(r"\*?(?:Sent|Date|Gesendet|Datum|Envoyé|Enviado|Inviato|Verzonden)\s?:\*?\s.*", re.IGNORECASE)
_FORWARDED = re.compile(r"\s*(?:fwd?|wg|tr|rv|enc)\s*:", re.IGNORECASE)


class Words(Struct, frozen=True):
    """The new text of an email, and the quoted history."""

    own: str
    history: str = ""


def is_forward(subject: str) -> bool:
    """Whether the email is a forward, so that the quoted history is its content."""
    return _FORWARDED.match(subject) is not None


def without_history(text: str) -> Words:
    """Split a text into new text and history. If they alternate, or nothing new is left, all of it
    counts as new."""
    lines = text.split("\n")
    cut = _history_begins(lines)
    if cut is None:
        return Words(text.strip())
    begins, after = cut
    own, history = "\n".join((*lines[:begins], *lines[after:])).strip(), "\n".join(lines[begins:after]).strip()
    return Words(own, history[:QUOTED_CHARS_MAX]) if own else Words(text.strip())


def _history_begins(lines: list[str]) -> tuple[int, int] | None:
    """The first and last line of the history."""
    for at, line in enumerate(lines):
        stripped = line.strip()
        if not stripped or len(stripped) > _LINE_CHARS:
            continue
        if _separates(lines, at):
            return at, len(lines)
        if stripped.startswith(">"):
            return _quoted_block(lines, at, at)
        height = _attribution(lines, at)
        if height and (first := _first_words(lines, at + height)) is not None and lines[first].lstrip().startswith(">"):
            return _quoted_block(lines, at, first)
    return None


def _separates(lines: list[str], at: int) -> bool:
    """Whether an email program put this line between the new text and the history."""
    stripped = lines[at].strip()
    following = _first_words(lines, at + 1)
    if _SEPARATOR.fullmatch(stripped):
        return following is not None and (
            not stripped.startswith("_") or _FROM_LINE.fullmatch(lines[following].strip()[:_LINE_CHARS]) is not None
        )
    if not _FROM_LINE.fullmatch(stripped):
        return False
    return following is not None and _SENT_LINE.fullmatch(lines[following].strip()[:_LINE_CHARS]) is not None


def _attribution(lines: list[str], at: int) -> int:
    """The number of lines that attribute the quote below; 0 if there are none."""
    if not _BEGINS.match(lines[at].strip()):
        return 1 if _ATTRIBUTION.fullmatch(lines[at].strip()[:_LINE_CHARS]) else 0
    joined = ""
    for height, line in enumerate(lines[at : at + ATTRIBUTION_LINES_MAX], start=1):
        joined = f"{joined} {line.strip()}".strip()[:_LINE_CHARS]
        if _ATTRIBUTION.fullmatch(joined):
            return height
        if not line.strip():
            break
    return 0


def _first_words(lines: list[str], at: int) -> int | None:
    return next((number for number in range(at, min(at + 4, len(lines))) if lines[number].strip()), None)


def _quoted_block(lines: list[str], begins: int, first: int) -> tuple[int, int] | None:
    """The range of a single quoted block, with text only before it or only after it; None if they
    alternate."""
    end = first
    while end < len(lines) and (lines[end].lstrip().startswith(">") or not lines[end].strip()):
        end += 1
    if any(line.lstrip().startswith(">") for line in lines[end:]):
        return None
    before, after = any(line.strip() for line in lines[:begins]), any(line.strip() for line in lines[end:])
    return None if before and after and not _is_signature(lines, end) else (begins, end)


def _is_signature(lines: list[str], at: int) -> bool:
    first = _first_words(lines, at)
    return first is not None and lines[first].rstrip() == "--"
