"""Control groups, if this process may create them. They enforce limits that periodic checks would
miss.

Supports cgroup v1 and v2, and each controller separately. The resource monitor covers the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from retinue.sandbox.base import Limits

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "retinue-command"
LAUNCHERS = 1  # launcher processes in each group
_NUMBERS = itertools.count(1)


class Place(Struct, frozen=True):
    """A folder in which groups can be created, and its controllers."""

    folder: Path
    controllers: frozenset[str]
    unified: bool


class Group(Struct):
    """The control groups of one command, one per hierarchy."""

    folders: list[Path] = field(default_factory=list[Path])

    def add(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process in it for lack of memory."""
        return any(_kills(folder) for folder in self.folders)

    def remove(self) -> bool:
        """Remove the groups. Returns False while one still contains a process."""
        self.folders = [folder for folder in self.folders if not _removed(folder)]
        return not self.folders


class Cgroups:
    """Creates a control group per command. `controllers` is empty if it can limit nothing here."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._left: list[Group] = []

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(name for place in self._places for name in place.controllers)

    @classmethod
    def here(cls, own: str | None = None, root: Path = _ROOT) -> Cgroups:
        """Detect what this process may use, by creating and removing a group."""
        places: list[Place] = []
        for line in (own if own is not None else _own()).splitlines():
            _, names, path = line.split(":", 2)
            place = _version_1(root, names, path) if names else _version_2(root, path)
            if place is not None and _can_be_used(place):
                places.append(place)
        return cls(places)

    def group(self, limits: Limits) -> Group:
        """Create a group with these limits. Raises `OSError` if that fails."""
        self.tidy()
        made = Group()
        try:
            for place in self._places:
                folder = place.folder / f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
                folder.mkdir()
                made.folders.append(folder)
                _limit(folder, place, limits)
        except OSError:
            made.remove()
            raise
        return made

    def give_back(self, group: Group) -> None:
        """Remove a group, now or later if its processes are still exiting."""
        self._left.append(group)
        self.tidy()

    def tidy(self) -> None:
        self._left = [group for group in self._left if not group.remove()]


def _own() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _version_1(root: Path, names: str, path: str) -> Place | None:
    found = {"pids", "memory"} & set(names.split(","))
    folder = root / names / path.lstrip("/")
    return Place(folder, frozenset(found), unified=False) if found and folder.is_dir() else None


def _version_2(root: Path, path: str) -> Place | None:
    """Use the parent of our own group: a v2 group with processes cannot have children with limits."""
    if path == "/":
        return None
    folder = (root / path.lstrip("/")).parent
    try:
        ruling = frozenset((folder / "cgroup.subtree_control").read_text().split()) & {"pids", "memory"}
    except OSError:
        return None
    return Place(folder, ruling, unified=True) if ruling else None


def _can_be_used(place: Place) -> bool:
    tried = place.folder / f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
    try:
        _sweep(place.folder)
        tried.mkdir()
        try:
            _limit(tried, place, Limits())
            # Moving a process needs write permission on both groups.
            return os.access(place.folder / "cgroup.procs", os.W_OK)
        finally:
            tried.rmdir()
    except OSError:
        return False


def _sweep(folder: Path) -> None:
    """Remove groups of processes that no longer exist. A group that still has processes stays."""
    for left in folder.glob(f"{_PREFIX}-*-*"):
        pid = left.name.split("-")[2]
        if not Path("/proc", pid).exists():
            _removed(left)


def _limit(folder: Path, place: Place, limits: Limits) -> None:
    if "pids" in place.controllers:
        (folder / "pids.max").write_text(str(limits.processes + LAUNCHERS))
    if "memory" not in place.controllers:
        return
    name = "memory.max" if place.unified else "memory.limit_in_bytes"
    (folder / name).write_text(str(limits.memory_bytes))
    if place.unified:
        with contextlib.suppress(FileNotFoundError):
            (folder / "memory.swap.max").write_text("0")


def _kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
    return 0


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
