"""The ledger: the sums of the house, and equations over them that can fail. When all hold, nothing is lost.

Run by `store.scan`, so that everything is taken from one picture of the store.
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
    """One thing that must be so; and where it is not, how often, with the first few findings."""

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
        """How many findings there are."""
        return sum(equation.count for equation in self.equations)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the equations that do not hold."""
        return tuple(equation.name for equation in self.equations if not equation.ok)

    def lines(self) -> list[str]:
        """For people: the sums first, the verdict last."""
        verdict = "ledger holds"
        if not self.holds:
            verdict = f"ledger does not hold: {self.count:,} finding{'' if self.count == 1 else 's'}"
        return [*self.sums.lines(), *(line for equation in self.equations for line in equation.lines()), verdict]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "holds": self.holds,
            "findings": self.count,
            "sums": self.sums.as_dict(),
            "equations": [equation.as_dict() for equation in self.equations],
        }


def check(conn: sa.Connection, *, now_ms: int) -> Ledger:
    """Take the sums and try every equation. Changes nothing."""
    from retinue.store.ledger.ledger_checks import RULES

    # The house's time never goes back, and what is due is judged by it, also where the wall clock did go back.
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
    # A limit on the statement itself would tell a planner that few rows are wanted, and have it look a million of them
    # up one by one; used twice, it is worked out once, as a whole.
    found = wrong.cte("wrong")
    count = sa.select(sa.func.count()).select_from(found).scalar_subquery().label("n")
    return sa.select(found.c.id, found.c.because, count).limit(FINDINGS_SHOWN_MAX)


def _shown(id_: str) -> str:
    return short(id_) if len(id_) == ID_LENGTH and id_.isalnum() else id_
