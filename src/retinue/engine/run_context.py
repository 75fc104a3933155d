"""A run that a worker has claimed, and the records that a commit appends to its session."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from retinue.domain.address import Address
from retinue.domain.agent import Agent
from retinue.domain.approval import Approval
from retinue.domain.display_options import PLAIN, Manner
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.person import Requester
from retinue.domain.record import Body, Record, RecordKind, kind_of, trust_of
from retinue.domain.reply_delivery import Words
from retinue.domain.run import Run, Step
from retinue.domain.session import SENT_OUT, QueuePolicy, Session
from retinue.domain.tool import Call
from retinue.domain.trust import Trust, least
from retinue.intake.accept import Wake
from retinue.store.core.transaction import Page


class Work(Struct, frozen=True, kw_only=True):
    """A run claimed by this worker, as the claiming commit left it. The claim is valid for one epoch."""

    run: Run
    session: Session
    agent: Agent
    envelopes: tuple[Envelope, ...]
    open_steps: tuple[Step, ...] = ()
    approvals: tuple[Approval, ...] = ()
    stored: tuple[Call, ...] = ()
    senders: tuple[Agent, ...] = ()  # agents that delegated this run, the first one first; their rules apply too
    speakers: tuple[Address, ...] = ()  # message authors, if the channel may be shared by several people
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts
    fresh: tuple[Record, ...] = ()  # records that the claim appended
    wakes: tuple[Wake, ...] = ()
    manner: Manner = PLAIN  # how the run shows its work
    words: Words | None = None  # how replies are delivered, if the recipient is a channel

    @property
    def queue(self) -> QueuePolicy:
        return self.session.queue.over(self.agent.queue)

    @property
    def acting(self) -> Agent:
        """Return the agent as which the run acts.

        A subagent acts as the agent that delegated first, with the directories of that agent only.
        """
        lineage = self.run.lineage
        if lineage is None or self.session.origin.kind not in SENT_OUT:
            return self.agent
        return next((sender for sender in self.senders if sender.name in lineage.sent_by[:1]), self.agent)


class Nothing(Struct, frozen=True):
    """A claim that found no batch to run.

    `look_again`: something was closed, and more may be due. `retry_after_s`: debounced envelopes
    are due after this time, unless more arrive.
    """

    wakes: tuple[Wake, ...] = ()
    again: bool = False
    after_s: float = 0.0


class Append(Struct):
    """Records to append to a session in one commit, numbered from the session's last record on."""

    session: Session
    page: Page
    run: Run | None = None
    records: list[Record] = field(default_factory=list[Record])

    @property
    def seq(self) -> int:
        return self.records[-1].seq if self.records else self.session.record_seq

    def add(self, body: Body, *, kind: RecordKind | None = None, trust: Trust | None = None) -> Record:
        record = Record(
            session=self.session.id,
            seq=self.seq + 1,
            kind=kind or kind_of(body),
            body=body,
            at_ms=self.page.at_ms,
            run=self.run.id if self.run else None,
            trust=trust or trust_of(body),
        )
        self.records.append(record)
        return record


def trust_of_mail(envelopes: Iterable[Envelope]) -> Trust:
    """Return the trust of a turn made of these envelopes: the least trust of any of them.

    The text of a decision is written by the server and quotes the request. Approving a call does
    not make its text the approver's own, so a decision is at most `private`.
    """
    return least(
        least((envelope.trust, Trust.PRIVATE)) if envelope.kind is Kind.DECISION else envelope.trust
        for envelope in envelopes
    )
