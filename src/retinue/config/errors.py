"""Errors in a settings file: each with its path, file and line, reported together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.domain.errors import Invalid

FAULTS_TOLD_MAX = 20
FAULTS_KEPT_MAX = 200
PART_LENGTH_MAX = 100
SHOWN_LENGTH_MAX = 60

KeyPath = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: KeyPath) -> str:
    """Format a path: `house.listen.port`, `include[0]`, `house.permission_policy."agent.set"`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            part = part if len(part) <= PART_LENGTH_MAX else part[:PART_LENGTH_MAX] + "..."
            quoted = part.replace("\\", "\\\\").replace('"', '\\"')
            name = part if _BARE.fullmatch(part) else f'"{quoted}"'
            text += f".{name}" if text else name
    return text


class Place(Struct, frozen=True):
    """Where something is written. An environment variable has no file, and some positions have no
    line."""

    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "the environment"
        return f"{self.file}, line {self.line}" if self.line else str(self.file)


class Fault(Struct, frozen=True, kw_only=True):
    """One error in the settings."""

    path: str
    sentence: str
    place: Place
    because: str = ""
    try_this: str = ""
    code: str = ""  # if it has a specific code

    def __str__(self) -> str:
        why = f": {self.because}" if self.because else ""
        then = f"; try: {self.try_this}" if self.try_this else ""
        return f"{self.sentence} ({self.place}){why}{then}"


class Faults:
    """Collects errors during parsing, so that all are reported at once."""

    def __init__(self) -> None:
        self.places: dict[KeyPath, Place] = {}
        self.count = 0
        self._found: dict[Fault, None] = {}

    def add(self, path: KeyPath, says: str, *, because: str = "", try_this: str = "", code: str = "") -> None:
        """Add an error. `predicate` continues a sentence that starts with the path: "must be a
        whole number"."""
        name = dotted(path)
        sentence = f"{name} {says}"
        self._note(
            Fault(path=name, sentence=sentence, place=self.place(path), because=because, try_this=try_this, code=code)
        )

    def add_at(self, place: Place, sentence: str, *, path: str = "", because: str = "", try_this: str = "") -> None:
        """Add an error without a key: an unreadable file, an environment variable."""
        self._note(Fault(path=path, sentence=sentence, place=place, because=because, try_this=try_this))

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of errors has been collected."""
        return len(self._found) >= FAULTS_KEPT_MAX

    def in_order(self) -> tuple[Fault, ...]:
        """Return the errors in file order, from top to bottom."""
        return tuple(sorted(self._found, key=lambda fault: (str(fault.place.file or ""), fault.place.line or 0)))

    def place(self, path: KeyPath) -> Place:
        """Return the position of a path, or of the nearest table around it."""
        for length in range(len(path), -1, -1):
            if found := self.places.get(path[:length]):
                return found
        return Place()

    def _note(self, fault: Fault) -> None:
        self.count += 1
        if not self.is_full:
            self._found.setdefault(fault)


class BadConfig(Invalid):
    """The settings are invalid; `faults` holds everything that is wrong with them."""

    code = "config.invalid"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        if len(faults) == 1:
            only = faults[0]
            super().__init__(f"{only.sentence} ({only.place})", because=only.because, try_this=only.try_this)
            self.code = only.code or self.code
        else:
            super().__init__(
                f"the settings have {_many(len(faults))} faults",
                because=_told(self.faults),
                try_this="correct these; each setting is explained in docs/reference/settings.md",
            )

    def as_table(self) -> list[Mapping[str, str | int | None]]:
        """Return one JSON object per error, for programs."""
        return [
            {
                "path": fault.path,
                "sentence": fault.sentence,
                "file": str(fault.place.file) if fault.place.file else None,
                "line": fault.place.line,
                "because": fault.because,
                "try": fault.try_this,
                "code": fault.code or BadConfig.code,
            }
            for fault in self.faults
        ]


def _many(count: int) -> str:
    return f"{count} or more" if count >= FAULTS_KEPT_MAX else str(count)


def _told(faults: tuple[Fault, ...]) -> str:
    lines = [f"\n  - {fault}" for fault in faults[:FAULTS_TOLD_MAX]]
    if len(faults) > FAULTS_TOLD_MAX:
        lines.append(f"\n  - and {len(faults) - FAULTS_TOLD_MAX} more")
    return "".join(lines).lstrip(" ")
