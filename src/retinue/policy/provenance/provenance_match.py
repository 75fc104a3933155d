"""Finds the explanation of a value in a tool call: where the owner stated, selected or permitted it.

The explanation can be the owner's words, an entry of a tool result that these words select, or a rule in the settings.

The owner's words count only if they state the value, or if it follows from them in one of a few ways. The value may
be a stated date with a stated time, a time some hours later, a percentage of an amount, a template that is filled in,
or a field of an entry that the owner named. If the words match several entries with different values, none of these
values has an explanation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from retinue.config.provenance import MeasureRule, StandingExplanation, ValueKind, ValueType
from retinue.policy.provenance.provenance_rules import ProvenancePolicy
from retinue.policy.provenance.provenance_text import (
    COMMON_WORDS,
    EDGE_PUNCTUATION,
    TEXT_CHARS_MAX,
    ParsedText,
    normalize_text,
    normalize_value,
    parse_moment,
    parse_text,
    split_sentences,
    tokenize,
)
from retinue.policy.provenance.provenance_values import ResultEntry, TypedValue

DISTINCTIVE_CHARS_MIN = 4  # minimum length of a capitalized word that may stand for a longer name
_TEXT_KINDS = (ValueKind.NAME, ValueKind.TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownValues:
    """Everything that can be the explanation of a value: the owner's words, and the tool results that were read."""

    policy: ProvenancePolicy
    texts: tuple[str, ...]
    parsed_texts: tuple[ParsedText, ...]
    entries: tuple[ResultEntry, ...]
    today: date | None = None
    scores: dict[int, int] = field(default_factory=dict[int, int], compare=False)  # keyed by `id()`: entries outlive it

    @classmethod
    def build(
        cls, policy: ProvenancePolicy, texts: Sequence[str], entries: Iterable[ResultEntry], *, today: date | None
    ) -> KnownValues:
        return cls(
            policy=policy,
            texts=tuple(texts),
            parsed_texts=tuple(parse_text(text, today) for text in texts),
            entries=tuple(dict.fromkeys(entries)),  # an entry that was read twice counts once
            today=today,
        )

    def restrict_to(self, phrase: str) -> KnownValues | None:
        """Return the same known values, but with only those sentences of the owner that contain this phrase.

        Returns None if there are no such sentences.
        """
        wanted = tokenize(phrase)
        sentences = [
            part for text in self.texts for part in split_sentences(text) if parse_text(part).has_phrase(wanted)
        ]
        return KnownValues.build(self.policy, sentences, self.entries, today=self.today) if sentences else None

    def has_value(self, kind: ValueKind, value: str) -> bool:
        return any(words.has_value(kind, value) for words in self.parsed_texts)

    def has_phrase(self, text: str) -> bool:
        phrase = tokenize(text)
        return any(
            words.has_phrase(phrase) or words.has_phrase(phrase, in_first_person=True) for words in self.parsed_texts
        )

    def has_word(self, word: str) -> bool:
        """Whether the owner used this word, or a word that begins with it, as "deleted" begins with "delete"."""
        word = word.casefold()
        return any(
            token == word or (len(word) >= DISTINCTIVE_CHARS_MIN and token.startswith(word))
            for words in self.parsed_texts
            for token in words.tokens
        )

    def find_named(self, entries: Iterable[ResultEntry]) -> tuple[ResultEntry, ...]:
        """Return the entries that the owner's words describe best. Empty if no value of any entry was mentioned."""
        scored = [(self._score(entry), entry) for entry in entries]
        best = max((score for score, _ in scored), default=0)
        return tuple(entry for score, entry in scored if score == best) if best else ()

    def _score(self, entry: ResultEntry) -> int:
        score = self.scores.get(id(entry))
        if score is None:
            score = self.scores[id(entry)] = sum(_score_value(self, value, entry) for value in entry.values)
        return score

    def find_all_named(self) -> tuple[ResultEntry, ...]:
        """Return, for each tool, the result entries that the owner's words name."""
        return tuple(entry for group in group_by_tool(self.entries) for entry in self.find_named(group))

    def find_meant_values(self, sort: ValueType) -> list[frozenset[str]]:
        """Return the values of one type from the entries that the owner's words select.

        The result has one set for each group of selected entries. The set has only the values that
        all entries of the group have in common. For ids, entries of all tools are compared together,
        because the results of different tools may describe the same things.
        """
        having = [entry for entry in self.entries if any(_is_same_type(value.sort, sort) for value in entry.values)]
        found = (
            [self.find_named(having)]
            if sort.kind is ValueKind.ID
            else [self.find_named(group) for group in group_by_tool(having)]
        )
        return [
            _common_values(group, sort) for group in (*found, *group_by_tool(select_by_measures(self, having))) if group
        ]


def group_by_tool(entries: Iterable[ResultEntry]) -> list[tuple[ResultEntry, ...]]:
    groups: dict[str, list[ResultEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.tool, []).append(entry)
    return [tuple(group) for group in groups.values()]


def _common_values(group: Sequence[ResultEntry], sort: ValueType) -> frozenset[str]:
    first, *rest = (
        frozenset(value.text for value in entry.values if _is_same_type(value.sort, sort)) for entry in group
    )
    for values in rest:
        first &= values
    return first


def _is_same_type(have: ValueType, want: ValueType) -> bool:
    if want.kind in _TEXT_KINDS:
        return have.kind in _TEXT_KINDS
    return have == want


def _score_value(known: KnownValues, value: TypedValue, entry: ResultEntry) -> int:
    """Return a score for how well the owner's words match a value, or 0 if they do not.

    The score is 6 for the exact value, and 4 for a name without its file extension, hyphens and
    underscores. It is 2 for one distinctive word of a name. The score is 1 higher if the owner also
    used a word for the field of the value.
    """
    match value.sort.kind:
        case ValueKind.NAME | ValueKind.TEXT:
            name = tuple(value.text.split())
            spoken = tuple(re.sub(r"[-_]+", " ", re.sub(r"\.\w{1,5}$", "", value.text)).split())
            if COMMON_WORDS.issuperset(spoken):
                weight = 0
            elif any(each.has_phrase(name) for each in known.parsed_texts):
                weight = 6
            elif any(each.has_phrase(spoken) for each in known.parsed_texts):
                weight = 4
            else:
                weight = 2 if _is_hinted(known.parsed_texts, name) else 0
        case ValueKind.MOMENT:
            weight = 6 if known.has_value(ValueKind.DATE, value.text[:10]) else 0
        case ValueKind.CHOICE | ValueKind.TIME:
            weight = 0
        case kind:
            weight = 6 if known.has_value(kind, value.text) else 0
    rule = known.policy.find_source_rule(entry.tool)
    parts = rule.field_words.get(value.field, ()) if rule else ()
    return weight + 1 if weight and any(known.has_phrase(word) for word in parts) else weight


def _is_hinted(words: Sequence[ParsedText], name: Sequence[str]) -> bool:
    """Whether the owner stated a distinctive word of a longer name: `Spotify` for `Spotify Premium`."""
    return len(name) > 1 and any(
        raw.casefold() in name
        and len(raw) >= DISTINCTIVE_CHARS_MIN
        and any(c.isupper() for c in raw)
        and raw.casefold() not in COMMON_WORDS
        for each in words
        for raw in each.raw_tokens
    )


def select_by_measures(known: KnownValues, entries: Sequence[ResultEntry]) -> tuple[ResultEntry, ...]:
    """Return the entries with the highest or lowest amount, such as the cheapest ones.

    The owner's words name the measures, such as `largest`. The measures are applied in the order in
    which these words occur. Returns no entries if the words name no measure.
    """
    measures = [
        (at, measure)
        for measure in known.policy.measures
        if (at := _find_measure(known.parsed_texts, measure)) is not None
    ]
    measures.sort(key=lambda placed: placed[0])
    left = tuple(entries)
    applied = False
    for _, measure in measures:
        amount_of = _build_amount_function(measure, known.entries)
        amounts = [(amount, entry) for entry in left if (amount := amount_of(entry)) is not None]
        if not amounts:
            continue
        best = (max if measure.is_maximum else min)(amount for amount, _ in amounts)
        left = tuple(entry for amount, entry in amounts if amount == best)
        applied = True
    return left if applied else ()


def _find_measure(words: Sequence[ParsedText], measure: MeasureRule) -> tuple[int, int] | None:
    phrase = tokenize(measure.words)
    for at, each in enumerate(words):
        for start in range(len(each.tokens) - len(phrase) + 1):
            if each.tokens[start : start + len(phrase)] == phrase:
                return at, start
    return None


def _build_amount_function(
    measure: MeasureRule, entries: Sequence[ResultEntry]
) -> Callable[[ResultEntry], Decimal | None]:
    """Return a function that returns the amount of an entry by this measure.

    If the entry has no such amount, the amount of an entry with the same name in any result is used.
    """
    counts = (
        Counter(value for entry in entries for value in entry.list_field_values(measure.field))
        if measure.counted
        else None
    )
    by_name: dict[str, set[str]] = {}
    for entry in entries:
        for name in entry.names:
            by_name.setdefault(name, set()).update(entry.list_field_values(measure.field))

    def amount(entry: ResultEntry) -> Decimal | None:
        if measure.complete_only and not entry.is_complete:
            return None
        mine = entry.list_field_values(measure.field)
        if counts is not None:
            return Decimal(counts[mine[0]]) if mine else None
        found = set(mine) or {each for name in entry.names for each in by_name.get(name, ())}
        return Decimal(found.pop()) if len(found) == 1 else None

    return amount


def explain_value(
    known: KnownValues,
    sorts: Sequence[ValueType],
    value: Any,
    *,
    name: str,
    explanations: frozenset[StandingExplanation],
    says: Mapping[str, Sequence[str]],
    others: Mapping[str, Any],
) -> str:
    """Return the explanation of a value in a few words, or an empty string if there is none.

    `others` are the other arguments of the call.
    """
    if StandingExplanation.ANY in explanations or StandingExplanation.STAYS_ON_SERVER in explanations:
        return "a standing rule"
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return ""
    for sort in sorts:
        if sort.kind is ValueKind.CHOICE:
            return _explain_choice(known, value, name=name, says=says)
        if text := normalize_value(sort.kind, value):
            if isinstance(value, str) and sort.kind is not ValueKind.TEXT and not _is_exact(sort, value):
                return ""  # the value only resembles the one that it would be compared with
            return (
                _explain_by_words(known, sort, text, name=name)
                or _explain_by_entry(known, sort, text, name=name)
                or _explain_by_derivation(known, sort, text, value, name=name, others=others)
                or _explain_by_rule(known, sort, text, value, explanations, says)
            )
    return ""  # not of the expected type


def _is_exact(sort: ValueType, value: str) -> bool:
    """Whether normalization leaves a value unchanged, so that the tool gets exactly the value that was compared."""
    return normalize_text(value) == value and (
        sort.kind is not ValueKind.NAME or value.strip(EDGE_PUNCTUATION) == value
    )


def _explain_by_entry(known: KnownValues, sort: ValueType, text: str, *, name: str) -> str:
    """Explain a value by an entry of a tool result that the owner named.

    Returns an empty string for dates and times, because the owner must state these, and for numbers
    if the owner stated a percentage.
    """
    if sort.kind in (ValueKind.MOMENT, ValueKind.TIME, ValueKind.DATE):
        return ""
    if sort.kind is ValueKind.NUMBER and any(words.percents for words in known.parsed_texts):
        return ""
    return (
        "something that the owner named"
        if any(text in values for values in _find_meant_for_argument(known, sort, name))
        else ""
    )


def _find_meant_for_argument(known: KnownValues, sort: ValueType, name: str) -> list[frozenset[str]]:
    """Return the values that the owner may mean for an argument.

    If a sentence contains the name of the argument and names an entry, the owner means that entry.
    Otherwise the owner may mean the entries that any sentence names.
    """
    spoken = known.restrict_to(name.replace("_", " "))
    return (spoken.find_meant_values(sort) if spoken else []) or known.find_meant_values(sort)


def _explain_choice(known: KnownValues, value: Any, *, name: str, says: Mapping[str, Sequence[str]]) -> str:
    words = says.get(str(value).lower() if isinstance(value, bool) else str(value))
    if words is None:
        if says:
            return ""
        words = (name.replace("_", " "),) if value is True else () if isinstance(value, bool) else (str(value),)
    return next((f"the owner wrote '{word}'" for word in words if known.has_phrase(word)), "")


def _explain_by_words(known: KnownValues, sort: ValueType, text: str, *, name: str) -> str:
    match sort.kind:
        case ValueKind.NAME:
            is_stated = any(words.has_name(text.split()) for words in known.parsed_texts)
        case ValueKind.TEXT:
            is_stated = known.has_phrase(text) and not COMMON_WORDS.issuperset(text.split())
        case ValueKind.MOMENT:
            is_stated = _is_moment_stated(known, text)
        case ValueKind.ID:
            noun = sort.id_type or name.removesuffix("_id")
            is_stated = any(c.isdigit() for c in text) and (
                known.has_value(ValueKind.ID, text)
                or (any(c.isalpha() for c in text) and known.has_phrase(text))
                or known.has_phrase(f"{noun} {text}")
            )
        case kind:
            is_stated = known.has_value(kind, text)
    return "the owner's words" if is_stated else ""


def _is_moment_stated(known: KnownValues, text: str) -> bool:
    """Whether the owner stated the date and the time of a moment in one sentence.

    For the start or end of a day, the date is enough.
    """
    day, _, hour = text.partition(" ")
    for words in known.parsed_texts:
        days = {found.sentence for found in words.values if found.kind is ValueKind.DATE and found.value == day}
        hours = {found.sentence for found in words.values if found.kind is ValueKind.TIME and found.value == hour}
        if days & hours or (days and hour in ("00:00", "23:59")):
            return True
    return False


def _explain_by_derivation(
    known: KnownValues, sort: ValueType, text: str, value: Any, *, name: str, others: Mapping[str, Any]
) -> str:
    match sort.kind:
        case ValueKind.MOMENT:
            return _explain_by_duration(known, text, others)
        case ValueKind.NUMBER:
            return _explain_by_percentage(known, text, name)
        case ValueKind.NAME | ValueKind.TEXT:
            return _explain_by_template(known, str(value))
        case _:
            return ""


def _explain_by_duration(known: KnownValues, text: str, others: Mapping[str, Any]) -> str:
    """Explain a moment that follows another moment of the same call after a known duration.

    The owner must have stated the other moment. The owner must also have stated the duration, or
    named an entry that has this duration.
    """
    end = datetime.fromisoformat(text)
    lasting = {span for words in known.parsed_texts for span in words.durations}
    for group in group_by_tool(known.find_all_named()):
        spans = {_entry_duration(entry) for entry in group}
        if len(spans) == 1:  # the moment may also be later by the length of the named entry
            lasting |= {span for span in spans if span}
    for other in others.values():
        start = parse_moment(other) if isinstance(other, str) else None
        if start and end - start in lasting and _is_moment_stated(known, start.isoformat(" ", "minutes")):
            return "a duration after a time that the owner named"
    return ""


def _entry_duration(entry: ResultEntry) -> timedelta | None:
    moments = [datetime.fromisoformat(value.text) for value in entry.values if value.sort.kind is ValueKind.MOMENT]
    return moments[1] - moments[0] if len(moments) == 2 and moments[1] > moments[0] else None


def _explain_by_percentage(known: KnownValues, text: str, name: str) -> str:
    """Explain a number that is a percentage, stated by the owner, of an amount that the owner named.

    Another amount that the owner stated may be added to it.
    """
    percents = {percent for words in known.parsed_texts for percent in words.percents}
    extras = {Decimal(0)} | {
        Decimal(found.value) for words in known.parsed_texts for found in words.values if found.kind is ValueKind.NUMBER
    }
    for amounts in _find_meant_for_argument(known, ValueType(ValueKind.NUMBER), name):
        if len(amounts) != 1:
            continue
        amount = Decimal(next(iter(amounts)))
        shares = {amount * percent / 100 + extra for percent in percents for extra in extras}
        if Decimal(text) in shares:
            return "a percentage that the owner stated of an amount that the owner named"
    return ""


def _explain_by_template(known: KnownValues, value: str) -> str:
    """Explain text that is the owner's template, with each placeholder replaced by a name that the owner selected."""
    names = frozenset[str]().union(*known.find_meant_values(ValueType(ValueKind.NAME)))
    for words in known.parsed_texts:
        for template in words.templates:
            parts = re.split(r"\{(\w+)\}", template)
            pattern = "".join(re.escape(part) if at % 2 == 0 else rf"(?P<s{at}>.+?)" for at, part in enumerate(parts))
            match = re.fullmatch(pattern, normalize_text(value).strip())
            if match and all(normalize_value(ValueKind.NAME, filling) in names for filling in match.groups()):
                return "the owner's own template, filled in with what the owner named"
    return ""


def _explain_by_rule(
    known: KnownValues,
    sort: ValueType,
    text: str,
    value: Any,
    explanations: frozenset[StandingExplanation],
    says: Mapping[str, Sequence[str]],
) -> str:
    if StandingExplanation.TODAY in explanations and known.today and text == known.today.isoformat():
        return "it is today's date"
    if StandingExplanation.ONLY_VALUE in explanations:
        if {found for entry in known.find_all_named() for found in _extract_values(entry.texts, sort.kind)} == {text}:
            return "the only one in what the owner named"
    if StandingExplanation.EVERY_VALUE in explanations:
        for phrase in says.get("all", ()):
            spoken = known.restrict_to(phrase)
            if spoken and any(text in _extract_values(entry.texts, sort.kind) for entry in spoken.find_all_named()):
                return f"one of '{phrase}' in what the owner named"
    if StandingExplanation.QUOTED in explanations and isinstance(value, str):
        phrase = tokenize(value)
        if any(parse_text(stated).has_phrase(phrase) for entry in known.find_all_named() for stated in entry.texts):
            return "verbatim from what the owner named"
    return ""


def _extract_values(texts: Iterable[str], kind: ValueKind) -> set[str]:
    return {found.value for text in texts for found in parse_text(text).values if found.kind is kind}
