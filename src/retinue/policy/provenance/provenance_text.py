"""Extracts typed values from text, and finds whole words and phrases in it.

Each span of text is claimed by the most specific kind that matches. So the 13 of a date is neither
a number nor an id.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from msgspec import Struct

from retinue.config.provenance import Kind

TEXT_CHARS_MAX = 100_000  # per text; a longer one explains nothing and is not explained
TEXTS_REMEMBERED = 256
NAME_WORDS_MAX = 32

_TURN = "## Turn Context\n\nnow: "
_RULE = "\n---\n"

_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS)
_SMALL = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
# Texts may be hostile: no pattern may scan the same span repeatedly.
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,10}")
_URL = re.compile(r"(?:https?://|www\.)[^\s'\"<>()]+|(?<![\w.@-])(?:[\w-]+\.)+[a-z]{2,}/[^\s'\"<>()]+", re.IGNORECASE)
_ACCOUNT = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){10,30}\b")
_ISO = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})(?=\b|T)")
_DAY_LAST = re.compile(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b\.?(?:,? (\d{{4}}))?", re.IGNORECASE)
_TIME = re.compile(
    r"(?<![\d:])([01]?\d|2[0-3]):([0-5]\d)(?::[0-5]\d)?(?: ?([ap])\.?m\b)?|\b(1[0-2]|[1-9]) ?([ap])\.?m\b", re.I
)
_LASTING = re.compile(r"\b(\d+|an?|" + "|".join(_SMALL) + r")[ -](hour|minute)s?\b", re.IGNORECASE)
_PERCENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(?:%|percent\b)", re.IGNORECASE)
_ID = re.compile(r"(?:\bids?\b|#|\bno\.|\bnumber\b)[\s:=]*['\"]?([\w-]*\d[\w-]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,-]\d)")
_SENTENCE = re.compile(r"(?<![.?!])[.?!]+[\"')]*\s+|\n+")
_QUOTED = re.compile(r"(?<!\w)(?:'([^'\n]{1,500}?)'|\"([^\"\n]{1,500}?)\")(?!\w)")
EDGES = "\"'`.,;:!?()[]{}<>*-"
_QUOTES = {ord(quote): "'" for quote in "\u2018\u2019\u201a\u2032"} | {
    ord(quote): '"' for quote in "\u201c\u201d\u201e\u00ab\u00bb\u2033"
}
_DASHES = {ord(dash): "-" for dash in "\u2010\u2011\u2012\u2013\u2014\u2212"}
_UNSEEN = {ord(mark): None for mark in "\u200b\u200c\u200d\u2060\ufeff\u00ad"}
_PLAINLY = _QUOTES | _DASHES | _UNSEEN
_SHIFTED = {
    "you": "i",
    "you've": "i've",
    "you're": "i'm",
    "you'll": "i'll",
    "you'd": "i'd",
    "your": "my",
    "yours": "mine",
}


# Words without meaning by themselves. A text that consists only of these is never explained.
# fmt: off
COMMON = frozenset((
    "a", "an", "and", "any", "are", "as", "at", "be", "but", "by", "can", "do", "does", "for", "from", "had",
    "has", "have", "he", "her", "here", "his", "how", "i", "if", "in", "into", "is", "it", "its", "me", "my", "no",
    "not", "of", "on", "or", "our", "out", "she", "so", "some", "than", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "to", "too", "up", "was", "we", "were", "what", "when", "where", "which",
    "who", "will", "with", "would", "you", "your", "please", "find", "also", "could",
))
# fmt: on


class Found(Struct, frozen=True):
    """A value in a text, with its sentence: words of the same sentence belong to it."""

    kind: Kind
    value: str
    sentence: int


class Words(Struct, frozen=True, kw_only=True):
    """One parsed text: its words in order, and the values in it."""

    tokens: tuple[str, ...]
    raw: tuple[str, ...]  # as written, without edge punctuation
    found: frozenset[Found]
    lasting: frozenset[timedelta]
    percents: frozenset[Decimal]
    quoted: tuple[tuple[str, ...], ...]  # the words between two quotes
    templates: tuple[str, ...]  # quoted texts with a {slot} to fill

    def has(self, kind: Kind, value: str) -> bool:
        return any(found.kind is kind and found.value == value for found in self.found)

    def says(self, phrase: Sequence[str], *, shifted: bool = False) -> bool:
        """Whether these words occur here in this order, next to each other."""
        here = [_SHIFTED.get(token, token) for token in self.tokens] if shifted else self.tokens
        return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(here)} "

    def names(self, phrase: Sequence[str]) -> bool:
        """Whether these words occur here as a name: quoted, or capitalized unlike a common word."""
        if len(phrase) > NAME_WORDS_MAX:
            return False
        if tuple(phrase) in self.quoted:
            return True
        return any(
            not raw.islower() and not raw.isdigit() and raw.casefold() not in COMMON
            for at in _places(phrase, self.tokens)
            for raw in self.raw[at : at + len(phrase)]
        )


def plain(text: str) -> str:
    """Normalize what looks the same: quotes, dashes, widths. Removes invisible characters."""
    return unicodedata.normalize("NFKC", text).translate(_PLAINLY)


def tokens(text: str) -> tuple[str, ...]:
    """Return the words of a text without case and edge punctuation.

    A word with a digit is a value and keeps its case.
    """
    return tuple(_folded(token) for token in _raw_tokens(plain(text)))


def _raw_tokens(text: str) -> tuple[str, ...]:
    return tuple(token for word in text.split() if (token := word.strip(EDGES)))


def _folded(token: str) -> str:
    return token if any(c.isdigit() for c in token) else token.casefold()


def _places(phrase: Sequence[str], words: Sequence[str]) -> Iterator[int]:
    phrase = tuple(phrase)
    if phrase:
        for at in range(len(words) - len(phrase) + 1):
            if words[at] == phrase[0] and tuple(words[at : at + len(phrase)]) == phrase:
                yield at


_NOTHING = Words(
    tokens=(), raw=(), found=frozenset(), lasting=frozenset(), percents=frozenset(), quoted=(), templates=()
)


@lru_cache(maxsize=TEXTS_REMEMBERED)
def read(text: str, today: date | None = None) -> Words:
    """Parse a text. `today` supplies the year of a date that has none."""
    if len(text) > TEXT_CHARS_MAX:
        return _NOTHING
    text = plain(text)
    reader = _Reader(text)
    for match in reader.take(_EMAIL):
        reader.add(Kind.EMAIL, match.group().rstrip(".-").casefold(), match)
    for match in reader.take(_URL):
        reader.add(Kind.URL, url(match.group()), match)
    for match in reader.take(_ACCOUNT):
        reader.add(Kind.ACCOUNT, account(match.group()), match)
    _read_dates(reader, today)
    for match in reader.take(_TIME):
        reader.add(Kind.TIME, _time_of(match).isoformat("minutes"), match)
    lasting = {_lasting_of(match) for match in reader.take(_LASTING)}
    percents = {Decimal(match.group(1)) for match in reader.take(_PERCENT)}
    for match in reader.take(_ID):
        reader.add(Kind.ID, match.group(1), match)
    for match in reader.take(_NUMBER):
        reader.add(Kind.NUMBER, number(match.group()) or "", match)
    raw = _raw_tokens(text)
    return Words(
        tokens=tuple(map(_folded, raw)),
        raw=raw,
        found=frozenset(reader.found),
        lasting=frozenset(lasting),
        percents=frozenset(percents),
        quoted=tuple(tokens(match.group(1) or match.group(2)) for match in _QUOTED.finditer(text)),
        templates=tuple(re.findall(r"['\"]([^'\"\n]*\{\w+\}[^'\"\n]*)['\"]", text)),
    )


def sentences_of(text: str) -> list[str]:
    """Split a text into sentences."""
    return [part for part in _SENTENCE.split(plain(text[:TEXT_CHARS_MAX])) if part.strip()]


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Found] = []
        self._claimed = bytearray(len(text))
        self._ends = [match.end() for match in _SENTENCE.finditer(text)]

    def take(self, pattern: re.Pattern[str]) -> Iterable[re.Match[str]]:
        for match in pattern.finditer(self.text):
            start, end = match.span()
            if not any(self._claimed[start:end]):
                self._claimed[start:end] = b"\1" * (end - start)
                yield match

    def add(self, kind: Kind, value: str, match: re.Match[str]) -> None:
        self.found.append(Found(kind, value, bisect_right(self._ends, match.start())))


def _read_dates(reader: _Reader, today: date | None) -> None:
    for match in reader.take(_ISO):
        _add_date(reader, match, match.group(1), int(match.group(2)), int(match.group(3)), today)
    worded: list[tuple[re.Match[str], str | None, int, int]] = []
    for match in reader.take(_DAY_LAST):
        worded.append((match, match.group(3), _month_of(match.group(1)), int(match.group(2))))
    for match in reader.take(_DAY_FIRST):
        worded.append((match, match.group(3), _month_of(match.group(2)), int(match.group(1))))
    worded.sort(key=lambda dated: dated[0].start())
    for at, (match, year, month, day) in enumerate(worded):
        if year is None and at + 1 < len(worded):  # from January 11th to January 15th 2025
            between = reader.text[match.end() : worded[at + 1][0].start()].strip().casefold()
            year = worded[at + 1][1] if between in ("to", "-", "until", "till", "and", "through") else None
        _add_date(reader, match, year, month, day, today)


def _add_date(
    reader: _Reader, match: re.Match[str], year: str | None, month: int, day: int, today: date | None
) -> None:
    if year is None and today is None:
        return
    try:
        found = date(int(year) if year else today.year if today else 1, month, day)
        if year is None and today and found < today:  # a date without a year is in the future
            found = found.replace(year=today.year + 1)
    except ValueError:
        return
    reader.add(Kind.DATE, found.isoformat(), match)


def _month_of(word: str) -> int:
    return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(word.casefold()[:3]))


def _time_of(match: re.Match[str]) -> time:
    hour, minute, half = (
        int(match.group(1) or match.group(4)),
        int(match.group(2) or 0),
        match.group(3) or match.group(5),
    )
    if half and hour <= 12:
        hour = hour % 12 + (12 if half.casefold() == "p" else 0)
    return time(hour, minute)


def _lasting_of(match: re.Match[str]) -> timedelta:
    word = match.group(1).casefold()
    n = int(word) if word.isdigit() else _SMALL.get(word, 1)
    n = min(n, 100_000)
    return timedelta(hours=n) if match.group(2).casefold() == "hour" else timedelta(minutes=n)


# --- one value, normalized for comparison ---


def url(text: str) -> str:
    """Normalize a URL: no scheme, which people leave out, and no punctuation of the surrounding sentence."""
    text = plain(text).strip().rstrip(".,;:!?/")
    text = re.sub(r"^https?://", "", text, flags=re.IGNORECASE)
    host, slash, path = text.partition("/")
    return host.casefold() + slash + path


def account(text: str) -> str:
    return re.sub(r"\s", "", plain(text)).upper()


def number(value: object) -> str | None:
    """Normalize a number: 1,000 and 1000.00 are equal. None if it is not a number."""
    if isinstance(value, bool):
        return None
    try:
        parsed = Decimal(str(value).replace(",", "").strip().lstrip("$€£"))
    except InvalidOperation:
        return None
    if not parsed.is_finite() or abs(parsed.adjusted()) > 30:
        return None
    return format(parsed.normalize(), "f")


def moment(text: str) -> datetime | None:
    """Parse a date with a time of day. The time zone is ignored: the comparison is in the owner's local time."""
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=None, second=0, microsecond=0)
    except ValueError:
        return None


def day(text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return None


def kind_by_form(text: str) -> Kind:
    """Return the kind of a whole text, judged by its form."""
    text = plain(text).strip()
    if _EMAIL.fullmatch(text):
        return Kind.EMAIL
    if _URL.fullmatch(text):
        return Kind.URL
    if _ACCOUNT.fullmatch(text):
        return Kind.ACCOUNT
    if day(text):
        return Kind.DATE
    if moment(text):
        return Kind.MOMENT
    if _TIME.fullmatch(text):
        return Kind.TIME
    if number(text) is not None:
        return Kind.NUMBER
    return Kind.TEXT


def normal(kind: Kind, value: object) -> str | None:
    """Return the normalized form of a value of a kind; None if it is not of that kind."""
    text = plain(str(value)).strip()
    match kind:
        case Kind.EMAIL:
            return text.casefold() if _EMAIL.fullmatch(text) else None
        case Kind.URL:
            return url(text) or None
        case Kind.ACCOUNT:
            return account(text) if _ACCOUNT.fullmatch(text.upper()) else None
        case Kind.NUMBER:
            return number(value)
        case Kind.DATE:
            return found.isoformat() if (found := day(text)) else None
        case Kind.TIME:
            return _time_of(match).isoformat("minutes") if (match := _TIME.fullmatch(text)) else None
        case Kind.MOMENT:
            return at.isoformat(" ", "minutes") if (at := moment(text)) else None
        case Kind.ID:
            return text or None
        case Kind.NAME | Kind.TEXT:
            return " ".join(tokens(text)) or None
        case Kind.CHOICE:
            return text.casefold() or None


def said(turn: str) -> str:
    """Return what people wrote in a turn, without the lines that the server adds around it.

    Those lines contain times, ids and channel titles, which anyone may have chosen. User text
    cannot imitate them: `runners/turn_input` escapes imitations with a backslash.
    """
    if not turn.startswith(_TURN):
        return turn
    _, *blocks = turn.split(_RULE)
    return "\n".join(block.removeprefix("\n").partition("\n\n")[2].strip("\n") for block in blocks).strip("\n")
