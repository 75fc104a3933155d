"""Restricts who may write an agent's instructions and memory: the owner, and runs only for the
owner.

Everyone who talks to an agent shares its instructions and memory. A line written by a guest would
be read by the owner's next run as if it came from the owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from retinue.domain.instruction_mode import FOLDERS_AT_HOME, instruction_paths
from retinue.domain.permission import STAFF_FOLDER, Access, Withheld, within
from retinue.tools.base import Scene, ToolFailed
from retinue.tools.files.paths import Place, locate, seen

CONTEXT_FILES_GUARDED_MAX = 1_000
WORKSPACES_GUARDED_MAX = 100


def locate_to_write(text: str, scene: Scene, withheld: Withheld) -> Place:
    """Like `locate`, but refuse instructions and memory to runs that work for anyone but the owner.

    Reads the disk, so call it in a thread.
    """
    place = locate(text, scene, Access.WRITE, withheld)
    if scene.others:
        _check(place, scene, text)
    return place


def _check(place: Place, scene: Scene, text: str) -> None:
    workspace = Path(os.path.realpath(scene.rights.workspace))
    named = within(place.real, str(workspace)) and any(
        PurePosixPath(os.path.relpath(place.real, workspace)).match(pattern) for pattern in scene.agent.context_files
    )
    told_from = list(_told_from(scene))
    if (lent := _lent_workspace(place.real, Path(os.path.realpath(scene.home)))) is not None:
        told_from += instruction_paths(home=lent, workspace=lent)
    if named or any(within(place.real, str(each)) for each in told_from):
        raise instructions_refused(f"'{seen(text)}' cannot be written", scene)


def instructions_refused(sentence: str, scene: Scene) -> ToolFailed:
    return ToolFailed(
        f"{sentence} on behalf of {scene.others[0].address}",
        because="instructions and memory are shared by everyone who talks to this agent, so only runs for the owner "
        "may change them",
        try_this="write another file, or ask the owner to make this change",
        code="file.instructions-owner-only",
    )


def guarded_paths(scene: Scene) -> tuple[Path, ...]:
    """Return the paths that commands of this run may not change; empty for a run of the owner.

    Missing folders of the agent directory are created. A missing folder cannot be mounted
    read-only, and a command could rename another folder to that name.
    """
    if not scene.others:
        return ()
    home = Path(os.path.realpath(scene.home))
    for name in FOLDERS_AT_HOME:
        with suppress(OSError):  # a file or link with that name was put there by the owner
            (home / name).mkdir(mode=0o700, exist_ok=True)
    return tuple(dict.fromkeys(_told_from(scene)))


def _told_from(scene: Scene) -> Iterator[Path]:
    """Yield every path that this agent reads as instructions or memory.

    That includes the instructions in other agents' workspaces inside its agent directory.
    """
    home, workspace = Path(os.path.realpath(scene.home)), Path(os.path.realpath(scene.rights.workspace))
    own = instruction_paths(home=home, workspace=workspace)
    yield from own
    yield from (Path(os.path.realpath(each)) for each in own if each.is_symlink())  # the target of the owner's link
    for pattern in scene.agent.context_files:
        yield from islice(workspace.glob(pattern), CONTEXT_FILES_GUARDED_MAX)
    with suppress(OSError):
        for each in islice((home / STAFF_FOLDER).iterdir(), WORKSPACES_GUARDED_MAX):
            yield from instruction_paths(home=each, workspace=each)


def _lent_workspace(real: str, home: Path) -> Path | None:
    """Return the other agent's workspace inside this agent directory that contains a path, if any.

    Neither has to exist yet.
    """
    parts = Path(real).relative_to(home).parts if within(real, str(home)) else ()
    return home.joinpath(*parts[:2]) if len(parts) > 2 and parts[0] == STAFF_FOLDER else None
