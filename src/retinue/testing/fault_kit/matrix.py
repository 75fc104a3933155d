"""The results of the fault test suite: one cell per connector and case, and the table of all cells (the matrix)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from retinue.testing.fault_kit.cases import CASES, FaultCase
from retinue.testing.fault_kit.harness import ContractBroken, open_harness
from retinue.testing.fault_kit.peer import Peer

REASON_LENGTH_MIN = 20  # characters: "n/a" is not a reason


class CellResult(StrEnum):
    """The possible results of one test case."""

    HOLDS = "holds"
    BROKEN = "BROKEN"
    EXEMPT = "exempt"


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The result of one test case for one peer. For an exemption or a failure, it contains the reason."""

    bench: str
    case: str
    mark: CellResult
    note: str = ""


def find_invalid_exemptions(peer: Peer) -> list[str]:
    """Return the exemptions of a peer that name no test case or give no reason."""
    unknown = [f"no case named {name!r}" for name in peer.exemptions if name not in CASES]
    poor = [
        f"{name} is exempt without a reason" for name, why in peer.exemptions.items() if len(why) < REASON_LENGTH_MIN
    ]
    return [*unknown, *poor]


async def check_case(peer: Peer, case: FaultCase, folder: Path) -> None:
    """Run one test case for a peer. Raises `ContractBroken` if the connector breaks its contract."""
    async with open_harness(peer, folder) as stage:
        await case.run(stage)
        await stage.check_contract()


async def run_cell(name: str, peer: Peer, case: FaultCase, folder: Path) -> MatrixCell:
    if case.name in peer.exemptions:
        return MatrixCell(name, case.name, CellResult.EXEMPT, peer.exemptions[case.name])
    try:
        await check_case(peer, case, folder)
    except ContractBroken as broken:
        return MatrixCell(name, case.name, CellResult.BROKEN, str(broken))
    return MatrixCell(name, case.name, CellResult.HOLDS)


def format_matrix(cells: Iterable[MatrixCell]) -> list[str]:
    """Return a table with connectors as columns and cases as rows, then the exemptions and failures."""
    known = list(cells)
    names = list(dict.fromkeys(each.bench for each in known))
    marks = {(each.bench, each.case): each.mark for each in known}
    first = max(len(name) for name in CASES) + 2
    widths = [max(len(name), len(CellResult.BROKEN)) + 2 for name in names]
    lines = [" " * first + "".join(name.ljust(width) for name, width in zip(names, widths, strict=True))]
    for case in CASES:
        row = (marks.get((name, case), "-").ljust(width) for name, width in zip(names, widths, strict=True))
        lines.append((case.ljust(first) + "".join(row)).rstrip())
    return [*lines, *_notes(known)]


def _notes(cells: list[MatrixCell]) -> Iterator[str]:
    """Yield each note below the table once, with all the cells to which it applies."""
    about: dict[tuple[CellResult, str], dict[str, list[str]]] = {}
    for each in cells:
        if each.note:
            about.setdefault((each.mark, each.note), {}).setdefault(each.bench, []).append(each.case)
    for (mark, note), benches in about.items():
        which = "; ".join(f"{bench}: {', '.join(cases)}" for bench, cases in benches.items())
        yield f"{mark} ({which}): {note}"
