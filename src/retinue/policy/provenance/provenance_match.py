"""Finds what explains a value: the owner's words, a thing that they name or rank, or a standing rule.

What the words can mean is derived by a few steps, all in this module: an exact value, a date with a
time, a time some hours later, a percentage of an amount, a filled-in template, a field of the named
thing. If the words match several things that differ, nothing is explained.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from retinue.config.provenance import Kind, Measure, Sort, Standing
from retinue.policy.provenance.provenance_rules import OriginPolicy
from retinue.policy.provenance.provenance_text import (
    COMMON,
    EDGES,
    TEXT_CHARS_MAX,
    Words,
    moment,
    normal,
    plain,
    read,
    sentences_of,
    tokens,
)
from retinue.policy.provenance.provenance_values import Entry, Value

TELLING_CHARS_MIN = 4  # of a capitalized word that may stand for a longer name
_TEXTUAL = (Kind.NAME, Kind.TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Everything that can explain a value: the owner's words, and the results that were read."""

    policy: OriginPolicy
    texts: tuple[str, ...]
    words: tuple[Words, ...]
    entries: tuple[Entry, ...]
    today: date | None = None
    scores: dict[int, int] = field(default_factory=dict[int, int], compare=False)  # by identity: the entries outlive it

    @classmethod
    def of(cls, policy: OriginPolicy, texts: Sequence[str], entries: Iterable[Entry], *, today: date | None) -> Known:
        return cls(
            policy=policy,
            texts=tuple(texts),
            words=tuple(read(text, today) for text in texts),
            entries=tuple(dict.fromkeys(entries)),  # the same entry, read twice, is one
            today=today,
        )

    def where(self, phrase: str) -> Known | None:
        """Return the same facts, restricted to the sentences that contain this phrase; None if there are none."""
        wanted = tokens(phrase)
        sentences = [part for text in self.texts for part in sentences_of(text) if read(part).says(wanted)]
        return Known.of(self.policy, sentences, self.entries, today=self.today) if sentences else None

    def has(self, kind: Kind, value: str) -> bool:
        return any(words.has(kind, value) for words in self.words)

    def says(self, text: str) -> bool:
        phrase = tokens(text)
        return any(words.says(phrase) or words.says(phrase, shifted=True) for words in self.words)

    def says_word(self, word: str) -> bool:
        """Whether the owner used this word, also as a prefix: "deleted" counts for `delete`."""
        word = word.casefold()
        return any(
            token == word or (len(word) >= TELLING_CHARS_MIN and token.startswith(word))
            for words in self.words
            for token in words.tokens
        )

    def named(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Return the entries with the highest score, if any of their values was mentioned."""
        scored = [(self._score(entry), entry) for entry in entries]
        best = max((score for score, _ in scored), default=0)
        return tuple(entry for score, entry in scored if score == best) if best else ()

    def _score(self, entry: Entry) -> int:
        score = self.scores.get(id(entry))
        if score is None:
            score = self.scores[id(entry)] = sum(_weight(self, value, entry) for value in entry.values)
        return score

    def all_named(self) -> tuple[Entry, ...]:
        """Return the entries that were named, determined per tool."""
        return tuple(entry for group in by_tool(self.entries) for entry in self.named(group))

    def meant(self, sort: Sort) -> list[frozenset[str]]:
        """Return the values of one type in the entries that were named or ranked, as far as all
        matching entries agree on them.

        Ids are compared across all tools: the same things, read by another tool, are not other
        things.
        """
        having = [entry for entry in self.entries if any(_same(value.sort, sort) for value in entry.values)]
        found = [self.named(having)] if sort.kind is Kind.ID else [self.named(group) for group in by_tool(having)]
        return [_agreed(group, sort) for group in (*found, *by_tool(measured(self, having))) if group]


def by_tool(entries: Iterable[Entry]) -> list[tuple[Entry, ...]]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.tool, []).append(entry)
    return [tuple(group) for group in groups.values()]


def _agreed(group: Sequence[Entry], sort: Sort) -> frozenset[str]:
    first, *rest = (frozenset(value.text for value in entry.values if _same(value.sort, sort)) for entry in group)
    for values in rest:
        first &= values
    return first


def _same(have: Sort, want: Sort) -> bool:
    if want.kind in _TEXTUAL:
        return have.kind in _TEXTUAL
    return have == want


def _weight(known: Known, value: Value, entry: Entry) -> int:
    """Score a value: 6 if stated exactly, 4 if stated as a spoken name, 2 if only hinted at.

    One more if a word for its field was stated too.
    """
    match value.sort.kind:
        case Kind.NAME | Kind.TEXT:
            name = tuple(value.text.split())
            spoken = tuple(re.sub(r"[-_]+", " ", re.sub(r"\.\w{1,5}$", "", value.text)).split())
            if COMMON.issuperset(spoken):
                weight = 0
            elif any(each.says(name) for each in known.words):
                weight = 6
            elif any(each.says(spoken) for each in known.words):
                weight = 4
            else:
                weight = 2 if _is_hinted(known.words, name) else 0
        case Kind.MOMENT:
            weight = 6 if known.has(Kind.DATE, value.text[:10]) else 0
        case Kind.CHOICE | Kind.TIME:
            weight = 0
        case kind:
            weight = 6 if known.has(kind, value.text) else 0
    rule = known.policy.source(entry.tool)
    parts = rule.parts.get(value.field, ()) if rule else ()
    return weight + 1 if weight and any(known.says(word) for word in parts) else weight


def _is_hinted(words: Sequence[Words], name: Sequence[str]) -> bool:
    """Whether one distinctive word of a longer name was stated: `Spotify` for `Spotify Premium`."""
    return len(name) > 1 and any(
        raw.casefold() in name
        and len(raw) >= TELLING_CHARS_MIN
        and any(c.isupper() for c in raw)
        and raw.casefold() not in COMMON
        for each in words
        for raw in each.raw
    )


def measured(known: Known, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries with the most or the least of what the words rank by, applied in the order of the words."""
    said = [(at, measure) for measure in known.policy.measures if (at := _place(known.words, measure)) is not None]
    said.sort(key=lambda placed: placed[0])
    left = tuple(entries)
    applied = False
    for _, measure in said:
        amount_of = _amounts(measure, known.entries)
        amounts = [(amount, entry) for entry in left if (amount := amount_of(entry)) is not None]
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


def _amounts(measure: Measure, entries: Sequence[Entry]) -> Callable[[Entry], Decimal | None]:
    """Return a function that gives the ranked amount of an entry.

    Another result may supply it for an entry of the same name.
    """
    counts = Counter(value for entry in entries for value in entry.of(measure.field)) if measure.counted else None
    by_name: dict[str, set[str]] = {}
    for entry in entries:
        for name in entry.names:
            by_name.setdefault(name, set()).update(entry.of(measure.field))

    def amount(entry: Entry) -> Decimal | None:
        if measure.whole and not entry.whole:
            return None
        mine = entry.of(measure.field)
        if counts is not None:
            return Decimal(counts[mine[0]]) if mine else None
        found = set(mine) or {each for name in entry.names for each in by_name.get(name, ())}
        return Decimal(found.pop()) if len(found) == 1 else None

    return amount


def explained(
    known: Known,
    sorts: Sequence[Sort],
    value: Any,
    *,
    name: str,
    standing: frozenset[Standing],
    says: Mapping[str, Sequence[str]],
    others: Mapping[str, Any],
) -> str:
    """Return what explains a value, in a few words; empty if nothing does.

    `others` are the other arguments of the call.
    """
    if Standing.ANY in standing or Standing.KEPT in standing:
        return "a standing rule"
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return ""
    for sort in sorts:
        if sort.kind is Kind.CHOICE:
            return _choice(known, value, name=name, says=says)
        if text := normal(sort.kind, value):
            if isinstance(value, str) and sort.kind is not Kind.TEXT and not _is_itself(sort, value):
                return ""  # it only resembles the value it is compared with
            return (
                _said(known, sort, text, name=name)
                or _had(known, sort, text, name=name)
                or _derived(known, sort, text, value, name=name, others=others)
                or _stands(known, sort, text, value, standing, says)
            )
    return ""  # not of the expected type


def _is_itself(sort: Sort, value: str) -> bool:
    """Whether the compared value is exactly what the tool gets: normalization removed no width, mark or quote."""
    return plain(value) == value and (sort.kind is not Kind.NAME or value.strip(EDGES) == value)


def _had(known: Known, sort: Sort, text: str, *, name: str) -> str:
    """Explain a value by an entry that was named. Dates, times and percentages must be stated themselves."""
    if sort.kind in (Kind.MOMENT, Kind.TIME, Kind.DATE):
        return ""
    if sort.kind is Kind.NUMBER and any(words.percents for words in known.words):
        return ""
    return "a thing that the owner named" if any(text in values for values in _meant(known, sort, name)) else ""


def _meant(known: Known, sort: Sort, name: str) -> list[frozenset[str]]:
    """Return the meant values.

    A sentence that mentions the argument by name and names an entry decides which entry is meant.
    """
    spoken = known.where(name.replace("_", " "))
    return (spoken.meant(sort) if spoken else []) or known.meant(sort)


def _choice(known: Known, value: Any, *, name: str, says: Mapping[str, Sequence[str]]) -> str:
    words = says.get(str(value).lower() if isinstance(value, bool) else str(value))
    if words is None:
        if says:
            return ""
        words = (name.replace("_", " "),) if value is True else () if isinstance(value, bool) else (str(value),)
    return next((f"the owner said '{word}'" for word in words if known.says(word)), "")


def _said(known: Known, sort: Sort, text: str, *, name: str) -> str:
    match sort.kind:
        case Kind.NAME:
            said = any(words.names(text.split()) for words in known.words)
        case Kind.TEXT:
            said = known.says(text) and not COMMON.issuperset(text.split())
        case Kind.MOMENT:
            said = _is_moment_said(known, text)
        case Kind.ID:
            noun = sort.of or name.removesuffix("_id")
            said = any(c.isdigit() for c in text) and (
                known.has(Kind.ID, text)
                or (any(c.isalpha() for c in text) and known.says(text))
                or known.says(f"{noun} {text}")
            )
        case kind:
            said = known.has(kind, text)
    return "the owner's words" if said else ""


def _is_moment_said(known: Known, text: str) -> bool:
    """Whether a date and a time were stated in one sentence, or a date alone for the whole day."""
    day, _, hour = text.partition(" ")
    for words in known.words:
        days = {found.sentence for found in words.found if found.kind is Kind.DATE and found.value == day}
        hours = {found.sentence for found in words.found if found.kind is Kind.TIME and found.value == hour}
        if days & hours or (days and hour in ("00:00", "23:59")):
            return True
    return False


def _derived(known: Known, sort: Sort, text: str, value: Any, *, name: str, others: Mapping[str, Any]) -> str:
    match sort.kind:
        case Kind.MOMENT:
            return _later(known, text, others)
        case Kind.NUMBER:
            return _share(known, text, name)
        case Kind.NAME | Kind.TEXT:
            return _filled(known, str(value))
        case _:
            return ""


def _later(known: Known, text: str, others: Mapping[str, Any]) -> str:
    """Explain a moment as a stated duration after another moment of the same call, which must be stated itself."""
    end = datetime.fromisoformat(text)
    lasting = {span for words in known.words for span in words.lasting}
    for group in by_tool(known.all_named()):
        spans = {_span(entry) for entry in group}
        if len(spans) == 1:  # as long as the named entry
            lasting |= {span for span in spans if span}
    for other in others.values():
        start = moment(other) if isinstance(other, str) else None
        if start and end - start in lasting and _is_moment_said(known, start.isoformat(" ", "minutes")):
            return "so long after a moment that the owner named"
    return ""


def _span(entry: Entry) -> timedelta | None:
    moments = [datetime.fromisoformat(value.text) for value in entry.values if value.sort.kind is Kind.MOMENT]
    return moments[1] - moments[0] if len(moments) == 2 and moments[1] > moments[0] else None


def _share(known: Known, text: str, name: str) -> str:
    """Explain a number as a stated percentage of a meant amount, perhaps plus a stated amount."""
    percents = {percent for words in known.words for percent in words.percents}
    extras = {Decimal(0)} | {
        Decimal(found.value) for words in known.words for found in words.found if found.kind is Kind.NUMBER
    }
    for amounts in _meant(known, Sort(Kind.NUMBER), name):
        if len(amounts) != 1:
            continue
        amount = Decimal(next(iter(amounts)))
        shares = {amount * percent / 100 + extra for percent in percents for extra in extras}
        if Decimal(text) in shares:
            return "a share that the owner named of an amount that they named"
    return ""


def _filled(known: Known, value: str) -> str:
    """Explain a text as the owner's own template, with each slot filled by a meant name."""
    names = frozenset[str]().union(*known.meant(Sort(Kind.NAME)))
    for words in known.words:
        for template in words.templates:
            parts = re.split(r"\{(\w+)\}", template)
            pattern = "".join(re.escape(part) if at % 2 == 0 else rf"(?P<s{at}>.+?)" for at, part in enumerate(parts))
            match = re.fullmatch(pattern, plain(value).strip())
            if match and all(normal(Kind.NAME, filling) in names for filling in match.groups()):
                return "the owner's own form, filled in with what they named"
    return ""


def _stands(
    known: Known, sort: Sort, text: str, value: Any, standing: frozenset[Standing], says: Mapping[str, Sequence[str]]
) -> str:
    if Standing.TODAY in standing and known.today and text == known.today.isoformat():
        return "it is today"
    if Standing.POINTED in standing:
        if {found for entry in known.all_named() for found in _values_in(entry.texts, sort.kind)} == {text}:
            return "the only one in what the owner named"
    if Standing.EACH in standing:
        for phrase in says.get("all", ()):
            spoken = known.where(phrase)
            if spoken and any(text in _values_in(entry.texts, sort.kind) for entry in spoken.all_named()):
                return f"one of '{phrase}' in what the owner named"
    if Standing.QUOTED in standing and isinstance(value, str):
        phrase = tokens(value)
        if any(read(said).says(phrase) for entry in known.all_named() for said in entry.texts):
            return "word for word from what the owner named"
    return ""


def _values_in(texts: Iterable[str], kind: Kind) -> set[str]:
    return {found.value for text in texts for found in read(text).found if found.kind is kind}
