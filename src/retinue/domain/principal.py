"""Principals: who makes a request. A token proves who the principal is, so no principal can act under another name."""

from __future__ import annotations

from msgspec import Struct

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import Lineage
from retinue.domain.person import Role
from retinue.domain.trust import Trust


class Principal(Struct, frozen=True, kw_only=True):
    """The person or agent that makes a request, with their rights. `token_id` names the token of the request.

    If an agent makes the request, `lineage` is the lineage of its run.
    """

    address: Address
    level: PermissionLevel
    trust: Trust
    token_id: str = ""
    lineage: Lineage | None = None

    @property
    def sees_everything(self) -> bool:
        """Whether the principal may see all sessions and objects.

        The owner and the server may. An agent may not, even with level boss.
        """
        return self.level is PermissionLevel.BOSS and self.address.kind in (AddressKind.PERSON, AddressKind.SERVER)


SERVER_PRINCIPAL = Principal(address=address.SERVER_ADDRESS, level=PermissionLevel.BOSS, trust=Trust.OWNER)
"""The server itself, for lookups that it makes without a request."""

LEVEL_BY_ROLE = {
    Role.OWNER: PermissionLevel.BOSS,
    Role.MEMBER: PermissionLevel.STANDARD,
    Role.GUEST: PermissionLevel.RESTRICTED,
}
TRUST_BY_ROLE = {Role.OWNER: Trust.OWNER, Role.MEMBER: Trust.PERSON, Role.GUEST: Trust.PERSON}
