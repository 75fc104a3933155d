"""What the doctor says of doors: a line that is down, a door that is open, a place where nobody answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from retinue.config.access import AccessSettings
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.supervisor.connector_health import ConnectionStatus, ConnectorHealth
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.binding import Binding, BindingMatch
from retinue.operations.connector.connector_checks import ConnectorFacts, evaluate_connectors
from retinue.operations.doctor_registry import DoctorFinding, DoctorHealth

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def found(
    *,
    door: AccessSettings | None = None,
    enabled: bool = True,
    state: ConnectionStatus = ConnectionStatus.LISTENING,
    breaks: int = 0,
    bindings: tuple[Binding, ...] = (),
    aside: int = 0,
) -> list[DoctorFinding]:
    settings = ConnectorSettings(kind="telegram", enabled=enabled, door=door or AccessSettings())
    line = ConnectorHealth(
        name="family", platform="telegram", status=state, since=NOW, failures=breaks, because="it rains"
    )
    facts = ConnectorFacts(
        connectors=(("family", settings),),
        health=(line,),
        bindings=bindings,
        agent_names=frozenset({"ada"}),
        poison_message_count=aside,
    )
    return list(evaluate_connectors(facts))


def binding(agent: str = "ada", connector: str = "family", also: tuple[str, ...] = ()) -> Binding:
    return Binding(id="0" * 32, agent=agent, match=BindingMatch(connector=connector), extra_agents=also)


def test_a_house_whose_doors_are_well_has_nothing_to_hear() -> None:
    assert found(bindings=(binding(), binding(connector="telegram"))) == []
    assert found(state=ConnectionStatus.OFF, enabled=False, door=AccessSettings(dm=DmPolicy.OPEN)) == []


@pytest.mark.parametrize(
    ("state", "health"),
    [
        (ConnectionStatus.FAILED, DoctorHealth.PROBLEM),
        (ConnectionStatus.NEEDS_OWNER, DoctorHealth.PROBLEM),
        (ConnectionStatus.WAITING, DoctorHealth.WARNING),
        (ConnectionStatus.TRYING, DoctorHealth.WARNING),
    ],
)
def test_a_line_that_is_down_is_told_with_its_reason(state: ConnectionStatus, health: DoctorHealth) -> None:
    [told] = found(state=state, breaks=1)
    assert (told.health, told.because) == (health, "it rains") and "connector test family" in told.try_this


def test_a_door_that_is_open_to_everyone_is_warned_of() -> None:
    [told] = found(door=AccessSettings(dm=DmPolicy.OPEN))
    assert told.health is DoctorHealth.WARNING and "connectors.family.dm" in told.because
    [told] = found(door=AccessSettings(group_policy=GroupPolicy.OPEN))
    assert told.health is DoctorHealth.WARNING and "group" in told.sentence
    [told] = found(door=AccessSettings(group_policy=GroupPolicy.ALLOWLIST, group_allow_from=("*",)))
    assert told.health is DoctorHealth.WARNING


def test_a_place_where_nobody_answers_is_a_problem_and_an_answer_with_no_place_a_warning() -> None:
    [told] = found(bindings=(binding(also=("zoe",)),))
    assert told.health is DoctorHealth.PROBLEM and "'zoe'" in told.sentence
    [told] = found(bindings=(binding(connector="irc"),))
    assert told.health is DoctorHealth.WARNING and "'irc'" in told.sentence


def test_what_was_set_aside_waits_for_somebody() -> None:
    [told] = found(aside=3)
    assert told.health is DoctorHealth.WARNING and told.sentence.startswith("3 messages")
