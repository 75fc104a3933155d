"""The model catalog: providers, models and what is known about them, from the settings, the
environment and built-in data.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from retinue.config import SecretReference, Settings
from retinue.config.models import PROVIDER_ALIASES, ModelEntry, ProviderAuth, ProviderSettings, WireFormat
from retinue.domain.errors import NotFound
from retinue.domain.model import EFFORTS, FREE_PRICE, ModelFacts, ModelRef, Price
from retinue.domain.shared_errors import ProviderNotFound
from retinue.models import prices
from retinue.models.errors import BuiltInModelNotFound, EffortInvalid, LocalModelNotInstalled
from retinue.models.model_refs import DEFAULT, parse_model_ref
from retinue.models.provider_http import ModelTarget
from retinue.models.providers import (
    BUILT_IN_PROVIDERS,
    DEFAULT_PROVIDER_ORDER,
    IN_PROCESS_PROVIDERS,
    IN_PROCESS_WINDOW_TOKENS,
    Provider,
    find_family,
)
from retinue.models.retired_models import find_retirement

GUIDE = "guide"
LOCAL = "local"  # built in if its weights are installed
DEFAULT_PROVIDER = "anthropic"
_UNKNOWN_PROVIDER = Provider(url="")
_NO_SETTINGS = ProviderSettings()
_NO_ENTRY = ModelEntry()


class ModelCatalog:
    """Looks up the models and providers of one configuration.

    Immutable. `built_in` are the models that ship with the server, such as the guide: they need no provider and no key.
    `providers_with_key` are providers whose key is stored outside the settings and the environment.
    """

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        built_in: Sequence[ModelFacts] = (),
        providers_with_key: Iterable[str] = (),
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._now = now
        self._built_in = {facts.ref.model: facts for facts in built_in}
        self.providers = {name.casefold(): each for name, each in settings.providers.items()}
        self._providers_with_key = frozenset(providers_with_key)
        self._default_provider = DEFAULT_PROVIDER
        # Twice: the provider of a bare name is known only once the default is found.
        self._resolve_entries()
        self.default, self.default_because = self._find_default()
        if self.default.provider and self.default.provider != self._default_provider:
            self._default_provider = self.default.provider
            self._resolve_entries()

    def _resolve_entries(self) -> None:
        self._entries = {
            self.resolve_without_aliases(name): entry for name, entry in self._settings.models.entries.items()
        }
        self._aliases = {entry.alias.casefold(): ref for ref, entry in self._entries.items() if entry.alias is not None}

    # --- names ---

    def resolve(self, text: str) -> ModelRef:
        """Return the model that `text` refers to.

        `text` is an alias, PROVIDER/MODEL, the name of a built-in model, or the name of a model
        of the default provider.
        """
        named = self._aliases.get(text.strip().casefold())
        return named if named is not None else self.resolve_without_aliases(text)

    def resolve_without_aliases(self, text: str) -> ModelRef:
        """Return the model that `text` refers to, like `resolve`, but ignore aliases."""
        provider, model = parse_model_ref(text)
        if provider:
            return ModelRef(self.normalize_provider(provider), model)
        if model in self._built_in or model in (GUIDE, LOCAL):
            return ModelRef("", model)
        return ModelRef(self._default_provider, model)

    def normalize_provider(self, name: str) -> str:
        """Return the canonical name of a provider.

        A provider in the settings with exactly this name wins over an alias.
        """
        folded = name.casefold()
        return folded if folded in self.providers else PROVIDER_ALIASES.get(folded, folded)

    def get_alias(self, ref: ModelRef) -> str:
        entry = self._entries.get(ref, _NO_ENTRY)
        return entry.alias or ""

    # --- facts ---

    def get_default_model(self, provider: str) -> str:
        """Return the default model of a provider, or an empty string if the provider has none.

        From the model's retirement date on, its replacement is returned.
        """
        model = BUILT_IN_PROVIDERS.get(provider, _UNKNOWN_PROVIDER).default_model
        ends = find_retirement(ModelRef(provider, model))
        return ends.replacement.model if ends is not None and ends.retired_on <= self._now().date() else model

    def is_known(self, ref: ModelRef) -> bool:
        """Whether the provider of a model is known. Whether the provider offers this model is not checked.

        Models that run inside this server (a file, a library) are known only if they are named in
        the settings.
        """
        if ref.provider in IN_PROCESS_PROVIDERS:
            return ref in self._entries
        return ref.model in self._built_in if not ref.provider else self._is_provider(ref.provider)

    def get_entry(self, ref: ModelRef) -> ModelEntry:
        """Return what the settings say about a model."""
        return self._entries.get(ref, _NO_ENTRY)

    def get_facts(self, ref: ModelRef) -> ModelFacts:
        """Return what is known about a model: from its own settings, then its provider's, then built-in data."""
        facts = self._get_facts_without_price(ref)
        return facts if facts.price is not None else replace(facts, price=self._find_price(ref))

    def _get_facts_without_price(self, ref: ModelRef) -> ModelFacts:
        """Return the facts of a model like `get_facts`, but do not look up its price, because that may take a while."""
        entry = self._entries.get(ref, _NO_ENTRY)
        if not ref.provider:
            return self._apply_entry(self._built_in.get(ref.model) or ModelFacts(ref=ref, price=FREE_PRICE), entry)
        facts = ModelFacts(ref=ref)
        if ref.provider in IN_PROCESS_PROVIDERS:
            facts = replace(facts, window_tokens=IN_PROCESS_WINDOW_TOKENS)
        if (family := find_family(ref.model)) is not None:
            facts = replace(
                facts,
                window_tokens=family.window_tokens,
                output_tokens_max=family.output_tokens_max,
                vision=family.vision,
                tools=family.tools,
                efforts=family.efforts,
            )
        own = self.providers.get(ref.provider, _NO_SETTINGS)
        return self._apply_entry(replace(facts, window_tokens=own.window_tokens or facts.window_tokens), entry)

    def get_params(self, ref: ModelRef) -> Mapping[str, Any]:
        """Return the parameters from the settings that are added, unchanged, to each request to a model."""
        return self._entries.get(ref, _NO_ENTRY).params

    def build_target(self, ref: ModelRef) -> tuple[WireFormat, ModelTarget]:
        """Return what is needed to call a model: its wire format, URL and options."""
        if not self.is_known(ref) or not ref.provider:
            raise self._build_unknown_error(ref)
        known = BUILT_IN_PROVIDERS.get(ref.provider, _UNKNOWN_PROVIDER)
        own = self.providers.get(ref.provider, _NO_SETTINGS)
        family = find_family(ref.model)
        models = self._settings.models
        target = ModelTarget(
            facts=self.get_facts(ref),
            url=(own.url or known.url).rstrip("/"),
            auth=own.auth,
            headers={name: self._read_header(value) for name, value in own.headers.items()},
            params=self.get_params(ref),
            quirks=frozenset(map(str, {*own.quirks, *(family.quirks if family else ())})),
            first_byte_s=models.first_byte_timeout_s,
            silence_s=models.stream_idle_timeout_s,
        )
        return own.format or known.format, target

    def check_effort(self, ref: ModelRef, effort: str | None) -> None:
        """Raise if this reasoning effort does not exist, or if the model is known not to support it."""
        if effort is None or effort == DEFAULT:
            return
        takes = self._get_facts_without_price(ref).efforts
        if effort in EFFORTS and (takes is None or effort in takes):
            return
        if effort == "none" and takes == ():  # it does not think anyway
            return
        raise EffortInvalid(ref, effort, supported=EFFORTS if effort not in EFFORTS or takes is None else takes)

    def describe_retirement(self, ref: ModelRef) -> str:
        """Describe when a model retires or retired, and its replacement. Empty if no retirement is known."""
        known = find_retirement(ref)
        return "" if known is None else known.describe(self._now().date())

    def get_display_name(self, provider: str) -> str:
        """Return the display name of a provider. Empty if it has none."""
        return self.providers.get(provider, _NO_SETTINGS).name or ""

    # --- keys ---

    @cached_property
    def key_variables(self) -> dict[str, tuple[str, ...]]:
        """The environment variables that may hold a key, by built-in provider."""
        return {name: provider.key_variables for name, provider in BUILT_IN_PROVIDERS.items() if provider.key_variables}

    @cached_property
    def key_secrets(self) -> dict[str, SecretReference]:
        """References to the keys in the settings, by provider."""
        return {name: each.key for name, each in self.providers.items() if each.key is not None}

    def needs_key(self, provider: str) -> bool:
        """Whether a provider refuses calls without a key. A provider with a custom URL may need no key."""
        own = self.providers.get(provider, _NO_SETTINGS)
        if own.auth is ProviderAuth.NONE:
            return False
        if own.key is not None or own.auth is not None:
            return True
        has_own_way = own.url is not None or any(isinstance(value, SecretReference) for value in own.headers.values())
        return bool(BUILT_IN_PROVIDERS.get(provider, _UNKNOWN_PROVIDER).key_variables) and not has_own_way

    def has_key(self, provider: str) -> bool:
        """Whether a provider has a key or needs none."""
        return (
            not self.needs_key(provider)
            or provider in self._providers_with_key
            or not self.explain_missing_key(provider)
        )

    def explain_missing_key(self, provider: str) -> str:
        """Return what to set so that a provider has a key. Empty if it has a key."""
        own = self.providers.get(provider, _NO_SETTINGS).key
        if own is not None:
            return "" if own.file or self._environment.get(own.env or "") else f"set {own.env}"
        variables = BUILT_IN_PROVIDERS.get(provider, _UNKNOWN_PROVIDER).key_variables
        if any(self._environment.get(name) for name in variables):
            return ""
        return f"set {' or '.join(variables)}" if variables else f"set `key` under [providers.{provider}]"

    # --- internal ---

    def _find_default(self) -> tuple[ModelRef, str]:
        primary = self._settings.models.default.primary
        if primary is not None:
            return self.resolve(primary), "the server's default (`models.default`)"
        for name in DEFAULT_PROVIDER_ORDER:
            if self.has_key(name):
                model = ModelRef(name, self.get_default_model(name))
                return model, f"there is a key for {name}, and `models.default` is not set"
        for ref in self._entries:
            if self.is_known(ref) and self.has_key(ref.provider):
                return ref, "the first usable model of `models.entries`, and `models.default` is not set"
        return ModelRef("", GUIDE), "there is no key for any provider, so the offline guide answers"

    def _is_provider(self, name: str) -> bool:
        return name in BUILT_IN_PROVIDERS or name in self.providers

    def _apply_entry(self, facts: ModelFacts, entry: ModelEntry) -> ModelFacts:
        return replace(
            facts,
            window_tokens=entry.window_tokens or facts.window_tokens,
            output_tokens_max=min(
                entry.output_tokens_max or facts.output_tokens_max, entry.window_tokens or facts.window_tokens
            ),
            vision=facts.vision if entry.vision is None else entry.vision,
            tools=facts.tools if entry.tools is None else entry.tools,
            efforts=facts.efforts if entry.efforts is None else entry.efforts,
            price=prices.read_price_setting(entry) or facts.price,
        )

    @property
    def needs_price_lookup(self) -> bool:
        """Whether the price of the default model still has to be looked up."""
        known = BUILT_IN_PROVIDERS.get(self.default.provider)
        return known is not None and not known.is_local and self._get_facts_without_price(self.default).price is None

    def _find_price(self, ref: ModelRef) -> Price | None:
        known = BUILT_IN_PROVIDERS.get(ref.provider)
        if known is None:  # its name may resemble another provider's, but its prices may differ
            return None
        if known.is_local:
            return (
                FREE_PRICE if _is_local_url(self.providers.get(ref.provider, _NO_SETTINGS).url or known.url) else None
            )
        return prices.find_known_price(ref, self._now().date())

    def _read_header(self, value: str | SecretReference) -> str:
        return value.read(self._environment) if isinstance(value, SecretReference) else value

    def _build_unknown_error(self, ref: ModelRef) -> NotFound:
        if ref == ModelRef("", LOCAL):
            return LocalModelNotInstalled()
        if not ref.provider:
            return BuiltInModelNotFound(ref.model, built_in=sorted(self._built_in))
        return ProviderNotFound(ref.provider, known=sorted({*BUILT_IN_PROVIDERS, *self.providers}))


def _is_local_url(url: str) -> bool:
    """Whether a URL is on this machine or in a private network."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
