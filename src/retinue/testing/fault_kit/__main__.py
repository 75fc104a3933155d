"""`python -m retinue.testing.fault_kit [PEER ...] [--case NAME]`: run every case, and print the matrix of results."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.matrix import CellResult, MatrixCell, find_invalid_exemptions, format_matrix, run_cell
from retinue.testing.fault_kit.peer_registry import PEERS, create_peer


async def run_cases(peers: list[str], cases: list[str]) -> list[MatrixCell]:
    cells: list[MatrixCell] = []
    for bench in peers:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="fault-kit-") as folder:
                cells.append(await run_cell(bench, create_peer(bench), CASES[case], Path(folder)))
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m retinue.testing.fault_kit", description=__doc__)
    parser.add_argument("benches", nargs="*", default=list(PEERS), help=f"{', '.join(PEERS)}, or MODULE:NAME")
    parser.add_argument("--case", action="append", choices=list(CASES), help="run only this case; can be repeated")
    asked = parser.parse_args()
    complaints = [f"{name}: {each}" for name in asked.benches for each in find_invalid_exemptions(create_peer(name))]
    cells = asyncio.run(run_cases(asked.benches, asked.case or list(CASES)))
    sys.stdout.write("\n".join([*format_matrix(cells), *complaints, ""]))
    return 1 if complaints or any(each.mark is CellResult.BROKEN for each in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
