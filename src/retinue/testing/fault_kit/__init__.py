"""The fault kit: the same questions for every connector, asked while its place, its line and its house fail.

Whoever writes a connector brings a `Bench` (docs/guides/write-a-connector.md), and then

    python -m retinue.testing.fault_kit my_package.bench:MyBench

prints a matrix of what holds. In tests: `CASES`, `made` and `hold`.
"""

from __future__ import annotations

from retinue.testing.fault_kit.harness import Broken
from retinue.testing.fault_kit.peer import At, Bench, PlainBench, Trouble

__all__ = ["At", "Bench", "Broken", "PlainBench", "Trouble"]
