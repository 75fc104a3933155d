"""Principals: who makes a request, as proved by a token. No one can act under another's name."""

from __future__ import annotations

from msgspec import Struct

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import Lineage
from retinue.domain.person import Role
from retinue.domain.trust import Trust


class Principal(Struct, frozen=True, kw_only=True):
    """A person or an agent, with their rights. `token_id` names the token of the request.

    `lineage` is that of the run in which an agent makes the request.
    """

    address: Address
    level: PermissionLevel
    trust: Trust
    token_id: str = ""
    lineage: Lineage | None = None

    @property
    def sees_everything(self) -> bool:
        """Whether it sees everything: the owner and the server do. An agent does not, whatever its
        level."""
        return self.level is PermissionLevel.BOSS and self.address.kind in (AddressKind.PERSON, AddressKind.SERVER)


SERVER_PRINCIPAL = Principal(address=address.SERVER_ADDRESS, level=PermissionLevel.BOSS, trust=Trust.OWNER)
"""The server itself, for lookups that no one requested."""

LEVEL_BY_ROLE = {
    Role.OWNER: PermissionLevel.BOSS,
    Role.MEMBER: PermissionLevel.STANDARD,
    Role.GUEST: PermissionLevel.RESTRICTED,
}
TRUST_BY_ROLE = {Role.OWNER: Trust.OWNER, Role.MEMBER: Trust.PERSON, Role.GUEST: Trust.PERSON}
