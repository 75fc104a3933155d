"""A delegation as a tool call requests it, and its status."""

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
    """What a tool call delegates.

    `session` is `latest`, `latest-or-create`, `create` or a session id. `wait_s` is how long the
    call stays open.
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
    reply_to: EnvelopeId | None = None  # the envelope it follows up
    own_sessions_only: bool = False  # only sessions below the caller's own may be named


class DelegationStatus(Struct, frozen=True, kw_only=True):
    """The status of a delegation. `answer` is set once the result has arrived, and then belongs to
    this call.

    `is_timed_out`: the call has waited for its full time. `is_already_delivered`: the result was
    already read as an envelope.
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
        """Whether the call stays open."""
        return self.delegation.state.is_open and self.delegation.wait_until is not None


class DelegateWork(Protocol):
    """Delegates work, once per tool call. A repeated call returns the current status."""

    async def __call__(self, request: DelegationRequest) -> DelegationStatus: ...
