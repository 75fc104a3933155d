"""Errors of the subagent operations."""

from __future__ import annotations

from retinue.domain.errors import Invalid, NotFound


class SubagentSelectionInvalid(Invalid):
    """Neither a subagent nor a session was given to stop, or both were."""

    code = "subagent.selection_invalid"

    def __init__(self) -> None:
        super().__init__(
            "give either `id` or `session`",
            because="exactly one of the two is needed: one subagent, or all subagents of a session",
            try_this="retinue subagent stop ID, or retinue subagent stop --session SESSION",
        )


class SubagentSessionDeleted(NotFound):
    """The session of the subagent was deleted. `by_cleanup`: as requested when the subagent was started."""

    code = "subagent.session_deleted"

    def __init__(self, subagent: str, *, by_cleanup: bool) -> None:
        super().__init__(
            f"the session of subagent {subagent} was deleted",
            because="the subagent was started with `cleanup: delete`" if by_cleanup else "",
            try_this=f"show its result: retinue subagent show {subagent}",
        )
