"""Credentials for model providers: where the key of each is stored, and its recent failures.

A credential contains the location of the key, never the key.
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
    """A failed model request, to be recorded for the credential that it used.

    If `model` is empty, the failure affects all models. `requested_at` is when the request was
    started. If the request was started before the previous failure, the failure count stays the same.
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
