"""Credentials: what a provider knows us by, where its key is, and how it fared. The key itself is never in here."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from retinue.domain.model import Failure

FORGOTTEN_AFTER = timedelta(hours=24)  # a failure so long ago does not count with the next one


class CredentialKind(StrEnum):
    """In the order in which they are preferred."""

    TOKEN = "token"
    API_KEY = "api_key"


class Credential(Struct, frozen=True, kw_only=True):
    """`id` is PROVIDER:NAME, once for each agent and once for the house, whose `agent` is empty.

    `source` says where the key is, `env:NAME` or `file:PATH`. `position` is its place where someone has set an order.
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
    def key(self) -> tuple[str, str]:
        """What it is kept under."""
        return self.agent, self.id


class Mark(Struct, frozen=True, kw_only=True):
    """A failure to be written down against a credential: for one model, or for all of them where `model` is empty.

    `asked_at` is when it was decided to ask. What failed for several at once, before any of them knew, failed once.
    """

    credential: Credential
    model: str
    failure: Failure
    at: datetime
    asked_at: datetime
    retry_after_s: float | None = None


class Cooling(Struct, frozen=True, kw_only=True):
    """A credential that failed: how often in a row, for what, and until when it is left alone."""

    agent: str
    credential: str
    model: str
    failure: Failure
    errors: int
    until: datetime
    failed_at: datetime
