"""Errors of the audit operations."""

from __future__ import annotations

from retinue.domain.errors import Invalid
from retinue.domain.shared_errors import shorten_name


class AuditAnchorInvalid(Invalid):
    """An audit anchor does not have the form CHAIN:POSITION:HASH."""

    code = "audit.anchor_invalid"

    def __init__(self, anchor: str) -> None:
        super().__init__(
            f"invalid anchor: '{shorten_name(anchor)}'",
            because="an anchor has the form CHAIN:POSITION:HASH",
            try_this='copy it from an "audit anchored" line in the log',
        )


class AuditLimitInvalid(Invalid):
    """The requested number of audit entries is out of range."""

    code = "audit.limit_invalid"

    def __init__(self, limit: int, *, limit_max: int) -> None:
        super().__init__(
            f"invalid value for limit: {limit}",
            because=f"it must be a number from 1 to {limit_max:,}",
            try_this="use a smaller limit, and read the rest from where the previous response ended",
        )
