"""Doctor check of connectors: their health, their bindings and their access rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from retinue.config import examine as examine_settings
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.supervisor.connector_health import LineHealth, LineState
from retinue.domain.access import EVERYONE, DmPolicy, GroupPolicy
from retinue.domain.binding import Binding
from retinue.operations.doctor_registry import Check, Found, Scene, problem, warning
from retinue.store.agents import agents
from retinue.store.channels import bindings, poison_messages


class DoorFacts(Struct, frozen=True, kw_only=True):
    """Facts about connectors. `health` is None if the server is stopped."""

    connectors: tuple[tuple[str, ConnectorSettings], ...]
    lines: tuple[LineHealth, ...] | None
    bindings: tuple[Binding, ...]
    staff: frozenset[str]
    aside: int


async def _gather(scene: Scene) -> DoorFacts:
    settings = examine_settings(scene.environment).configuration.settings
    board = scene.switchboard
    found: Sequence[Binding] = await scene.store.scan(bindings.everything) if scene.store is not None else ()
    return DoorFacts(
        connectors=tuple(settings.connectors.items()),
        lines=tuple(board.health()) if board is not None else None,
        bindings=tuple(found),
        staff=frozenset(each.name for each in await scene.store.scan(agents.everyone)) if scene.store else frozenset(),
        aside=await scene.store.scan(poison_messages.count_waiting) if scene.store is not None else 0,
    )


def judge(facts: DoorFacts) -> Iterator[Found]:
    for line in facts.lines or ():
        yield from _of_line(line)
    for name, settings in facts.connectors:
        if settings.enabled:
            yield from _open_to_everyone(name, settings)
    yield from _nobody_answers(facts)
    if facts.aside:
        yield warning(
            f"{facts.aside} messages were set aside",
            because="the house stumbled over each of them again and again",
            try_this="retinue set-aside list, then retry or drop them",
        )


def _of_line(line: LineHealth) -> Iterator[Found]:
    try_this = line.try_this or f"retinue connector test {line.instance}"
    if line.state in (LineState.FAILED, LineState.NEEDS_OWNER):
        yield problem(f"the connector '{line.instance}' is {line.state}", because=line.because, try_this=try_this)
    elif line.state is LineState.WAITING or (line.state is LineState.TRYING and line.breaks):
        yield warning(f"the connector '{line.instance}' is not reached", because=line.because, try_this=try_this)


def _open_to_everyone(name: str, settings: ConnectorSettings) -> Iterator[Found]:
    door = settings.door
    if door.dm is DmPolicy.OPEN:
        yield warning(
            f"anyone may write to the house by '{name}'",
            because=f"connectors.{name}.dm is open: strangers spend your money, and tell agents what to do",
            try_this=f'connectors.{name}.dm = "pairing"',
        )
    if door.group_policy is GroupPolicy.OPEN or EVERYONE in door.group_allow_from:
        yield warning(
            f"anyone in a group is heard by '{name}'",
            because=f"connectors.{name}.group_policy is open, or its list names {EVERYONE}",
            try_this=f'connectors.{name}.group_policy = "allowlist", with `group_allow_from`',
        )


def _nobody_answers(facts: DoorFacts) -> Iterator[Found]:
    """Yield bindings to missing agents or connectors.

    Deleting an agent removes its bindings, so a missing agent can only be named in `also`.
    """
    places = {name for name, _ in facts.connectors} | {settings.kind for _, settings in facts.connectors}
    places |= {line.instance for line in facts.lines or ()}
    for binding in facts.bindings:
        missing = [name for name in binding.agents if name not in facts.staff]
        if missing:
            yield problem(
                f"binding {binding.id[:8]} is for '{missing[0]}', who is not on the staff",
                because="nobody of that name is here",
                try_this=f"retinue binding set AGENT {binding.match.connector}",
            )
        wanted = binding.match.account or binding.match.connector
        if wanted not in places:
            yield warning(
                f"'{binding.agent}' is bound to '{wanted}', and there is no such connector",
                because="no [connectors.NAME] is called so, and none is of that kind",
                try_this=f"retinue connector add {wanted}, or retinue binding remove {binding.id[:8]}",
            )


DOORS = Check(
    name="doors", looks_at="every line to the outside holds, and somebody answers", gather=_gather, judge=judge
)
