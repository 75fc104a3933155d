"""Protects an agent's instructions and memory: only the owner, and runs that work only for the owner, may change them.

Everyone who talks to an agent shares its instructions and memory. A line written by a guest would
be read by the owner's next run as if it came from the owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from retinue.domain.instruction_mode import INSTRUCTION_FOLDERS, instruction_paths
from retinue.domain.permission import PermissionKind, is_within
from retinue.domain.protected_paths import CREATED_AGENTS_FOLDER, ProtectedPaths
from retinue.tools.base import ToolContext
from retinue.tools.files.errors import InstructionsOwnerOnly, format_path
from retinue.tools.files.path_access import ResolvedPath, locate

CONTEXT_FILES_GUARDED_MAX = 1_000
WORKSPACES_GUARDED_MAX = 100


def locate_to_write(text: str, context: ToolContext, withheld: ProtectedPaths) -> ResolvedPath:
    """Resolve a path for writing, like `locate`.

    Refuses a path of instructions or memory unless the run works only for the owner. Reads the
    disk, so call it in a thread.
    """
    place = locate(text, context, PermissionKind.WRITE, withheld)
    if context.non_owner_requesters:
        _check_not_instructions(place, context, text)
    return place


def _check_not_instructions(resolved: ResolvedPath, context: ToolContext, text: str) -> None:
    workspace = Path(os.path.realpath(context.rights.workspace))
    named = is_within(resolved.real, str(workspace)) and any(
        PurePosixPath(os.path.relpath(resolved.real, workspace)).match(pattern)
        for pattern in context.agent.context_files
    )
    guarded = list(_iterate_instruction_paths(context))
    if (nested := _find_nested_workspace(resolved.real, Path(os.path.realpath(context.agent_directory)))) is not None:
        guarded += instruction_paths(agent_directory=nested, workspace=nested)
    if named or any(is_within(resolved.real, str(each)) for each in guarded):
        raise build_instructions_error(f"write '{format_path(text)}'", context)


def build_instructions_error(action: str, context: ToolContext) -> InstructionsOwnerOnly:
    """Return the error for an action that only runs for the owner may perform, such as "write 'SOUL.md'"."""
    return InstructionsOwnerOnly(action, principal=str(context.non_owner_requesters[0].address))


def list_guarded_paths(context: ToolContext) -> tuple[Path, ...]:
    """Return the paths that commands of this run may not change. Empty for a run that works only for the owner.

    Missing folders of the agent directory are created. A missing folder cannot be mounted
    read-only, and a command could rename another folder to that name.
    """
    if not context.non_owner_requesters:
        return ()
    home = Path(os.path.realpath(context.agent_directory))
    for name in INSTRUCTION_FOLDERS:
        with suppress(OSError):  # a file or link with that name was put there by the owner
            (home / name).mkdir(mode=0o700, exist_ok=True)
    return tuple(dict.fromkeys(_iterate_instruction_paths(context)))


def _iterate_instruction_paths(context: ToolContext) -> Iterator[Path]:
    """Yield every path that this agent reads as instructions or memory.

    That includes the instructions in other agents' workspaces inside its agent directory.
    """
    home, workspace = Path(os.path.realpath(context.agent_directory)), Path(os.path.realpath(context.rights.workspace))
    own = instruction_paths(agent_directory=home, workspace=workspace)
    yield from own
    yield from (Path(os.path.realpath(each)) for each in own if each.is_symlink())  # the target of the owner's link
    for pattern in context.agent.context_files:
        yield from islice(workspace.glob(pattern), CONTEXT_FILES_GUARDED_MAX)
    with suppress(OSError):
        for each in islice((home / CREATED_AGENTS_FOLDER).iterdir(), WORKSPACES_GUARDED_MAX):
            yield from instruction_paths(agent_directory=each, workspace=each)


def _find_nested_workspace(real: str, home: Path) -> Path | None:
    """Return the workspace of another agent, inside this agent directory, that contains a path, or None.

    Neither the path nor the workspace has to exist yet.
    """
    parts = Path(real).relative_to(home).parts if is_within(real, str(home)) else ()
    return home.joinpath(*parts[:2]) if len(parts) > 2 and parts[0] == CREATED_AGENTS_FOLDER else None
