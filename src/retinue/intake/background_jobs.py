"""Background jobs, sent to `agent:background`: one-shot runs in a separate session, with one
result.

A request is settled when it is accepted. It becomes a job: an envelope whose text is all that the
run reads. It runs as the requesting agent and never starts a second time. The result replies to the
request.
"""

from __future__ import annotations

from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import BACKGROUND, EXTERNAL, Address, AddressKind
from retinue.domain.agent import ARCHIVE_AFTER_S, Agent
from retinue.domain.delegation import Delegation, DelegationKind, Lineage, label_of, session_made_for
from retinue.domain.envelope import TEXT_BYTES_MAX, Draft, Envelope, Kind
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derived
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust
from retinue.policy.tools.delegations import descends, may_hand_over
from retinue.store.agents import agents
from retinue.store.core.transaction import Page
from retinue.store.runs import delegations
from retinue.store.sessions import sessions

HERE = address.agent(BACKGROUND)
TAKEN = "taken: a job in the background, whose result comes as a reply to this"
NOT_AN_AGENT = "only agents have jobs done in the background, and the sender is none that is known here"
FAILED = "Background job failed: "
SAID_NOTHING = "(no response)"
LOOP = "loop"


def is_for(recipient: Address) -> bool:
    return recipient.kind is AddressKind.AGENT and recipient.name.casefold() == BACKGROUND


def runner_of(agent: Agent, origin: OriginKind) -> str:
    """Jobs run on this server, also for an external agent."""
    return LOOP if origin is OriginKind.BACKGROUND and agent.runner == EXTERNAL else agent.runner


def take_up(page: Page, request: Draft) -> Delegation | str:
    """Open the job that a request from outside a run asks for, with its sessions. Returns the
    reason if it is refused."""
    asker = agents.find(page.conn, request.sender.name) if request.sender.kind is AddressKind.AGENT else None
    if asker is None or request.recipient.rest:
        return NOT_AN_AGENT
    home = _home(page, request, asker)
    # No run delegates it, so its envelope id serves as the run id; also as the root, if no run sent
    # the request.
    began = Lineage(root=RunId(request.id), behalf=address.agent(asker.name), agents=(asker.name,))
    above = request.context.lineage or began
    open_count = delegations.count_open(page.conn, home.id)
    decision = may_hand_over(asker, asker, DelegationKind.BACKGROUND, descent=above, open_count=open_count)
    if decision.denied:
        return decision.because
    own = asker.subagents.archive_after_s
    made = Delegation(
        id=request.id,
        kind=DelegationKind.BACKGROUND,
        run=began.root,
        call="",
        agent=asker.name,
        session=home.id,
        target=asker.name,
        to=session_for(page, request.id, asker, home.id, task=request.text),
        task=request.text,
        above=above,
        lineage=descends(above, asker, asker, DelegationKind.BACKGROUND),
        label=label_of("", request.text),
        archive_after_s=(ARCHIVE_AFTER_S if own is None else own) or None,
        created_at=from_ms(page.at_ms),
    )
    delegations.add(page.conn, made)
    page.tell(
        NewsKind.DELEGATION_OPENED,
        session=home.id,
        delegation=made.id,
        kind_of=made.kind.value,
        target=made.target,
        to=made.to,
        label=made.label,
    )
    return made


def session_for(page: Page, request: EnvelopeId, asker: Agent, home: SessionId, *, task: str) -> SessionId:
    """Start the session of a job. It belongs to the requesting agent, with an empty context."""
    made = session_made_for(request)
    origin = Origin(OriginKind.BACKGROUND, request, parent=home)
    sessions.start(page, made, agent=asker.name, origin=origin, name=label_of("", task), unique=False)
    return made


def _home(page: Page, request: Draft, asker: Agent) -> Session:
    """The session that reads the result: the one the request came from, or else the agent's session
    for such results."""
    named = sessions.get(page.conn, request.sender.session) if request.sender.session is not None else None
    if named is not None and named.agent == asker.name:
        return named
    origin = Origin(OriginKind.AGENT, str(HERE))
    found = sessions.by_origin(page.conn, asker.name, origin)
    if found is not None and found.deleted_at is None:
        return found
    made = SessionId(derived(request.id, "home"))
    sessions.start(page, made, agent=asker.name, origin=origin)
    session = sessions.get(page.conn, made)
    assert session is not None  # it was started a line above
    return session


def job_of(request: Draft, work: Delegation) -> Draft:
    assert work.to is not None
    return Draft(
        id=EnvelopeId(derived(request.id, "job")),
        sender=address.agent(work.agent, work.session),
        recipient=address.agent(work.target, work.to),
        text=request.text,
        source="house",
        key=f"{request.id}/job",
        kind=Kind.JOB,
        attachments=request.attachments,
        context=replace(request.context, lineage=None) if request.context.lineage else request.context,
        reply_to=request.id,
        trust=request.trust,
        deliver_at=request.deliver_at,
        expires_at=request.expires_at,
    )


def result_of(job: Envelope, text: str, *, trust: Trust) -> Draft:
    assert job.reply_to is not None
    return Draft(
        id=EnvelopeId(derived(job.reply_to, "result")),
        sender=HERE,
        recipient=job.sender,
        text=clipped_bytes(text, TEXT_BYTES_MAX) or SAID_NOTHING,
        source=BACKGROUND,  # a reply to a settled request, so it is no answer in the usual sense
        key=f"{job.reply_to}/result",
        kind=Kind.ANSWER,
        reply_to=job.reply_to,
        trust=trust,
    )
