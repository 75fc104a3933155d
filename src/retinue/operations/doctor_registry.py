"""Registry of the checks that `retinue doctor` performs.

Each check gathers facts, and evaluates them with a pure function. A component registers its checks
with `register_check(DoctorCheck(...))` in its own module. Facts that several checks use are gathered
only once. If a check raises an error, the error is reported as a problem, and the other checks are
still performed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field

from retinue.domain.errors import RetinueError
from retinue.models.model_selection import ModelSelector
from retinue.store.core.connection import Store

if TYPE_CHECKING:
    from retinue.connectors.supervisor.connector_supervisor import ConnectorSupervisor
    from retinue.operations.plugin.plugins import PluginManager
    from retinue.tools.mcp.server_pool import McpServerPool

F = TypeVar("F")


class DoctorHealth(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class DoctorFinding(Struct, frozen=True, kw_only=True):
    """One problem or warning found by a check."""

    health: DoctorHealth
    sentence: str
    because: str
    try_this: str


def build_warning(sentence: str, *, because: str, try_this: str) -> DoctorFinding:
    return DoctorFinding(health=DoctorHealth.WARNING, sentence=sentence, because=because, try_this=try_this)


def build_problem(sentence: str, *, because: str, try_this: str) -> DoctorFinding:
    return DoctorFinding(health=DoctorHealth.PROBLEM, sentence=sentence, because=because, try_this=try_this)


class DoctorContext(Struct, frozen=True, kw_only=True):
    """The parts of the server that doctor checks can examine.

    Without a running server, `runners`, `plugins` and `mcp` are None. If the store cannot be opened,
    `store` is None.
    """

    data_dir: Path
    environment: Mapping[str, str]
    now: datetime
    store: Store | None = None
    store_error: RetinueError | None = None  # why the store could not be opened
    catalog: ModelSelector | None = None
    runners: frozenset[str] | None = None
    plugins: PluginManager | None = None
    mcp: McpServerPool | None = None
    connector_supervisor: ConnectorSupervisor | None = None
    is_quick: bool = False  # skip checks that read the whole store
    facts_cache: dict[Any, Any] = field(default_factory=dict[Any, Any])


class DoctorCheck(Struct, Generic[F], frozen=True, kw_only=True):
    """One check of `retinue doctor`. If there is nothing to check, `gather` returns None and the check is skipped."""

    name: str
    ok_message: str  # shown if the check has no findings: "the store's tables are current"
    gather: Callable[[DoctorContext], Awaitable[F | None]]
    evaluate: Callable[[F], Iterable[DoctorFinding]]


class CheckResult(Struct, frozen=True, kw_only=True):
    name: str
    ok_message: str
    findings: tuple[DoctorFinding, ...] = ()
    is_skipped: bool = False

    @property
    def health(self) -> DoctorHealth:
        return worst_health(each.health for each in self.findings)

    def format_lines(self) -> list[str]:
        if self.is_skipped:
            return [f"skipped  {self.name}: not checked"]
        if not self.findings:
            return [f"ok       {self.name}: {self.ok_message}"]
        lines: list[str] = []
        for each in self.findings:
            lines += [f"{each.health:<8} {self.name}: {each.sentence}", f"         because: {each.because}"]
            lines.append(f"         try: {each.try_this}")
        return lines


def worst_health(healths: Iterable[DoctorHealth]) -> DoctorHealth:
    order = list(DoctorHealth)
    return max(healths, key=order.index, default=DoctorHealth.OK)


CHECKS: dict[str, DoctorCheck[Any]] = {}


def register_check(check: DoctorCheck[F]) -> DoctorCheck[F]:
    """Add a check to the registry. Its name must be unique."""
    if check.name in CHECKS:
        raise ValueError(f"a check named {check.name} already exists")
    CHECKS[check.name] = check
    return check


async def run_checks(context: DoctorContext, checks: Sequence[DoctorCheck[Any]] | None = None) -> list[CheckResult]:
    """Perform the doctor checks and return their results. A check that raises an error does not stop the others."""
    return [await _run_check(context, check) for check in (tuple(CHECKS.values()) if checks is None else checks)]


async def _run_check(context: DoctorContext, check: DoctorCheck[Any]) -> CheckResult:
    try:
        if check.gather not in context.facts_cache:
            context.facts_cache[check.gather] = await check.gather(context)
        facts = context.facts_cache[check.gather]
        if facts is None:
            return CheckResult(name=check.name, ok_message=check.ok_message, is_skipped=True)
        found = tuple(check.evaluate(facts))
    except Exception as error:  # noqa: BLE001 - one failing check must not stop the others
        because = f"{error.sentence}: {error.because}" if isinstance(error, RetinueError) else _describe_error(error)
        try_this = error.try_this if isinstance(error, RetinueError) else ""
        found = (build_problem("this could not be checked", because=because, try_this=try_this or "report this error"),)
    return CheckResult(name=check.name, ok_message=check.ok_message, findings=found)


def _describe_error(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
