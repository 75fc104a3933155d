"""What the doctor reports about connectors: broken connections, open access rules and missing bindings."""

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


def doctor_findings(
    *,
    access: AccessSettings | None = None,
    enabled: bool = True,
    state: ConnectionStatus = ConnectionStatus.LISTENING,
    breaks: int = 0,
    bindings: tuple[Binding, ...] = (),
    poison_messages: int = 0,
) -> list[DoctorFinding]:
    settings = ConnectorSettings(platform="telegram", enabled=enabled, access=access or AccessSettings())
    health = ConnectorHealth(
        name="family", platform="telegram", status=state, since=NOW, failures=breaks, because="it rains"
    )
    facts = ConnectorFacts(
        connectors=(("family", settings),),
        health=(health,),
        bindings=bindings,
        agent_names=frozenset({"ada"}),
        poison_message_count=poison_messages,
    )
    return list(evaluate_connectors(facts))


def binding(agent: str = "ada", connector: str = "family", also: tuple[str, ...] = ()) -> Binding:
    return Binding(id="0" * 32, agent=agent, match=BindingMatch(connector=connector), extra_agents=also)


def test_the_connector_checks_of_doctor_find_nothing_for_healthy_or_disabled_connectors() -> None:
    assert doctor_findings(bindings=(binding(), binding(connector="telegram"))) == []
    assert (
        doctor_findings(state=ConnectionStatus.OFF, enabled=False, access=AccessSettings(dm_policy=DmPolicy.OPEN)) == []
    )


@pytest.mark.parametrize(
    ("state", "health"),
    [
        (ConnectionStatus.FAILED, DoctorHealth.PROBLEM),
        (ConnectionStatus.NEEDS_OWNER, DoctorHealth.PROBLEM),
        (ConnectionStatus.WAITING, DoctorHealth.WARNING),
        (ConnectionStatus.CONNECTING, DoctorHealth.WARNING),
    ],
)
def test_the_connector_checks_report_a_connector_without_a_connection_and_its_reason(
    state: ConnectionStatus, health: DoctorHealth
) -> None:
    [finding] = doctor_findings(state=state, breaks=1)
    assert (finding.health, finding.because) == (health, "it rains") and "connector test family" in finding.try_this


def test_the_connector_checks_warn_about_access_rules_that_are_open_to_everyone() -> None:
    [finding] = doctor_findings(access=AccessSettings(dm_policy=DmPolicy.OPEN))
    assert finding.health is DoctorHealth.WARNING and "connectors.family.dm_policy" in finding.because
    [finding] = doctor_findings(access=AccessSettings(group_policy=GroupPolicy.OPEN))
    assert finding.health is DoctorHealth.WARNING and "group" in finding.sentence
    [finding] = doctor_findings(access=AccessSettings(group_policy=GroupPolicy.ALLOWLIST, group_allow_from=("*",)))
    assert finding.health is DoctorHealth.WARNING


def test_the_connector_checks_report_a_binding_to_a_missing_agent_or_connector() -> None:
    [finding] = doctor_findings(bindings=(binding(also=("zoe",)),))
    assert finding.health is DoctorHealth.PROBLEM and "'zoe'" in finding.sentence
    [finding] = doctor_findings(bindings=(binding(connector="irc"),))
    assert finding.health is DoctorHealth.WARNING and "'irc'" in finding.sentence


def test_the_connector_checks_warn_about_waiting_poison_messages() -> None:
    [finding] = doctor_findings(poison_messages=3)
    assert finding.health is DoctorHealth.WARNING and finding.sentence.startswith("3 messages")
