"""Delegations: work that one session hands to another, and what is to become of the answer.

A delegation is a letter of kind `delegation`, and this is what the house remembers beside it. The letter takes the road
of all mail; its answer, or the notice that it failed, is a letter that replies to it. Nothing else carries a result.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derived

TASK_SHOWN_MAX = 200  # characters of a task, where lists show it
LABEL_LENGTH_MAX = 100

# Which session of whoever is asked: the last that the two have had, that one or a new one, a new one.
LATEST = "latest"
LATEST_OR_CREATE = "latest-or-create"
CREATE = "create"


class DelegationKind(StrEnum):
    MESSAGE = "message"  # to another agent, in a session that the two have
    SEND = "send"  # into a session that is there
    SPAWN = "spawn"  # to a subagent, in a session that is made for it
    BACKGROUND = "background"  # to nobody in particular: one shot, without instructions
    EXTERNAL = "external"  # to whatever answers at an agent's address


class Notify(StrEnum):
    """What the answer does to a session that does not wait for it."""

    WAKE = "wake"  # it is read at once
    NOTE = "note"  # it is written down for the next turn
    OFF = "off"  # it stays where it was given


class Cleanup(StrEnum):
    """What becomes of a subagent's session when all is said."""

    KEEP = "keep"
    DELETE = "delete"


class DelegationState(StrEnum):
    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self is DelegationState.OPEN


class Lineage(Struct, frozen=True, kw_only=True):
    """Where a run comes from that another one set going: what bounds it, beside its own agent's settings.

    `root` is the run with which it all began and `behalf` whom that one served: whoever works for a guest has no more
    rights than the guest. `agents` is everyone from there to here, this run's own agent last. `sent_by` are those whose
    rules hold beside its own agent's, because it is a subagent of theirs. What a run may spend is no more than what the
    one above may (`run_microusd_max`), and all of them together no more than the tree may.
    """

    root: RunId
    behalf: Address
    agents: tuple[str, ...]
    sent_by: tuple[str, ...] = ()
    run_microusd_max: int | None = None
    tree_microusd_max: int | None = None

    @property
    def depth(self) -> int:
        """How often the work was handed on."""
        return len(self.agents) - 1


class Delegation(Struct, frozen=True, kw_only=True):
    """`id` is that of its letter. `call` is the call of `run` by which it was made: made again, it finds this one."""

    id: EnvelopeId
    kind: DelegationKind
    run: RunId
    call: str
    agent: str  # who asked
    session: SessionId  # where
    target: str  # the agent who was asked
    to: SessionId | None  # in which session; none where it went out of the house
    task: str
    above: Lineage  # of the run that asked, and of the one that reads what came of it
    lineage: Lineage  # of the run that works on it
    notify: Notify = Notify.WAKE
    wait_until: datetime | None = None  # so long the asking run holds its call open for it; none where it does not
    label: str = ""
    cleanup: Cleanup = Cleanup.KEEP
    state: DelegationState = DelegationState.OPEN
    because: str = ""
    result: EnvelopeId | None = None  # the letter that says what came of it
    worked_by: RunId | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    archive_at: datetime | None = None
    archived_at: datetime | None = None


def session_made_for(id_: EnvelopeId) -> SessionId:
    """The session in which a delegation is worked on, where there was none for it yet."""
    return SessionId(derived(id_, "session"))
