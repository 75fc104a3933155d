"""The results of the fault kit: one cell per connector and case, and the table of all cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from retinue.testing.fault_kit.cases import CASES, Case
from retinue.testing.fault_kit.harness import Broken, staged
from retinue.testing.fault_kit.peer import Bench

REASON_LENGTH_MIN = 20  # characters: "n/a" is not a reason


class Mark(StrEnum):
    """The result of one case."""

    HOLDS = "holds"
    BROKEN = "BROKEN"
    EXEMPT = "exempt"


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one case for one peer, with the reason of an exemption or a failure."""

    bench: str
    case: str
    mark: Mark
    note: str = ""


def wrong_exemptions(bench: Bench) -> list[str]:
    """Returns exemptions that name no case or give no reason."""
    unknown = [f"there is no case {name!r}" for name in bench.exempt if name not in CASES]
    poor = [f"{name} is exempt without a reason" for name, why in bench.exempt.items() if len(why) < REASON_LENGTH_MIN]
    return [*unknown, *poor]


async def hold(bench: Bench, case: Case, folder: Path) -> None:
    """Run one case for a peer. Raises `ContractBroken` if the connector breaks its contract."""
    async with staged(bench, folder) as stage:
        await case.play(stage)
        await stage.answer_for_it()


async def cell(name: str, bench: Bench, case: Case, folder: Path) -> Cell:
    if case.name in bench.exempt:
        return Cell(name, case.name, Mark.EXEMPT, bench.exempt[case.name])
    try:
        await hold(bench, case, folder)
    except Broken as broken:
        return Cell(name, case.name, Mark.BROKEN, str(broken))
    return Cell(name, case.name, Mark.HOLDS)


def table(cells: Iterable[Cell]) -> list[str]:
    """Returns a table with connectors as columns and cases as rows, then the exemptions and failures."""
    known = list(cells)
    names = list(dict.fromkeys(each.bench for each in known))
    marks = {(each.bench, each.case): each.mark for each in known}
    first = max(len(name) for name in CASES) + 2
    widths = [max(len(name), len(Mark.BROKEN)) + 2 for name in names]
    lines = [" " * first + "".join(name.ljust(width) for name, width in zip(names, widths, strict=True))]
    for case in CASES:
        row = (marks.get((name, case), "-").ljust(width) for name, width in zip(names, widths, strict=True))
        lines.append((case.ljust(first) + "".join(row)).rstrip())
    return [*lines, *_notes(known)]


def _notes(cells: list[Cell]) -> Iterator[str]:
    """Yield each note once, with all its cells."""
    about: dict[tuple[Mark, str], dict[str, list[str]]] = {}
    for each in cells:
        if each.note:
            about.setdefault((each.mark, each.note), {}).setdefault(each.bench, []).append(each.case)
    for (mark, note), benches in about.items():
        which = "; ".join(f"{bench}: {', '.join(cases)}" for bench, cases in benches.items())
        yield f"{mark} ({which}): {note}"
