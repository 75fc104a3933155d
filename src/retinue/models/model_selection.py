"""Selects models for an agent: the order to try them, which are allowed, and what a person can choose.

Built from the settings and the environment, and rebuilt when either changes. It makes no requests
to providers.
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
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.model import ModelFacts, ModelRef
from retinue.domain.session import Mind
from retinue.domain.structs import replace
from retinue.models.model_catalog import Market
from retinue.models.model_refs import DEFAULT, Allowed, is_pattern, split_credential
from retinue.models.providers import BUILT_IN, OFFERED

CHAINS_KEPT_MAX = 1_000
NAMED_MAX = 12  # alternatives listed in an error
HINT_LENGTH_MIN = 3  # characters of a part of a model's name

_NAME_PARTS = re.compile(r"[^a-z0-9]+")


class Role(StrEnum):
    """The purpose of a model call: reasoning, or small auxiliary work."""

    REASONING = "reasoning"
    UTILITY = "utility"


class Selection(Struct, frozen=True, kw_only=True):
    """What was chosen for a session. Without a `ref`: the agent's own model."""

    ref: ModelRef | None = None
    credential: str | None = None


class Link(Struct, frozen=True, kw_only=True):
    """One model of a chain, and the reason it is there."""

    ref: ModelRef
    because: str


class Offer(Struct, frozen=True, kw_only=True):
    """One model to choose from, with its number in the list."""

    number: int
    facts: ModelFacts
    alias: str
    has_key: bool
    is_default: bool
    is_current: bool


class Catalog(Market):
    """The catalog, with the selection for agents and people. Immutable: other settings make another object."""

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        house: Sequence[ModelFacts] = (),
        keyed: Iterable[str] = (),
    ) -> None:
        super().__init__(settings, environment, now=now, house=house, keyed=keyed)
        self.allow = settings.models.allow
        self._allowed = Allowed(self.allow, self.resolve)
        self._chains: dict[tuple[object, ...], tuple[ModelRef, ...]] = {}

    # --- allowed models, and their order ---

    def allowed(self, ref: ModelRef) -> str:
        """Explain why a model is not allowed; empty if it is."""
        if not ref.provider or ref == self.default or self._allowed.fits(ref):
            return ""
        return f"`models.allow` names {self._allowed.words()}, and {self.default} is the default"

    def chain(
        self,
        *,
        agent: Agent,
        mind: Mind,
        override: str | None = None,
        images: bool = False,
        role: Role = Role.REASONING,
    ) -> tuple[ModelRef, ...]:
        """Return the models to try for this agent, in order, without duplicates.

        Called for every turn, so it is cached.
        """
        asked = (agent.name, agent.provider, agent.model, agent.fallbacks, mind.model, override, images, role)
        kept = self._chains.get(asked)
        if kept is None:
            links = self.links(agent=agent, mind=mind, override=override, images=images, role=role)
            kept = tuple(link.ref for link in links)
            if len(self._chains) >= CHAINS_KEPT_MAX:
                self._chains.clear()
            self._chains[asked] = kept
        return kept

    def links(
        self,
        *,
        agent: Agent,
        mind: Mind,
        override: str | None = None,
        images: bool = False,
        role: Role = Role.REASONING,
    ) -> tuple[Link, ...]:
        """Return the chain, each model with its reason. Raises if the requested model is not allowed or unknown."""
        own = self._own(agent)
        first = self._first(own, mind, override)
        links = [first, *self._fallbacks(agent)]
        if first.ref != own.ref and self._is_usable(own.ref):
            links.append(replace(own, because=f"{own.because}, asked last: another was chosen"))
        models = self._settings.models
        if images and not self._facts(first.ref).vision:
            links = [*self._choice(models.image, "sees images, which the next cannot"), *links]
        if role is Role.UTILITY:
            links = [*self._choice(models.utility, "for small work"), *links]
        seen: dict[ModelRef, Link] = {}
        for link in links:
            seen.setdefault(link.ref, link)
        return tuple(seen.values())

    def _first(self, own: Link, mind: Mind, override: str | None) -> Link:
        if override is not None and override != DEFAULT:
            return self._asked_for(self.resolve(override), "chosen for this run")
        if mind.model is not None:
            ref = self.resolve(mind.model)
            if self._is_usable(ref):  # a model that is no longer allowed is skipped
                return Link(ref=ref, because="chosen for this session")
        return self._asked_for(own.ref, own.because)

    def _own(self, agent: Agent) -> Link:
        if agent.provider is None and not agent.model:
            return Link(ref=self.default, because=self.default_because)
        return Link(ref=self.own_model(agent), because=f"what {agent.name} is set to")

    def own_model(self, agent: Agent) -> ModelRef:
        """Return the model an agent is set to, without fallbacks."""
        if agent.provider is None:
            return self.resolve(agent.model) if agent.model else self.default
        provider = self.provider_name(agent.provider)
        model = agent.model or self.default_model_of(provider)
        if not model:
            raise Invalid(
                f"{agent.name} has the provider {provider}, and no model",
                because="the house knows no model of that provider by itself",
                try_this=f"retinue agent set {agent.name} --model NAME",
                code="model.ref-invalid",
            )
        if (named := self._aliases.get(model.casefold())) is not None and named.provider == provider:
            return named
        ref = self.reference(model) if "/" in model else ModelRef(provider, model)
        return ref if ref.provider == provider else ModelRef(provider, model)

    def _asked_for(self, ref: ModelRef, because: str) -> Link:
        if not self.knows(ref):
            raise self._unknown_provider(ref)
        if forbidden := self.allowed(ref):
            raise self._not_allowed(ref, forbidden)
        return Link(ref=ref, because=because)

    def _is_usable(self, ref: ModelRef) -> bool:
        return self.knows(ref) and not self.allowed(ref)

    def _fallbacks(self, agent: Agent) -> Iterator[Link]:
        if agent.fallbacks is None:
            yield from self._usable(self._settings.models.default.fallbacks, "a fallback of the house")
        else:
            yield from self._usable(agent.fallbacks, f"a fallback of {agent.name}")

    def _choice(self, choice: ModelChoice, because: str) -> Iterator[Link]:
        if choice.primary is not None:
            yield from self._usable((choice.primary,), because)
        yield from self._usable(choice.fallbacks, because)

    def _usable(self, texts: Iterable[str], because: str) -> Iterator[Link]:
        for text in texts:
            ref = self.resolve(text)
            if self._is_usable(ref):
                yield Link(ref=ref, because=because)

    # --- what a person can choose ---

    def numbered(self, current: ModelRef | None = None) -> list[Offer]:
        """Return the models to choose from, always in the same order.

        The order: the default, those in the settings, those of providers with a key, the built-in
        models.
        """
        return [
            Offer(
                number=number,
                facts=self.facts(ref),
                alias=self.alias_of(ref),
                has_key=self.has_key(ref.provider),
                is_default=ref == self.default,
                is_current=ref == current,
            )
            for number, ref in enumerate(self._offered(), start=1)
        ]

    def choose(self, text: str) -> Selection:
        """Parse a choice: REF, an alias, a number of the list, REF@CREDENTIAL, or `default`."""
        said = text.strip()
        if said.casefold() == DEFAULT:
            return Selection()
        if said.isdecimal():
            return Selection(ref=self._at(said))
        named, credential = (said, None) if said.casefold() in self._aliases else split_credential(said)
        ref = self._asked_for(self.resolve(named), "").ref
        if credential is not None and ":" not in credential:
            credential = f"{ref.provider}:{credential}"
        return Selection(ref=ref, credential=credential)

    def hinted(self, word: str, *, alone: bool) -> ModelRef | None:
        """Return the model that a word in a message refers to, if it is unambiguous.

        Matches a reference, an alias or a name of a model on offer, or a part of a name that only
        one has. A number never matches. The names of built-in models are plain words, so they match
        only if the word is `alone`.
        """
        said = word.casefold()
        offered = [ref for ref in self._offered() if ref.provider or alone]
        for ref in offered:
            if said and said in ((self.alias_of(ref) or "").casefold(), str(ref).casefold(), ref.model.casefold()):
                return ref
        if len(said) < HINT_LENGTH_MIN or not said.isalpha():
            return None
        fitting = [ref for ref in offered if said in _NAME_PARTS.split(ref.model.casefold())]
        return fitting[0] if len(fitting) == 1 else None

    def _at(self, number: str) -> ModelRef:
        offered = self._offered()
        if len(number) > 6 or not 0 < int(number) <= len(offered):
            raise NotFound(
                f"there is no model {number[:20]} in the list",
                because=f"it goes from 1 to {len(offered)}",
                try_this="look at the list again: /model",
                code="model.not-found",
            )
        return offered[int(number) - 1]

    def _offered(self) -> list[ModelRef]:
        models = self._settings.models
        choices = (models.default, models.image, models.utility)
        named = [text for choice in choices for text in (choice.primary, *choice.fallbacks) if text is not None]
        exact = [text for text in models.allow if not is_pattern(text)]
        known = [ModelRef(name, model) for name in BUILT_IN if self.has_key(name) for model in OFFERED.get(name, ())]
        found = [self.default, *map(self.resolve, named), *self._entries, *map(self.resolve, exact), *known]
        house = [facts.ref for facts in self._house.values()]
        return [ref for ref in dict.fromkeys([*found, *house]) if self._is_usable(ref)]

    def _not_allowed(self, ref: ModelRef, because: str) -> NotAllowed:
        usable = [self.alias_of(each) or str(each) for each in self._offered()]
        more = f" and {len(usable) - NAMED_MAX} more" if len(usable) > NAMED_MAX else ""
        return NotAllowed(
            f"{ref} may not be used in this house",
            because=because,
            try_this=f"choose one of {', '.join(usable[:NAMED_MAX])}{more}, or let the owner add it to `models.allow`",
            code="model.not-allowed",
        )
