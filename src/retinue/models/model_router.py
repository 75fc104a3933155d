"""The model router: picks models, credentials and limits for an agent, and records the results of calls.

It connects catalog, credentials and fallback plan with the store: it reads what they need, and
writes what happened.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.config import Settings
from retinue.domain.agent import Agent
from retinue.domain.credential import Credential, Mark
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelRef
from retinue.domain.money import Caps
from retinue.domain.ports import Clock
from retinue.domain.record import Reply
from retinue.domain.session import Mind, Session
from retinue.domain.times import to_ms
from retinue.models.base import Model, WireCache
from retinue.models.credential_order import Keyring, gather, key_of, let_go, served
from retinue.models.fallback import Plan, plan, why_now
from retinue.models.fallback_actions import Candidate
from retinue.models.model_clients import Maker, Shelf
from retinue.models.model_selection import Catalog, Role
from retinue.models.provider_http import Link
from retinue.models.provider_limits import Limits
from retinue.policy.limits.budgets import caps_of
from retinue.policy.limits.cooldowns import States, cooled
from retinue.store.agents import credentials
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

KNOWN_FOR_S = 1.0  # how long credentials are cached after reading: another process may write too
USE_WRITTEN_EVERY_S = 60.0  # resolution of a credential's last use


class _Known(Struct, frozen=True):
    """Credentials as read from the store, with what was derived from them. They expire together."""

    at: datetime
    credentials: Sequence[Credential]
    states: States
    usable: dict[tuple[str, str], Sequence[Credential]] = field(default_factory=dict[tuple[str, str], Any])

    def of(self, keyring: Keyring, provider: str) -> Sequence[Credential]:
        """Return a provider's credentials whose key can be read.

        Checked once per snapshot, not for every model call.
        """
        found = self.usable.get((keyring.agent, provider))
        if found is None:
            found = self.usable[keyring.agent, provider] = keyring.of(provider)
        return found


class Minds:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        house: Sequence[Model],
        *,
        settings: Callable[[], Settings],
        environment: Mapping[str, str],
        makers: Mapping[str, Maker] | None = None,
        link: Link | None = None,
        cache: WireCache | None = None,
        chance: Random,
        zone: ZoneInfo,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._environment = environment
        self._chance = chance
        self._zone = zone
        self._link = link or Link()
        self._shelf = Shelf(house, lambda: self.catalog, self._link, cache or WireCache(), makers=makers)
        self._limits = Limits(lambda: self.catalog.providers)
        self._catalog: tuple[Settings, frozenset[str], Catalog] | None = None
        self._known: _Known | None = None
        self._keyed: frozenset[str] = frozenset()

    async def close(self) -> None:
        await self._link.close()

    def bring(self, house: Sequence[Model]) -> None:
        """Replace the built-in models: a plugin was added or removed."""
        self._shelf.bring(house)
        self._catalog = None

    @property
    def settings(self) -> Settings:
        return self._settings()

    @property
    def catalog(self) -> Catalog:
        """Rebuilt when the settings have changed, or a provider got its first key."""
        settings = self._settings()
        if self._catalog is None or self._catalog[0] is not settings or self._catalog[1] != self._keyed:
            made = Catalog(settings, self._environment, now=self._clock.now, house=self._shelf.house, keyed=self._keyed)
            self._catalog = (settings, self._keyed, made)
        return self._catalog[2]

    def model(self, ref: ModelRef) -> Model:
        return self._shelf.find(ref)

    # --- calls ---

    async def plan(
        self,
        agent: Agent,
        mind: Mind,
        *,
        override: str | None = None,
        images: bool = False,
        role: Role = Role.REASONING,
    ) -> Plan:
        """Return the fallback plan for one reply."""
        catalog = self.catalog
        chain = catalog.chain(agent=agent, mind=mind, override=override, images=images, role=role)
        now = self._clock.now()
        known = await self._look(now) if any(ref.provider for ref in chain) else _Known(now, (), States())
        return self._plan(catalog, chain, agent, mind, known, now)

    async def why_now(self, agent: Agent, mind: Mind, chain: Sequence[ModelRef]) -> list[str]:
        """Describe each model of a chain: whether it would be called now, and why."""
        now = self._clock.now()
        return why_now(self._plan(self.catalog, chain, agent, mind, await self._look(now), now), now)

    def plan_in(self, conn: sa.Connection, agent: Agent, mind: Mind) -> Plan:
        """As `build_plan`, for a caller that already has a database connection and only wants to look."""
        now = self._clock.now()
        known = self._learn(now, *_read(conn, now=now))
        catalog = self.catalog
        return self._plan(catalog, catalog.chain(agent=agent, mind=mind), agent, mind, known, now)

    def _plan(
        self, catalog: Catalog, chain: Sequence[ModelRef], agent: Agent, mind: Mind, known: _Known, now: datetime
    ) -> Plan:
        keyring = Keyring(
            agent=agent.name,
            credentials=known.credentials,
            variables=catalog.variables,
            environment=self._environment,
        )
        return plan(
            chain,
            partial(known.of, keyring),
            known.states,
            mind,
            needs_key=catalog.needs_key,
            retries_max=self._settings().models.retries_max,
            now=now,
            chance=self._chance,
            none_because=keyring.none_because,
            zone=self._zone,
        )

    async def _look(self, now: datetime) -> _Known:
        known = self._known
        if known is None or not 0 <= (now - known.at).total_seconds() < KNOWN_FOR_S:
            stored, states = await self._store.read(lambda conn: _read(conn, now=now))
            self._keyed = frozenset(each.provider for each in stored)
            known = self._known = self._learn(now, stored, states)
        return known

    def _learn(self, now: datetime, stored: Sequence[Credential], states: States) -> _Known:
        catalog = self.catalog
        found = gather(stored, variables=catalog.variables, keys=catalog.keys, environment=self._environment)
        return _Known(now, found, states)

    async def refresh(self) -> None:
        """Read the credentials again, at start or after a change.

        Which providers have a key decides the default model.
        """
        self._known = None
        await self._look(self._clock.now())

    def key(self, candidate: Candidate) -> str:
        return key_of(candidate.credential, self._environment) if candidate.credential else ""

    async def in_turn(self, provider: str, tokens: int, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make a call within the configured rate limits of this provider."""
        if not provider or not self._limits.limited(provider):
            return await ask()
        async with self._limits.waiting(provider, tokens, self._clock) as booked:
            reply = await ask()
        self._limits.took(booked, reply.usage.input_tokens + reply.usage.output_tokens)
        return reply

    def caps(self, agent: Agent) -> Caps:
        budgets = self._settings().budgets
        return caps_of(
            agent,
            run_usd=budgets.run_usd,
            tree_usd=budgets.tree_usd,
            person_day_usd=budgets.person_day_usd,
            person_month_usd=budgets.person_month_usd,
            house_day_usd=budgets.house_day_usd,
            house_month_usd=budgets.house_month_usd,
            warn_share=budgets.warn_share,
        )

    # --- results ---

    async def worked(self, candidate: Candidate, session: SessionId, mind: Mind, *, asked_at: datetime) -> Mind:
        """Record a success: clear the credential's failures, and keep the session on it.

        Writes only if something changes.
        """
        credential = candidate.credential
        if credential is None:
            return mind
        now = self._clock.now()
        known = await self._look(now)
        stale = credential.used_at is None or (now - credential.used_at).total_seconds() >= USE_WRITTEN_EVERY_S
        after = served(mind, credential)
        moves = after != mind
        if not (stale or moves or known.states.of(credential)):
            return mind

        def body(conn: sa.Connection) -> None:
            at_ms, asked_ms = to_ms(now), to_ms(asked_at)
            credentials.mark_used(conn, credential, at_ms=at_ms, model=candidate.ref.model, asked_ms=asked_ms)
            if moves:
                _change_mind(conn, session, lambda mind: served(mind, credential))

        await self._write(body)
        return after

    async def failed(self, mark: Mark | None) -> None:
        if mark is not None:
            await self._write(lambda conn: credentials.mark_failed(conn, mark, cooled))

    async def compacted(self, session: Session) -> None:
        """Release the credential of a session after a compaction: nothing is cached at the provider anymore."""
        if let_go(session.mind) != session.mind:
            await self._write(lambda conn: _change_mind(conn, session.id, let_go))

    async def _write(self, body: Callable[[sa.Connection], object]) -> None:
        """Write outside the run: it must not fail because a credential's status could not be stored."""
        try:
            await self._store.write(body, point="credential")
        except RetinueError as error:
            log.warning("credential not noted", extra={"code": error.code})
        self._known = None


def _read(conn: sa.Connection, *, now: datetime) -> tuple[list[Credential], States]:
    return credentials.everyone(conn), States(credentials.states(conn, now_ms=to_ms(now)))


def _change_mind(conn: sa.Connection, session: str, change: Callable[[Mind], Mind]) -> None:
    """Change the session's stored options: a person may have chosen another model since the run began."""
    found = sessions.get(conn, session)
    if found is not None and (mind := change(found.mind)) != found.mind:
        sessions.set_mind(conn, session, mind)
