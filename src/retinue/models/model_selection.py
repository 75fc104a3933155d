"""In which order an agent asks which models, which of them may be asked, and what a person can choose.

Made from the settings and the environment, and made anew when either changes. Nothing here is asked of a provider.
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
NAMED_MAX = 12  # of what could be used instead, in an error
HINT_LENGTH_MIN = 3  # characters of a part of a model's name

_NAME_PARTS = re.compile(r"[^a-z0-9]+")


class Role(StrEnum):
    """What a model is asked for: to think, or for small work beside it."""

    REASONING = "reasoning"
    UTILITY = "utility"


class Selection(Struct, frozen=True, kw_only=True):
    """What someone has chosen for a session. Without a `ref`: what the agent would use by itself."""

    ref: ModelRef | None = None
    credential: str | None = None


class Link(Struct, frozen=True, kw_only=True):
    """One model of a chain, and why it is there."""

    ref: ModelRef
    because: str


class Offer(Struct, frozen=True, kw_only=True):
    """One model to choose from, under the number that chooses it."""

    number: int
    facts: ModelFacts
    alias: str
    has_key: bool
    is_default: bool
    is_current: bool


class Catalog(Market):
    """The market, and what of it an agent asks. Immutable: other settings make another one."""

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

    # --- which may be asked, and in which order ---

    def allowed(self, ref: ModelRef) -> str:
        """Why a model may not be asked; empty where it may."""
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
        """Which models to ask for this agent, in this order, each once. Asked for every turn, so it is remembered."""
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
        """The chain, each with its because. Raises where the one that was asked for is not allowed, or is nobody's."""
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
            if self._is_usable(ref):  # what has come to be forbidden since is not asked any more
                return Link(ref=ref, because="chosen for this session")
        return self._asked_for(own.ref, own.because)

    def _own(self, agent: Agent) -> Link:
        if agent.provider is None and not agent.model:
            return Link(ref=self.default, because=self.default_because)
        return Link(ref=self.own_model(agent), because=f"what {agent.name} is set to")

    def own_model(self, agent: Agent) -> ModelRef:
        """What an agent is set to, its fallbacks left aside."""
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
        """What there is to choose from, always in the same order: the default, what the settings name, what is known of
        providers whose key is there, and the models of the house."""
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
        """What someone means who says REF, an alias, a number of the list, REF@CREDENTIAL, or `default`."""
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
        """What someone means who names a model in passing: one that can be chosen here, by its reference, its alias or
        its name, or by a part of the name that only one of them has. A number is just a number, and the house's own
        models, whose names are plain words, are meant only where the word stands `alone`."""
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
