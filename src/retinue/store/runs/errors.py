"""Errors for a delegation or a subagent that does not exist."""

from __future__ import annotations

from retinue.domain.errors import NotFound


class SubagentNotFound(NotFound):
    """No subagent, and no session of a subagent, has this id, or the caller may not see it."""

    code = "subagent.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"no subagent has the id {prefix}",
            because="no subagent that you can see has an id, or a session id, that starts with these digits",
            try_this="list the subagents: retinue subagent list",
        )


class DelegationNotFound(NotFound):
    """No delegation has this id, or the caller may not see it."""

    code = "delegation.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"no delegation has the id {prefix}",
            because="no delegation that you can see has an id that starts with these digits",
            try_this="list the delegations: retinue delegation list",
        )
