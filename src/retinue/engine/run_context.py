"""What a worker holds while it works a run: its claim on a session, valid for one epoch."""

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
    """A run that is ours to work on, as the claiming commit left it."""

    run: Run
    session: Session
    agent: Agent
    envelopes: tuple[Envelope, ...]
    open_steps: tuple[Step, ...] = ()
    approvals: tuple[Approval, ...] = ()
    stored: tuple[Call, ...] = ()
    senders: tuple[Agent, ...] = ()  # whose rules hold beside its own agent's, who sent it out first of all first
    speakers: tuple[Address, ...] = ()  # who spoke, where they did so in a room that may be several people's
    requesters: tuple[Requester, ...] = ()  # the people on whose behalf it works
    fresh: tuple[Record, ...] = ()  # what the claim itself appended
    wakes: tuple[Wake, ...] = ()
    manner: Manner = PLAIN  # in which it shows what it does
    words: Words | None = None  # how it speaks, where a room in a channel is spoken to

    @property
    def queue(self) -> QueuePolicy:
        return self.session.queue.over(self.agent.queue)

    @property
    def acting(self) -> Agent:
        """As whom it acts: a subagent as whoever sent it out first of all, with their folders and no others."""
        lineage = self.run.lineage
        if lineage is None or self.session.origin.kind not in SENT_OUT:
            return self.agent
        return next((sender for sender in self.senders if sender.name in lineage.sent_by[:1]), self.agent)


class Nothing(Struct, frozen=True):
    """Nothing to work on. `again` means: something was closed, and there may be more behind it. `after_s`: what waits
    is to be looked at then, unless more has come."""

    wakes: tuple[Wake, ...] = ()
    again: bool = False
    after_s: float = 0.0


class Append(Struct):
    """Records to be appended to a session within one commit, numbered from where the session stands."""

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
    """How far a turn made of these can be believed: as far as the least of their senders.

    A decision is told in the house's words, which name what was asked for: whoever allows a call has not said it.
    """
    return least(
        least((envelope.trust, Trust.PRIVATE)) if envelope.kind is Kind.DECISION else envelope.trust
        for envelope in envelopes
    )
