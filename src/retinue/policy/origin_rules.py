"""What an owner says about where values come from: which tools bring what, and which arguments mean what.

Everything here is by tool and by argument, as globs. A tool that no rule names explains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct, field

from retinue.domain.errors import Invalid
from retinue.domain.trust import Trust

KEY = "<key>"  # of a result that is an object from names to values
VALUE = "<value>"
ITEM = "<item>"  # of a result that is a list of plain values


class Kind(StrEnum):
    EMAIL = "email"
    URL = "url"
    ACCOUNT = "account"  # where money goes: an IBAN
    NUMBER = "number"
    DATE = "date"
    TIME = "time"
    MOMENT = "moment"  # a date and a time of day
    ID = "id"
    NAME = "name"  # of a person, a place, a file, a thing
    CHOICE = "choice"  # yes or no, or one of a few
    TEXT = "text"


class Sort(Struct, frozen=True):
    """A kind, and for ids of what: the id of a file is not the id of an event."""

    kind: Kind
    of: str = ""


def sort_of(text: str) -> Sort:
    """Read `email`, or `id:file`."""
    kind, _, of = text.partition(":")
    return Sort(Kind(kind), of)


def sorts_of(text: str) -> tuple[Sort, ...]:
    """Read `account|name`: the first that a value fits is what it is."""
    return tuple(sort_of(each) for each in text.split("|"))


class SourceRule(Struct, frozen=True, kw_only=True):
    """What the results of some tools are worth.

    `fields` are the typed ones, by name, and no others explain anything. `patterns` find typed values at the beginning
    of a field, where the tool itself and no stranger writes: each named group is a field. `parts` are words that tell
    which field is meant when a value could stand in several: who `sent` is a sender. `own_fields` are typed only where
    the field `own` is one of `own_values`: what the owner wrote, beside what others did. `closed`: the result is all
    typed values, and one that is not what its field says makes it untrusted words.
    """

    tools: str
    trust: Trust
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    own: str = ""
    own_values: tuple[str, ...] = ()
    own_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    closed: bool = False


class Standing(StrEnum):
    """Further ways in which an argument may be explained, where the owner says so once and for all."""

    TODAY = "today"  # the date of this day
    QUOTED = "quoted"  # word for word from something that the owner named; not for what is sent out
    KEPT = "kept"  # any words: they stay in the house, where they are read back as untrusted
    POINTED = "pointed"  # the only value of its kind in something that the owner named
    EACH = "each"  # any value of its kind in something that the owner named, where they said that they want all
    ANY = "any"


class ArgumentRule(Struct, frozen=True, kw_only=True):
    """What an argument is. `says` are the words for each of its choices, and under `all` those that want each value.

    With any of the arguments in `unless`, no standing rule holds.
    """

    tools: str
    argument: str
    kind: str = ""
    standing: frozenset[Standing] = frozenset()
    says: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    unless: tuple[str, ...] = ()


class ActRule(Struct, frozen=True, kw_only=True):
    """The words by which an owner asks for these tools: any of them will do, and `*` is no word at all.

    Without a rule, an owner asks for a tool by all the words of its name.
    """

    tools: str
    words: tuple[str, ...]


class Measure(Struct, frozen=True, kw_only=True):
    """What words such as `largest` select by: the field of which something has the most, or the least.

    `counted`: not the field's value, but how often each value of it occurs. `whole`: only among all that there is,
    which is what a call without arguments brings.
    """

    words: str
    field: str
    most: bool = True
    counted: bool = False
    whole: bool = True


class OriginPolicy(Struct, frozen=True, kw_only=True, eq=False):
    """The whole of it. The first rule that fits is the one that holds."""

    sources: tuple[SourceRule, ...] = ()
    arguments: tuple[ArgumentRule, ...] = ()
    acts: tuple[ActRule, ...] = ()
    measures: tuple[Measure, ...] = ()
    speakers: frozenset[Trust] = frozenset({Trust.OWNER})  # whose words explain

    def source(self, tool: str) -> SourceRule | None:
        return next((rule for rule in self.sources if fnmatchcase(tool, rule.tools)), None)

    def argument(self, tool: str, argument: str) -> ArgumentRule | None:
        return next(
            (rule for rule in self.arguments if fnmatchcase(tool, rule.tools) and fnmatchcase(argument, rule.argument)),
            None,
        )

    def act(self, tool: str) -> ActRule | None:
        return next((rule for rule in self.acts if fnmatchcase(tool, rule.tools)), None)


_TO_WRITE = ("write", "save", "note", "put", "store", "create", "make", "draft", "record", "add", "append", "keep")
_TO_CHANGE = (*_TO_WRITE, "edit", "change", "update", "fix", "replace", "correct", "rewrite", "rename", "remove")

# What holds where the owner has said nothing. Where something is written must be theirs to say; what is written there
# may be a stranger's words, for a file keeps its label. Nothing else of strangers passes without a question.
HOUSE_RULES: Mapping[str, Any] = {
    "argument": [
        {"tools": "write", "argument": "content", "standing": ["kept"]},
        *({"tools": "edit", "argument": name, "standing": ["kept"]} for name in ("old", "new", "edits*")),
    ],
    "act": [{"tools": "write", "words": _TO_WRITE}, {"tools": "edit", "words": _TO_CHANGE}],
}


def house_policy(own: Mapping[str, Any]) -> OriginPolicy:
    """The owner's rules, and after them the house's."""
    return policy_of({**own, **{name: [*own.get(name, ()), *rules] for name, rules in HOUSE_RULES.items()}})


def policy_of(data: Mapping[str, Any]) -> OriginPolicy:
    """Read the tables of a settings file: `source`, `argument`, `act`, `measure`, and the list `speakers`."""
    try:
        return OriginPolicy(
            sources=tuple(_source(table) for table in data.get("source", ())),
            arguments=tuple(_argument(table) for table in data.get("argument", ())),
            acts=tuple(ActRule(tools=table["tools"], words=tuple(table["words"])) for table in data.get("act", ())),
            measures=tuple(Measure(**table) for table in data.get("measure", ())),
            speakers=frozenset(Trust(word) for word in data.get("speakers", (Trust.OWNER,))),
        )
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise Invalid(
            "the rules of origin cannot be read",
            because=f"{type(error).__name__}: {error}",
            try_this="compare them with docs/guides/injection.md",
            code="origin.invalid",
        ) from error


def _source(table: Mapping[str, Any]) -> SourceRule:
    given = dict(table)
    given["trust"] = Trust(table["trust"])
    given["parts"] = {name: tuple(words) for name, words in table.get("parts", {}).items()}
    given["own_values"] = tuple(table.get("own_values", ()))
    rule = SourceRule(**given)
    for kind in (*rule.fields.values(), *rule.own_fields.values()):
        sort_of(kind)
    for pattern in rule.patterns.values():
        for group in re.compile(pattern).groupindex:
            sort_of(rule.fields[group])
    return rule


def _argument(table: Mapping[str, Any]) -> ArgumentRule:
    given = dict(table)
    given["standing"] = frozenset(Standing(word) for word in table.get("standing", ()))
    given["says"] = {value: tuple(words) for value, words in table.get("says", {}).items()}
    given["unless"] = tuple(table.get("unless", ()))
    rule = ArgumentRule(**given)
    if rule.kind:
        sorts_of(rule.kind)
    return rule
