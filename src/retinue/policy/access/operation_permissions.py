"""Decides which operations a permission level may call.

An operation without a rule needs the highest level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from retinue.domain.agent import PermissionLevel
from retinue.domain.renamed_names import OPERATIONS

LEVELS = (
    PermissionLevel.RESTRICTED,
    PermissionLevel.STANDARD,
    PermissionLevel.PRIVILEGED,
    PermissionLevel.BOSS,
)
_RANK = {level: rank for rank, level in enumerate(LEVELS)}


class OperationPermission(Struct, frozen=True):
    """The decision on whether an operation may be called, with the reason."""

    is_allowed: bool
    because: str


def is_at_least(level: PermissionLevel, needed: PermissionLevel) -> bool:
    return _RANK[level] >= _RANK[needed]


def lowest_level(levels: Iterable[PermissionLevel]) -> PermissionLevel:
    return min(levels, key=_RANK.__getitem__)


def override_levels(
    defaults: Mapping[str, PermissionLevel], overrides: Mapping[str, PermissionLevel]
) -> dict[str, PermissionLevel]:
    """Return the permission level that each operation needs.

    This is the level from the settings (`overrides`) if they name the operation, and the default
    level otherwise. An override under the former name of an operation applies to the renamed
    operation too, because the owner has set it. If there are overrides under both names, the one
    under the new name wins.
    """
    renamed = {OPERATIONS[old]: level for old, level in overrides.items() if old in OPERATIONS and old not in defaults}
    return {**defaults, **renamed, **overrides}


def required_level(operation: str, policy: Mapping[str, PermissionLevel]) -> PermissionLevel:
    return policy.get(operation, PermissionLevel.BOSS)


def decide_operation(
    operation: str, level: PermissionLevel, policy: Mapping[str, PermissionLevel]
) -> OperationPermission:
    """Decide whether a caller with this level may call an operation. Every interface uses this function."""
    needed = required_level(operation, policy)
    named = operation in policy
    because = f"{operation} needs {needed}" if named else f"{operation} needs {needed} by default"
    return OperationPermission(is_at_least(level, needed), f"{because}, and you have {level}")
