"""Errors of the delegation and session tools: one class for each error code."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.errors import Invalid
from retinue.tools.base import ToolFailed


class WebhookNeedsAsync(ToolFailed):
    """The call sets a webhook, but its mode is sync."""

    code = "webhook.not_async"

    def __init__(self) -> None:
        super().__init__(
            "`webhook` needs mode async",
            because="a call in mode sync returns the answer, so no webhook is needed",
            try_this="set mode to async, or leave `webhook` out",
        )


class SessionRunMissing(ToolFailed):
    """The call is not part of a run. Access to sessions depends on the person on whose behalf a run acts."""

    code = "session.no_run"

    def __init__(self) -> None:
        super().__init__(
            "this call is not part of a conversation",
            because="access to sessions depends on the person that a run works for, and this call has no run",
            try_this="call it from a conversation with the agent",
        )


class SessionNotNamed(ToolFailed):
    """The call names no session, or names several."""

    code = "session.not_named"

    def __init__(self, *arguments: str) -> None:
        super().__init__(
            "no session given, or more than one",
            because=f"exactly one of {' and '.join(arguments)} is needed",
            try_this="use sessions_list to see the sessions",
        )


class SessionIsCurrent(ToolFailed):
    """The call sends a message to the session in which it is made."""

    code = "session.is_current"

    def __init__(self) -> None:
        super().__init__(
            "this is your current session",
            because="you cannot send a message to yourself",
            try_this="put it in your answer, or use another session",
        )


class SessionForbidden(ToolFailed):
    """The settings of the agents, or of the sandbox, do not allow access to the session."""

    code = "session.forbidden"

    def __init__(self, *, because: str, setting: str) -> None:
        super().__init__(
            "you cannot access this session",
            because=because,
            try_this=f"ask the owner to change `{setting}`",
        )


class SessionKindUnknown(ToolFailed):
    """No kind of session has this name."""

    code = "session.kind_unknown"

    def __init__(self, kind: str, *, kinds: Iterable[str]) -> None:
        super().__init__(
            f"no session kind named '{kind[:40]}'",
            because=f"the kinds are: {', '.join(kinds)}",
            try_this="leave `kinds` out for all of them",
        )


class ThinkingLevelUnknown(Invalid):
    """A call that starts a subagent names an unknown thinking level."""

    code = "effort.unknown"

    def __init__(self, level: str, *, levels: Iterable[str]) -> None:
        super().__init__(
            f"no thinking level named '{level[:20]}'",
            because=f"the levels are: {', '.join(levels)}",
            try_this="use one of them, or leave `thinking` out",
        )
