"""What somebody wrote, and what they only sent along from before: history is cut from the words, and kept beside."""

from __future__ import annotations

import re

from msgspec import Struct

QUOTED_CHARS_MAX = 20_000
ATTRIBUTION_LINES_MAX = 4  # "On ... wrote:" is folded by some programs
_LINE_CHARS = 400  # of a line that can be a separator

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
    own: str
    history: str = ""


def is_forward(subject: str) -> bool:
    """Whether what came before is what the mail is about."""
    return _FORWARDED.match(subject) is not None


def without_history(text: str) -> Words:
    """Own words and history. Where they take turns, or nothing would be left, all of it is theirs."""
    lines = text.split("\n")
    cut = _history_begins(lines)
    if cut is None:
        return Words(text.strip())
    begins, after = cut
    own, history = "\n".join((*lines[:begins], *lines[after:])).strip(), "\n".join(lines[begins:after]).strip()
    return Words(own, history[:QUOTED_CHARS_MAX]) if own else Words(text.strip())


def _history_begins(lines: list[str]) -> tuple[int, int] | None:
    """From which line to which the history goes."""
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
    """Whether a program put this between the words and all that came before."""
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
    """How many lines say who wrote what follows; 0 where none does."""
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
    """One block of quotes, with only words before it or only words after it; None where they take turns."""
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
