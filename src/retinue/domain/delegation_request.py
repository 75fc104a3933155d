"""Handing work on, as a call asks for it and as it then stands."""

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
    """What a call hands on. `session` is one of the words for one, or an id; `wait_s`, how long the call stays open."""

    kind: DelegationKind
    run: RunId
    call: str
    target: str
    text: str
    trust: Trust  # of the least trusted words that the asker knows
    session: str = LATEST_OR_CREATE
    wait_s: float | None = None
    notify: Notify = Notify.WAKE
    label: str = ""
    cleanup: Cleanup = Cleanup.KEEP
    request: RunRequest | None = None
    attachments: tuple[Attachment, ...] = ()
    webhook: Webhook | None = None  # who is told elsewhere what came of it
    reply_to: EnvelopeId | None = None  # what it follows up
    confined: bool = False  # only sessions that came of the asker's own may be named


class Handed(Struct, frozen=True, kw_only=True):
    """How it stands. `answer` is there once it came, and belongs to this call from then on.

    `late`: the call has waited long enough. `elsewhere`: what came of it was read as mail already.
    """

    delegation: Delegation
    queued: bool = False  # whoever it went to was busy
    answer: Envelope | None = None
    late: bool = False
    elsewhere: bool = False

    @property
    def created(self) -> bool:
        """Whether the session was made for it."""
        return self.delegation.to == session_made_for(self.delegation.id)

    @property
    def pending(self) -> bool:
        """Whether the call is to be kept open."""
        return self.delegation.state.open and self.delegation.wait_until is not None


class HandOver(Protocol):
    """Hands work on, once for each call, and looks at what came of it every other time that the call is made."""

    async def __call__(self, handing: Handing) -> Handed: ...
