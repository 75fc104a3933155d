"""Limits the memory and processes of commands with Linux control groups, if the server may create them.

The kernel enforces these limits at once, while the resource monitor checks only at intervals.
Cgroup v1 and v2 are supported, for each controller separately. The resource monitor covers a limit
for which there is no controller.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from retinue.sandbox.base import ResourceLimits

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "retinue-command"
LAUNCHER_PROCESSES = 1  # launcher processes in each group
_NUMBERS = itertools.count(1)


class CgroupParent(Struct, frozen=True):
    """A cgroup folder in which groups can be created, and the controllers for these groups."""

    folder: Path
    controllers: frozenset[str]
    is_v2: bool


class CommandCgroup(Struct):
    """The control groups of one command, one per hierarchy."""

    folders: list[Path] = field(default_factory=list[Path])

    def add(self, pid: int) -> None:
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the command for lack of memory."""
        return any(_count_oom_kills(folder) for folder in self.folders)

    def remove(self) -> bool:
        """Remove the groups. Returns False if one of them still contains a process."""
        self.folders = [folder for folder in self.folders if not _remove_group(folder)]
        return not self.folders


class CgroupManager:
    """Creates a control group for each command. `controllers` is empty if the server may not create groups."""

    def __init__(self, parents: Sequence[CgroupParent]) -> None:
        self._parents = parents
        self._released: list[CommandCgroup] = []

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(name for place in self._parents for name in place.controllers)

    @classmethod
    def detect(cls, own_cgroups: str | None = None, root: Path = _ROOT) -> CgroupManager:
        """Detect which controllers this process may use, by creating and removing a group."""
        places: list[CgroupParent] = []
        for line in (own_cgroups if own_cgroups is not None else _read_own_cgroups()).splitlines():
            _, names, path = line.split(":", 2)
            place = _find_v1_parent(root, names, path) if names else _find_v2_parent(root, path)
            if place is not None and _is_usable(place):
                places.append(place)
        return cls(places)

    def create_group(self, limits: ResourceLimits) -> CommandCgroup:
        """Create the control groups for one command, with these limits. Raises `OSError` if that fails."""
        self.remove_released()
        made = CommandCgroup()
        try:
            for place in self._parents:
                folder = place.folder / f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
                folder.mkdir()
                made.folders.append(folder)
                _write_limits(folder, place, limits)
        except OSError:
            made.remove()
            raise
        return made

    def release(self, group: CommandCgroup) -> None:
        """Remove a group. If its processes are still exiting, the group is removed later."""
        self._released.append(group)
        self.remove_released()

    def remove_released(self) -> None:
        self._released = [group for group in self._released if not group.remove()]


def _read_own_cgroups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _find_v1_parent(root: Path, names: str, path: str) -> CgroupParent | None:
    found = {"pids", "memory"} & set(names.split(","))
    folder = root / names / path.lstrip("/")
    return CgroupParent(folder, frozenset(found), is_v2=False) if found and folder.is_dir() else None


def _find_v2_parent(root: Path, path: str) -> CgroupParent | None:
    """Return the parent of the server's own cgroup v2 folder, in which to create groups, or None.

    The server's own group cannot be used, because a v2 group that contains processes cannot have
    children with limits.
    """
    if path == "/":
        return None
    folder = (root / path.lstrip("/")).parent
    try:
        ruling = frozenset((folder / "cgroup.subtree_control").read_text().split()) & {"pids", "memory"}
    except OSError:
        return None
    return CgroupParent(folder, ruling, is_v2=True) if ruling else None


def _is_usable(parent: CgroupParent) -> bool:
    tried = parent.folder / f"{_PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
    try:
        _remove_stale_groups(parent.folder)
        tried.mkdir()
        try:
            _write_limits(tried, parent, ResourceLimits())
            # Moving a process needs write permission on both groups.
            return os.access(parent.folder / "cgroup.procs", os.W_OK)
        finally:
            tried.rmdir()
    except OSError:
        return False


def _remove_stale_groups(folder: Path) -> None:
    """Remove groups that a stopped server left behind. A group that still contains processes stays."""
    for left in folder.glob(f"{_PREFIX}-*-*"):
        pid = left.name.split("-")[2]
        if not Path("/proc", pid).exists():
            _remove_group(left)


def _write_limits(folder: Path, parent: CgroupParent, limits: ResourceLimits) -> None:
    if "pids" in parent.controllers:
        (folder / "pids.max").write_text(str(limits.processes + LAUNCHER_PROCESSES))
    if "memory" not in parent.controllers:
        return
    name = "memory.max" if parent.is_v2 else "memory.limit_in_bytes"
    (folder / name).write_text(str(limits.memory_bytes))
    if parent.is_v2:
        with contextlib.suppress(FileNotFoundError):
            (folder / "memory.swap.max").write_text("0")


def _count_oom_kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
    return 0


def _remove_group(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
