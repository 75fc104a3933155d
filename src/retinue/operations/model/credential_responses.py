"""Response types of the credential operations: location of the key and its failures, never the key itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.errors import RetinueError
from retinue.domain.model import Failure
from retinue.domain.times import show
from retinue.models.credential_order import secret_of
from retinue.operations.base import Desk
from retinue.policy.limits.cooldowns import States

ALL_MODELS = "*"


class FailureShown(msgspec.Struct, frozen=True, rename="kebab"):
    reason: Failure
    errors: int
    failed_at: str
    cooling_until: str | None


class State(StrEnum):
    READY = "ready"
    COOLING = "cooling-down"
    UNREADABLE = "unreadable"


class CredentialShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One credential: the location of its key, never the key. `agent` is null if it belongs to the instance.

    `failures` are keyed by model; failures that concern all models are under `*`.
    """

    id: str
    provider: str
    agent: str | None
    kind: CredentialKind
    where: str
    state: State
    because: str
    region: str | None
    position: int | None
    used_at: str | None
    failures: dict[str, FailureShown]


class CredentialsListed(msgspec.Struct, frozen=True):
    """Credentials in the order in which they are tried, per provider and owner."""

    credentials: list[CredentialShown]


class CredentialRemoved(msgspec.Struct, frozen=True, rename="kebab"):
    id: str
    agent: str | None
    removed: bool


def environment_of(desk: Desk) -> Mapping[str, str]:
    return desk.config.environment if desk.config is not None else {}


def shown(desk: Desk, credential: Credential, states: States, now: datetime) -> CredentialShown:
    failures = {
        each.model or ALL_MODELS: FailureShown(
            reason=each.failure,
            errors=each.errors,
            failed_at=show(each.failed_at, desk.zone),
            cooling_until=show(each.until, desk.zone) if each.until > now else None,
        )
        for each in states.of(credential)
    }
    state, because = _state(desk, credential, failures)
    return CredentialShown(
        credential.id,
        provider=credential.provider,
        agent=credential.agent or None,
        kind=credential.kind,
        where=credential.source,
        state=state,
        because=because,
        region=credential.region,
        position=credential.position,
        used_at=show(credential.used_at, desk.zone) if credential.used_at else None,
        failures=failures,
    )


def _state(desk: Desk, credential: Credential, failures: Mapping[str, FailureShown]) -> tuple[State, str]:
    try:
        secret_of(credential).read(environment_of(desk))
    except RetinueError as error:
        return State.UNREADABLE, f"{error.sentence}: {error.because}"
    cooling = [
        f"{each.reason} until {each.cooling_until}" + (f" for {model}" if model != ALL_MODELS else "")
        for model, each in failures.items()
        if each.cooling_until
    ]
    return (State.COOLING, "; ".join(cooling)) if cooling else (State.READY, "")
