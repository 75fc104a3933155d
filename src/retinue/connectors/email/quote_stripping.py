"""Separates the text that a person wrote from the quoted history of an email."""

from __future__ import annotations

import re

from msgspec import Struct

QUOTED_CHARS_MAX = 20_000
ATTRIBUTION_LINES_MAX = 4  # some programs fold "On ... wrote:"
_SEPARATOR_CHARS_MAX = 400  # longer lines are not separators

_ATTRIBUTION = re.compile(
    r"(?:On\b.{4,}\bwrote|Am\b.{4,}\bschrieb\b.*|Le\b.{4,}\ba écrit|El\b.{4,}\bescribió|Il\b.{4,}\bha scritto|"
    r"Op\b.{4,}\bschreef\b.*|Em\b.{4,}\bescreveu|.{4,}<[^<>@\s]+@[^<>@\s]+>.{0,20})\s?:$",
    re.IGNORECASE,
)
_ATTRIBUTION_START = re.compile(r"(?:On|Am|Le|El|Il|Op|Em)\b", re.IGNORECASE)
_SEPARATOR = re.compile(
    r"-{2,}\s?(?:Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original|Messaggio originale|"
    r"Oorspronkelijk bericht)\s?-{2,}|_{20,}",
    re.IGNORECASE,
)
_FROM_LINE = re.compile(r"\*?(?:From|Von|De|Da|Van)\s?:\*?\s.*", re.IGNORECASE)
_SENT_LINE = re.compile(r"\*?(?:Sent|Date|Gesendet|Datum|Envoyé|Enviado|Inviato|Verzonden)\s?:\*?\s.*", re.IGNORECASE)
_FORWARDED = re.compile(r"\s*(?:fwd?|wg|tr|rv|enc)\s*:", re.IGNORECASE)


class StrippedText(Struct, frozen=True):
    """The new text of an email, separated from the quoted history."""

    text: str
    history: str = ""


def is_forwarded(subject: str) -> bool:
    """Whether the email is a forward, in which case the quoted history is its content."""
    return _FORWARDED.match(subject) is not None


def strip_history(text: str) -> StrippedText:
    """Split the text of an email into new text and quoted history.

    If the two alternate, or if no new text is left, the whole text counts as new.
    """
    lines = text.split("\n")
    cut = _find_history(lines)
    if cut is None:
        return StrippedText(text.strip())
    begins, after = cut
    own, history = "\n".join((*lines[:begins], *lines[after:])).strip(), "\n".join(lines[begins:after]).strip()
    return StrippedText(own, history[:QUOTED_CHARS_MAX]) if own else StrippedText(text.strip())


def _find_history(lines: list[str]) -> tuple[int, int] | None:
    """Return the first line of the quoted history and the line after the history, or None if there is no history."""
    for at, line in enumerate(lines):
        stripped = line.strip()
        if not stripped or len(stripped) > _SEPARATOR_CHARS_MAX:
            continue
        if _is_separator(lines, at):
            return at, len(lines)
        if stripped.startswith(">"):
            return _find_quoted_block(lines, at, at)
        height = _count_attribution_lines(lines, at)
        if (
            height
            and (first := _find_text_line(lines, at + height)) is not None
            and lines[first].lstrip().startswith(">")
        ):
            return _find_quoted_block(lines, at, first)
    return None


def _is_separator(lines: list[str], at: int) -> bool:
    """Whether this line is a separator that email programs put between the new text and the history."""
    stripped = lines[at].strip()
    following = _find_text_line(lines, at + 1)
    if _SEPARATOR.fullmatch(stripped):
        return following is not None and (
            not stripped.startswith("_")
            or _FROM_LINE.fullmatch(lines[following].strip()[:_SEPARATOR_CHARS_MAX]) is not None
        )
    if not _FROM_LINE.fullmatch(stripped):
        return False
    return following is not None and _SENT_LINE.fullmatch(lines[following].strip()[:_SEPARATOR_CHARS_MAX]) is not None


def _count_attribution_lines(lines: list[str], at: int) -> int:
    """Return the number of lines of an attribution, such as `On ... wrote:`, that begins at this line, or 0."""
    if not _ATTRIBUTION_START.match(lines[at].strip()):
        return 1 if _ATTRIBUTION.fullmatch(lines[at].strip()[:_SEPARATOR_CHARS_MAX]) else 0
    joined = ""
    for height, line in enumerate(lines[at : at + ATTRIBUTION_LINES_MAX], start=1):
        joined = f"{joined} {line.strip()}".strip()[:_SEPARATOR_CHARS_MAX]
        if _ATTRIBUTION.fullmatch(joined):
            return height
        if not line.strip():
            break
    return 0


def _find_text_line(lines: list[str], at: int) -> int | None:
    return next((number for number in range(at, min(at + 4, len(lines))) if lines[number].strip()), None)


def _find_quoted_block(lines: list[str], start: int, first: int) -> tuple[int, int] | None:
    """Return the range of a single quoted block with new text only before it or only after it.

    Returns None if new and quoted text alternate.
    """
    end = first
    while end < len(lines) and (lines[end].lstrip().startswith(">") or not lines[end].strip()):
        end += 1
    if any(line.lstrip().startswith(">") for line in lines[end:]):
        return None
    before, after = any(line.strip() for line in lines[:start]), any(line.strip() for line in lines[end:])
    return None if before and after and not _is_signature(lines, end) else (start, end)


def _is_signature(lines: list[str], at: int) -> bool:
    first = _find_text_line(lines, at)
    return first is not None and lines[first].rstrip() == "--"
