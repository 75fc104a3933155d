"""Errors of the outbox: a dead letter cannot be retried, or an agent cannot write to a channel."""

from __future__ import annotations

from retinue.domain.errors import Conflict, NotAllowed


class NotDeadLetter(Conflict):
    """The envelope to retry is not a dead letter. `is_done` means that it has an outcome."""

    code = "dead.not_dead"

    def __init__(self, envelope: str, *, because: str, is_done: bool) -> None:
        super().__init__(
            f"envelope {envelope} is not a dead letter",
            because=because,
            try_this="send a new envelope" if is_done else f"see its status: retinue why {envelope}",
        )


class DecisionNotRetryable(Conflict):
    """The dead letter is a decision on an approval, which cannot be retried."""

    code = "dead.decision"

    def __init__(self, envelope: str) -> None:
        super().__init__(
            f"envelope {envelope} is a decision on an approval and cannot be retried",
            because="it allowed tool calls once, and some of these calls may have been made",
            try_this="ask the agent again",
        )


class DelegationNotRetryable(Conflict):
    """The dead letter is delegated work, which cannot be retried."""

    code = "dead.delegation"

    def __init__(self, envelope: str) -> None:
        super().__init__(
            f"envelope {envelope} is delegated work and cannot be retried",
            because="the delegating agent was notified of the failure and may have continued",
            try_this="ask the agent again",
        )


class AlreadyRetried(Conflict):
    """The dead letter was already retried, and the retry is not a dead letter."""

    code = "dead.already_retried"

    def __init__(self, envelope: str, *, retry: str, status: str) -> None:
        super().__init__(
            f"envelope {envelope} was already retried",
            because=f"its retry {retry} is {status}",
            try_this=f"see its status: retinue why {retry}",
        )


class TooManyRetries(Conflict):
    """The dead letter was retried as often as the limit allows."""

    code = "dead.too_many_retries"

    def __init__(self, envelope: str, *, retries: int, retries_max: int) -> None:
        super().__init__(
            f"envelope {envelope} was retried {retries} times",
            because=f"the limit is {retries_max} retries",
            try_this="send it as a new envelope",
        )


class ChannelNotWritable(NotAllowed):
    """The agent is not bound to the channel, or the access rules admit no person in it."""

    code = "delivery.no_binding"

    def __init__(self, agent: str, recipient: str, *, because: str) -> None:
        super().__init__(
            f"{agent} cannot write to {recipient}",
            because=because,
            try_this="list the bindings: retinue binding list",
        )
