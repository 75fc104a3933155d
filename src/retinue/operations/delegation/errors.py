"""Errors of the subagent operations."""

from __future__ import annotations

from retinue.domain.errors import Invalid, NotFound


class SubagentSelectionInvalid(Invalid):
    """A request to stop subagents names neither a subagent nor a session, or names both."""

    code = "subagent.selection_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid selection of subagents",
            because="exactly one of `id` (one subagent) and `session` (all its subagents) must be given",
            try_this="retinue subagent stop ID, or retinue subagent stop --session SESSION",
        )


class SubagentSessionDeleted(NotFound):
    """The session of the subagent was deleted.

    `by_cleanup` is true if the subagent was started with `cleanup: delete`.
    """

    code = "subagent.session_deleted"

    def __init__(self, subagent: str, *, by_cleanup: bool) -> None:
        super().__init__(
            f"the session of subagent {subagent} was deleted",
            because="the subagent was started with `cleanup: delete`" if by_cleanup else "",
            try_this=f"see the subagent's result: retinue subagent show {subagent}",
        )
