"""Parses the top-level sections of the settings file, and checks references to models and providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from retinue.config import validators
from retinue.config.connectors import parse_connectors
from retinue.config.errors import FaultCollector, KeyPath
from retinue.config.models import (
    KNOWN_PROVIDERS,
    PROVIDER_ALIASES,
    ModelChoice,
    ModelRoutingSettings,
    ProviderSettings,
)
from retinue.config.settings import TOP_LEVEL_SECTIONS, Settings
from retinue.config.table_parser import closest_match, expect_table, parse_table
from retinue.config.toml_source import Table, format_value

_GLOB_CHARS = frozenset("*?[")


def parse_top_level_sections(tree: Table, faults: FaultCollector) -> dict[str, Any]:
    """Parse the settings that have their own top-level section. Invalid values are reported and left out."""
    written = {name: tree[name] for name in TOP_LEVEL_SECTIONS if name in tree}
    others = [each.name for each in fields(Settings) if each.name not in TOP_LEVEL_SECTIONS]
    connectors = written.pop("connectors", None)
    found = parse_table(Settings, written, (), faults, leave_out=others)
    if connectors:
        found["connectors"] = parse_connectors(connectors, faults, allow_unknown=bool(found.get("plugins")))
    providers: Mapping[str, ProviderSettings] = found.get("providers", {})
    _check_providers(providers, faults)
    entries = expect_table(
        expect_table(tree.get("models", {}), ("models",), FaultCollector()).get("entries", {}), (), FaultCollector()
    )
    models: ModelRoutingSettings = found.get("models", ModelRoutingSettings())
    _check_entries(models, entries, faults)
    if not found.get("plugins"):
        _check_references(models, providers, faults)  # an unknown provider may come from a plugin
    return found


def _canonical_provider(name: str, providers: Mapping[str, ProviderSettings]) -> str:
    """Return the name of a provider as it is spelled in [providers], or else as the built-in provider is spelled."""
    folded = name.casefold()
    declared = {each.casefold(): each for each in providers}
    return declared.get(folded) or PROVIDER_ALIASES.get(folded, folded)


def _check_providers(providers: Mapping[str, ProviderSettings], faults: FaultCollector) -> None:
    seen: dict[str, str] = {}
    for name, provider in providers.items():
        path: KeyPath = ("providers", name)
        if wrong := validators.check_model_alias(name):
            faults.add(
                path, wrong, because="it is the part of a model's name before the /", try_this="[providers.mine]"
            )
        elif other := seen.get(name.casefold()):
            faults.add(
                path,
                f"already exists, as providers.{other}",
                because="provider names are case-insensitive",
                try_this="merge them",
            )
        elif provider.url is None and name.casefold() not in KNOWN_PROVIDERS:
            near = PROVIDER_ALIASES.get(name.casefold()) or closest_match(name, KNOWN_PROVIDERS)
            faults.add(
                (*path, "url"),
                "is missing",
                because="it is not a built-in provider, so its URL must be set",
                try_this=f"did you mean [providers.{near}]?" if near else 'set url = "https://HOST/v1"',
            )
        seen.setdefault(name.casefold(), name)
        for header, value in provider.headers.items():
            if isinstance(value, str) and not (value.isprintable() and value.isascii()):
                faults.add(
                    (*path, "headers", header),
                    "is not a valid header value",
                    because="a header value is one line of printable ASCII",
                    try_this="remove line breaks and special characters",
                )


def _check_entries(models: ModelRoutingSettings, written: Table, faults: FaultCollector) -> None:
    """Report model entries with an invalid name, and aliases that are set for several models."""
    aliases: dict[str, str] = {}
    for name in written:
        if wrong := validators.check_model_reference(name):
            faults.add(("models", "entries", name), wrong, because="it is the name of a model", try_this=_ENTRY_EXAMPLE)
    for name, entry in models.entries.items():
        alias = entry.alias
        if alias is None:
            continue
        if other := aliases.get(alias.casefold()):
            faults.add(
                ("models", "entries", name, "alias"),
                f"is {format_value(alias)}, which is already the alias of {other}",
                because="an alias must name one model",
                try_this="give one of them another alias",
            )
        aliases.setdefault(alias.casefold(), name)


_ENTRY_EXAMPLE = '[models.entries."anthropic/claude-opus-5-5"]'


def _check_references(
    models: ModelRoutingSettings, providers: Mapping[str, ProviderSettings], faults: FaultCollector
) -> None:
    known = KNOWN_PROVIDERS | {name.casefold() for name in providers}
    for path, text in _iterate_references(models):
        provider, slash, _ = text.partition("/")
        if (
            not slash
            or not provider
            or _GLOB_CHARS & set(provider)
            or _canonical_provider(provider, providers).casefold() in known
        ):
            continue
        near = closest_match(provider, known)
        faults.add(
            path,
            f"names the provider {format_value(provider)}, which does not exist",
            because="it is not a built-in provider, and [providers] does not declare it",
            try_this=f"did you mean `{near}`?" if near else f"declare it: [providers.{provider}], with its `url`",
        )


def _iterate_references(models: ModelRoutingSettings) -> Iterator[tuple[KeyPath, str]]:
    for name in ("default", "image", "utility"):
        choice: ModelChoice = getattr(models, name)
        if choice.primary is not None:
            yield ("models", name, "primary"), choice.primary
        for index, text in enumerate(choice.fallbacks):
            yield ("models", name, "fallbacks", index), text
    for index, text in enumerate(models.allow):
        yield ("models", "allow", index), text
    for name in models.entries:
        yield ("models", "entries", name), name
