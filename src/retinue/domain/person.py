"""People: principals with a name, a role and a token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    role: Role
