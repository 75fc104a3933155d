"""Who may write the files that an agent is told from: its owner, and runs that work for nobody but the owner.

Everyone who talks to an agent shares its instructions and its memory. A line that a guest had written there would be
read by the owner's next run as if the owner had said it.
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
    """As `locate`. Raises too where a run that works for anyone but the owner would write instructions or memory. Looks
    at the disk, so it is called in a thread."""
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
    """What commands of this run may not change, whether or not it is there. Nothing, where it works for the owner.

    The folders at home are made here: one that is missing cannot be shown read-only, and a command could rename a
    folder of its own making to it.
    """
    if not scene.others:
        return ()
    home = Path(os.path.realpath(scene.home))
    for name in FOLDERS_AT_HOME:
        with suppress(OSError):  # a file or a link has that name: it is the owner's business
            (home / name).mkdir(mode=0o700, exist_ok=True)
    return tuple(dict.fromkeys(_told_from(scene)))


def _told_from(scene: Scene) -> Iterator[Path]:
    """Every path from which this agent is told something, or one that works in a workspace inside its home."""
    home, workspace = Path(os.path.realpath(scene.home)), Path(os.path.realpath(scene.rights.workspace))
    own = instruction_paths(home=home, workspace=workspace)
    yield from own
    yield from (Path(os.path.realpath(each)) for each in own if each.is_symlink())  # the owner's link leads there
    for pattern in scene.agent.context_files:
        yield from islice(workspace.glob(pattern), CONTEXT_FILES_GUARDED_MAX)
    with suppress(OSError):
        for each in islice((home / STAFF_FOLDER).iterdir(), WORKSPACES_GUARDED_MAX):
            yield from instruction_paths(home=each, workspace=each)


def _lent_workspace(real: str, home: Path) -> Path | None:
    """The workspace of another agent inside this one's home in which a path lies, whether or not it is there yet."""
    parts = Path(real).relative_to(home).parts if within(real, str(home)) else ()
    return home.joinpath(*parts[:2]) if len(parts) > 2 and parts[0] == STAFF_FOLDER else None
