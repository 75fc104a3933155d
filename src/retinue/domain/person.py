"""People: principals with a name, a role and a token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address


class Role(StrEnum):
    OWNER = "owner"
    MEMBER = "member"
    GUEST = "guest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    role: Role


class Requester(Struct, frozen=True):
    """Someone on whose behalf a run works. A sender who is not a person of this instance has no `role` (None)."""

    address: Address
    role: Role | None = None

    @property
    def is_owner(self) -> bool:
        return self.role is Role.OWNER

    @property
    def is_outside(self) -> bool:
        """Whether the requester is neither the owner nor a member.

        Guests, paired senders, people in groups and webhooks count as outside.
        """
        return self.role not in (Role.OWNER, Role.MEMBER)
