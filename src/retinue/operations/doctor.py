"""Looking after the health of the house: every check that is registered, and what to do about what was found."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import Desk, Operation
from retinue.operations.checks import EVERY_HOUSE
from retinue.operations.health import Checked, Health, Scene, examine, register, worst

for _check in EVERY_HOUSE:
    register(_check)


class Doctor(msgspec.Struct, forbid_unknown_fields=True):
    quick: bool = False  # leave out what reads the whole store


class HealthFound(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    health: Health
    sentence: str
    because: str
    try_this: str


class HealthChecked(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    looks_at: str
    health: Literal["ok", "warning", "problem", "skipped"]
    found: list[HealthFound]


class HouseExamined(msgspec.Struct, frozen=True):
    """`lines` says it all to people."""

    health: Health
    checks: list[HealthChecked]
    lines: list[str]


async def doctor(desk: Desk, caller: Principal, asked: Doctor) -> HouseExamined:
    environment = dict(desk.config.environment) if desk.config else {**os.environ, "RETINUE_HOME": str(desk.home)}
    scene = Scene(
        home=desk.home,
        environment=environment,
        now=desk.clock.now(),
        store=desk.store,
        catalog=desk.catalog() if desk.catalog is not None else None,
        runners=desk.runners,
        quick=asked.quick,
    )
    return report(await examine(scene))


def report(made: list[Checked]) -> HouseExamined:
    """What was found, the same for programs and for people."""
    health = worst(each.health for each in made)
    counts = {kind: sum(found.health is kind for each in made for found in each.found) for kind in Health}
    verdict = (
        "all is well"
        if health is Health.OK
        else f"{counts[Health.PROBLEM]} problems, {counts[Health.WARNING]} warnings"
    )
    return HouseExamined(
        health=health,
        checks=[_checked_form(each) for each in made],
        lines=[*(line for each in made for line in each.lines()), verdict],
    )


def _checked_form(made: Checked) -> HealthChecked:
    return HealthChecked(
        name=made.name,
        looks_at=made.looks_at,
        health="skipped" if made.skipped else made.health.value,
        found=[HealthFound(each.health, each.sentence, each.because, each.try_this) for each in made.found],
    )


OPERATIONS = (
    Operation(
        name="house.doctor",
        summary="Look for what is wrong with the house, and say what to do.",
        parameters=Doctor,
        handler=doctor,
        result=HouseExamined,
        permission=PermissionLevel.PRIVILEGED,
    ),
)
