"""The checklist lines of spec_lines.toml, read once into types."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

SPEC_FILE = Path(__file__).with_name("spec_lines.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the systems whose behavior is kept; its lines are `letter`1 to `letter`N."""

    letter: str
    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLines:
    """Every line with its owner, its clauses, and what cannot hold or does not hold yet.

    Each line has exactly one owner. A line with clauses counts when a test shows each of them.
    """

    systems: tuple[System, ...]
    owner_of: Mapping[str, str]
    ruled_out: Mapping[str, str]
    clauses: Mapping[str, Mapping[str, str]]
    partly: Mapping[str, str]

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners, in the order of the file."""
        return tuple(dict.fromkeys(self.owner_of.values()))

    def marks_of(self, line: str) -> tuple[str, ...]:
        """The marks that show a line: one for each clause, or the line itself."""
        return tuple(f"{line}.{clause}" for clause in self.clauses.get(line, ())) or (line,)

    def explain_refusal(self, mark: str) -> str | None:
        """Why a test cannot have this mark, or None if it can."""
        line, _, clause = mark.partition(".")
        if line not in self.owner_of:
            return f"no such line: {mark}"
        if mark in self.marks_of(line):
            return None
        if line not in self.clauses:
            return f"no such clause: {mark} ({line} counts as one)"
        problem = f"no such clause: {mark}" if clause else f"{line} has several clauses"
        return f"{problem} (choose from {', '.join(self.marks_of(line))})"


def read_spec_lines(path: Path = SPEC_FILE) -> SpecLines:
    """Read the file; a line without an owner, with two owners, or beyond the last line of its system is an error."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    systems = tuple(
        System(letter=letter, name=system["name"], lines=tuple(f"{letter}{n}" for n in range(1, system["lines"] + 1)))
        for letter, system in table["systems"].items()
    )
    owner_of: dict[str, str] = {}
    for owner, ranges in table["owners"].items():
        for line in expand_ranges(ranges):
            if other := owner_of.get(line):
                raise ValueError(f"{line} has two owners: {other} and {owner}")
            owner_of[line] = owner
    existing = {line for system in systems for line in system.lines}
    if strays := existing.symmetric_difference(owner_of):
        raise ValueError(f"without an owner, or without a system: {collapse_ranges(strays)}")
    if strays := set(table["ruled_out"]) - existing:
        raise ValueError(f"ruled out, but in no system: {collapse_ranges(strays)}")
    if strays := set(table["clauses"]) - existing:
        raise ValueError(f"with clauses, but in no system: {collapse_ranges(strays)}")
    clauses: dict[str, dict[str, str]] = table["clauses"]
    if few := [line for line, words in clauses.items() if len(words) < 2]:
        raise ValueError(f"with fewer than two clauses: {collapse_ranges(few)}")
    partly: dict[str, str] = table["partly"]
    known = existing | {f"{line}.{clause}" for line, words in clauses.items() for clause in words}
    if strays := set(partly) - known:
        raise ValueError(f"partly, but neither a line nor a clause: {', '.join(sorted(strays))}")
    return SpecLines(systems=systems, owner_of=owner_of, ruled_out=table["ruled_out"], clauses=clauses, partly=partly)


def expand_ranges(ranges: str) -> Iterator[str]:
    """Expand `H1-H3 D5` to H1, H2, H3, D5."""
    for word in ranges.split():
        match = re.fullmatch(r"([A-Z])(\d+)(?:-\1(\d+))?", word)
        if match is None:
            raise ValueError(f"not a line or a range of lines: {word}")
        letter, first, last = match.groups()
        yield from (f"{letter}{n}" for n in range(int(first), int(last or first) + 1))


def collapse_ranges(lines: Iterable[str]) -> str:
    """Collapse H1, H2, H3, D5 to `D5 H1-H3`, the reverse of `expand_ranges`."""
    words: list[str] = []
    numbered = sorted({(line[0], int(line[1:])) for line in lines})
    for _, group in groupby(enumerate(numbered), key=lambda pair: (pair[1][0], pair[1][1] - pair[0])):
        run = [f"{letter}{n}" for _, (letter, n) in group]
        words.append(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(words)
