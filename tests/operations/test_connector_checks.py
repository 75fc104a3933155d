"""What the doctor says of doors: a line that is down, a door that is open, a place where nobody answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from retinue.config.access import DoorSettings
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.supervisor.connector_health import LineHealth, LineState
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.binding import Binding, Match
from retinue.operations.connector.connector_checks import DoorFacts, judge
from retinue.operations.doctor_registry import Found, Health

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def found(
    *,
    door: DoorSettings | None = None,
    enabled: bool = True,
    state: LineState = LineState.LISTENING,
    breaks: int = 0,
    bindings: tuple[Binding, ...] = (),
    aside: int = 0,
) -> list[Found]:
    settings = ConnectorSettings(kind="telegram", enabled=enabled, door=door or DoorSettings())
    line = LineHealth(instance="family", kind="telegram", state=state, since=NOW, breaks=breaks, because="it rains")
    facts = DoorFacts(
        connectors=(("family", settings),), lines=(line,), bindings=bindings, staff=frozenset({"ada"}), aside=aside
    )
    return list(judge(facts))


def binding(agent: str = "ada", connector: str = "family", also: tuple[str, ...] = ()) -> Binding:
    return Binding(id="0" * 32, agent=agent, match=Match(connector=connector), also=also)


def test_a_house_whose_doors_are_well_has_nothing_to_hear() -> None:
    assert found(bindings=(binding(), binding(connector="telegram"))) == []
    assert found(state=LineState.OFF, enabled=False, door=DoorSettings(dm=DmPolicy.OPEN)) == []


@pytest.mark.parametrize(
    ("state", "health"),
    [
        (LineState.FAILED, Health.PROBLEM),
        (LineState.NEEDS_OWNER, Health.PROBLEM),
        (LineState.WAITING, Health.WARNING),
        (LineState.TRYING, Health.WARNING),
    ],
)
def test_a_line_that_is_down_is_told_with_its_reason(state: LineState, health: Health) -> None:
    [told] = found(state=state, breaks=1)
    assert (told.health, told.because) == (health, "it rains") and "connector test family" in told.try_this


def test_a_door_that_is_open_to_everyone_is_warned_of() -> None:
    [told] = found(door=DoorSettings(dm=DmPolicy.OPEN))
    assert told.health is Health.WARNING and "connectors.family.dm" in told.because
    [told] = found(door=DoorSettings(group_policy=GroupPolicy.OPEN))
    assert told.health is Health.WARNING and "group" in told.sentence
    [told] = found(door=DoorSettings(group_policy=GroupPolicy.ALLOWLIST, group_allow_from=("*",)))
    assert told.health is Health.WARNING


def test_a_place_where_nobody_answers_is_a_problem_and_an_answer_with_no_place_a_warning() -> None:
    [told] = found(bindings=(binding(also=("zoe",)),))
    assert told.health is Health.PROBLEM and "'zoe'" in told.sentence
    [told] = found(bindings=(binding(connector="irc"),))
    assert told.health is Health.WARNING and "'irc'" in told.sentence


def test_what_was_set_aside_waits_for_somebody() -> None:
    [told] = found(aside=3)
    assert told.health is Health.WARNING and told.sentence.startswith("3 messages")
