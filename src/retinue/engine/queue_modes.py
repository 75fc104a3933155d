"""Applies the queue mode of a session: which waiting envelopes the next run takes together, and which may steer or
interrupt the active run.

The functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope, EnvelopeKind, needs_answer
from retinue.domain.ids import EnvelopeId
from retinue.domain.run import RunRequest
from retinue.domain.session import BATCH_MAX, QueueMode, QueuePolicy, WhenBusy
from retinue.domain.trust import Trust

DEBOUNCE_WAITS_MAX = 10  # maximum wait of the first message, in multiples of the debounce time
SINGLE_RUN_KINDS = frozenset(
    {EnvelopeKind.DECISION, EnvelopeKind.DELEGATION, EnvelopeKind.JOB}
)  # each gets its own run
RESULT_KINDS = frozenset({EnvelopeKind.ANSWER, EnvelopeKind.NOTICE})


class Batch(Struct, frozen=True):
    """The next work of a lane: silent envelopes to record, and envelopes with the same batch key for the next run."""

    silent: tuple[Envelope, ...]
    envelopes: tuple[Envelope, ...]


def batch_key(
    envelope: Envelope,
) -> tuple[tuple[str, ...], EnvelopeKind | bool, RunRequest | None, Lineage | None, EnvelopeId | None]:
    """Return the batch key of an envelope. Envelopes with equal keys may share a run.

    The key consists of the sender, whether an answer is due, the run request and the lineage. For a result of delegated
    work it also has the delegation, so that each result gets a separate batch.
    """
    context = envelope.context
    owed = EnvelopeKind.SYSTEM if envelope.kind is EnvelopeKind.SYSTEM else needs_answer(envelope.kind)
    about = envelope.reply_to if envelope.kind in RESULT_KINDS else None
    who = str(envelope.sender), context.sender_id, context.sender_name, context.username
    return who, owed, context.request, context.lineage, about


def next_batch(due: Sequence[Envelope], queue: QueuePolicy) -> Batch:
    """Split the due envelopes, in order, into silent envelopes to record and envelopes for the next run."""
    silent = tuple(envelope for envelope in due if envelope.silent)
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud:
        return Batch(silent, ())
    first = loud[0]
    if first.kind in SINGLE_RUN_KINDS or queue.mode in (QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG):
        return Batch(silent, (first,))
    work: list[Envelope] = []
    for envelope in loud:
        if len(work) == BATCH_MAX or envelope.kind in SINGLE_RUN_KINDS or batch_key(envelope) != batch_key(first):
            break
        work.append(envelope)
    return Batch(silent, tuple(work))


def debounce_left_s(due: Sequence[Envelope], queue: QueuePolicy, *, now: datetime) -> float:
    """Return how many more seconds a lane waits for more messages before it starts a run.

    The lane waits until no message has arrived for the queue's debounce time. The first message
    never waits longer than `DEBOUNCE_WAITS_MAX` debounce times.
    """
    if not queue.debounce_s:
        return 0.0
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud or any(envelope.kind is not EnvelopeKind.MESSAGE for envelope in loud):
        return 0.0
    times = [envelope.accepted_at for envelope in loud]
    pause = timedelta(seconds=queue.debounce_s)
    until = min(max(times) + pause, min(times) + DEBOUNCE_WAITS_MAX * pause)
    return max(0.0, (until - now).total_seconds())


def may_steer(envelope: Envelope, queue: QueuePolicy, held: Sequence[Envelope]) -> bool:
    """Whether an envelope may be added to the active run, which holds the envelopes `held`."""
    if envelope.silent or envelope.kind is not EnvelopeKind.MESSAGE or not _wants_to_steer(envelope, queue):
        return False
    if envelope.steered_into is not None:  # otherwise every run would read a long backlog again
        return False
    return envelope.trust is Trust.OWNER or any(batch_key(envelope) == batch_key(each) for each in held)


def _wants_to_steer(envelope: Envelope, queue: QueuePolicy) -> bool:
    if envelope.context.when_busy is not None:
        return envelope.context.when_busy is WhenBusy.STEER
    return queue.mode in (QueueMode.STEER, QueueMode.STEER_BACKLOG)


def may_interrupt(envelope: Envelope) -> bool:
    """Whether an envelope of this kind may interrupt a run. Decisions, answers and notices may not."""
    asks = not envelope.silent and envelope.kind in (EnvelopeKind.MESSAGE, EnvelopeKind.SYSTEM)
    return asks and envelope.context.when_busy is None
