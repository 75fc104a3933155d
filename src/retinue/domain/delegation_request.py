"""A tool call's request to delegate work, and the status that the call returns."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.delegation import (
    LATEST_OR_NEW_SESSION,
    Delegation,
    DelegationKind,
    NotifyMode,
    SubagentCleanup,
    derive_session_id,
)
from retinue.domain.envelope import Envelope
from retinue.domain.ids import EnvelopeId, RunId
from retinue.domain.run import RunRequest
from retinue.domain.trust import Trust
from retinue.domain.webhook import Webhook


class DelegationRequest(Struct, frozen=True, kw_only=True):
    """A delegation requested by a tool call: the task, the agent and the options.

    `session` is `latest`, `latest-or-create`, `create` or a session id. `wait_s` is how long the
    call waits for the result.
    """

    kind: DelegationKind
    run: RunId
    call: str
    target: str
    text: str
    trust: Trust  # the least trust of anything in the caller's context
    session: str = LATEST_OR_NEW_SESSION
    wait_s: float | None = None
    notify: NotifyMode = NotifyMode.WAKE
    label: str = ""
    cleanup: SubagentCleanup = SubagentCleanup.KEEP
    request: RunRequest | None = None
    attachments: tuple[Attachment, ...] = ()
    webhook: Webhook | None = None  # URL to notify with the result
    reply_to: EnvelopeId | None = None  # the envelope that this task follows up
    own_sessions_only: bool = False  # `session` may only name a session that the caller's session started


class DelegationStatus(Struct, frozen=True, kw_only=True):
    """The status of a delegation. `answer` is set if the result has arrived and this call returns it.

    `is_timed_out` means that no result arrived within the waiting time of the call. `is_already_delivered` means that
    the session has already read the result as an envelope, so this call does not return it.
    """

    delegation: Delegation
    is_queued: bool = False  # the target agent was busy
    answer: Envelope | None = None
    is_timed_out: bool = False
    is_already_delivered: bool = False

    @property
    def is_session_new(self) -> bool:
        """Whether the session was created for this delegation."""
        return self.delegation.target_session == derive_session_id(self.delegation.id)

    @property
    def is_pending(self) -> bool:
        """Whether the tool call is still waiting for the result."""
        return self.delegation.state.is_open and self.delegation.wait_until is not None


class DelegateWork(Protocol):
    """Delegates work to an agent. A repeated tool call returns the current status and does not delegate again."""

    async def __call__(self, request: DelegationRequest) -> DelegationStatus: ...
