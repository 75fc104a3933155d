"""Looking after the health of the house: every check that is registered, and what to do about what was found."""

from __future__ import annotations

import os
from typing import Any

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


async def doctor(desk: Desk, caller: Principal, asked: Doctor) -> dict[str, Any]:
    environment = dict(desk.config.environment) if desk.config else {**os.environ, "RETINUE_HOME": str(desk.home)}
    scene = Scene(
        home=desk.home,
        environment=environment,
        now=desk.clock.now(),
        store=desk.store,
        models=desk.models,
        runners=desk.runners,
        quick=asked.quick,
    )
    return report(await examine(scene))


def report(made: list[Checked]) -> dict[str, Any]:
    """What was found, the same for programs and for people."""
    health = worst(each.health for each in made)
    counts = {kind: sum(found.health is kind for each in made for found in each.found) for kind in Health}
    verdict = (
        "all is well"
        if health is Health.OK
        else f"{counts[Health.PROBLEM]} problems, {counts[Health.WARNING]} warnings"
    )
    return {
        "health": health,
        "checks": [
            {
                "name": each.name,
                "looks-at": each.looks_at,
                "health": "skipped" if each.skipped else each.health,
                "found": [
                    {
                        "health": found.health,
                        "sentence": found.sentence,
                        "because": found.because,
                        "try": found.try_this,
                    }
                    for found in each.found
                ],
            }
            for each in made
        ],
        "lines": [*(line for each in made for line in each.lines()), verdict],
    }


OPERATIONS = (
    Operation(
        name="house.doctor",
        summary="Look for what is wrong with the house, and say what to do.",
        parameters=Doctor,
        handler=doctor,
        permission=PermissionLevel.PRIVILEGED,
    ),
)
