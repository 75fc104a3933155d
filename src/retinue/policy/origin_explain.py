"""What explains one value: the owner's words, a thing that they name or measure, or a standing rule.

The house works out for itself what the words can mean, by a few steps that are all here: a whole value, a date with a
time, a time some hours later, a share of an amount, a form that is filled in, a field of the thing that was named.
Where the words fit more than one thing, and those differ, nothing is explained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from retinue.policy.origin_entries import Entry, Value
from retinue.policy.origin_rules import Measure, OriginPolicy, Sort, Standing
from retinue.policy.origin_words import (
    TEXT_CHARS_MAX,
    Kind,
    Words,
    kind_by_form,
    moment,
    normal,
    plain,
    read,
    tokens,
)

TELLING_CHARS_MIN = 4  # of a capitalised word that may stand for a longer name
_NO_NAMES = frozenset(
    (
        "this",
        "that",
        "these",
        "those",
        "they",
        "their",
        "there",
        "then",
        "when",
        "what",
        "where",
        "which",
        "while",
        "with",
        "please",
        "find",
    )
)
_TEXTUAL = (Kind.NAME, Kind.TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that can explain something: what was said, what was read, and which of it was meant."""

    words: tuple[Words, ...]
    entries: tuple[Entry, ...]
    meant: tuple[tuple[Entry, ...], ...]  # for each tool, the things that the words name or measure best
    named: tuple[Entry, ...]
    today: date | None = None

    @classmethod
    def of(cls, policy: OriginPolicy, texts: Sequence[str], entries: Sequence[Entry], *, today: date | None) -> Known:
        words = tuple(read(text, today) for text in texts)
        by_tool: dict[str, list[Entry]] = {}
        for entry in dict.fromkeys(entries):  # the same thing, read twice, is one
            by_tool.setdefault(entry.tool, []).append(entry)
        meant: list[tuple[Entry, ...]] = []
        named: list[Entry] = []
        for group in by_tool.values():
            best = _named(words, group)
            named.extend(best)
            meant.extend(each for each in (best, _measured(policy.measures, words, tuple(entries), group)) if each)
        return cls(words=words, entries=tuple(entries), meant=tuple(meant), named=tuple(named), today=today)

    def has(self, kind: Kind, value: str) -> bool:
        return any(words.has(kind, value) for words in self.words)

    def says(self, text: str) -> bool:
        phrase = tokens(text)
        return any(words.says(phrase) or words.says(phrase, shifted=True) for words in self.words)

    def says_word(self, word: str) -> bool:
        """Also as a beginning: who wants something deleted said `delete`."""
        word = word.casefold()
        return any(
            token == word or (len(word) >= TELLING_CHARS_MIN and token.startswith(word))
            for words in self.words
            for token in words.tokens
        )

    def values(self, sort: Sort) -> list[frozenset[str]]:
        """What is meant, tool by tool: only the values on which all the things that fit best agree."""
        agreed: list[frozenset[str]] = []
        for first, *rest in self.meant:
            values = _texts(first, sort)
            for entry in rest:
                values &= _texts(entry, sort)
            agreed.append(values)
        return agreed


def _texts(entry: Entry, sort: Sort) -> frozenset[str]:
    return frozenset(value.text for value in entry.values if _same(value.sort, sort))


def _same(have: Sort, want: Sort) -> bool:
    if want.kind in _TEXTUAL:
        return have.kind in _TEXTUAL
    return have == want


def _named(words: Sequence[Words], group: Sequence[Entry]) -> tuple[Entry, ...]:
    """The things of which the most values were said, if any was."""
    scored = [(sum(_weight(words, value) for value in entry.values), entry) for entry in group]
    best = max((score for score, _ in scored), default=0)
    return tuple(entry for score, entry in scored if score == best) if best else ()


def _weight(words: Sequence[Words], value: Value) -> int:
    """2 for a value that was said, 1 for a name that was hinted at."""
    match value.sort.kind:
        case Kind.NAME | Kind.TEXT:
            spoken = (value.text, re.sub(r"[-_]+", " ", re.sub(r"\.\w{1,5}$", "", value.text)))
            phrases = [tuple(each.split()) for each in dict.fromkeys(spoken)]
            if any(each.says(phrase) for each in words for phrase in phrases):
                return 2
            return 1 if _is_hinted(words, phrases[0]) else 0
        case Kind.MOMENT:
            return 2 if any(each.has(Kind.DATE, value.text[:10]) for each in words) else 0
        case Kind.CHOICE | Kind.TIME:
            return 0
        case kind:
            return 2 if any(each.has(kind, value.text) for each in words) else 0


def _is_hinted(words: Sequence[Words], name: Sequence[str]) -> bool:
    """A name of several words may be called by the one that is a name of its own: `Spotify`, for `Spotify Premium`."""
    return len(name) > 1 and any(
        raw.casefold() in name
        and len(raw) >= TELLING_CHARS_MIN
        and any(c.isupper() for c in raw)
        and raw.casefold() not in _NO_NAMES
        for each in words
        for raw in each.raw
    )


def _measured(
    measures: Sequence[Measure], words: Sequence[Words], everything: Sequence[Entry], group: Sequence[Entry]
) -> tuple[Entry, ...]:
    """The thing that has the most or the least of what the words measure by, in the order in which they do."""
    said = [(at, measure) for measure in measures if (at := _place(words, measure)) is not None]
    said.sort(key=lambda placed: placed[0])
    left: tuple[Entry, ...] = tuple(group)
    applied = False
    for _, measure in said:
        amounts = [(amount, entry) for entry in left if (amount := _amount(measure, everything, entry)) is not None]
        if not amounts:
            continue
        best = (max if measure.most else min)(amount for amount, _ in amounts)
        left = tuple(entry for amount, entry in amounts if amount == best)
        applied = True
    return left if applied else ()


def _place(words: Sequence[Words], measure: Measure) -> tuple[int, int] | None:
    phrase = tokens(measure.words)
    for at, each in enumerate(words):
        for start in range(len(each.tokens) - len(phrase) + 1):
            if each.tokens[start : start + len(phrase)] == phrase:
                return at, start
    return None


def _amount(measure: Measure, everything: Sequence[Entry], entry: Entry) -> Decimal | None:
    mine = entry.of(measure.field)
    if measure.counted:
        return Decimal(sum(other.of(measure.field).count(mine[0]) for other in everything)) if mine else None
    return Decimal(mine[0]) if len(mine) == 1 and normal(Kind.NUMBER, mine[0]) else None


def explained(
    known: Known,
    sort: Sort,
    value: Any,
    *,
    name: str,
    standing: frozenset[Standing],
    says: Mapping[str, Sequence[str]],
    others: Mapping[str, Any],
) -> str:
    """By what, in a few words; empty where nothing explains it. `others` are the other arguments of the same call."""
    if Standing.ANY in standing or Standing.KEPT in standing:
        return "a standing rule"
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return ""
    if isinstance(value, str) and not tokens(value):
        return "it says nothing"
    if isinstance(value, str) and sort.kind is not Kind.TEXT and plain(value) != value:
        return ""  # it only looks like what it is compared with
    if sort.kind is Kind.CHOICE:
        return _choice(known, value, name=name, says=says)
    text = normal(sort.kind, value)
    if text is None:  # not what it should be, so it is only what it looks like
        sort = Sort(kind_by_form(str(value)))
        text = normal(sort.kind, value)
    if text is None:
        return ""
    return (
        _said(known, sort, text, name=name)
        or ("a thing that the owner named" if any(text in values for values in known.values(sort)) else "")
        or _derived(known, sort, text, value, others)
        or _stands(known, sort, text, value, standing)
    )


def _choice(known: Known, value: Any, *, name: str, says: Mapping[str, Sequence[str]]) -> str:
    words = says.get(str(value)) or says.get(str(value).lower())
    if words is None:
        words = (name.replace("_", " "),) if value is True else () if isinstance(value, bool) else (str(value),)
    return next((f"the owner said '{word}'" for word in words if known.says(word)), "")


def _said(known: Known, sort: Sort, text: str, *, name: str) -> str:
    match sort.kind:
        case Kind.NAME | Kind.TEXT:
            said = known.says(text)
        case Kind.MOMENT:
            said = _is_moment_said(known, text)
        case Kind.ID:
            noun = sort.of or name.removesuffix("_id")
            said = (
                known.has(Kind.ID, text)
                or (any(c.isalpha() for c in text) and any(c.isdigit() for c in text) and known.says(text))
                or known.says(f"{noun} {text}")
            )
        case kind:
            said = known.has(kind, text)
    return "the owner's words" if said else ""


def _is_moment_said(known: Known, text: str) -> bool:
    """A date and a time of one sentence; or a date alone, for the whole of that day."""
    day, _, hour = text.partition(" ")
    for words in known.words:
        days = {found.sentence for found in words.found if found.kind is Kind.DATE and found.value == day}
        hours = {found.sentence for found in words.found if found.kind is Kind.TIME and found.value == hour}
        if days & hours or (days and hour in ("00:00", "23:59")):
            return True
    return False


def _derived(known: Known, sort: Sort, text: str, value: Any, others: Mapping[str, Any]) -> str:
    match sort.kind:
        case Kind.MOMENT:
            return _later(known, text, others)
        case Kind.NUMBER:
            return _share(known, text)
        case Kind.NAME | Kind.TEXT:
            return _filled(known, str(value))
        case _:
            return ""


def _later(known: Known, text: str, others: Mapping[str, Any]) -> str:
    """So long after another moment of the same call, which must be said itself."""
    end = datetime.fromisoformat(text)
    lasting = {span for words in known.words for span in words.lasting}
    for group in known.meant:
        spans = {span for entry in group for span in [_span(entry)] if span}
        if len(spans) == 1:
            lasting |= spans
    for other in others.values():
        start = moment(other) if isinstance(other, str) else None
        if start and end - start in lasting and _is_moment_said(known, start.isoformat(" ", "minutes")):
            return "so long after a moment that the owner named"
    return ""


def _span(entry: Entry) -> timedelta | None:
    moments = [datetime.fromisoformat(value.text) for value in entry.values if value.sort.kind is Kind.MOMENT]
    return moments[1] - moments[0] if len(moments) == 2 and moments[1] > moments[0] else None


def _share(known: Known, text: str) -> str:
    """So many per cent of an amount that was meant, and perhaps a further amount on top."""
    percents = {percent for words in known.words for percent in words.percents}
    extras = {Decimal(0)} | {
        Decimal(found.value) for words in known.words for found in words.found if found.kind is Kind.NUMBER
    }
    for amounts in known.values(Sort(Kind.NUMBER)):
        if len(amounts) != 1:
            continue
        amount = Decimal(next(iter(amounts)))
        shares = {amount * percent / 100 + extra for percent in percents for extra in extras}
        if Decimal(text) in shares:
            return "a share that the owner named of an amount that they named"
    return ""


def _filled(known: Known, value: str) -> str:
    """The owner's own form, each slot filled with one thing that was meant."""
    names = frozenset[str]().union(*known.values(Sort(Kind.NAME)))
    for words in known.words:
        for template in words.templates:
            parts = re.split(r"\{(\w+)\}", template)
            pattern = "".join(re.escape(part) if at % 2 == 0 else rf"(?P<s{at}>.+?)" for at, part in enumerate(parts))
            match = re.fullmatch(pattern, plain(value).strip())
            if match and all(normal(Kind.NAME, filling) in names for filling in match.groups()):
                return "the owner's own form, filled in with what they named"
    return ""


def _stands(known: Known, sort: Sort, text: str, value: Any, standing: frozenset[Standing]) -> str:
    if Standing.TODAY in standing and known.today and text == known.today.isoformat():
        return "it is today"
    if Standing.POINTED in standing:
        there = {found for entry in known.named for found in _values_in(entry.texts, sort.kind)}
        if there == {text}:
            return "the only one in what the owner named"
    if Standing.QUOTED in standing and isinstance(value, str):
        phrase = tokens(value)
        if any(_quotes(said, phrase) for entry in known.named for said in entry.texts):
            return "word for word from what the owner named"
    return ""


def _values_in(texts: Iterable[str], kind: Kind) -> set[str]:
    return {found.value for text in texts for found in read(text).found if found.kind is kind}


def _quotes(said: str, phrase: Sequence[str]) -> bool:
    return read(said).says(phrase)
