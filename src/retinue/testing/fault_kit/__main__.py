"""`python -m retinue.testing.fault_kit [PEER ...] [--case NAME]`: run every case, and print the matrix."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.matrix import Cell, Mark, cell, table, wrong_exemptions
from retinue.testing.fault_kit.peer_registry import BENCHES, made


async def played(benches: list[str], cases: list[str]) -> list[Cell]:
    cells: list[Cell] = []
    for bench in benches:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="fault-kit-") as folder:
                cells.append(await cell(bench, made(bench), CASES[case], Path(folder)))
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m retinue.testing.fault_kit", description=__doc__)
    parser.add_argument("benches", nargs="*", default=list(BENCHES), help=f"{', '.join(BENCHES)}, or MODULE:NAME")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this one; may be given again")
    asked = parser.parse_args()
    complaints = [f"{name}: {each}" for name in asked.benches for each in wrong_exemptions(made(name))]
    cells = asyncio.run(played(asked.benches, asked.case or list(CASES)))
    sys.stdout.write("\n".join([*table(cells), *complaints, ""]))
    return 1 if complaints or any(each.mark is Mark.BROKEN for each in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
