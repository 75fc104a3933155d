"""Operation that performs all registered health checks or the security checks, and reports what they find."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from retinue.config import load_configuration
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.operations.agent.agent_prompt import TEMPLATES_CHECK
from retinue.operations.base import Operation, Services
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.connector.connector_checks import CONNECTORS_CHECK
from retinue.operations.doctor_registry import (
    CheckResult,
    DoctorContext,
    DoctorHealth,
    register_check,
    run_checks,
    worst_health,
)
from retinue.operations.mcp.mcp import MCP_SERVERS_CHECK
from retinue.operations.plugin.plugins import PLUGINS_CHECK
from retinue.operations.server.doctor_checks import STANDARD_CHECKS
from retinue.operations.server.errors import DoctorFixNotAllowed
from retinue.operations.skill.skills import SKILLS_CHECK
from retinue.text.quantity import format_quantity

if TYPE_CHECKING:  # imported on first use: it imports sandboxes and more
    from retinue.operations.server.security import SecurityFinding
    from retinue.operations.server.security_facts import SecurityContext

for _check in STANDARD_CHECKS:
    register_check(_check)
register_check(SKILLS_CHECK)
register_check(TEMPLATES_CHECK)
register_check(PLUGINS_CHECK)
register_check(MCP_SERVERS_CHECK)
register_check(CONNECTORS_CHECK)


class DoctorRequest(msgspec.Struct, forbid_unknown_fields=True):
    quick: bool = False  # skip checks that read the whole store
    security: Annotated[bool, msgspec.Meta(description="run only the security checks")] = False
    fix: Annotated[
        bool,
        msgspec.Meta(
            description="remove other users' access to the server's files, and rename settings that have old names"
        ),
    ] = False


class DoctorFindingRow(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    health: DoctorHealth
    sentence: str
    because: str
    try_this: str


class DoctorCheckRow(msgspec.Struct, frozen=True):
    name: str
    ok_message: str
    health: Literal["ok", "warning", "problem", "skipped"]
    findings: list[DoctorFindingRow]


class SecurityFindingRow(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """One problem found by the security checks. If `fixable` is true, a request with `fix` removes the problem."""

    check: str
    severity: Literal["info", "warning", "critical"]
    sentence: str
    because: str
    try_this: str
    fixable: bool


class DoctorReport(msgspec.Struct, frozen=True):
    """The results of all checks.

    `lines` is the whole report as lines of text. Only a request with `security` or `fix` fills `security`
    and `fixed`.
    """

    health: DoctorHealth
    checks: list[DoctorCheckRow]
    lines: list[str]
    security: list[SecurityFindingRow] = []
    fixed: list[str] = []


async def run_doctor(services: Services, caller: Principal, request: DoctorRequest) -> DoctorReport:
    environment = (
        dict(services.config_holder.environment)
        if services.config_holder
        else {**os.environ, "RETINUE_HOME": str(services.data_dir)}
    )
    if request.security or request.fix:
        from retinue.operations.server.security_facts import SecurityContext

        context = SecurityContext(
            data_dir=services.data_dir,
            environment=environment,
            now=services.clock.now(),
            store=services.store,
            toolbox=services.toolbox,
            is_quick=request.quick,
        )
        report = await check_security(context, caller, fix=request.fix)
        if request.fix and services.config_holder is not None:
            await _reload_rewritten_settings(services.config_holder)
        return report
    doctor_context = DoctorContext(
        data_dir=services.data_dir,
        environment=environment,
        now=services.clock.now(),
        store=services.store,
        catalog=services.catalog() if services.catalog is not None else None,
        runners=services.available_runners,
        plugins=services.plugins,
        mcp=services.mcp,
        connector_supervisor=services.connector_supervisor,
        is_quick=request.quick,
    )
    return build_report(await run_checks(doctor_context))


async def _reload_rewritten_settings(holder: ConfigHolder) -> None:
    """Reload the settings if their file has changed, so that later changes are made to the file's new text."""
    with suppress(RetinueError):  # the file has other errors: keep the current settings, the report lists the errors
        if (await asyncio.to_thread(load_configuration, holder.environment)).hash != holder.current.hash:
            holder.reload()


async def check_security(context: SecurityContext, caller: Principal, *, fix: bool) -> DoctorReport:
    """Run the security checks.

    With `fix`, first remove file permissions that are safe to remove, and rename settings that have old
    names.
    """
    from retinue.operations.server import security

    if fix and caller.level is not PermissionLevel.BOSS:
        raise DoctorFixNotAllowed(level=caller.level)
    fixed = await asyncio.to_thread(_rewrite_settings, context.environment) if fix else []
    found = await security.run_security_checks(context)
    if fix:
        closings = [each.fix for each in found if each.fix is not None]
        closed = await asyncio.to_thread(
            lambda: [line for each in closings if (line := security.fix_permissions(each))]
        )
        found = await security.run_security_checks(context) if closed else found
        fixed += closed
    unseen = [] if context.toolbox is not None else ["skipped  tools of agents: no server is running"]
    if context.store_error is not None:
        why = f"{context.store_error.sentence} ({context.store_error.because})"
        unseen.append(f"skipped  tokens, people, agents and the audit log: {why}")
    return build_security_report(found, fixed, unseen)


def _rewrite_settings(environment: Mapping[str, str]) -> list[str]:
    """Rename old settings in the settings files. Return one line for each renamed setting."""
    from retinue.config.settings_upgrade import upgrade_settings_files

    lines: list[str] = []
    for each in upgrade_settings_files(environment):
        heading, *renamed = each.format_lines()
        lines.append(heading)
        lines += [] if each.problem else [f"{each.file.name}: {line.strip()}" for line in renamed]
    return lines


def build_security_report(
    findings: Sequence[SecurityFinding], fixed: Sequence[str] = (), skipped: Sequence[str] = ()
) -> DoctorReport:
    """Build the report, most severe findings first."""
    severities = ("critical", "warning", "info")
    counts = {severity: sum(each.severity == severity for each in findings) for severity in severities}
    health = (
        DoctorHealth.PROBLEM if counts["critical"] else DoctorHealth.WARNING if counts["warning"] else DoctorHealth.OK
    )
    counted = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    fixable = sum(each.fix is not None for each in findings)
    hint = f"; --fix would fix {fixable} of them" if fixable else ""
    verdict = f"{counted}{hint}" if findings else "no problems found"
    return DoctorReport(
        health=health,
        checks=[],
        lines=[
            *(f"fixed    {each}" for each in fixed),
            *(line for each in findings for line in each.format_lines()),
            *skipped,
            verdict,
        ],
        security=[
            SecurityFindingRow(
                each.check,
                each.severity.value,
                each.sentence,
                each.because,
                each.try_this,
                fixable=each.fix is not None,
            )
            for each in findings
        ],
        fixed=list(fixed),
    )


def build_report(results: list[CheckResult]) -> DoctorReport:
    health = worst_health(each.health for each in results)
    counts = {kind: sum(found.health is kind for each in results for found in each.findings) for kind in DoctorHealth}
    verdict = (
        "no problems found"
        if health is DoctorHealth.OK
        else f"{format_quantity(counts[DoctorHealth.PROBLEM], 'problem')}, "
        f"{format_quantity(counts[DoctorHealth.WARNING], 'warning')}"
    )
    return DoctorReport(
        health=health,
        checks=[_to_check_row(each) for each in results],
        lines=[*(line for each in results for line in each.format_lines()), verdict],
    )


def _to_check_row(result: CheckResult) -> DoctorCheckRow:
    return DoctorCheckRow(
        name=result.name,
        ok_message=result.ok_message,
        health="skipped" if result.is_skipped else result.health.value,
        findings=[
            DoctorFindingRow(each.health, each.sentence, each.because, each.try_this) for each in result.findings
        ],
    )


OPERATIONS = (
    Operation(
        name="server.doctor",
        summary="Check the server and its data, and report problems, each with a next step.",
        parameters=DoctorRequest,
        handler=run_doctor,
        result=DoctorReport,
        permission=PermissionLevel.PRIVILEGED,
    ),
)
