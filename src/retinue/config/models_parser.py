"""Parses the top-level sections of the file, and checks that providers, models and references fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from retinue.config import validators
from retinue.config.connectors import read_connectors
from retinue.config.errors import Faults, KeyPath
from retinue.config.models import PROVIDER_ALIASES, PROVIDERS, ModelChoice, Models, ProviderSettings
from retinue.config.settings import OWN_SECTIONS, Settings
from retinue.config.table_parser import nearest, table_at, values
from retinue.config.toml_source import Table, shown

_GLOBS = frozenset("*?[")


def read_minds(tree: Table, faults: Faults) -> dict[str, Any]:
    """Parse the settings that have a top-level section. Invalid values are reported and left out."""
    written = {name: tree[name] for name in OWN_SECTIONS if name in tree}
    others = [each.name for each in fields(Settings) if each.name not in OWN_SECTIONS]
    connectors = written.pop("connectors", None)
    found = values(Settings, written, (), faults, leave_out=others)
    if connectors:
        found["connectors"] = read_connectors(connectors, faults, guests=bool(found.get("plugins")))
    providers: Mapping[str, ProviderSettings] = found.get("providers", {})
    _check_providers(providers, faults)
    entries = table_at(table_at(tree.get("models", {}), ("models",), Faults()).get("entries", {}), (), Faults())
    models: Models = found.get("models", Models())
    _check_entries(models, entries, faults)
    if not found.get("plugins"):
        _check_references(models, providers, faults)  # otherwise an unknown provider may come from a plugin
    return found


def _known_provider(name: str, providers: Mapping[str, ProviderSettings]) -> str:
    """Return a provider's canonical spelling: as declared, otherwise as built in."""
    folded = name.casefold()
    declared = {each.casefold(): each for each in providers}
    return declared.get(folded) or PROVIDER_ALIASES.get(folded, folded)


def _check_providers(providers: Mapping[str, ProviderSettings], faults: Faults) -> None:
    seen: dict[str, str] = {}
    for name, provider in providers.items():
        path: KeyPath = ("providers", name)
        if wrong := validators.model_alias(name):
            faults.add(
                path, wrong, because="it is the part of a model's name before the /", try_this="[providers.mine]"
            )
        elif other := seen.get(name.casefold()):
            faults.add(
                path,
                f"is there already, as providers.{other}",
                because="capitals do not tell providers apart",
                try_this="make them one",
            )
        elif provider.url is None and name.casefold() not in PROVIDERS:
            near = PROVIDER_ALIASES.get(name.casefold()) or nearest(name, PROVIDERS)
            faults.add(
                (*path, "url"),
                "is missing",
                because="the house knows no provider of that name, so nothing says where it is reached",
                try_this=f"did you mean [providers.{near}]?" if near else 'url = "https://HOST/v1"',
            )
        seen.setdefault(name.casefold(), name)
        for header, value in provider.headers.items():
            if isinstance(value, str) and not (value.isprintable() and value.isascii()):
                faults.add(
                    (*path, "headers", header),
                    "holds what no header can",
                    because="a header is one line of plain characters",
                    try_this="take line ends and special characters out",
                )


def _check_entries(models: Models, written: Table, faults: Faults) -> None:
    """Report invalid references and duplicate aliases: an alias must mean one model."""
    aliases: dict[str, str] = {}
    for name in written:
        if wrong := validators.model_reference(name):
            faults.add(("models", "entries", name), wrong, because="it says which model is meant", try_this=_ENTRY_SO)
    for name, entry in models.entries.items():
        alias = entry.alias
        if alias is None:
            continue
        if other := aliases.get(alias.casefold()):
            faults.add(
                ("models", "entries", name, "alias"),
                f"is {shown(alias)}, which is the alias of {other} already",
                because="a short name means one model",
                try_this="give one of them another alias",
            )
        aliases.setdefault(alias.casefold(), name)


_ENTRY_SO = '[models.entries."anthropic/claude-opus-5-5"]'


def _check_references(models: Models, providers: Mapping[str, ProviderSettings], faults: Faults) -> None:
    known = PROVIDERS | {name.casefold() for name in providers}
    for path, text in _references(models):
        provider, slash, _ = text.partition("/")
        if (
            not slash
            or not provider
            or _GLOBS & set(provider)
            or _known_provider(provider, providers).casefold() in known
        ):
            continue
        near = nearest(provider, known)
        faults.add(
            path,
            f"names the provider {shown(provider)}, which is not there",
            because="the house does not know it, and no [providers] declares it",
            try_this=f"did you mean `{near}`?" if near else f"declare it: [providers.{provider}], with its `url`",
        )


def _references(models: Models) -> Iterator[tuple[KeyPath, str]]:
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
