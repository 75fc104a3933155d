"""Credentials: access to a model provider, the location of its key, and past failures.

The key itself is never stored here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from retinue.domain.model import ModelFailureKind

FAILURE_FORGOTTEN_AFTER = timedelta(hours=24)  # older failures do not lengthen a cooldown


class CredentialKind(StrEnum):
    """Credential kinds, in order of preference."""

    TOKEN = "token"
    API_KEY = "api_key"


class Credential(Struct, frozen=True, kw_only=True):
    """Access to one provider. `id` is PROVIDER:NAME, unique per agent.

    If `agent` is empty, all agents can use the credential. `source` is the location of the key: `env:NAME` or
    `file:PATH`. `position` is the place of the credential in the order that a person has set, if any.
    """

    id: str
    provider: str
    source: str
    kind: CredentialKind = CredentialKind.API_KEY
    agent: str = ""
    region: str | None = None
    position: int | None = None
    used_at: datetime | None = None

    @property
    def row_key(self) -> tuple[str, str]:
        """The unique key of the credential's row in the store."""
        return self.agent, self.id


class CredentialFailureRecord(Struct, frozen=True, kw_only=True):
    """A failed request to record for a credential: for one model, or for all models if `model` is empty.

    `requested_at` is when the request was started. All requests that started before the first failure was known count
    as one failure.
    """

    credential: Credential
    model: str
    failure: ModelFailureKind
    at: datetime
    requested_at: datetime
    retry_after_s: float | None = None


class CredentialCooldown(Struct, frozen=True, kw_only=True):
    """The back-off of a credential after consecutive failures: how many, of which kind, and until when."""

    agent: str
    credential: str
    model: str
    failure: ModelFailureKind
    errors: int
    until: datetime
    failed_at: datetime
