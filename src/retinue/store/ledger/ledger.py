"""The ledger: totals of the store, and equations that prove that nothing was lost.

Run `check_ledger` with `store.scan`, so that all totals and findings come from one snapshot.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.sql.selectable import GenerativeSelect

from retinue.domain.ids import ID_LENGTH, short_id
from retinue.store.core import tables as t
from retinue.store.ledger import ledger_sums
from retinue.store.ledger.ledger_sums import LedgerSums
from retinue.text.quantity import format_quantity

if TYPE_CHECKING:
    from retinue.store.ledger.ledger_checks import LedgerFinding, LedgerRule

FINDINGS_SHOWN_MAX = 10

_select_latest_ms = sa.select(t.counters.c.latest_ms)


class Equation(Struct, frozen=True, kw_only=True):
    """The result of checking one equation of the ledger.

    If the equation does not hold, `count` is the number of findings, and `findings` contains the
    first of them.
    """

    name: str
    sentence: str
    findings: tuple[LedgerFinding, ...] = ()
    count: int = 0

    @property
    def is_ok(self) -> bool:
        return self.count == 0

    def lines(self) -> list[str]:
        if self.is_ok:
            return [f"ok     {self.name}: {self.sentence}"]
        lines = [f"BROKEN {self.name}: {self.sentence}"]
        lines += [f"       - {_format_id(finding.id)}: {finding.because}" for finding in self.findings]
        if self.count > len(self.findings):
            lines.append(f"       - and {self.count - len(self.findings):,} more")
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sentence": self.sentence,
            "ok": self.is_ok,
            "count": self.count,
            "findings": [{"id": finding.id, "because": finding.because} for finding in self.findings],
        }


class LedgerReport(Struct, frozen=True, kw_only=True):
    sums: LedgerSums
    equations: tuple[Equation, ...]

    @property
    def is_ok(self) -> bool:
        return all(equation.is_ok for equation in self.equations)

    @property
    def count(self) -> int:
        """The number of findings in all equations."""
        return sum(equation.count for equation in self.equations)

    @property
    def broken_equations(self) -> tuple[str, ...]:
        """The names of the equations that do not hold."""
        return tuple(equation.name for equation in self.equations if not equation.is_ok)

    def lines(self) -> list[str]:
        """Return the report as lines for people: the totals, then the equations, then the conclusion."""
        conclusion = "ledger is consistent"
        if not self.is_ok:
            conclusion = f"ledger is inconsistent: {format_quantity(self.count, 'finding')}"
        return [*self.sums.lines(), *(line for equation in self.equations for line in equation.lines()), conclusion]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, for programs."""
        return {
            "ok": self.is_ok,
            "findings": self.count,
            "sums": self.sums.as_dict(),
            "equations": [equation.as_dict() for equation in self.equations],
        }


def check_ledger(conn: sa.Connection, *, now_ms: int) -> LedgerReport:
    """Compute the totals and check every equation. Changes nothing."""
    from retinue.store.ledger.ledger_checks import RULES

    # The time of the store never goes backwards, and decides what is due even if the wall clock was set back.
    at_ms = max(now_ms, conn.execute(_select_latest_ms).scalar_one())
    return LedgerReport(
        sums=ledger_sums.compute_sums(conn), equations=tuple(_check_rule(conn, rule, at_ms) for rule in RULES)
    )


def _check_rule(conn: sa.Connection, rule: LedgerRule, at_ms: int) -> Equation:
    findings: list[LedgerFinding] = []
    count = 0
    for wrong in rule.violations:
        if isinstance(wrong, GenerativeSelect):
            found, n = _find_violations(conn, wrong, at_ms)
            findings += found
            count += n
            continue
        for finding in wrong(conn):
            count += 1
            if len(findings) < FINDINGS_SHOWN_MAX:
                findings.append(finding)
    return Equation(name=rule.name, sentence=rule.sentence, findings=tuple(findings[:FINDINGS_SHOWN_MAX]), count=count)


def _find_violations(conn: sa.Connection, violations: GenerativeSelect, at_ms: int) -> tuple[list[LedgerFinding], int]:
    from retinue.store.ledger.ledger_checks import AT_PARAMETER, LedgerFinding

    rows = conn.execute(_limit_findings(violations), {AT_PARAMETER: at_ms}).all()
    return [LedgerFinding(row.id, row.because) for row in rows], rows[0].n if rows else 0


@functools.cache
def _limit_findings(violations: GenerativeSelect) -> sa.Select[str, str, int]:
    # A limit on the statement itself would make the planner expect few rows and look up a million of them one by one.
    # A CTE that is used twice is computed once, completely.
    found = violations.cte("wrong")
    count = sa.select(sa.func.count()).select_from(found).scalar_subquery().label("n")
    return sa.select(found.c.id, found.c.because, count).limit(FINDINGS_SHOWN_MAX)


def _format_id(id_: str) -> str:
    return short_id(id_) if len(id_) == ID_LENGTH and id_.isalnum() else id_
