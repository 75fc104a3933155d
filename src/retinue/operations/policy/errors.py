"""Errors of the operations on policy and grants."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Invalid, NotAllowed, NotFound


class ProposedSettingsInvalid(Invalid):
    """The settings that recorded calls should be tested against are invalid."""

    code = "policy.settings_invalid"

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(
            "the proposed settings are invalid",
            because="; ".join(faults),
            try_this="check them: retinue config check --text TEXT",
        )


class GrantNotFound(NotFound):
    """No grant has this id, or several have an id that starts with it."""

    code = "grant.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no grant {id_[:40]}",
            because="no grant has an id that starts like this, or more than one has",
            try_this="list the grants: retinue grant list",
        )


class GrantNotAllowed(NotAllowed):
    """The caller is not the owner, who alone adds and revokes grants."""

    code = "grant.not_allowed"

    def __init__(self) -> None:
        super().__init__(
            "you cannot add or revoke grants",
            because="only the owner can; others can only answer an approval",
            try_this="answer the approval: retinue allow ID",
        )
