from __future__ import annotations

import pytest

from retinue.domain import address
from retinue.domain.session import Origin, OriginKind
from retinue.intake.routing import get_answer_address


@pytest.mark.parametrize(
    ("origin", "heard_by"),
    [
        (Origin(OriginKind.TERMINAL, "person:maria"), "person:maria"),
        (Origin(OriginKind.TERMINAL, "person:maria/work"), "person:maria"),
        (Origin(OriginKind.WEB, "person:maria/0123456789abcdef"), "person:maria"),
        (Origin(OriginKind.CHAT, "channel:quiet:a/b"), "channel:quiet:a/b"),
        (Origin(OriginKind.CHAT, "something of its own"), "person:owner"),
        (Origin(OriginKind.HEARTBEAT, "person:maria"), "person:owner"),
    ],
)
def test_the_answer_to_a_schedule_is_routed_to_the_owner_of_the_session_origin(origin: Origin, heard_by: str) -> None:
    assert str(get_answer_address(address.parse_address("schedule:0123456789ab"), origin=origin)) == heard_by
