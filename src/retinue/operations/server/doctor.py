"""Run all registered health checks, or the security checks, and report the findings with next steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import NotAllowed
from retinue.domain.principal import Principal
from retinue.operations.agent.agent_prompt import TEMPLATES_GOOD
from retinue.operations.base import Desk, Operation
from retinue.operations.connector.connector_checks import DOORS
from retinue.operations.doctor_registry import Checked, Health, Scene, examine, register, worst
from retinue.operations.mcp.mcp import MCP_SERVERS
from retinue.operations.plugin.plugins import PLUGINS_LOADED
from retinue.operations.server.doctor_checks import EVERY_HOUSE
from retinue.operations.skill.skills import SKILLS_READ

if TYPE_CHECKING:  # imported on first use: it imports sandboxes and more
    from retinue.operations.server.security import Exposed
    from retinue.operations.server.security_facts import Ground

for _check in EVERY_HOUSE:
    register(_check)
register(SKILLS_READ)
register(TEMPLATES_GOOD)
register(PLUGINS_LOADED)
register(MCP_SERVERS)
register(DOORS)


class Doctor(msgspec.Struct, forbid_unknown_fields=True):
    quick: bool = False  # skip checks that read the whole store
    security: Annotated[bool, msgspec.Meta(description="look at how well the house is closed, and at nothing else")] = (
        False
    )
    fix: Annotated[bool, msgspec.Meta(description="take rights to files of the house away from others")] = False


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


class SecurityFound(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """`fixable`: `--fix` would fix it."""

    check: str
    severity: Literal["info", "warning", "critical"]
    sentence: str
    because: str
    try_this: str
    fixable: bool


class HouseExamined(msgspec.Struct, frozen=True):
    """`lines` is the whole report as text. `security` and `fixed` are filled only on request."""

    health: Health
    checks: list[HealthChecked]
    lines: list[str]
    security: list[SecurityFound] = []
    fixed: list[str] = []


async def doctor(desk: Desk, caller: Principal, asked: Doctor) -> HouseExamined:
    environment = dict(desk.config.environment) if desk.config else {**os.environ, "RETINUE_HOME": str(desk.home)}
    if asked.security or asked.fix:
        from retinue.operations.server.security_facts import Ground

        ground = Ground(
            home=desk.home,
            environment=environment,
            now=desk.clock.now(),
            store=desk.store,
            toolbox=desk.toolbox,
            quick=asked.quick,
        )
        return await closedness(ground, caller, fix=asked.fix)
    scene = Scene(
        home=desk.home,
        environment=environment,
        now=desk.clock.now(),
        store=desk.store,
        catalog=desk.catalog() if desk.catalog is not None else None,
        runners=desk.runners_here,
        plugins=desk.plugins,
        mcp=desk.mcp,
        switchboard=desk.switchboard,
        quick=asked.quick,
    )
    return report(await examine(scene))


async def closedness(ground: Ground, caller: Principal, *, fix: bool) -> HouseExamined:
    """Run the security checks.

    With `fix`, first remove file permissions that are safe to remove.
    """
    from retinue.operations.server import security

    if fix and caller.level is not PermissionLevel.BOSS:
        raise NotAllowed(
            "you may look, and change nothing",
            because="only the owner closes files of the house",
            try_this="leave out --fix, or ask the owner",
            code="doctor.not-yours-to-fix",
        )
    found = await security.examine(ground)
    fixed: list[str] = []
    if fix:
        closings = [each.fix for each in found if each.fix is not None]
        fixed = await asyncio.to_thread(lambda: [said for each in closings if (said := security.close(each))])
        found = await security.examine(ground) if fixed else found
    unseen = [] if ground.toolbox is not None else ["skipped  what agents may use: the house is closed"]
    if ground.trouble is not None:
        why = f"{ground.trouble.sentence} ({ground.trouble.because})"
        unseen.append(f"skipped  tokens, people, agents and the audit: {why}")
    return security_report(found, fixed, unseen)


def security_report(found: Sequence[Exposed], fixed: Sequence[str] = (), unseen: Sequence[str] = ()) -> HouseExamined:
    """Build the report, most severe findings first."""
    severities = ("critical", "warning", "info")
    counts = {severity: sum(each.severity == severity for each in found) for severity in severities}
    health = Health.PROBLEM if counts["critical"] else Health.WARNING if counts["warning"] else Health.OK
    told = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    fixable = sum(each.fix is not None for each in found)
    hint = f"; --fix would see to {fixable} of them" if fixable else ""
    verdict = f"{told}{hint}" if found else "nothing was found open"
    return HouseExamined(
        health=health,
        checks=[],
        lines=[
            *(f"fixed    {each}" for each in fixed),
            *(line for each in found for line in each.lines()),
            *unseen,
            verdict,
        ],
        security=[
            SecurityFound(
                each.check,
                each.severity.value,
                each.sentence,
                each.because,
                each.try_this,
                fixable=each.fix is not None,
            )
            for each in found
        ],
        fixed=list(fixed),
    )


def report(made: list[Checked]) -> HouseExamined:
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
