"""Extracts typed values from tool results, with one entry for each thing that a result describes.

A result is data if it is JSON and a rule declares which of its fields are typed. All other fields
are untrusted text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct

from retinue.config.provenance import SourceRule, ValueKind, ValueType, parse_value_type, parse_value_types
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.policy.provenance.provenance_rules import ITEM_FIELD, KEY_FIELD, VALUE_FIELD, ProvenancePolicy
from retinue.policy.provenance.provenance_text import normalize_value

CLOSED_WORD_CHARS_MAX = 32  # longest word in a result of only typed values: enough for a name, not for an instruction
ENTRIES_MAX = 2_000  # a result with more entries is not read as data
RESULTS_CACHED_MAX = 256


class TypedValue(Struct, frozen=True):
    """One value with its type, in normalized form, so that equal values compare equal."""

    field: str
    sort: ValueType
    text: str


class ResultEntry(Struct, frozen=True, kw_only=True):
    """One thing that a tool result describes: its typed values, and its other text.

    `is_complete` means that the result lists all things of this kind, because the call had no
    arguments.
    """

    tool: str
    values: tuple[TypedValue, ...] = ()
    texts: tuple[str, ...] = ()
    is_complete: bool = False

    @property
    def names(self) -> list[str]:
        return [value.text for value in self.values if value.sort.kind is ValueKind.NAME]

    def list_field_values(self, field: str) -> list[str]:
        return [value.text for value in self.values if value.field == field]


def decide_result_trust(policy: ProvenancePolicy, spec: ToolSpec, output: str) -> Trust:
    """Return how far the server trusts a tool result.

    If a rule names the tool, the rule decides. Otherwise the effects of the tool decide.
    """
    rule = policy.find_source_rule(spec.name)
    if rule is None:
        return Trust.UNTRUSTED if ToolEffect.READS_UNTRUSTED in spec.effects else Trust.PRIVATE
    if rule.typed_only and not _has_only_typed_values(rule, output):
        return Trust.UNTRUSTED
    return rule.trust


def extract_entries(
    policy: ProvenancePolicy, tool: str, arguments: Mapping[str, Any], output: str
) -> tuple[ResultEntry, ...]:
    """Return the things that a tool result describes, as entries with typed values.

    A text result is one entry. Its typed values are the arguments of the call: for example, the entry
    of a web page has the requested URL.

    The entries of a JSON result do not have the arguments of the call. Otherwise the search words,
    which the model chooses, would name every entry that the search found.
    """
    return _extract_entries(
        policy, tool, tuple(_iterate_requested_values(policy, tool, arguments)), not arguments, output
    )


@lru_cache(maxsize=RESULTS_CACHED_MAX)
def _extract_entries(
    policy: ProvenancePolicy, tool: str, asked: tuple[TypedValue, ...], whole: bool, output: str
) -> tuple[ResultEntry, ...]:
    rule = policy.find_source_rule(tool)
    read = _parse_items(output, KEY_FIELD in rule.fields) if rule else None
    if rule is None or read is None:
        return (ResultEntry(tool=tool, values=asked, texts=(output,)),)
    return tuple(_build_entry(tool, rule, raw, whole=whole) for raw in read)


def _iterate_requested_values(
    policy: ProvenancePolicy, tool: str, arguments: Mapping[str, Any]
) -> Iterator[TypedValue]:
    for name, value in arguments.items():
        rule = policy.find_argument_rule(tool, name)
        if rule and rule.kind and isinstance(value, str):
            sort = parse_value_types(rule.kind)[0]
            if text := normalize_value(sort.kind, value):
                yield TypedValue(name, sort, text)


def _parse_items(output: str, keyed: bool) -> tuple[Mapping[str, Any], ...] | None:
    """Return the items of a result, each as a mapping of field names to values. None if the result is not data.

    `keyed` means that the result is one object, and that each key-value pair is an item.
    """
    try:
        data = json.loads(output)
    except ValueError:
        return None
    items: list[Mapping[str, Any]]
    match data:
        case list():
            listed = cast("list[Any]", data)
            items = [cast("Mapping[str, Any]", i) if isinstance(i, dict) else {ITEM_FIELD: i} for i in listed]
        case dict():
            whole = cast("Mapping[str, Any]", data)
            items = [{KEY_FIELD: key, VALUE_FIELD: value} for key, value in whole.items()] if keyed else [whole]
        case _:
            items = [{ITEM_FIELD: data}]
    return tuple(items) if len(items) <= ENTRIES_MAX else None


def _build_entry(tool: str, rule: SourceRule, raw: Mapping[str, Any], *, whole: bool) -> ResultEntry:
    fields = dict(rule.fields)
    if rule.owner_field and str(raw.get(rule.owner_field)) in rule.owner_values:
        fields.update(rule.owner_content_fields)
    values: list[TypedValue] = []
    texts: list[str] = []
    for name, content in raw.items():
        sort = parse_value_type(fields[name]) if name in fields else None
        for each in _iterate_scalars(content):
            if sort and (text := normalize_value(sort.kind, each)):
                values.append(TypedValue(name, sort, text))
            elif isinstance(each, str):
                texts.append(each)
                values.extend(_extract_patterns(rule, name, each))
    return ResultEntry(tool=tool, values=tuple(values), texts=tuple(texts), is_complete=whole)


def _extract_patterns(rule: SourceRule, name: str, content: str) -> Iterator[TypedValue]:
    pattern = rule.patterns.get(name)
    if pattern and (match := re.match(pattern, content)):
        for group, found in match.groupdict().items():
            sort = parse_value_type(rule.fields[group])
            if found and (text := normalize_value(sort.kind, found)):
                yield TypedValue(group, sort, text)


def _iterate_scalars(content: Any) -> Iterable[Any]:
    match content:
        case list():
            for each in cast("list[Any]", content):
                yield from _iterate_scalars(each)
        case dict():
            for key, each in cast("dict[str, Any]", content).items():
                yield key
                yield from _iterate_scalars(each)
        case None | bool():
            return
        case _:
            yield content


def _has_only_typed_values(rule: SourceRule, output: str) -> bool:
    read = _parse_items(output, KEY_FIELD in rule.fields)
    if read is None:
        return False
    for raw in read:
        for name, content in raw.items():
            for each in _iterate_scalars(content):
                sort = parse_value_type(rule.fields[name]) if name in rule.fields else None
                if sort is None or not _is_closed_value(sort, each):
                    return False
    return True


def _is_closed_value(sort: ValueType, value: Any) -> bool:
    if sort.kind in (ValueKind.NAME, ValueKind.TEXT, ValueKind.ID):
        text = str(value)
        return len(text) <= CLOSED_WORD_CHARS_MAX and len(text.split()) <= 1
    return normalize_value(sort.kind, value) is not None
