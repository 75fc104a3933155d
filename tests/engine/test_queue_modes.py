"""Which waiting envelopes the next run takes together."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from retinue.domain import address
from retinue.domain.envelope import Envelope, EnvelopeContext, EnvelopeKind, EnvelopeStatus
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.session import BATCH_MAX, QueueMode, QueuePolicy
from retinue.domain.trust import Trust
from retinue.engine.queue_modes import next_batch

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
COLLECT_POLICY = QueuePolicy()


def make_envelope(seq: int, sender: str = "person:maria", **kw: Any) -> Envelope:
    plain = Envelope(
        seq=seq,
        id=EnvelopeId(f"{seq:032x}"),
        sender=address.parse_address(sender),
        recipient=address.agent_address("ada"),
        session=SessionId("s" * 32),
        kind=EnvelopeKind.MESSAGE,
        text=f"number {seq}",
        attachments=(),
        context=EnvelopeContext(),
        reply_to=None,
        trust=Trust.PERSON,
        source=sender,
        idempotency_key=f"{seq}",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=NOON,
        status=EnvelopeStatus.PENDING,
        attempts=0,
        accepted_at=NOON,
        claimed_at=None,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return msgspec.structs.replace(plain, **kw)


def sequence_numbers(envelopes: tuple[Envelope, ...]) -> list[int]:
    return [envelope.seq for envelope in envelopes]


def test_the_batch_of_a_lane_is_empty_if_no_envelope_is_due() -> None:
    batch = next_batch([], COLLECT_POLICY)
    assert (batch.silent, batch.envelopes) == ((), ())


def test_the_batch_of_a_lane_has_one_sender_and_at_most_ten_envelopes() -> None:
    assert sequence_numbers(next_batch([make_envelope(n) for n in range(15)], COLLECT_POLICY).envelopes) == list(
        range(BATCH_MAX)
    )
    mixed = [make_envelope(1), make_envelope(2), make_envelope(3, "person:owner"), make_envelope(4)]
    assert sequence_numbers(next_batch(mixed, COLLECT_POLICY).envelopes) == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"context": EnvelopeContext(sender_name="Alice")},
        {"context": EnvelopeContext(username="alice")},
        {"context": EnvelopeContext(sender_id="8")},
        {"kind": EnvelopeKind.ANSWER},
        {"kind": EnvelopeKind.DECISION},
    ],
    ids=["another name", "another account", "another id", "no answer owed", "a decision"],
)
def test_the_batch_of_a_lane_ends_at_an_envelope_with_another_speaker_or_kind(other: dict[str, Any]) -> None:
    assert sequence_numbers(
        next_batch([make_envelope(1), make_envelope(2, **other), make_envelope(3)], COLLECT_POLICY).envelopes
    ) == [1]


def test_another_platform_message_id_does_not_end_the_batch_of_a_lane() -> None:
    """Each message has its own id on its platform, but belongs to the same conversation."""
    apart = [make_envelope(n, context=EnvelopeContext(sender_name="Alice", platform_id=f"{n}")) for n in range(3)]
    assert sequence_numbers(next_batch(apart, COLLECT_POLICY).envelopes) == [0, 1, 2]


@pytest.mark.parametrize("mode", [QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG])
def test_the_batch_of_a_lane_has_one_envelope_in_followup_and_steer_backlog_modes(mode: QueueMode) -> None:
    assert sequence_numbers(next_batch([make_envelope(1), make_envelope(2)], QueuePolicy(mode=mode)).envelopes) == [1]


def test_a_lane_collects_silent_envelopes_separately_without_splitting_its_batch() -> None:
    batch = next_batch(
        [
            make_envelope(1),
            make_envelope(2, silent=True),
            make_envelope(3),
            make_envelope(4, "person:owner", silent=True),
        ],
        COLLECT_POLICY,
    )
    assert sequence_numbers(batch.silent) == [2, 4]
    assert sequence_numbers(batch.envelopes) == [1, 3]


def test_a_decision_envelope_has_a_batch_of_its_own_in_a_lane() -> None:
    assert sequence_numbers(
        next_batch([make_envelope(1, kind=EnvelopeKind.DECISION), make_envelope(2)], COLLECT_POLICY).envelopes
    ) == [1]
