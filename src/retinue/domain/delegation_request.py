"""A delegation as a tool call requests it, and its status."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.delegation import LATEST_OR_CREATE, Cleanup, Delegation, DelegationKind, Notify, session_made_for
from retinue.domain.envelope import Envelope
from retinue.domain.ids import EnvelopeId, RunId
from retinue.domain.run import RunRequest
from retinue.domain.trust import Trust
from retinue.domain.webhook import Webhook


class Handing(Struct, frozen=True, kw_only=True):
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
    session: str = LATEST_OR_CREATE
    wait_s: float | None = None
    notify: Notify = Notify.WAKE
    label: str = ""
    cleanup: Cleanup = Cleanup.KEEP
    request: RunRequest | None = None
    attachments: tuple[Attachment, ...] = ()
    webhook: Webhook | None = None  # URL to notify with the result
    reply_to: EnvelopeId | None = None  # the envelope it follows up
    confined: bool = False  # only sessions below the caller's own may be named


class Handed(Struct, frozen=True, kw_only=True):
    """The status of a delegation. `answer` is set once the result has arrived, and then belongs to
    this call.

    `is_timed_out`: the call has waited for its full time. `is_already_delivered`: the result was
    already read as an envelope.
    """

    delegation: Delegation
    queued: bool = False  # the target agent was busy
    answer: Envelope | None = None
    late: bool = False
    elsewhere: bool = False

    @property
    def created(self) -> bool:
        """Whether the session was created for this delegation."""
        return self.delegation.to == session_made_for(self.delegation.id)

    @property
    def pending(self) -> bool:
        """Whether the call stays open."""
        return self.delegation.state.open and self.delegation.wait_until is not None


class HandOver(Protocol):
    """Delegates work, once per tool call. A repeated call returns the current status."""

    async def __call__(self, handing: Handing) -> Handed: ...
