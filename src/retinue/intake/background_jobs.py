"""Accepts background jobs. An agent requests one with an envelope to `agent:background`.

The request gets its outcome as soon as it is accepted. A second envelope, the job, starts a single
run of the requesting agent. The run has a new session, so it reads only the text of the job. A job
is never started twice. Its result is a reply to the request.
"""

from __future__ import annotations

from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import BACKGROUND, EXTERNAL, Address, AddressKind
from retinue.domain.agent import ARCHIVE_AFTER_S, Agent
from retinue.domain.delegation import Delegation, DelegationKind, Lineage, derive_session_id, make_label
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, Envelope, EnvelopeDraft, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derive_id
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import from_ms
from retinue.domain.trust import Trust
from retinue.policy.tools.delegations import build_child_lineage, may_delegate
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.runs import delegations
from retinue.store.sessions import sessions

BACKGROUND_ADDRESS = address.agent_address(BACKGROUND)
ACCEPTED_REASON = "accepted as a background job; its result will be a reply to this envelope"
NOT_AN_AGENT_REASON = "only agents can start background jobs, and the sender is not a known agent"
FAILED_PREFIX = "Background job failed: "
EMPTY_RESULT = "(no response)"
LOOP_RUNNER = "loop"


def is_background(recipient: Address) -> bool:
    return recipient.kind is AddressKind.AGENT and recipient.name.casefold() == BACKGROUND


def get_runner(agent: Agent, origin: OriginKind) -> str:
    """Return the runner of an agent's run. Background jobs run on this server, even for an external agent."""
    return LOOP_RUNNER if origin is OriginKind.BACKGROUND and agent.runner == EXTERNAL else agent.runner


def open_job(tx: Transaction, request: EnvelopeDraft) -> Delegation | str:
    """Create a background job for an envelope to `agent:background`, and start its sessions.

    Returns the delegation, or the reason if the job is refused.
    """
    asker = agents.find(tx.conn, request.sender.name) if request.sender.kind is AddressKind.AGENT else None
    if asker is None or request.recipient.rest:
        return NOT_AN_AGENT_REASON
    home = _find_result_session(tx, request, asker)
    # No run delegates this job, so the id of the request is used as the run id. It is also the root
    # if the request has no lineage.
    began = Lineage(root=RunId(request.id), behalf=address.agent_address(asker.name), agents=(asker.name,))
    above = request.context.lineage or began
    open_count = delegations.count_open(tx.conn, home.id)
    decision = may_delegate(asker, asker, DelegationKind.BACKGROUND, lineage=above, open_count=open_count)
    if decision.is_denied:
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
        target_session=start_job_session(tx, request.id, asker, home.id, task=request.text),
        task=request.text,
        parent_lineage=above,
        lineage=build_child_lineage(above, asker, asker, DelegationKind.BACKGROUND),
        label=make_label("", request.text),
        archive_after_s=(ARCHIVE_AFTER_S if own is None else own) or None,
        created_at=from_ms(tx.at_ms),
    )
    delegations.add(tx.conn, made)
    tx.emit(
        EventKind.DELEGATION_OPENED,
        session=home.id,
        delegation=made.id,
        delegation_kind=made.kind.value,
        target=made.target,
        to=made.target_session,
        label=made.label,
    )
    return made


def start_job_session(
    tx: Transaction, request: EnvelopeId, agent: Agent, result_session: SessionId, *, task: str
) -> SessionId:
    """Start the session of a job. It belongs to the requesting agent and has an empty context."""
    made = derive_session_id(request)
    origin = Origin(OriginKind.BACKGROUND, request, parent=result_session)
    sessions.start(tx, made, agent=agent.name, origin=origin, name=make_label("", task), unique=False)
    return made


def _find_result_session(tx: Transaction, request: EnvelopeDraft, agent: Agent) -> Session:
    """Return the session to which the result of a job is sent.

    It is the session that the request came from, or else the agent's session for results of jobs.
    """
    named = sessions.get(tx.conn, request.sender.session) if request.sender.session is not None else None
    if named is not None and named.agent == agent.name:
        return named
    origin = Origin(OriginKind.AGENT, str(BACKGROUND_ADDRESS))
    found = sessions.get_by_origin(tx.conn, agent.name, origin)
    if found is not None and found.deleted_at is None:
        return found
    made = SessionId(derive_id(request.id, "home"))
    sessions.start(tx, made, agent=agent.name, origin=origin)
    session = sessions.get(tx.conn, made)
    assert session is not None  # it was started a line above
    return session


def build_job(request: EnvelopeDraft, delegation: Delegation) -> EnvelopeDraft:
    assert delegation.target_session is not None
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(request.id, "job")),
        sender=address.agent_address(delegation.agent, delegation.session),
        recipient=address.agent_address(delegation.target, delegation.target_session),
        text=request.text,
        source="server",
        idempotency_key=f"{request.id}/job",
        kind=EnvelopeKind.JOB,
        attachments=request.attachments,
        context=replace(request.context, lineage=None) if request.context.lineage else request.context,
        reply_to=request.id,
        trust=request.trust,
        deliver_at=request.deliver_at,
        expires_at=request.expires_at,
    )


def build_result(job: Envelope, text: str, *, trust: Trust) -> EnvelopeDraft:
    assert job.reply_to is not None
    return EnvelopeDraft(
        id=EnvelopeId(derive_id(job.reply_to, "result")),
        sender=BACKGROUND_ADDRESS,
        recipient=job.sender,
        text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX) or EMPTY_RESULT,
        source=BACKGROUND,  # a reply to a settled request, so it is not an answer in the usual sense
        idempotency_key=f"{job.reply_to}/result",
        kind=EnvelopeKind.ANSWER,
        reply_to=job.reply_to,
        trust=trust,
    )
