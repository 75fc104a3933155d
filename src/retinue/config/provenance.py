"""Settings in `[provenance]`: rules about where the values of tool arguments may come from.

`policy/provenance` applies the rules. A rule names tools and arguments by globs. A value cannot be explained by the
results of a tool that no rule names.
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
from retinue.config.errors import FaultCollector, InvalidSettings, KeyPath
from retinue.config.setting_metadata import SettingEffect, SettingRule, setting
from retinue.config.table_parser import expect_table, parse_table
from retinue.config.toml_source import Table
from retinue.domain.trust import Trust


class ValueKind(StrEnum):
    EMAIL = "email"
    URL = "url"
    ACCOUNT = "account"  # a payment account: an IBAN
    NUMBER = "number"
    DATE = "date"
    TIME = "time"
    MOMENT = "moment"  # a date and a time of day
    ID = "id"
    NAME = "name"  # the name of a person, place, file or thing
    CHOICE = "choice"  # yes or no, or one of a few options
    TEXT = "text"


class ValueType(Struct, frozen=True):
    """The type of a value, such as an email address or an id.

    The type of an id includes its object, because the id of a file is not the id of an event.
    """

    kind: ValueKind
    id_type: str = ""


def parse_value_type(text: str) -> ValueType:
    """Parse the type of a value, such as `email` or `id:file`."""
    kind, _, of = text.partition(":")
    return ValueType(ValueKind(kind), of)


def parse_value_types(text: str) -> tuple[ValueType, ...]:
    """Parse alternative types of a value, such as `account|name`. A value has the first type that it matches."""
    return tuple(parse_value_type(each) for each in text.split("|"))


class StandingExplanation(StrEnum):
    """How an argument may be explained other than by the owner's words, if a rule of the owner permits it."""

    TODAY = "today"  # today's date
    QUOTED = "quoted"  # verbatim from something that the owner named; not for content that is sent out
    STAYS_ON_SERVER = "stays-on-server"  # any text: it stays on this server and is read back as untrusted
    ONLY_VALUE = "only-value"  # the only value of its kind in something that the owner named
    EVERY_VALUE = (
        "every-value"  # any value of its kind in something that the owner named, if the owner asked for all of them
    )
    ANY = "any"


# --- checks of single texts ---

_KINDS_TEXT = f"one of {', '.join(ValueKind)}; an id also says of what, as in id:file"


def _is_kind(text: str) -> bool:
    return text.partition(":")[0] in frozenset(ValueKind)


def _check_kind(text: str) -> str | None:
    return None if _is_kind(text) else f"must be {_KINDS_TEXT}"


def _check_kinds(text: str) -> str | None:
    """Check the kinds of an argument, separated by `|`. An empty text sets no kind and is valid."""
    if not text or all(_is_kind(each) for each in text.split("|")):
        return None
    return f"must be {_KINDS_TEXT}, or several of them, as in account|name"


def _check_words(text: str) -> str | None:
    return None if text.strip() else "must have at least one word"


def _check_pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        return f"must be a Python regular expression ({error})"
    return None


def _required_metadata(description: str, **rule: Any) -> Mapping[str, SettingRule]:
    """Return the metadata of a key that must be set."""
    return {"rule": SettingRule(description=description, effect=SettingEffect.MESSAGE, **rule)}


_TOOLS_METADATA = _required_metadata(
    "Glob for the names of the tools.", check=validators.check_glob, example="calendar_*"
)
_KIND_RULE = SettingRule(description="Kind of value in the field.", check=_check_kind, example="id:file")
_WORD_RULE = SettingRule(description="Words of the owner.", check=_check_words, example="sent")
_NO_TEXTS = cast("Mapping[str, str]", {})
_NO_WORDS = cast("Mapping[str, tuple[str, ...]]", {})


# --- the rules ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """How far results of some tools are trusted, and which typed values they contain."""

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    trust: Trust = dataclasses.field(
        metadata=_required_metadata("Trust in the results of these tools.", example="untrusted")
    )
    fields: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Typed fields of a result, each with its kind. Only these fields can explain a value. `<item>` is each item "
        "of a list. `<key>` and `<value>` are the keys and values of an object.",
        effect=SettingEffect.MESSAGE,
        values=_KIND_RULE,
    )
    patterns: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Regular expressions that find typed values in fields that only the tool writes. Each is matched from the "
        "beginning of its field. Each named group is one of `fields`.",
        effect=SettingEffect.MESSAGE,
        values=SettingRule(
            description="Regular expression, matched from the beginning of the field.",
            check=_check_pattern,
            example="Rating: (?P<rating>[0-9.]+)",
        ),
    )
    field_words: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "Words of the owner that select one field when several could be meant. For example, `sent` selects a sender.",
        effect=SettingEffect.MESSAGE,
        values=_WORD_RULE,
    )
    owner_field: str = setting(
        "",
        "Field that says who wrote the content. The owner wrote it if the field has one of `owner_values`.",
        effect=SettingEffect.MESSAGE,
    )
    owner_values: tuple[str, ...] = setting(
        (), "Values of `owner_field` that mean that the owner wrote the content.", effect=SettingEffect.MESSAGE
    )
    owner_content_fields: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Fields that are typed only if the owner wrote the content.",
        effect=SettingEffect.MESSAGE,
        values=_KIND_RULE,
    )
    typed_only: bool = setting(
        False,
        "Whether a result contains typed values only. A result with anything else is untrusted.",
        effect=SettingEffect.MESSAGE,
    )

    def check(self, path: KeyPath, faults: FaultCollector) -> None:
        for field, pattern in self.patterns.items():
            for group in re.compile(pattern).groupindex:
                if group not in self.fields:
                    faults.add(
                        (*path, "patterns", field),
                        f"has the group {group!r}, which is not in `fields`",
                        because="the kind of value in this group is not declared",
                        try_this=f'add {group} = "name" to `fields`, or another kind',
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """What kind of value an argument has, and what may explain the value besides the owner's text."""

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    argument: str = dataclasses.field(
        metadata=_required_metadata(
            "Glob for the names of the arguments.", check=validators.check_glob, example="recipient*"
        )
    )
    kind: str = setting(
        "",
        "Kind of value of the argument, or several kinds separated by a bar. Default: derived from its name, schema "
        "or form.",
        effect=SettingEffect.MESSAGE,
        check=_check_kinds,
        example="id:file",
    )
    explanations: tuple[StandingExplanation, ...] = setting(
        cast("tuple[StandingExplanation, ...]", ()),
        "Ways to explain the argument's value, in addition to the owner's text.",
        effect=SettingEffect.MESSAGE,
    )
    choice_words: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "Words with which the owner requests each choice. The key `all` has the words that request every value.",
        effect=SettingEffect.MESSAGE,
        values=_WORD_RULE,
    )
    unless: tuple[str, ...] = setting(
        (), "Arguments that disable `explanations` if a call has them.", effect=SettingEffect.MESSAGE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequestRule:
    """The words with which the owner requests certain tools.

    Without a rule, the words in a tool's name request that tool.
    """

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    words: tuple[str, ...] = dataclasses.field(
        metadata=_required_metadata(
            "Words that request these tools; any one is enough. `*`: the tools need no request.",
            check=_check_words,
            example="pay",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRule:
    """The field that a word such as `largest` compares, and whether the word means the maximum or the minimum."""

    words: str = dataclasses.field(
        metadata=_required_metadata(
            "Words that select by size, such as `largest`.", check=_check_words, example="largest"
        )
    )
    field: str = dataclasses.field(
        metadata=_required_metadata("Field that is compared.", check=_check_words, example="size")
    )
    is_maximum: bool = setting(
        True, "Whether the words mean the largest value. False: the smallest.", effect=SettingEffect.MESSAGE
    )
    counted: bool = setting(
        False,
        "Whether to compare how often each value occurs, instead of the values themselves.",
        effect=SettingEffect.MESSAGE,
    )
    complete_only: bool = setting(
        True,
        "Whether the rule applies only to complete results: those of a call without arguments.",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceSettings:
    """Where the values of tool arguments may come from. The first matching rule applies. See the guide on injection."""

    source: tuple[SourceRule, ...] = setting(
        cast("tuple[SourceRule, ...]", ()), "Trust in results.", effect=SettingEffect.MESSAGE
    )
    argument: tuple[ArgumentRule, ...] = setting(
        cast("tuple[ArgumentRule, ...]", ()), "Kinds of arguments.", effect=SettingEffect.MESSAGE
    )
    tool_request: tuple[ToolRequestRule, ...] = setting(
        cast("tuple[ToolRequestRule, ...]", ()), "Words that request a tool.", effect=SettingEffect.MESSAGE
    )
    measure: tuple[MeasureRule, ...] = setting(
        cast("tuple[MeasureRule, ...]", ()),
        "Words that select by size, such as `largest`.",
        effect=SettingEffect.MESSAGE,
    )
    explaining_trust: tuple[Trust, ...] = setting(
        (Trust.OWNER,), "Trust levels of text that can explain the value of an argument.", effect=SettingEffect.MESSAGE
    )


def parse_provenance_rules(table: Table) -> ProvenanceSettings:
    """Parse provenance rules that do not come from a settings file. Raises `InvalidSettings` with all errors."""
    faults, path = FaultCollector(), ("provenance",)
    found = parse_table(ProvenanceSettings, expect_table(table, path, faults), path, faults)
    if faults.count:
        raise InvalidSettings(faults.in_file_order())
    return ProvenanceSettings(**found)
