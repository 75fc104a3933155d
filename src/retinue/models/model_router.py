"""The model router: picks models, credentials and limits for an agent, and records the results of calls.

It connects the catalog, the credentials and the fallback plan with the store, from which it reads
credentials and to which it writes results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct, field

from retinue.config import Settings
from retinue.domain.agent import Agent
from retinue.domain.budget import BudgetLimits
from retinue.domain.credential import Credential, CredentialFailureRecord
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelRef
from retinue.domain.ports import Clock
from retinue.domain.session import Session, SessionOptions
from retinue.domain.times import to_ms
from retinue.models.base import Model
from retinue.models.credential_order import (
    AgentCredentials,
    collect_credentials,
    keep_credential,
    read_key,
    release_credential,
)
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.fallback import FallbackPlan, build_fallback_plan, describe_plan
from retinue.models.fallback_actions import ModelCandidate
from retinue.models.model_clients import ModelClients, ModelFactory
from retinue.models.model_selection import ModelRole, ModelSelector
from retinue.models.provider_http import ProviderConnections
from retinue.models.provider_limits import ProviderRateLimits, RateReservation
from retinue.policy.limits.budgets import build_budget_caps
from retinue.policy.limits.cooldowns import CredentialCooldowns, apply_failure
from retinue.store.agents import credentials
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

SNAPSHOT_TTL_S = 1.0  # how long credentials are cached after reading: another process may write too
USE_WRITE_INTERVAL_S = 60.0  # resolution of a credential's last use


class _CredentialSnapshot(Struct, frozen=True):
    """Credentials read from the store, and which of them have a key that can be read.

    Both expire together.
    """

    read_at: datetime
    credentials: Sequence[Credential]
    cooldowns: CredentialCooldowns
    usable: dict[tuple[str, str], Sequence[Credential]] = field(default_factory=dict[tuple[str, str], Any])

    def list_usable(self, agent_credentials: AgentCredentials, provider: str) -> Sequence[Credential]:
        """Return a provider's credentials whose key can be read.

        The keys are checked once per snapshot, not for every model call.
        """
        found = self.usable.get((agent_credentials.agent, provider))
        if found is None:
            found = self.usable[agent_credentials.agent, provider] = agent_credentials.list_usable(provider)
        return found


class ModelRouter:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        built_in: Sequence[Model],
        *,
        settings: Callable[[], Settings],
        environment: Mapping[str, str],
        factories: Mapping[str, ModelFactory] | None = None,
        connections: ProviderConnections | None = None,
        cache: EncodedContextCache | None = None,
        random: Random,
        zone: ZoneInfo,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._environment = environment
        self._random = random
        self._zone = zone
        self._connections = connections or ProviderConnections()
        self._clients = ModelClients(
            built_in, lambda: self.catalog, self._connections, cache or EncodedContextCache(), factories=factories
        )
        self._limits = ProviderRateLimits(lambda: self.catalog.providers)
        self._catalog: tuple[Settings, frozenset[str], ModelSelector] | None = None
        self._snapshot: _CredentialSnapshot | None = None
        self._providers_with_key: frozenset[str] = frozenset()

    async def close(self) -> None:
        await self._connections.close()

    def set_built_in(self, built_in: Sequence[Model]) -> None:
        """Replace the built-in models, because a plugin was added or removed."""
        self._clients.set_built_in(built_in)
        self._catalog = None

    @property
    def settings(self) -> Settings:
        return self._settings()

    @property
    def catalog(self) -> ModelSelector:
        """The current model catalog. It is rebuilt when the settings have changed, or a provider got its first key."""
        settings = self._settings()
        if self._catalog is None or self._catalog[0] is not settings or self._catalog[1] != self._providers_with_key:
            made = ModelSelector(
                settings,
                self._environment,
                now=self._clock.now,
                built_in=self._clients.built_in_facts,
                providers_with_key=self._providers_with_key,
            )
            self._catalog = (settings, self._providers_with_key, made)
        return self._catalog[2]

    def get_client(self, ref: ModelRef) -> Model:
        return self._clients.find(ref)

    # --- calls ---

    async def build_plan(
        self,
        agent: Agent,
        session_options: SessionOptions,
        *,
        override: str | None = None,
        has_images: bool = False,
        role: ModelRole = ModelRole.REASONING,
    ) -> FallbackPlan:
        """Return the plan for one reply: the models and credentials to try, in order."""
        catalog = self.catalog
        chain = catalog.build_chain(
            agent=agent, session_options=session_options, override=override, has_images=has_images, role=role
        )
        now = self._clock.now()
        known = (
            await self._get_snapshot(now)
            if any(ref.provider for ref in chain)
            else _CredentialSnapshot(now, (), CredentialCooldowns())
        )
        return self._build_plan(catalog, chain, agent, session_options, known, now)

    async def describe_chain(
        self, agent: Agent, session_options: SessionOptions, chain: Sequence[ModelRef]
    ) -> list[str]:
        """Describe each model of a chain: whether it would be called now, and why."""
        now = self._clock.now()
        return describe_plan(
            self._build_plan(self.catalog, chain, agent, session_options, await self._get_snapshot(now), now), now
        )

    def build_plan_in(self, conn: sa.Connection, agent: Agent, session_options: SessionOptions) -> FallbackPlan:
        """Return the plan like `build_plan`, for a caller that has a database connection and will not call a model."""
        now = self._clock.now()
        known = self._build_snapshot(now, *_read_credentials(conn, now=now))
        catalog = self.catalog
        return self._build_plan(
            catalog,
            catalog.build_chain(agent=agent, session_options=session_options),
            agent,
            session_options,
            known,
            now,
        )

    def _build_plan(
        self,
        catalog: ModelSelector,
        chain: Sequence[ModelRef],
        agent: Agent,
        session_options: SessionOptions,
        snapshot: _CredentialSnapshot,
        now: datetime,
    ) -> FallbackPlan:
        keyring = AgentCredentials(
            agent=agent.name,
            credentials=snapshot.credentials,
            variables=catalog.key_variables,
            environment=self._environment,
        )
        return build_fallback_plan(
            chain,
            partial(snapshot.list_usable, keyring),
            snapshot.cooldowns,
            session_options,
            needs_key=catalog.needs_key,
            retries_max=self._settings().models.retries_max,
            now=now,
            random=self._random,
            explain_none=keyring.explain_none,
            zone=self._zone,
        )

    async def _get_snapshot(self, now: datetime) -> _CredentialSnapshot:
        known = self._snapshot
        if known is None or not 0 <= (now - known.read_at).total_seconds() < SNAPSHOT_TTL_S:
            stored, states = await self._store.read(lambda conn: _read_credentials(conn, now=now))
            self._providers_with_key = frozenset(each.provider for each in stored)
            known = self._snapshot = self._build_snapshot(now, stored, states)
        return known

    def _build_snapshot(
        self, now: datetime, stored: Sequence[Credential], cooldowns: CredentialCooldowns
    ) -> _CredentialSnapshot:
        catalog = self.catalog
        found = collect_credentials(
            stored, variables=catalog.key_variables, keys=catalog.key_secrets, environment=self._environment
        )
        return _CredentialSnapshot(now, found, cooldowns)

    async def refresh(self) -> None:
        """Read the credentials from the store, at start or after a change.

        The model catalog needs them too: the default model depends on which providers have a key.
        """
        self._snapshot = None
        await self._get_snapshot(self._clock.now())

    def read_key(self, candidate: ModelCandidate) -> str:
        return read_key(candidate.credential, self._environment) if candidate.credential else ""

    def slot(self, provider: str, tokens: int) -> AbstractAsyncContextManager[RateReservation]:
        """Wait until our own rate limits for a provider allow a call with this many tokens."""
        return self._limits.slot(provider, tokens, self._clock)

    def caps(self, agent: Agent) -> BudgetLimits:
        budgets = self._settings().budgets
        return build_budget_caps(
            agent,
            run_usd=budgets.run_usd,
            tree_usd=budgets.tree_usd,
            person_day_usd=budgets.person_day_usd,
            person_month_usd=budgets.person_month_usd,
            server_day_usd=budgets.instance_day_usd,
            server_month_usd=budgets.instance_month_usd,
            warn_share=budgets.warn_share,
        )

    # --- results ---

    async def record_success(
        self, candidate: ModelCandidate, session: SessionId, session_options: SessionOptions, *, asked_at: datetime
    ) -> SessionOptions:
        """Clear the failures of the credential that succeeded, and use it for the session's next calls.

        Writes to the store only if something changes.
        """
        credential = candidate.credential
        if credential is None:
            return session_options
        now = self._clock.now()
        known = await self._get_snapshot(now)
        stale = credential.used_at is None or (now - credential.used_at).total_seconds() >= USE_WRITE_INTERVAL_S
        after = keep_credential(session_options, credential)
        moves = after != session_options
        if not (stale or moves or known.cooldowns.list_for(credential)):
            return session_options

        def body(conn: sa.Connection) -> None:
            at_ms, asked_ms = to_ms(now), to_ms(asked_at)
            credentials.mark_used(conn, credential, at_ms=at_ms, model=candidate.ref.model, asked_ms=asked_ms)
            if moves:
                _change_session_options(conn, session, lambda options: keep_credential(options, credential))

        await self._write_best_effort(body)
        return after

    async def record_failure(self, mark: CredentialFailureRecord | None) -> None:
        if mark is not None:
            await self._write_best_effort(lambda conn: credentials.mark_failed(conn, mark, apply_failure))

    async def record_compaction(self, session: Session) -> None:
        """Stop preferring a credential for a compacted session, because the provider no longer caches its context."""
        if release_credential(session.options) != session.options:
            await self._write_best_effort(lambda conn: _change_session_options(conn, session.id, release_credential))

    async def _write_best_effort(self, body: Callable[[sa.Connection], object]) -> None:
        """Write a credential's status. If the write fails, only log it: the run must go on."""
        try:
            await self._store.write(body, point="credential")
        except RetinueError as error:
            log.warning("credential status not stored", extra={"code": error.code})
        self._snapshot = None


def _read_credentials(conn: sa.Connection, *, now: datetime) -> tuple[list[Credential], CredentialCooldowns]:
    return credentials.list_all(conn), CredentialCooldowns(credentials.list_cooldowns(conn, now_ms=to_ms(now)))


def _change_session_options(
    conn: sa.Connection, session: str, change: Callable[[SessionOptions], SessionOptions]
) -> None:
    """Apply a change to the session's options as they are in the store now.

    A person may have chosen another model during the run.
    """
    found = sessions.get(conn, session)
    if found is not None and (options := change(found.options)) != found.options:
        sessions.set_model_choice(conn, session, options)
