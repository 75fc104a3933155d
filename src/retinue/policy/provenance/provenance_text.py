"""Extracts typed values from text, and finds whole words and phrases in it.

Each span of text belongs to the most specific kind of value that matches it. For example, the 13 in
a date is not also a number or an id.
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

from retinue.config.provenance import ValueKind

TEXT_CHARS_MAX = 100_000  # longer text explains no values, and is never explained
TEXTS_CACHED_MAX = 256
NAME_WORDS_MAX = 32

_TURN_HEADER = "## Turn Context\n\nnow: "
_TURN_SEPARATOR = "\n---\n"

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
_NUMBER_WORDS = {
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
}
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
_DURATION = re.compile(r"\b(\d+|an?|" + "|".join(_NUMBER_WORDS) + r")[ -](hour|minute)s?\b", re.IGNORECASE)
_PERCENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(?:%|percent\b)", re.IGNORECASE)
_ID = re.compile(r"(?:\bids?\b|#|\bno\.|\bnumber\b)[\s:=]*['\"]?([\w-]*\d[\w-]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,-]\d)")
_SENTENCE = re.compile(r"(?<![.?!])[.?!]+[\"')]*\s+|\n+")
_QUOTED = re.compile(r"(?<!\w)(?:'([^'\n]{1,500}?)'|\"([^\"\n]{1,500}?)\")(?!\w)")
EDGE_PUNCTUATION = "\"'`.,;:!?()[]{}<>*-"
_QUOTES = {ord(quote): "'" for quote in "\u2018\u2019\u201a\u2032"} | {
    ord(quote): '"' for quote in "\u201c\u201d\u201e\u00ab\u00bb\u2033"
}
_DASHES = {ord(dash): "-" for dash in "\u2010\u2011\u2012\u2013\u2014\u2212"}
_INVISIBLE = {ord(mark): None for mark in "\u200b\u200c\u200d\u2060\ufeff\u00ad"}
_NORMALIZATION = _QUOTES | _DASHES | _INVISIBLE
_SECOND_TO_FIRST_PERSON = {
    "you": "i",
    "you've": "i've",
    "you're": "i'm",
    "you'll": "i'll",
    "you'd": "i'd",
    "your": "my",
    "yours": "mine",
}


# Words without meaning by themselves. Text that consists only of these is never explained.
# fmt: off
COMMON_WORDS = frozenset((
    "a", "an", "and", "any", "are", "as", "at", "be", "but", "by", "can", "do", "does", "for", "from", "had",
    "has", "have", "he", "her", "here", "his", "how", "i", "if", "in", "into", "is", "it", "its", "me", "my", "no",
    "not", "of", "on", "or", "our", "out", "she", "so", "some", "than", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "to", "too", "up", "was", "we", "were", "what", "when", "where", "which",
    "who", "will", "with", "would", "you", "your", "please", "find", "also", "could",
))
# fmt: on


class FoundValue(Struct, frozen=True):
    """A value found in text. Values with the same `sentence` number are in the same sentence."""

    kind: ValueKind
    value: str
    sentence: int


class ParsedText(Struct, frozen=True, kw_only=True):
    """One parsed text: its words in order, and the values in it."""

    tokens: tuple[str, ...]
    raw_tokens: tuple[str, ...]  # as written, without edge punctuation
    values: frozenset[FoundValue]
    durations: frozenset[timedelta]
    percents: frozenset[Decimal]
    quoted: tuple[tuple[str, ...], ...]  # the words between two quotes
    templates: tuple[str, ...]  # quoted strings with a {slot} to fill

    def has_value(self, kind: ValueKind, value: str) -> bool:
        return any(found.kind is kind and found.value == value for found in self.values)

    def has_phrase(self, phrase: Sequence[str], *, in_first_person: bool = False) -> bool:
        """Whether these words occur in the text in this order, next to each other."""
        here = [_SECOND_TO_FIRST_PERSON.get(token, token) for token in self.tokens] if in_first_person else self.tokens
        return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(here)} "

    def has_name(self, phrase: Sequence[str]) -> bool:
        """Whether these words occur in the text as a name.

        A name is in quotes, or has a capitalized word that is not a common word.
        """
        if len(phrase) > NAME_WORDS_MAX:
            return False
        if tuple(phrase) in self.quoted:
            return True
        return any(
            not raw.islower() and not raw.isdigit() and raw.casefold() not in COMMON_WORDS
            for at in _find_phrase(phrase, self.tokens)
            for raw in self.raw_tokens[at : at + len(phrase)]
        )


def normalize_text(text: str) -> str:
    """Replace variants of quotes, dashes and wide characters with one form. Remove invisible characters."""
    return unicodedata.normalize("NFKC", text).translate(_NORMALIZATION)


def tokenize(text: str) -> tuple[str, ...]:
    """Return the words of the text in lower case, without punctuation at their edges.

    A word with a digit is a value, so it keeps its case.
    """
    return tuple(_fold_token(token) for token in _split_tokens(normalize_text(text)))


def _split_tokens(text: str) -> tuple[str, ...]:
    return tuple(token for word in text.split() if (token := word.strip(EDGE_PUNCTUATION)))


def _fold_token(token: str) -> str:
    return token if any(c.isdigit() for c in token) else token.casefold()


def _find_phrase(phrase: Sequence[str], words: Sequence[str]) -> Iterator[int]:
    phrase = tuple(phrase)
    if phrase:
        for at in range(len(words) - len(phrase) + 1):
            if words[at] == phrase[0] and tuple(words[at : at + len(phrase)]) == phrase:
                yield at


_EMPTY = ParsedText(
    tokens=(), raw_tokens=(), values=frozenset(), durations=frozenset(), percents=frozenset(), quoted=(), templates=()
)


@lru_cache(maxsize=TEXTS_CACHED_MAX)
def parse_text(text: str, today: date | None = None) -> ParsedText:
    """Parse text into words and typed values.

    A date without a year means the next such date, counted from `today`. If `today` is None, such a
    date is ignored.
    """
    if len(text) > TEXT_CHARS_MAX:
        return _EMPTY
    text = normalize_text(text)
    reader = _ValueScanner(text)
    for match in reader.claim_matches(_EMAIL):
        reader.add_value(ValueKind.EMAIL, match.group().rstrip(".-").casefold(), match)
    for match in reader.claim_matches(_URL):
        reader.add_value(ValueKind.URL, normalize_url(match.group()), match)
    for match in reader.claim_matches(_ACCOUNT):
        reader.add_value(ValueKind.ACCOUNT, normalize_account(match.group()), match)
    _scan_dates(reader, today)
    for match in reader.claim_matches(_TIME):
        reader.add_value(ValueKind.TIME, _parse_time(match).isoformat("minutes"), match)
    lasting = {_parse_duration(match) for match in reader.claim_matches(_DURATION)}
    percents = {Decimal(match.group(1)) for match in reader.claim_matches(_PERCENT)}
    for match in reader.claim_matches(_ID):
        reader.add_value(ValueKind.ID, match.group(1), match)
    for match in reader.claim_matches(_NUMBER):
        reader.add_value(ValueKind.NUMBER, normalize_number(match.group()) or "", match)
    raw = _split_tokens(text)
    return ParsedText(
        tokens=tuple(map(_fold_token, raw)),
        raw_tokens=raw,
        values=frozenset(reader.values),
        durations=frozenset(lasting),
        percents=frozenset(percents),
        quoted=tuple(tokenize(match.group(1) or match.group(2)) for match in _QUOTED.finditer(text)),
        templates=tuple(re.findall(r"['\"]([^'\"\n]*\{\w+\}[^'\"\n]*)['\"]", text)),
    )


def split_sentences(text: str) -> list[str]:
    """Split text into sentences. Text beyond `TEXT_CHARS_MAX` is dropped."""
    return [part for part in _SENTENCE.split(normalize_text(text[:TEXT_CHARS_MAX])) if part.strip()]


class _ValueScanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.values: list[FoundValue] = []
        self._claimed = bytearray(len(text))
        self._ends = [match.end() for match in _SENTENCE.finditer(text)]

    def claim_matches(self, pattern: re.Pattern[str]) -> Iterable[re.Match[str]]:
        for match in pattern.finditer(self.text):
            start, end = match.span()
            if not any(self._claimed[start:end]):
                self._claimed[start:end] = b"\1" * (end - start)
                yield match

    def add_value(self, kind: ValueKind, value: str, match: re.Match[str]) -> None:
        self.values.append(FoundValue(kind, value, bisect_right(self._ends, match.start())))


def _scan_dates(reader: _ValueScanner, today: date | None) -> None:
    for match in reader.claim_matches(_ISO):
        _add_date(reader, match, match.group(1), int(match.group(2)), int(match.group(3)), today)
    worded: list[tuple[re.Match[str], str | None, int, int]] = []
    for match in reader.claim_matches(_DAY_LAST):
        worded.append((match, match.group(3), _parse_month(match.group(1)), int(match.group(2))))
    for match in reader.claim_matches(_DAY_FIRST):
        worded.append((match, match.group(3), _parse_month(match.group(2)), int(match.group(1))))
    worded.sort(key=lambda dated: dated[0].start())
    for at, (match, year, month, day) in enumerate(worded):
        if year is None and at + 1 < len(worded):  # from January 11th to January 15th 2025
            between = reader.text[match.end() : worded[at + 1][0].start()].strip().casefold()
            year = worded[at + 1][1] if between in ("to", "-", "until", "till", "and", "through") else None
        _add_date(reader, match, year, month, day, today)


def _add_date(
    reader: _ValueScanner, match: re.Match[str], year: str | None, month: int, day: int, today: date | None
) -> None:
    if year is None and today is None:
        return
    try:
        found = date(int(year) if year else today.year if today else 1, month, day)
        if year is None and today and found < today:  # a date without a year is not in the past
            found = found.replace(year=today.year + 1)
    except ValueError:
        return
    reader.add_value(ValueKind.DATE, found.isoformat(), match)


def _parse_month(word: str) -> int:
    return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(word.casefold()[:3]))


def _parse_time(match: re.Match[str]) -> time:
    hour, minute, half = (
        int(match.group(1) or match.group(4)),
        int(match.group(2) or 0),
        match.group(3) or match.group(5),
    )
    if half and hour <= 12:
        hour = hour % 12 + (12 if half.casefold() == "p" else 0)
    return time(hour, minute)


def _parse_duration(match: re.Match[str]) -> timedelta:
    word = match.group(1).casefold()
    n = int(word) if word.isdigit() else _NUMBER_WORDS.get(word, 1)
    n = min(n, 100_000)
    return timedelta(hours=n) if match.group(2).casefold() == "hour" else timedelta(minutes=n)


# --- one value, normalized for comparison ---


def normalize_url(text: str) -> str:
    """Normalize a URL for comparison: remove its scheme and trailing punctuation, and lowercase its host."""
    text = normalize_text(text).strip().rstrip(".,;:!?/")
    text = re.sub(r"^https?://", "", text, flags=re.IGNORECASE)
    host, slash, path = text.partition("/")
    return host.casefold() + slash + path


def normalize_account(text: str) -> str:
    return re.sub(r"\s", "", normalize_text(text)).upper()


def normalize_number(value: object) -> str | None:
    """Normalize a number, so that 1,000 and 1000.00 are equal. Returns None if the value is not a number."""
    if isinstance(value, bool):
        return None
    try:
        parsed = Decimal(str(value).replace(",", "").strip().lstrip("$€£"))
    except InvalidOperation:
        return None
    if not parsed.is_finite() or abs(parsed.adjusted()) > 30:
        return None
    return format(parsed.normalize(), "f")


def parse_moment(text: str) -> datetime | None:
    """Parse a date with a time of day. Returns None for any other text.

    The time zone is dropped, because moments are compared in the owner's local time.
    """
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=None, second=0, microsecond=0)
    except ValueError:
        return None


def parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return None


def infer_kind(text: str) -> ValueKind:
    """Return which kind of value the whole text looks like: a URL, a number, a date and so on."""
    text = normalize_text(text).strip()
    if _EMAIL.fullmatch(text):
        return ValueKind.EMAIL
    if _URL.fullmatch(text):
        return ValueKind.URL
    if _ACCOUNT.fullmatch(text):
        return ValueKind.ACCOUNT
    if parse_date(text):
        return ValueKind.DATE
    if parse_moment(text):
        return ValueKind.MOMENT
    if _TIME.fullmatch(text):
        return ValueKind.TIME
    if normalize_number(text) is not None:
        return ValueKind.NUMBER
    return ValueKind.TEXT


def normalize_value(kind: ValueKind, value: object) -> str | None:
    """Return the normalized form of a value, or None if the value is not of this kind."""
    text = normalize_text(str(value)).strip()
    match kind:
        case ValueKind.EMAIL:
            return text.casefold() if _EMAIL.fullmatch(text) else None
        case ValueKind.URL:
            return normalize_url(text) or None
        case ValueKind.ACCOUNT:
            return normalize_account(text) if _ACCOUNT.fullmatch(text.upper()) else None
        case ValueKind.NUMBER:
            return normalize_number(value)
        case ValueKind.DATE:
            return found.isoformat() if (found := parse_date(text)) else None
        case ValueKind.TIME:
            return _parse_time(match).isoformat("minutes") if (match := _TIME.fullmatch(text)) else None
        case ValueKind.MOMENT:
            return at.isoformat(" ", "minutes") if (at := parse_moment(text)) else None
        case ValueKind.ID:
            return text or None
        case ValueKind.NAME | ValueKind.TEXT:
            return " ".join(tokenize(text)) or None
        case ValueKind.CHOICE:
            return text.casefold() or None


def extract_user_text(turn: str) -> str:
    """Return what people wrote in a turn, without the lines that the server adds around it.

    The server's lines contain times, ids and channel titles, and anyone may have chosen a title. The
    text of a user cannot imitate these lines, because `runners/turn_input` escapes imitations with a
    backslash.
    """
    if not turn.startswith(_TURN_HEADER):
        return turn
    _, *blocks = turn.split(_TURN_SEPARATOR)
    return "\n".join(block.removeprefix("\n").partition("\n\n")[2].strip("\n") for block in blocks).strip("\n")
