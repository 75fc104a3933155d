"""Types for a run that a worker has claimed, and for the records that a commit appends to its session."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from retinue.domain.address import Address
from retinue.domain.agent import Agent
from retinue.domain.approval import Approval
from retinue.domain.display_options import NO_DISPLAY_OPTIONS, DisplayOptions
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.person import Requester
from retinue.domain.record import Record, RecordBody, RecordKind, body_kind, body_trust
from retinue.domain.reply_delivery import ReplyDelivery
from retinue.domain.run import Run, Step
from retinue.domain.session import SPAWNED_ORIGINS, QueuePolicy, Session
from retinue.domain.tool import Call
from retinue.domain.trust import Trust, least_trust
from retinue.intake.accept import Wake
from retinue.store.core.transaction import Transaction


class ClaimedRun(Struct, frozen=True, kw_only=True):
    """A run that a worker has claimed, as the claiming commit left it. The claim is valid for one epoch."""

    run: Run
    session: Session
    agent: Agent
    envelopes: tuple[Envelope, ...]
    open_steps: tuple[Step, ...] = ()
    approvals: tuple[Approval, ...] = ()
    stored_calls: tuple[Call, ...] = ()
    delegating_agents: tuple[
        Agent, ...
    ] = ()  # agents that delegated this run, in order of delegation; their rules apply too
    speakers: tuple[Address, ...] = ()  # message authors, if the channel may be shared by several people
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts
    new_records: tuple[Record, ...] = ()  # records that the claim appended
    wakes: tuple[Wake, ...] = ()
    display: DisplayOptions = NO_DISPLAY_OPTIONS  # how the run shows its work
    reply_delivery: ReplyDelivery | None = None  # how replies are delivered, if the recipient is a channel

    @property
    def queue(self) -> QueuePolicy:
        return self.session.queue.apply_to(self.agent.queue)

    @property
    def acting_agent(self) -> Agent:
        """The agent in whose name the run acts.

        A subagent acts for the first agent in its chain of delegations, with the directories of
        that agent only.
        """
        lineage = self.run.lineage
        if lineage is None or self.session.origin.kind not in SPAWNED_ORIGINS:
            return self.agent
        return next((sender for sender in self.delegating_agents if sender.name in lineage.sent_by[:1]), self.agent)


class NothingClaimed(Struct, frozen=True):
    """The result of a claim that found no batch to run.

    `look_again` means that the claim closed a run or settled envelopes, so more work may be due.
    `retry_after_s` is the time until debounced envelopes are due, unless more envelopes arrive.
    """

    wakes: tuple[Wake, ...] = ()
    look_again: bool = False
    retry_after_s: float = 0.0


class RecordAppender(Struct):
    """Collects records to append to a session in one commit, numbered after the session's last record."""

    session: Session
    tx: Transaction
    run: Run | None = None
    records: list[Record] = field(default_factory=list[Record])

    @property
    def last_seq(self) -> int:
        return self.records[-1].seq if self.records else self.session.record_seq

    def add(self, body: RecordBody, *, kind: RecordKind | None = None, trust: Trust | None = None) -> Record:
        record = Record(
            session=self.session.id,
            seq=self.last_seq + 1,
            kind=kind or body_kind(body),
            body=body,
            at_ms=self.tx.at_ms,
            run=self.run.id if self.run else None,
            trust=trust or body_trust(body),
        )
        self.records.append(record)
        return record


def trust_of_envelopes(envelopes: Iterable[Envelope]) -> Trust:
    """Return the trust of a turn that consists of these envelopes: the least trust of any of them.

    The server writes the text of a decision, and quotes the agent's request in it. The approver did
    not write the quoted text, so the trust of a decision is at most `private`.
    """
    return least_trust(
        least_trust((envelope.trust, Trust.PRIVATE)) if envelope.kind is EnvelopeKind.DECISION else envelope.trust
        for envelope in envelopes
    )
