"""Delegations: work that one session hands to another, and what is to become of the answer.

A delegation is a letter of kind `delegation`, and this is what the house remembers beside it. The letter takes the road
of all mail; its answer, or the notice that it failed, is a letter that replies to it. Nothing else carries a result.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain import session_keys
from retinue.domain.address import Address
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derived

TASK_SHOWN_MAX = 200  # characters of a task, where lists show it
LABEL_LENGTH_MAX = 100
LABEL_FROM_TASK_MAX = 60

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
    rights than the guest. Where that is a room, `speakers` are those who spoke there. `agents` is everyone from there
    to here, this run's own agent last. `sent_by` are those whose rules hold beside its own agent's, because it is a
    subagent of theirs. What a run may spend is no more than what the one above may (`run_microusd_max`), and all of
    them together no more than the tree may.
    """

    root: RunId
    behalf: Address
    agents: tuple[str, ...]
    speakers: tuple[Address, ...] = ()
    sent_by: tuple[str, ...] = ()
    run_microusd_max: int | None = None
    tree_microusd_max: int | None = None

    @property
    def depth(self) -> int:
        """How often the work was handed on."""
        return len(self.agents) - 1


class Exchange(Struct, frozen=True, kw_only=True):
    """Where two sessions stand that answer each other. `about` is the letter with which one of them began."""

    about: EnvelopeId
    turn: int  # whoever reads this has the turn of this number, from 1
    turns_max: int
    announces: bool = False  # all is said: whoever reads this tells the person who sits before their session


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
    archive_after_s: float | None = None  # so long after its end the session is put away; none: never
    archive_at: datetime | None = None
    archived_at: datetime | None = None

    @property
    def run_id(self) -> RunId:
        """The run that works on it, also before it has begun."""
        return self.worked_by or run_made_for(self.id)

    @property
    def child_key(self) -> str:
        """The key of the session in which it is worked on, as keys are written everywhere."""
        return str(session_keys.subagent(self.target, self.to or self.id))


def label_of(label: str, task: str) -> str:
    """What it is called: as whoever made it says, or by the first words of the task. One line that stands in quotes."""
    words = label.strip() or task[: 2 * LABEL_FROM_TASK_MAX]
    most = LABEL_LENGTH_MAX if label.strip() else LABEL_FROM_TASK_MAX
    line = " ".join("".join(each if each.isprintable() else " " for each in words).replace('"', "'").split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def run_made_for(id_: EnvelopeId) -> RunId:
    """The run that a delegation begins: known to whoever made it before it is begun."""
    return RunId(derived(id_, "run"))


def session_made_for(id_: EnvelopeId) -> SessionId:
    """The session in which a delegation is worked on, where there was none for it yet."""
    return SessionId(derived(id_, "session"))
