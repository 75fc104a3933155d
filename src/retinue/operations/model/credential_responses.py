"""Response types of the credential operations. They contain the location of a key, never the key itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFailureKind
from retinue.domain.times import format_time
from retinue.models.credential_order import get_secret
from retinue.operations.base import Services
from retinue.policy.limits.cooldowns import CredentialCooldowns

ALL_MODELS = "*"


class CredentialFailure(msgspec.Struct, frozen=True):
    reason: ModelFailureKind
    errors: int
    failed_at: str
    cooling_until: str | None


class CredentialState(StrEnum):
    READY = "ready"
    COOLING_DOWN = "cooling_down"
    UNREADABLE = "unreadable"


class CredentialDetails(msgspec.Struct, frozen=True):
    """One credential: the location of its key, never the key. `agent` is null if it belongs to the server.

    `failures` has the last failure for each model. The key `*` stands for all models.
    """

    id: str
    provider: str
    agent: str | None
    kind: CredentialKind
    source: str
    state: CredentialState
    because: str
    region: str | None
    position: int | None
    used_at: str | None
    failures: dict[str, CredentialFailure]


class CredentialList(msgspec.Struct, frozen=True):
    """A list of credentials. For each provider and owner, they are in the order in which the server tries them."""

    credentials: list[CredentialDetails]


class CredentialRemoved(msgspec.Struct, frozen=True):
    id: str
    agent: str | None
    removed: bool


def server_environment(services: Services) -> Mapping[str, str]:
    return services.config_holder.environment if services.config_holder is not None else {}


def to_credential_details(
    services: Services, credential: Credential, states: CredentialCooldowns, now: datetime
) -> CredentialDetails:
    failures = {
        each.model or ALL_MODELS: CredentialFailure(
            reason=each.failure,
            errors=each.errors,
            failed_at=format_time(each.failed_at, services.zone),
            cooling_until=format_time(each.until, services.zone) if each.until > now else None,
        )
        for each in states.list_for(credential)
    }
    state, because = _find_state(services, credential, failures)
    return CredentialDetails(
        credential.id,
        provider=credential.provider,
        agent=credential.agent or None,
        kind=credential.kind,
        source=credential.source,
        state=state,
        because=because,
        region=credential.region,
        position=credential.position,
        used_at=format_time(credential.used_at, services.zone) if credential.used_at else None,
        failures=failures,
    )


def _find_state(
    services: Services, credential: Credential, failures: Mapping[str, CredentialFailure]
) -> tuple[CredentialState, str]:
    try:
        get_secret(credential).read(server_environment(services))
    except RetinueError as error:
        return CredentialState.UNREADABLE, f"{error.sentence}: {error.because}"
    cooling = [
        f"{each.reason} until {each.cooling_until}" + (f" for {model}" if model != ALL_MODELS else "")
        for model, each in failures.items()
        if each.cooling_until
    ]
    return (CredentialState.COOLING_DOWN, "; ".join(cooling)) if cooling else (CredentialState.READY, "")
