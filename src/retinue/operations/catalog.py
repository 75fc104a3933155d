"""All operations of the house."""

from __future__ import annotations

from retinue.operations import envelopes, house, sessions
from retinue.operations.base import Operation

OPERATIONS: dict[str, Operation] = {
    operation.name: operation for module in (envelopes, sessions, house) for operation in module.OPERATIONS
}
