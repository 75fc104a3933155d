"""Measurement: CPU times come from the kernel, so they do not depend on other load on the machine."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all its threads, to the nanosecond."""
    total_ns = 0
    for task in os.scandir(f"/proc/{pid}/task"):
        total_ns += int(Path(task.path, "schedstat").read_text().split()[0])
    return total_ns / 1e9


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} is gone")


def median(values: list[float]) -> float:
    return statistics.median(values)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the report, printed as `NAME VALUE LIMIT ok|failed`. Without a limit it is only
    reported; `skipped` is the reason why it was not measured."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False
    note: str = ""
    skipped: str = ""

    @property
    def failed(self) -> bool:
        if self.limit is None:
            return False
        return self.value < self.limit if self.at_least else self.value > self.limit

    def line(self) -> str:
        if self.skipped:
            return f"{self.name} - - skipped  # {self.skipped}"
        sign = ">=" if self.at_least else "<="
        limit = "-" if self.limit is None else f"{sign}{self.limit:.2f}{self.unit}"
        state = "failed" if self.failed else "ok"
        note = f"  # {self.note}" if self.note else ""
        return f"{self.name} {self.value:.2f}{self.unit} {limit} {state}{note}"
