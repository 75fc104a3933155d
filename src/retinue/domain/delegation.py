"""Delegations: work that one session gives to another, and how the result returns.

A delegation is an envelope of kind `delegation` and a stored `Delegation`. The envelope takes the same path as any
other. The result, or the notice that the work failed, is always an envelope that replies to the delegation.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain import session_keys
from retinue.domain.address import Address
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derive_id

TASK_SHOWN_MAX = 200  # characters of a task shown in lists
LABEL_LENGTH_MAX = 100
LABEL_FROM_TASK_MAX = 60

# Which session of the target agent to use: the last session that the two agents shared, that session or else a new
# one, or always a new session.
LATEST_SESSION = "latest"
LATEST_OR_NEW_SESSION = "latest-or-create"
NEW_SESSION = "create"


class DelegationKind(StrEnum):
    MESSAGE = "message"  # to another agent, in a session that the two share
    SEND = "send"  # into an existing session
    SPAWN = "spawn"  # to a subagent, in a new session
    BACKGROUND = "background"  # a one-shot run, without a particular agent or instructions
    EXTERNAL = "external"  # to an external agent


class NotifyMode(StrEnum):
    """What happens when a result arrives for a session that is not waiting for it."""

    WAKE = "wake"  # starts a run at once
    NOTE = "note"  # stored for the next turn
    OFF = "off"  # not delivered


class SubagentCleanup(StrEnum):
    """What happens to a subagent's session when the subagent has finished its work."""

    KEEP = "keep"
    DELETE = "delete"


class DelegationState(StrEnum):
    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self is DelegationState.OPEN


class Lineage(Struct, frozen=True, kw_only=True):
    """The chain of runs that led to a run, and the limits that the run inherits in addition to its agent's settings.

    `root` is the first run of the tree, and `behalf` is that run's principal: work on behalf of a guest has no more
    rights than the guest. If the principal is a channel, `speakers` are the people who wrote there. `agents` are all
    agents from the root to this run's agent, which is last. `sent_by` are the agents that started this run as a
    subagent; their rules apply too. A run may spend at most as much as the run that started it (`run_microusd_max`).
    All runs of the tree together may spend at most `tree_microusd_max`.
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
        """The number of delegations between the root run and this run."""
        return len(self.agents) - 1


class AgentExchange(Struct, frozen=True, kw_only=True):
    """The progress of an exchange of messages between two sessions. `about` is the envelope that began the exchange."""

    about: EnvelopeId
    turn: int  # the turn of the reader, from 1
    turns_max: int
    announces: bool = False  # the exchange is over, and the reader reports it to the person of its session


class Delegation(Struct, frozen=True, kw_only=True):
    """A delegation as stored. `id` is the id of its envelope.

    `call` is the tool call of `run` that made the delegation. If the call is repeated, the existing
    delegation is used again.
    """

    id: EnvelopeId
    kind: DelegationKind
    run: RunId
    call: str
    agent: str  # the delegating agent
    session: SessionId  # the delegating session
    target: str  # the agent that does the work
    target_session: SessionId | None  # the session that does the work; None for an external agent
    task: str
    parent_lineage: Lineage  # lineage of the delegating run, and of the run that reads the result
    lineage: Lineage  # lineage of the run that does the work
    notify: NotifyMode = NotifyMode.WAKE
    wait_until: datetime | None = None  # until then the delegating run keeps its call open; None: it does not wait
    label: str = ""
    cleanup: SubagentCleanup = SubagentCleanup.KEEP
    state: DelegationState = DelegationState.OPEN
    because: str = ""
    result: EnvelopeId | None = None  # the envelope with the result
    worker_run: RunId | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    archive_after_s: float | None = None  # delay after the end until the session is archived; None: never
    archive_at: datetime | None = None
    archived_at: datetime | None = None

    @property
    def worker_run_id(self) -> RunId:
        """The id of the run that does the work. It is known before that run starts."""
        return self.worker_run or derive_run_id(self.id)

    @property
    def worker_session_key(self) -> str:
        """The session key of the session that does the work."""
        return str(session_keys.subagent_key(self.target, self.target_session or self.id))


def make_label(label: str, task: str) -> str:
    """Return a one-line label for a delegation, without double quotes: the given label or the task's beginning."""
    words = label.strip() or task[: 2 * LABEL_FROM_TASK_MAX]
    most = LABEL_LENGTH_MAX if label.strip() else LABEL_FROM_TASK_MAX
    line = " ".join("".join(each if each.isprintable() else " " for each in words).replace('"', "'").split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def derive_run_id(delegation_id: EnvelopeId) -> RunId:
    """Return the id of the run that a delegation will start. It can be computed before the run exists."""
    return RunId(derive_id(delegation_id, "run"))


def derive_session_id(delegation_id: EnvelopeId) -> SessionId:
    """Return the id of the session that is created for a delegation, if the delegation needs a new session."""
    return SessionId(derive_id(delegation_id, "session"))
