"""`[origin]`: provenance rules, about where values come from. `policy/provenance` decides by them.

A rule names tools and arguments by globs. A tool that no rule names explains nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from msgspec import Struct

from retinue.config import validators
from retinue.config.errors import BadConfig, Faults, KeyPath
from retinue.config.setting_metadata import Effect, Rule, setting
from retinue.config.table_parser import table_at, values
from retinue.config.toml_source import Table
from retinue.domain.trust import Trust


class Kind(StrEnum):
    EMAIL = "email"
    URL = "url"
    ACCOUNT = "account"  # a payment account: an IBAN
    NUMBER = "number"
    DATE = "date"
    TIME = "time"
    MOMENT = "moment"  # a date and a time of day
    ID = "id"
    NAME = "name"  # of a person, place, file or thing
    CHOICE = "choice"  # yes or no, or one of a few options
    TEXT = "text"


class Sort(Struct, frozen=True):
    """A kind, and for ids the type of object: the id of a file is not the id of an event."""

    kind: Kind
    of: str = ""


def sort_of(text: str) -> Sort:
    """Parse `email`, or `id:file`."""
    kind, _, of = text.partition(":")
    return Sort(Kind(kind), of)


def sorts_of(text: str) -> tuple[Sort, ...]:
    """Parse `account|name`: a value has the first type that it matches."""
    return tuple(sort_of(each) for each in text.split("|"))


class Standing(StrEnum):
    """Further ways to explain an argument, if the owner permits them in general."""

    TODAY = "today"  # today's date
    QUOTED = "quoted"  # verbatim from something that the owner named; not for content that is sent out
    KEPT = "kept"  # any text: it stays on this server and is read back as untrusted
    POINTED = "pointed"  # the only value of its kind in something that the owner named
    EACH = "each"  # any value of its kind in something that the owner named, if the owner asked for all of them
    ANY = "any"


# --- checks of single texts ---

_KINDS = f"one of {', '.join(Kind)}, and for an id of what it is, as in id:file"


def _is_kind(text: str) -> bool:
    return text.partition(":")[0] in frozenset(Kind)


def _kind(text: str) -> str | None:
    return None if _is_kind(text) else f"must be {_KINDS}"


def _kinds(text: str) -> str | None:
    """Check the kinds of an argument, separated by `|`. An empty text means none."""
    if not text or all(_is_kind(each) for each in text.split("|")):
        return None
    return f"must be {_KINDS}; or several of them, as in account|name"


def _words(text: str) -> str | None:
    return None if text.strip() else "must have at least one word"


def _pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        return f"must be a regular expression of Python ({error})"
    return None


def _needed(says: str, **rule: Any) -> Mapping[str, Rule]:
    """Return the metadata of a required key."""
    return {"rule": Rule(says=says, effect=Effect.MESSAGE, **rule)}


_TOOLS = _needed("The tools, by a glob.", check=validators.glob, example="calendar_*")
_A_KIND = Rule(says="The kind of value that the field holds.", check=_kind, example="id:file")
_A_WORD = Rule(says="Words of the owner.", check=_words, example="sent")
_NO_TEXTS = cast("Mapping[str, str]", {})
_NO_WORDS = cast("Mapping[str, tuple[str, ...]]", {})


# --- the rules ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """How far results of some tools are trusted, and which typed values they contain."""

    tools: str = dataclasses.field(metadata=_TOOLS)
    trust: Trust = dataclasses.field(metadata=_needed("How far their results are trusted.", example="untrusted"))
    fields: Mapping[str, str] = setting(
        _NO_TEXTS,
        "The typed fields of a result, each with its kind. No other field explains anything. `<item>` is each value of "
        "a plain list; `<key>` and `<value>` are those of an object that goes from names to values.",
        effect=Effect.MESSAGE,
        values=_A_KIND,
    )
    patterns: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Regular expressions that find typed values at the beginning of a field, where only the tool itself writes. "
        "Each named group is one of `fields`.",
        effect=Effect.MESSAGE,
        values=Rule(
            says="A regular expression, matched from the beginning of the field.",
            check=_pattern,
            example="Rating: (?P<rating>[0-9.]+)",
        ),
    )
    parts: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "For a field, words that select it when a value could be in several: a value that was `sent` is a sender.",
        effect=Effect.MESSAGE,
        values=_A_WORD,
    )
    own: str = setting(
        "", "The field that shows whether the owner wrote a thing, together with `own_values`.", effect=Effect.MESSAGE
    )
    own_values: tuple[str, ...] = setting((), "Values of the field `own` that mean the owner.", effect=Effect.MESSAGE)
    own_fields: Mapping[str, str] = setting(
        _NO_TEXTS, "Fields that are typed only in what the owner wrote.", effect=Effect.MESSAGE, values=_A_KIND
    )
    closed: bool = setting(
        False,
        "Whether a result holds typed values only. One that holds anything else is untrusted.",
        effect=Effect.MESSAGE,
    )

    def check(self, path: KeyPath, faults: Faults) -> None:
        for field, pattern in self.patterns.items():
            for group in re.compile(pattern).groupindex:
                if group not in self.fields:
                    faults.add(
                        (*path, "patterns", field),
                        f"has the group {group!r}, which is not among `fields`",
                        because="nothing says which kind of value the group finds",
                        try_this=f'add {group} = "name" to `fields`, or another kind',
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """The kind of an argument, and what may explain it besides the owner's text."""

    tools: str = dataclasses.field(metadata=_TOOLS)
    argument: str = dataclasses.field(
        metadata=_needed("The argument, by a glob.", check=validators.glob, example="recipient*")
    )
    kind: str = setting(
        "",
        "The kind of value it takes, or several with a bar between them. Not set: by its name, schema or form.",
        effect=Effect.MESSAGE,
        check=_kinds,
        example="id:file",
    )
    standing: tuple[Standing, ...] = setting(
        cast("tuple[Standing, ...]", ()), "Further ways to explain it.", effect=Effect.MESSAGE
    )
    says: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "For each of its choices the owner's words for it; under `all`, the words that ask for each value.",
        effect=Effect.MESSAGE,
        values=_A_WORD,
    )
    unless: tuple[str, ...] = setting(
        (), "With any of these arguments, `standing` does not hold.", effect=Effect.MESSAGE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRule:
    """The words by which an owner asks for some tools.

    Without a rule, these are all the words of the tool's name.
    """

    tools: str = dataclasses.field(metadata=_TOOLS)
    words: tuple[str, ...] = dataclasses.field(
        metadata=_needed(
            "Any one of these words asks for them; with `*`, they need not be asked for.", check=_words, example="pay"
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The field that words such as `largest` compare, and whether they mean its maximum or its minimum."""

    words: str = dataclasses.field(metadata=_needed("The words.", check=_words, example="largest"))
    field: str = dataclasses.field(metadata=_needed("The field that is compared.", check=_words, example="size"))
    most: bool = setting(True, "Whether the most is meant; false is the least.", effect=Effect.MESSAGE)
    counted: bool = setting(
        False, "Whether to compare how often each value occurs, rather than the values.", effect=Effect.MESSAGE
    )
    whole: bool = setting(
        True,
        "Whether it holds only among all that there is: the result of a call without arguments.",
        effect=Effect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginSettings:
    """Where values may come from. The first matching rule applies; see the guide on injection."""

    source: tuple[SourceRule, ...] = setting(
        cast("tuple[SourceRule, ...]", ()), "How far results are trusted.", effect=Effect.MESSAGE
    )
    argument: tuple[ArgumentRule, ...] = setting(
        cast("tuple[ArgumentRule, ...]", ()), "What arguments are.", effect=Effect.MESSAGE
    )
    act: tuple[ActRule, ...] = setting(
        cast("tuple[ActRule, ...]", ()), "Which words ask for a tool.", effect=Effect.MESSAGE
    )
    measure: tuple[Measure, ...] = setting(
        cast("tuple[Measure, ...]", ()), "Which words select by size.", effect=Effect.MESSAGE
    )
    speakers: tuple[Trust, ...] = setting((Trust.OWNER,), "Whose words explain a value.", effect=Effect.MESSAGE)


def rules_from(table: Table) -> OriginSettings:
    """Parse rules that are not in a settings file. Raises InvalidSettings with all errors."""
    faults, path = Faults(), ("origin",)
    found = values(OriginSettings, table_at(table, path, faults), path, faults)
    if faults.count:
        raise BadConfig(faults.in_order())
    return OriginSettings(**found)
