"""Registry of the checks that `doctor` runs: each gathers facts and evaluates them with a pure function.

A component registers its checks with `register_check(DoctorCheck(...))` where it is defined. Facts
that several checks share are gathered once. A check that raises is reported as a problem, and the
other checks still run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct, field

from retinue.domain.errors import RetinueError
from retinue.models.model_selection import Catalog
from retinue.store.core.connection import Store

if TYPE_CHECKING:
    from retinue.connectors.supervisor.connector_supervisor import Switchboard
    from retinue.operations.plugin.plugins import Guests
    from retinue.tools.mcp.server_pool import Servers

F = TypeVar("F")


class Health(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Found(Struct, frozen=True, kw_only=True):
    """One problem or warning found by a check."""

    health: Health
    sentence: str
    because: str
    try_this: str


def warning(sentence: str, *, because: str, try_this: str) -> Found:
    return Found(health=Health.WARNING, sentence=sentence, because=because, try_this=try_this)


def problem(sentence: str, *, because: str, try_this: str) -> Found:
    return Found(health=Health.PROBLEM, sentence=sentence, because=because, try_this=try_this)


class Scene(Struct, frozen=True, kw_only=True):
    """What checks can examine.

    A stopped server has no runners, plugins or MCP servers; a damaged one may have no store.
    """

    home: Path
    environment: Mapping[str, str]
    now: datetime
    store: Store | None = None
    trouble: RetinueError | None = None  # why the store could not be opened
    catalog: Catalog | None = None
    runners: frozenset[str] | None = None
    plugins: Guests | None = None
    mcp: Servers | None = None
    switchboard: Switchboard | None = None
    quick: bool = False  # skip checks that read the whole store
    gathered: dict[Any, Any] = field(default_factory=dict[Any, Any])


class Check(Struct, Generic[F], frozen=True, kw_only=True):
    """One check. `gather` returns None if there is nothing to check, and the check is skipped."""

    name: str
    looks_at: str  # shown if all is well: "the store's tables are current"
    gather: Callable[[Scene], Awaitable[F | None]]
    judge: Callable[[F], Iterable[Found]]


class Checked(Struct, frozen=True, kw_only=True):
    name: str
    looks_at: str
    found: tuple[Found, ...] = ()
    skipped: bool = False

    @property
    def health(self) -> Health:
        return worst(each.health for each in self.found)

    def lines(self) -> list[str]:
        if self.skipped:
            return [f"skipped  {self.name}: not looked at"]
        if not self.found:
            return [f"ok       {self.name}: {self.looks_at}"]
        lines: list[str] = []
        for each in self.found:
            lines += [f"{each.health:<8} {self.name}: {each.sentence}", f"         because: {each.because}"]
            lines.append(f"         try: {each.try_this}")
        return lines


def worst(healths: Iterable[Health]) -> Health:
    order = list(Health)
    return max(healths, key=order.index, default=Health.OK)


CHECKS: dict[str, Check[Any]] = {}


def register(check: Check[F]) -> Check[F]:
    """Add a check to the registry. Names are unique."""
    if check.name in CHECKS:
        raise ValueError(f"there is a check called {check.name} already")
    CHECKS[check.name] = check
    return check


async def examine(scene: Scene, checks: Sequence[Check[Any]] | None = None) -> list[Checked]:
    """Run every check, even if others fail."""
    return [await _made(scene, check) for check in (tuple(CHECKS.values()) if checks is None else checks)]


async def _made(scene: Scene, check: Check[Any]) -> Checked:
    try:
        if check.gather not in scene.gathered:
            scene.gathered[check.gather] = await check.gather(scene)
        facts = scene.gathered[check.gather]
        if facts is None:
            return Checked(name=check.name, looks_at=check.looks_at, skipped=True)
        found = tuple(check.judge(facts))
    except Exception as error:  # noqa: BLE001 - one failing check must not stop the others
        because = f"{error.sentence}: {error.because}" if isinstance(error, RetinueError) else _said(error)
        try_this = error.try_this if isinstance(error, RetinueError) else ""
        found = (
            problem(
                "this could not be looked at", because=because, try_this=try_this or "this is a bug worth reporting"
            ),
        )
    return Checked(name=check.name, looks_at=check.looks_at, found=found)


def _said(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
