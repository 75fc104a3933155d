"""Extracts typed values from tool results: one entry for each thing that a result describes.

A result is data if it is JSON and a rule declares which of its fields are typed. Everything else in
it is untrusted text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct

from retinue.config.provenance import Kind, Sort, SourceRule, sort_of, sorts_of
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_rules import ITEM, KEY, VALUE, OriginPolicy
from retinue.policy.provenance.provenance_text import normal

NAME_CHARS_MAX = 32  # per word in a closed result: long enough for a name, too short for an instruction
ENTRIES_MAX = 2_000  # per result; beyond this it explains nothing
RESULTS_REMEMBERED = 256


class Value(Struct, frozen=True):
    """One typed value, in its normalized form."""

    field: str
    sort: Sort
    text: str


class Entry(Struct, frozen=True, kw_only=True):
    """One thing that a result describes: its typed values, and the text that came with them.

    `is_complete`: the result lists all such things, because the call had no arguments.
    """

    tool: str
    values: tuple[Value, ...] = ()
    texts: tuple[str, ...] = ()
    whole: bool = False

    @property
    def names(self) -> list[str]:
        return [value.text for value in self.values if value.sort.kind is Kind.NAME]

    def of(self, field: str) -> list[str]:
        return [value.text for value in self.values if value.field == field]


def label(policy: OriginPolicy, spec: ToolSpec, output: str) -> Trust:
    """Decide the trust of a result: untrusted, unless its rule or the tool's effects say otherwise."""
    rule = policy.source(spec.name)
    if rule is None:
        return Trust.UNTRUSTED if Effect.READS_UNTRUSTED in spec.effects else Trust.PRIVATE
    if rule.closed and not _is_closed(rule, output):
        return Trust.UNTRUSTED
    return rule.trust


def entries_of(policy: OriginPolicy, tool: str, arguments: Mapping[str, Any], output: str) -> tuple[Entry, ...]:
    """Return the entries of a result.

    A text result gets the requested values: a web page belongs to its URL.

    Data does not: the search words are the caller's choice and would name whatever is found.
    """
    return _entries(policy, tool, tuple(_asked(policy, tool, arguments)), not arguments, output)


@lru_cache(maxsize=RESULTS_REMEMBERED)
def _entries(policy: OriginPolicy, tool: str, asked: tuple[Value, ...], whole: bool, output: str) -> tuple[Entry, ...]:
    rule = policy.source(tool)
    read = _read(output, KEY in rule.fields) if rule else None
    if rule is None or read is None:
        return (Entry(tool=tool, values=asked, texts=(output,)),)
    return tuple(_entry(tool, rule, raw, whole=whole) for raw in read)


def _asked(policy: OriginPolicy, tool: str, arguments: Mapping[str, Any]) -> Iterator[Value]:
    for name, value in arguments.items():
        rule = policy.argument(tool, name)
        if rule and rule.kind and isinstance(value, str):
            sort = sorts_of(rule.kind)[0]
            if text := normal(sort.kind, value):
                yield Value(name, sort, text)


def _read(output: str, keyed: bool) -> tuple[Mapping[str, Any], ...] | None:
    """Return the items of a result, each as an object of fields; None if it is not data.

    `keyed`: it is one object, from names to values.
    """
    try:
        data = json.loads(output)
    except ValueError:
        return None
    items: list[Mapping[str, Any]]
    match data:
        case list():
            listed = cast("list[Any]", data)
            items = [cast("Mapping[str, Any]", i) if isinstance(i, dict) else {ITEM: i} for i in listed]
        case dict():
            whole = cast("Mapping[str, Any]", data)
            items = [{KEY: key, VALUE: value} for key, value in whole.items()] if keyed else [whole]
        case _:
            items = [{ITEM: data}]
    return tuple(items) if len(items) <= ENTRIES_MAX else None


def _entry(tool: str, rule: SourceRule, raw: Mapping[str, Any], *, whole: bool) -> Entry:
    fields = dict(rule.fields)
    if rule.own and str(raw.get(rule.own)) in rule.own_values:
        fields.update(rule.own_fields)
    values: list[Value] = []
    texts: list[str] = []
    for name, content in raw.items():
        sort = sort_of(fields[name]) if name in fields else None
        for each in _scalars(content):
            if sort and (text := normal(sort.kind, each)):
                values.append(Value(name, sort, text))
            elif isinstance(each, str):
                texts.append(each)
                values.extend(_patterned(rule, name, each))
    return Entry(tool=tool, values=tuple(values), texts=tuple(texts), whole=whole)


def _patterned(rule: SourceRule, name: str, content: str) -> Iterator[Value]:
    pattern = rule.patterns.get(name)
    if pattern and (match := re.match(pattern, content)):
        for group, found in match.groupdict().items():
            sort = sort_of(rule.fields[group])
            if found and (text := normal(sort.kind, found)):
                yield Value(group, sort, text)


def _scalars(content: Any) -> Iterable[Any]:
    match content:
        case list():
            for each in cast("list[Any]", content):
                yield from _scalars(each)
        case dict():
            for key, each in cast("dict[str, Any]", content).items():
                yield key
                yield from _scalars(each)
        case None | bool():
            return
        case _:
            yield content


def _is_closed(rule: SourceRule, output: str) -> bool:
    read = _read(output, KEY in rule.fields)
    if read is None:
        return False
    for raw in read:
        for name, content in raw.items():
            for each in _scalars(content):
                sort = sort_of(rule.fields[name]) if name in rule.fields else None
                if sort is None or not _fits(sort, each):
                    return False
    return True


def _fits(sort: Sort, value: Any) -> bool:
    if sort.kind in (Kind.NAME, Kind.TEXT, Kind.ID):
        text = str(value)
        return len(text) <= NAME_CHARS_MAX and len(text.split()) <= 1
    return normal(sort.kind, value) is not None
