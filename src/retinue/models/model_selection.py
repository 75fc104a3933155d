"""Selects models for an agent: in which order to try them, which are allowed, and which a person can choose.

The selection is built from the settings and the environment, and rebuilt when either changes. No
requests are made to providers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.config import Settings
from retinue.config.models import ModelChoice
from retinue.domain.agent import Agent
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.session import SessionOptions
from retinue.domain.structs import replace
from retinue.models.errors import AgentModelMissing, ModelNotAllowed, ModelNumberInvalid
from retinue.models.model_catalog import ModelCatalog
from retinue.models.model_refs import DEFAULT, ModelAllowlist, is_pattern, split_credential
from retinue.models.providers import BUILT_IN_PROVIDERS, OFFERED_MODELS

CHAINS_CACHED_MAX = 1_000
HINT_LENGTH_MIN = 3  # minimum characters of a word that may match a part of a model's name

_NAME_PARTS = re.compile(r"[^a-z0-9]+")


class ModelRole(StrEnum):
    """The purpose of a model call: reasoning, or small auxiliary work."""

    REASONING = "reasoning"
    UTILITY = "utility"


class ModelSelection(Struct, frozen=True, kw_only=True):
    """The model that a person chose for a session. Without a `ref`, the agent's model applies."""

    ref: ModelRef | None = None
    credential: str | None = None


class ModelChainLink(Struct, frozen=True, kw_only=True):
    """One model that an agent may use, and the reason why it is in the agent's chain of models."""

    ref: ModelRef
    because: str


class ModelOffer(Struct, frozen=True, kw_only=True):
    """One model that a person can choose, with its number in the list."""

    number: int
    facts: ModelFacts
    alias: str
    has_key: bool
    is_default: bool
    is_current: bool


class ModelSelector(ModelCatalog):
    """The model catalog, extended with the choice of models for agents and people.

    Immutable: changed settings need a new object.
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
        super().__init__(settings, environment, now=now, built_in=built_in, providers_with_key=providers_with_key)
        self.allow = settings.models.allow
        self._allowlist = ModelAllowlist(self.allow, self.resolve)
        self._chains: dict[tuple[object, ...], tuple[ModelRef, ...]] = {}

    # --- allowed models, and their order ---

    def explain_not_allowed(self, ref: ModelRef) -> str:
        """Explain why a model is not allowed. Empty if it is allowed."""
        if not ref.provider or ref == self.default or self._allowlist.allows(ref):
            return ""
        return f"`models.allow` allows {self._allowlist.describe()}, and the default {self.default}"

    def build_chain(
        self,
        *,
        agent: Agent,
        session_options: SessionOptions,
        override: str | None = None,
        has_images: bool = False,
        role: ModelRole = ModelRole.REASONING,
    ) -> tuple[ModelRef, ...]:
        """Return the models to try for this agent, in order, without duplicates.

        Called for every turn, so it is cached.
        """
        asked = (
            agent.name,
            agent.provider,
            agent.model,
            agent.fallbacks,
            session_options.model,
            override,
            has_images,
            role,
        )
        kept = self._chains.get(asked)
        if kept is None:
            links = self.build_chain_links(
                agent=agent, session_options=session_options, override=override, has_images=has_images, role=role
            )
            kept = tuple(link.ref for link in links)
            if len(self._chains) >= CHAINS_CACHED_MAX:
                self._chains.clear()
            self._chains[asked] = kept
        return kept

    def build_chain_links(
        self,
        *,
        agent: Agent,
        session_options: SessionOptions,
        override: str | None = None,
        has_images: bool = False,
        role: ModelRole = ModelRole.REASONING,
    ) -> tuple[ModelChainLink, ...]:
        """Return the models to try for this agent, each with its reason.

        Raises if the requested model is not allowed or unknown.
        """
        own = self._build_own_link(agent)
        first = self._find_first_link(own, session_options, override)
        links = [first, *self._iterate_fallbacks(agent)]
        if first.ref != own.ref and self._is_usable(own.ref):
            links.append(replace(own, because=f"{own.because}; last, because another model was chosen"))
        models = self._settings.models
        if has_images and not self._get_facts_without_price(first.ref).vision:
            links = [*self._iterate_choice(models.image, "can read images, which the next model cannot"), *links]
        if role is ModelRole.UTILITY:
            links = [*self._iterate_choice(models.utility, "for auxiliary work"), *links]
        seen: dict[ModelRef, ModelChainLink] = {}
        for link in links:
            seen.setdefault(link.ref, link)
        return tuple(seen.values())

    def _find_first_link(
        self, own: ModelChainLink, session_options: SessionOptions, override: str | None
    ) -> ModelChainLink:
        if override is not None and override != DEFAULT:
            return self._require_usable(self.resolve(override), "chosen for this run")
        if session_options.model is not None:
            ref = self.resolve(session_options.model)
            if self._is_usable(ref):  # a model that is no longer allowed is skipped
                return ModelChainLink(ref=ref, because="chosen for this session")
        return self._require_usable(own.ref, own.because)

    def _build_own_link(self, agent: Agent) -> ModelChainLink:
        if agent.provider is None and not agent.model:
            return ModelChainLink(ref=self.default, because=self.default_because)
        return ModelChainLink(ref=self.resolve_own_model(agent), because=f"the model of {agent.name}")

    def resolve_own_model(self, agent: Agent) -> ModelRef:
        """Return the model that an agent is set to use, ignoring its fallbacks."""
        if agent.provider is None:
            return self.resolve(agent.model) if agent.model else self.default
        provider = self.normalize_provider(agent.provider)
        model = agent.model or self.get_default_model(provider)
        if not model:
            raise AgentModelMissing(agent.name, provider=provider)
        if (named := self._aliases.get(model.casefold())) is not None and named.provider == provider:
            return named
        ref = self.resolve_without_aliases(model) if "/" in model else ModelRef(provider, model)
        return ref if ref.provider == provider else ModelRef(provider, model)

    def _require_usable(self, ref: ModelRef, because: str) -> ModelChainLink:
        if not self.is_known(ref):
            raise self._build_unknown_error(ref)
        if forbidden := self.explain_not_allowed(ref):
            raise self._build_not_allowed_error(ref, forbidden)
        return ModelChainLink(ref=ref, because=because)

    def _is_usable(self, ref: ModelRef) -> bool:
        return self.is_known(ref) and not self.explain_not_allowed(ref)

    def _iterate_fallbacks(self, agent: Agent) -> Iterator[ModelChainLink]:
        if agent.fallbacks is None:
            yield from self._iterate_usable(self._settings.models.default.fallbacks, "a fallback of the server")
        else:
            yield from self._iterate_usable(agent.fallbacks, f"a fallback of {agent.name}")

    def _iterate_choice(self, choice: ModelChoice, because: str) -> Iterator[ModelChainLink]:
        if choice.primary is not None:
            yield from self._iterate_usable((choice.primary,), because)
        yield from self._iterate_usable(choice.fallbacks, because)

    def _iterate_usable(self, texts: Iterable[str], because: str) -> Iterator[ModelChainLink]:
        for text in texts:
            ref = self.resolve(text)
            if self._is_usable(ref):
                yield ModelChainLink(ref=ref, because=because)

    # --- what a person can choose ---

    def list_offers(self, current: ModelRef | None = None) -> list[ModelOffer]:
        """Return the models that a person can choose from, always in the same order.

        First comes the default, then models in the settings, those of providers with a key, and the
        built-in models.
        """
        return [
            ModelOffer(
                number=number,
                facts=self.get_facts(ref),
                alias=self.get_alias(ref),
                has_key=self.has_key(ref.provider),
                is_default=ref == self.default,
                is_current=ref == current,
            )
            for number, ref in enumerate(self._list_offered(), start=1)
        ]

    def parse_selection(self, text: str) -> ModelSelection:
        """Parse a person's choice of a model: REF, an alias, a number from the list, REF@CREDENTIAL, or `default`."""
        choice = text.strip()
        if choice.casefold() == DEFAULT:
            return ModelSelection()
        if choice.isdecimal():
            return ModelSelection(ref=self._get_offered(choice))
        named, credential = (choice, None) if choice.casefold() in self._aliases else split_credential(choice)
        ref = self._require_usable(self.resolve(named), "").ref
        if credential is not None and ":" not in credential:
            credential = f"{ref.provider}:{credential}"
        return ModelSelection(ref=ref, credential=credential)

    def find_hinted_model(self, word: str, *, alone: bool) -> ModelRef | None:
        """Return the model that a word in a message refers to, if it is unambiguous.

        The word may be a reference, an alias or the name of an offered model. It may also be a part
        of a name, if no other offered model has this part. A number never matches. Names of
        built-in models are ordinary words, so they match only if the word is `alone` in its message.
        """
        hint = word.casefold()
        offered = [ref for ref in self._list_offered() if ref.provider or alone]
        for ref in offered:
            if hint and hint in ((self.get_alias(ref) or "").casefold(), str(ref).casefold(), ref.model.casefold()):
                return ref
        if len(hint) < HINT_LENGTH_MIN or not hint.isalpha():
            return None
        fitting = [ref for ref in offered if hint in _NAME_PARTS.split(ref.model.casefold())]
        return fitting[0] if len(fitting) == 1 else None

    def _get_offered(self, number: str) -> ModelRef:
        offered = self._list_offered()
        if len(number) > 6 or not 0 < int(number) <= len(offered):
            raise ModelNumberInvalid(number, count=len(offered))
        return offered[int(number) - 1]

    def _list_offered(self) -> list[ModelRef]:
        models = self._settings.models
        choices = (models.default, models.image, models.utility)
        named = [text for choice in choices for text in (choice.primary, *choice.fallbacks) if text is not None]
        exact = [text for text in models.allow if not is_pattern(text)]
        known = [
            ModelRef(name, model)
            for name in BUILT_IN_PROVIDERS
            if self.has_key(name)
            for model in OFFERED_MODELS.get(name, ())
        ]
        found = [self.default, *map(self.resolve, named), *self._entries, *map(self.resolve, exact), *known]
        built_in = [facts.ref for facts in self._built_in.values()]
        return [ref for ref in dict.fromkeys([*found, *built_in]) if self._is_usable(ref)]

    def _build_not_allowed_error(self, ref: ModelRef, because: str) -> ModelNotAllowed:
        usable = [self.get_alias(each) or str(each) for each in self._list_offered()]
        return ModelNotAllowed(ref, because=because, usable=usable)
