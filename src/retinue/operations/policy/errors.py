"""Errors of the operations on policy and grants."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Invalid, NotAllowed, NotFound


class ProposedSettingsInvalid(Invalid):
    """The proposed settings for a policy test are invalid."""

    code = "policy.settings_invalid"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(
            "the proposed settings are invalid",
            because="; ".join(faults),
            try_this="check them: retinue config check --text TEXT",
        )


class GrantNotFound(NotFound):
    """No grant has an id that begins with this text, or several grants do."""

    code = "grant.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no grant found for the id {id_[:40]}",
            because="no grant has an id that starts with these digits, or several grants do",
            try_this="list the grants: retinue grant list",
        )


class GrantNotAllowed(NotAllowed):
    """Only the owner can add and revoke grants, and the caller is not the owner."""

    code = "grant.not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "you cannot add or revoke grants",
            because="only the owner can add and revoke grants; other people can only answer approvals",
            try_this="answer the approval: retinue allow ID",
        )
