"""Decides which operations a permission level may call.

Levels are ordered; an operation without a rule needs the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from retinue.domain.agent import PermissionLevel

ORDER = (
    PermissionLevel.RESTRICTED,
    PermissionLevel.STANDARD,
    PermissionLevel.PRIVILEGED,
    PermissionLevel.BOSS,
)
_RANK = {level: rank for rank, level in enumerate(ORDER)}


class Permission(Struct, frozen=True):
    """Whether an operation may be called, and the reason."""

    allowed: bool
    because: str


def reaches(level: PermissionLevel, needed: PermissionLevel) -> bool:
    return _RANK[level] >= _RANK[needed]


def least_level(levels: Iterable[PermissionLevel]) -> PermissionLevel:
    return min(levels, key=_RANK.__getitem__)


def needed_for(operation: str, policy: Mapping[str, PermissionLevel]) -> PermissionLevel:
    return policy.get(operation, PermissionLevel.BOSS)


def decide(operation: str, level: PermissionLevel, policy: Mapping[str, PermissionLevel]) -> Permission:
    """Decide whether a level may call an operation. Pure, and the same for every interface."""
    needed = needed_for(operation, policy)
    named = operation in policy
    because = f"{operation} needs {needed}" if named else f"no rule names {operation}, so it needs {needed}"
    return Permission(reaches(level, needed), f"{because}, and you have {level}")
