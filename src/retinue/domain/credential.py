"""Credentials: access to a provider, where the key is kept, and past failures. The key itself is
never stored here."""

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
    """Access to one provider. `id` is PROVIDER:NAME, unique per agent. If `agent` is empty, all
    agents can use the credential.

    `source` says where the key is: `env:NAME` or `file:PATH`. `position` is its place in the order
    that a person has set, if any.
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
        """The unique key of the stored row."""
        return self.agent, self.id


class CredentialFailureRecord(Struct, frozen=True, kw_only=True):
    """A failure to record for a credential: for one model, or for all models if `model` is empty.

    `requested_at` is when the request was started. All requests that started before the first
    failure was known count as one failure.
    """

    credential: Credential
    model: str
    failure: ModelFailureKind
    at: datetime
    requested_at: datetime
    retry_after_s: float | None = None


class CredentialCooldown(Struct, frozen=True, kw_only=True):
    """The back-off of a credential after failures: how many in a row, of which kind, and until when."""

    agent: str
    credential: str
    model: str
    failure: ModelFailureKind
    errors: int
    until: datetime
    failed_at: datetime
