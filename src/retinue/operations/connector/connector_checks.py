"""The `retinue doctor` check for connectors: their health, their bindings and their access rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from retinue.config import examine_configuration as examine_settings
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.supervisor.connector_health import ConnectionStatus, ConnectorHealth
from retinue.domain.access import EVERYONE, DmPolicy, GroupPolicy
from retinue.domain.binding import Binding
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_problem, build_warning
from retinue.store.agents import agents
from retinue.store.channels import bindings, poison_messages
from retinue.text.quantity import format_quantity


class ConnectorFacts(Struct, frozen=True, kw_only=True):
    """Facts for the check of connectors. `health` is None if the server is stopped."""

    connectors: tuple[tuple[str, ConnectorSettings], ...]
    health: tuple[ConnectorHealth, ...] | None
    bindings: tuple[Binding, ...]
    agent_names: frozenset[str]
    poison_message_count: int


async def _gather_facts(context: DoctorContext) -> ConnectorFacts:
    settings = examine_settings(context.environment).configuration.settings
    supervisor = context.connector_supervisor
    found: Sequence[Binding] = await context.store.scan(bindings.list_all) if context.store is not None else ()
    return ConnectorFacts(
        connectors=tuple(settings.connectors.items()),
        health=tuple(supervisor.health()) if supervisor is not None else None,
        bindings=tuple(found),
        agent_names=frozenset(each.name for each in await context.store.scan(agents.list_all))
        if context.store
        else frozenset(),
        poison_message_count=await context.store.scan(poison_messages.count_waiting)
        if context.store is not None
        else 0,
    )


def evaluate_connectors(facts: ConnectorFacts) -> Iterator[DoctorFinding]:
    for health in facts.health or ():
        yield from _evaluate_health(health)
    for name, settings in facts.connectors:
        if settings.enabled:
            yield from _evaluate_access(name, settings)
    yield from _evaluate_bindings(facts)
    if facts.poison_message_count:
        yield build_warning(
            f"{format_quantity(facts.poison_message_count, 'message')} could not be processed",
            because="the server raised an error each time it received one of them",
            try_this="retry or drop them; list them: retinue poison-message list",
        )


def _evaluate_health(health: ConnectorHealth) -> Iterator[DoctorFinding]:
    try_this = health.try_this or f"retinue connector test {health.name}"
    if health.status in (ConnectionStatus.FAILED, ConnectionStatus.NEEDS_OWNER):
        yield build_problem(
            f"the connector '{health.name}' has the status {health.status}", because=health.because, try_this=try_this
        )
    elif health.status is ConnectionStatus.WAITING or (
        health.status is ConnectionStatus.CONNECTING and health.failures
    ):
        yield build_warning(
            f"the connector '{health.name}' is not connected", because=health.because, try_this=try_this
        )


def _evaluate_access(name: str, settings: ConnectorSettings) -> Iterator[DoctorFinding]:
    access = settings.access
    if access.dm_policy is DmPolicy.OPEN:
        yield build_warning(
            f"anyone can send messages through '{name}'",
            because=f"connectors.{name}.dm_policy is open: "
            "unknown senders can instruct your agents and spend your budget",
            try_this=f'set connectors.{name}.dm_policy = "pairing"',
        )
    if access.group_policy is GroupPolicy.OPEN or EVERYONE in access.group_allow_from:
        yield build_warning(
            f"anyone in a group can send messages through '{name}'",
            because=f"connectors.{name}.group_policy is open, or group_allow_from contains {EVERYONE}",
            try_this=f'set connectors.{name}.group_policy = "allowlist", with `group_allow_from`',
        )


def _evaluate_bindings(facts: ConnectorFacts) -> Iterator[DoctorFinding]:
    """Yield a finding for each binding to an agent or a connector that does not exist.

    Deleting an agent removes its own bindings, but other bindings can still name it in `extra_agents`.
    """
    known = {name for name, _ in facts.connectors} | {settings.platform for _, settings in facts.connectors}
    known |= {health.name for health in facts.health or ()}
    for binding in facts.bindings:
        missing = [name for name in binding.agents if name not in facts.agent_names]
        if missing:
            yield build_problem(
                f"binding {binding.id[:8]} names the agent '{missing[0]}', which does not exist",
                because="it was deleted, or never registered",
                try_this=f"retinue binding set AGENT {binding.match.connector}",
            )
        wanted = binding.match.account or binding.match.connector
        if wanted not in known:
            yield build_warning(
                f"'{binding.agent}' is bound to the connector '{wanted}', which does not exist",
                because="no section [connectors.NAME] has this name or platform",
                try_this=f"retinue connector add {wanted}, or retinue binding remove {binding.id[:8]}",
            )


CONNECTORS_CHECK = DoctorCheck(
    name="connectors",
    ok_message="all connectors work, and all bindings are valid",
    gather=_gather_facts,
    evaluate=evaluate_connectors,
)
