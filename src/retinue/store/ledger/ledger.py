"""The ledger: sums over the store, and equations that prove that nothing was lost.

Run by `store.scan`, so that everything comes from one snapshot.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy.sql.selectable import GenerativeSelect

from retinue.domain.ids import ID_LENGTH, short
from retinue.store.core import tables as t
from retinue.store.ledger import ledger_sums
from retinue.store.ledger.ledger_sums import Sums

if TYPE_CHECKING:
    from retinue.store.ledger.ledger_checks import Finding, Rule

FINDINGS_SHOWN_MAX = 10

_latest = sa.select(t.house.c.latest_ms)


class Equation(Struct, frozen=True, kw_only=True):
    """One equation, and, if it does not hold, the number of findings and the first few."""

    name: str
    sentence: str
    findings: tuple[Finding, ...] = ()
    count: int = 0

    @property
    def ok(self) -> bool:
        return self.count == 0

    def lines(self) -> list[str]:
        if self.ok:
            return [f"ok     {self.name}: {self.sentence}"]
        lines = [f"BROKEN {self.name}: {self.sentence}"]
        lines += [f"       - {_shown(finding.id)}: {finding.because}" for finding in self.findings]
        if self.count > len(self.findings):
            lines.append(f"       - and {self.count - len(self.findings):,} more")
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sentence": self.sentence,
            "ok": self.ok,
            "count": self.count,
            "findings": [{"id": finding.id, "because": finding.because} for finding in self.findings],
        }


class Ledger(Struct, frozen=True, kw_only=True):
    sums: Sums
    equations: tuple[Equation, ...]

    @property
    def holds(self) -> bool:
        return all(equation.ok for equation in self.equations)

    @property
    def count(self) -> int:
        """The number of findings."""
        return sum(equation.count for equation in self.equations)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the equations that do not hold."""
        return tuple(equation.name for equation in self.equations if not equation.ok)

    def lines(self) -> list[str]:
        """Format for people: the sums first, the conclusion last."""
        verdict = "ledger holds"
        if not self.holds:
            verdict = f"ledger does not hold: {self.count:,} finding{'' if self.count == 1 else 's'}"
        return [*self.sums.lines(), *(line for equation in self.equations for line in equation.lines()), verdict]

    def as_dict(self) -> dict[str, Any]:
        """Return a form for programs."""
        return {
            "holds": self.holds,
            "findings": self.count,
            "sums": self.sums.as_dict(),
            "equations": [equation.as_dict() for equation in self.equations],
        }


def check(conn: sa.Connection, *, now_ms: int) -> Ledger:
    """Compute the sums and check every equation. Changes nothing."""
    from retinue.store.ledger.ledger_checks import RULES

    # The time of the store never goes back, and decides what is due even if the wall clock went back.
    at_ms = max(now_ms, conn.execute(_latest).scalar_one())
    return Ledger(sums=ledger_sums.take(conn), equations=tuple(_try(conn, rule, at_ms) for rule in RULES))


def _try(conn: sa.Connection, rule: Rule, at_ms: int) -> Equation:
    findings: list[Finding] = []
    count = 0
    for wrong in rule.wrong:
        if isinstance(wrong, GenerativeSelect):
            found, n = _few_and_count(conn, wrong, at_ms)
            findings += found
            count += n
            continue
        for finding in wrong(conn):
            count += 1
            if len(findings) < FINDINGS_SHOWN_MAX:
                findings.append(finding)
    return Equation(name=rule.name, sentence=rule.sentence, findings=tuple(findings[:FINDINGS_SHOWN_MAX]), count=count)


def _few_and_count(conn: sa.Connection, wrong: GenerativeSelect, at_ms: int) -> tuple[list[Finding], int]:
    from retinue.store.ledger.ledger_checks import AT, Finding

    rows = conn.execute(_bounded(wrong), {AT: at_ms}).all()
    return [Finding(row.id, row.because) for row in rows], rows[0].n if rows else 0


@functools.cache
def _bounded(wrong: GenerativeSelect) -> sa.Select[str, str, int]:
    # A limit on the statement itself would make the planner expect few rows and look up a million of them one by one.
    # A CTE that is used twice is computed once, completely.
    found = wrong.cte("wrong")
    count = sa.select(sa.func.count()).select_from(found).scalar_subquery().label("n")
    return sa.select(found.c.id, found.c.because, count).limit(FINDINGS_SHOWN_MAX)


def _shown(id_: str) -> str:
    return short(id_) if len(id_) == ID_LENGTH and id_.isalnum() else id_
