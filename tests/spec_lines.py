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
    """One of the systems whose behaviour is kept; its lines are `letter`1 to `letter`N."""

    letter: str
    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecLines:
    """Every line, who owns it, and which are ruled out. Each line has exactly one owner."""

    systems: tuple[System, ...]
    owner_of: Mapping[str, str]
    ruled_out: Mapping[str, str]

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners, in the order of the file."""
        return tuple(dict.fromkeys(self.owner_of.values()))


def read_spec_lines(path: Path = SPEC_FILE) -> SpecLines:
    """Read the file; a line without an owner, with two, or beyond the last line of its system is an error."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    systems = tuple(
        System(letter=letter, name=system["name"], lines=tuple(f"{letter}{n}" for n in range(1, system["lines"] + 1)))
        for letter, system in table["systems"].items()
    )
    owner_of: dict[str, str] = {}
    for owner, ranges in table["owners"].items():
        for line in spread(ranges):
            if other := owner_of.get(line):
                raise ValueError(f"{line} has two owners: {other} and {owner}")
            owner_of[line] = owner
    existing = {line for system in systems for line in system.lines}
    if strays := existing.symmetric_difference(owner_of):
        raise ValueError(f"without an owner, or without a system: {gather(strays)}")
    if strays := set(table["ruled_out"]) - existing:
        raise ValueError(f"ruled out, but in no system: {gather(strays)}")
    return SpecLines(systems=systems, owner_of=owner_of, ruled_out=table["ruled_out"])


def spread(ranges: str) -> Iterator[str]:
    """`H1-H3 D5` as H1, H2, H3, D5."""
    for word in ranges.split():
        match = re.fullmatch(r"([A-Z])(\d+)(?:-\1(\d+))?", word)
        if match is None:
            raise ValueError(f"not a line or a range of lines: {word}")
        letter, first, last = match.groups()
        yield from (f"{letter}{n}" for n in range(int(first), int(last or first) + 1))


def gather(lines: Iterable[str]) -> str:
    """The reverse of `spread`: H1, H2, H3, D5 as `D5 H1-H3`."""
    words: list[str] = []
    numbered = sorted({(line[0], int(line[1:])) for line in lines})
    for _, group in groupby(enumerate(numbered), key=lambda pair: (pair[1][0], pair[1][1] - pair[0])):
        run = [f"{letter}{n}" for _, (letter, n) in group]
        words.append(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(words)
