"""Settings in `[provenance]`: rules about where the values of tool arguments may come from.

`policy/provenance` applies the rules. A rule selects tools and arguments by globs. If no rule selects a tool, no value
in its results counts as an explanation of an argument.
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

    The type of an id includes what the id refers to, because the id of a file is not the id of an event.
    """

    kind: ValueKind
    id_type: str = ""


def parse_value_type(text: str) -> ValueType:
    """Parse the type of a value, such as `email` or `id:file`."""
    kind, _, of = text.partition(":")
    return ValueType(ValueKind(kind), of)


def parse_value_types(text: str) -> tuple[ValueType, ...]:
    """Parse alternative types of a value, such as `account|name`. The first type that fits the value is used."""
    return tuple(parse_value_type(each) for each in text.split("|"))


class StandingExplanation(StrEnum):
    """An explanation of an argument's value, other than the owner's words, that a rule in the settings permits."""

    TODAY = "today"  # today's date
    QUOTED = "quoted"  # verbatim from something that the owner named; not for content that is sent out
    STAYS_ON_SERVER = "stays-on-server"  # any text: it stays on this server and is read back as untrusted
    ONLY_VALUE = "only-value"  # the only value of its kind in something that the owner named
    EVERY_VALUE = (
        "every-value"  # any value of its kind in something that the owner named, if the owner asked for all of them
    )
    ANY = "any"


# --- checks of single strings ---

_KINDS_TEXT = f"one of {', '.join(ValueKind)}; an id also says what it identifies, as in id:file"


def _is_kind(text: str) -> bool:
    return text.partition(":")[0] in frozenset(ValueKind)


def _check_kind(text: str) -> str | None:
    return None if _is_kind(text) else f"must be {_KINDS_TEXT}"


def _check_kinds(text: str) -> str | None:
    """Check the kinds of an argument, separated by `|`. An empty string is valid and means that no kind is set."""
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
    """Return the metadata of a required key: its description, and the check of its value."""
    return {"rule": SettingRule(description=description, effect=SettingEffect.MESSAGE, **rule)}


_TOOLS_METADATA = _required_metadata(
    "Tools to which this rule applies: a glob for their names.", check=validators.check_glob, example="calendar_*"
)
_KIND_RULE = SettingRule(description="Kind of the value in the field.", check=_check_kind, example="id:file")
_WORD_RULE = SettingRule(
    description="Words with which the owner selects this field or choice.", check=_check_words, example="sent"
)
_NO_TEXTS = cast("Mapping[str, str]", {})
_NO_WORDS = cast("Mapping[str, tuple[str, ...]]", {})


# --- the rules ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """A rule about the results of some tools: how far they are trusted, and which typed values they contain."""

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    trust: Trust = dataclasses.field(
        metadata=_required_metadata("Trust level of the results of these tools.", example="untrusted")
    )
    fields: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Fields of a result whose values count as an explanation of an argument, each with the kind of its value. "
        "`<item>` stands for each item of a list, `<key>` and `<value>` for the keys and values of an object.",
        effect=SettingEffect.MESSAGE,
        values=_KIND_RULE,
    )
    patterns: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Regular expressions that extract values from text fields, by the name of the field. The name of each group is "
        "a key in `fields`. Use them only for text that the tool writes.",
        effect=SettingEffect.MESSAGE,
        values=SettingRule(
            description="Regular expression that matches from the beginning of the field.",
            check=_check_pattern,
            example="Rating: (?P<rating>[0-9.]+)",
        ),
    )
    field_words: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "Words with which the owner selects a field, by the name of the field. For example, `sent` selects the sender.",
        effect=SettingEffect.MESSAGE,
        values=_WORD_RULE,
    )
    owner_field: str = setting(
        "",
        "Field that says who wrote the content of a result. If its value is in `owner_values`, the owner wrote it.",
        effect=SettingEffect.MESSAGE,
    )
    owner_values: tuple[str, ...] = setting(
        (), "Values of `owner_field` that mean that the owner wrote the content.", effect=SettingEffect.MESSAGE
    )
    owner_content_fields: Mapping[str, str] = setting(
        _NO_TEXTS,
        "Additional entries of `fields` that apply only if the owner wrote the content.",
        effect=SettingEffect.MESSAGE,
        values=_KIND_RULE,
    )
    typed_only: bool = setting(
        False,
        "Whether the server checks that results contain only values of `fields`. Results that contain anything else "
        "are untrusted.",
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
    """A rule about an argument: the kind of its value, and which explanations of it count besides the owner's text."""

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    argument: str = dataclasses.field(
        metadata=_required_metadata(
            "Arguments to which this rule applies: a glob for their names.",
            check=validators.check_glob,
            example="recipient*",
        )
    )
    kind: str = setting(
        "",
        "Kind of the argument's value, or several kinds separated by a vertical bar. Default: derived from the name, "
        "schema or form of the argument.",
        effect=SettingEffect.MESSAGE,
        check=_check_kinds,
        example="id:file",
    )
    explanations: tuple[StandingExplanation, ...] = setting(
        cast("tuple[StandingExplanation, ...]", ()),
        "What counts as an explanation of the argument's value, besides the owner's text. The guide on prompt "
        "injection lists the choices.",
        effect=SettingEffect.MESSAGE,
    )
    choice_words: Mapping[str, tuple[str, ...]] = setting(
        _NO_WORDS,
        "For each choice, the words with which the owner requests it. The key `all` has the words that request every "
        "value.",
        effect=SettingEffect.MESSAGE,
        values=_WORD_RULE,
    )
    unless: tuple[str, ...] = setting(
        (),
        "Names of arguments. If a call has one of them, `explanations` does not apply to it.",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequestRule:
    """A rule about the words with which the owner requests certain tools.

    If no rule applies to a tool, the owner requests it with the words in its name.
    """

    tools: str = dataclasses.field(metadata=_TOOLS_METADATA)
    words: tuple[str, ...] = dataclasses.field(
        metadata=_required_metadata(
            "Words with which the owner requests these tools. One of them is enough. `*`: no request is needed.",
            check=_check_words,
            example="pay",
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRule:
    """A rule about a word such as `largest`: which field it compares, and whether it means the maximum or minimum."""

    words: str = dataclasses.field(
        metadata=_required_metadata(
            "Phrase with which the owner selects by comparison, such as `largest`.",
            check=_check_words,
            example="largest",
        )
    )
    field: str = dataclasses.field(
        metadata=_required_metadata(
            "Field of the results that is compared, such as `size`.", check=_check_words, example="size"
        )
    )
    is_maximum: bool = setting(
        True, "Whether the phrase means the largest value (true) or the smallest (false).", effect=SettingEffect.MESSAGE
    )
    counted: bool = setting(
        False,
        "Whether to compare how often each value occurs, instead of the values themselves.",
        effect=SettingEffect.MESSAGE,
    )
    complete_only: bool = setting(
        True,
        "Whether the rule applies only to complete results, which are results of calls without arguments.",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceSettings:
    """Rules about where the values of tool arguments may come from. The first rule that matches applies."""

    source: tuple[SourceRule, ...] = setting(
        cast("tuple[SourceRule, ...]", ()), "Rules about the results of tools.", effect=SettingEffect.MESSAGE
    )
    argument: tuple[ArgumentRule, ...] = setting(
        cast("tuple[ArgumentRule, ...]", ()), "Rules about the arguments of tools.", effect=SettingEffect.MESSAGE
    )
    tool_request: tuple[ToolRequestRule, ...] = setting(
        cast("tuple[ToolRequestRule, ...]", ()),
        "Rules about the words that request a tool.",
        effect=SettingEffect.MESSAGE,
    )
    measure: tuple[MeasureRule, ...] = setting(
        cast("tuple[MeasureRule, ...]", ()),
        "Rules about words that select by comparison, such as `largest`.",
        effect=SettingEffect.MESSAGE,
    )
    explaining_trust: tuple[Trust, ...] = setting(
        (Trust.OWNER,),
        "Trust levels of text that counts as an explanation of an argument. Default: only text of the owner.",
        effect=SettingEffect.MESSAGE,
    )


def parse_provenance_rules(table: Table) -> ProvenanceSettings:
    """Parse provenance rules that do not come from a settings file. Raises `InvalidSettings` with all errors."""
    faults, path = FaultCollector(), ("provenance",)
    found = parse_table(ProvenanceSettings, expect_table(table, path, faults), path, faults)
    if faults.count:
        raise InvalidSettings(faults.in_file_order())
    return ProvenanceSettings(**found)
