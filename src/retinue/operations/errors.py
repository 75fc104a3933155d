"""Errors of every operation: invalid requests, idempotency keys, list limits and missing services."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotFound


class RequestInvalid(Invalid):
    """The parameters of a request are missing, unknown or of the wrong type."""

    code = "request.invalid"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "invalid parameters",
            because=because,
            try_this="read docs/reference/operations.md, or run: retinue NOUN VERB --help",
        )


class ListLimitInvalid(Invalid):
    """A list was requested with a limit that is too small or too large."""

    code = "list.limit"

    def __init__(self, field: str, value: int, *, least: int, most: int, try_this: str) -> None:
        super().__init__(
            f"invalid value for {field}: {value}",
            because=f"it must be a number from {least} to {most}",
            try_this=try_this,
        )


class KeyInProgress(Conflict):
    """An earlier request with the same idempotency key is still being performed."""

    code = "key.in_progress"

    def __init__(self) -> None:
        super().__init__(
            "a request with this idempotency key is in progress",
            because="an earlier request with the same key is not finished yet",
            try_this="wait a moment, then retry with the same key",
        )


class KeyInterrupted(Conflict):
    """An earlier request with the same idempotency key was interrupted, so its effect is unknown."""

    code = "key.interrupted"

    def __init__(self, *, started_at: str) -> None:
        super().__init__(
            "this request was interrupted: it may or may not have been performed",
            because=f"it started at {started_at}; then the server stopped, or the request was cancelled",
            try_this="check whether the request had an effect; to repeat it, use a new key",
        )


class NoAgents(NotFound):
    """No agent was named, and there is no agent that could be the default."""

    code = "agent.none"

    def __init__(self) -> None:
        super().__init__(
            "no agent given",
            because="there are no agents yet",
            try_this="register one: retinue agent register NAME",
        )


class SettingsFileUnavailable(NotFound):
    """This server was started without a settings file."""

    code = "config.no_file"

    def __init__(self) -> None:
        super().__init__(
            "this server has no settings file",
            because="its settings were passed to it directly",
            try_this="start it with: retinue run",
        )
