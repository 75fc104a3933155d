"""Errors of the operations on skills and hooks."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.shared_errors import shorten_name

PATH_SHOWN_CHARS = 200


class SkillNotFound(NotFound):
    """No valid skill has this name. `broken_folder` is set if a folder of this name is not a valid skill."""

    code = "skill.not_found"

    def __init__(self, name: str, *, broken_folder: str = "", broken_because: str = "") -> None:
        super().__init__(
            f"no skill named '{shorten_name(name)}'",
            because=f"{broken_folder} is not a valid skill: {broken_because}" if broken_folder else "",
            try_this="list the skills: retinue skill list",
        )


class SkillWorkspaceInvalid(Invalid):
    """The workspace whose skills were requested is not an absolute path."""

    code = "skill.workspace_invalid"

    def __init__(self, workspace: str) -> None:
        super().__init__(
            f"invalid workspace: '{workspace[:PATH_SHOWN_CHARS]}'",
            because="it must be an absolute path",
            try_this="use a path such as /home/maria/garden",
        )


class SkillChanged(Conflict):
    """The given hash is not the hash of the skill's current version.

    `arguments` are the CLI arguments that select the same skill again, its name included.
    """

    code = "skill.changed"

    def __init__(self, name: str, *, hash_shown: str, arguments: str) -> None:
        super().__init__(
            f"the current version of the skill '{name}' is not the one that you read",
            because=f"its hash starts with {hash_shown}; the skill has changed, or the hash was mistyped",
            try_this=f"read it again: retinue skill approve {arguments}",
        )


class SkillTargetRelative(Invalid):
    """The folder for a skill export is not an absolute path."""

    code = "skill.target_relative"

    def __init__(self, target: str) -> None:
        super().__init__(
            f"'{target[:PATH_SHOWN_CHARS]}' is not an absolute path",
            because="the server cannot resolve a path that is relative to your current folder",
            try_this=f"use /path/to/{target.strip('/.')[:PATH_SHOWN_CHARS] or 'skills'}, or leave out the folder",
        )


class SkillOperationsNotFound(NotFound):
    """No operation has this noun, so there is nothing to export as a skill."""

    code = "skill.no_operations"

    def __init__(self, noun: str, *, nouns: Sequence[str]) -> None:
        super().__init__(
            f"no operations with the noun '{shorten_name(noun)}'",
            because=f"the nouns are {', '.join(nouns)}",
            try_this=f"use one of them: retinue skill export {nouns[0]}" if nouns else "load the plugin that adds them",
        )


class HookNotFound(NotFound):
    """No valid hook has this name. `broken_folder` is set if a folder of this name is not a valid hook."""

    code = "hook.not_found"

    def __init__(self, name: str, *, broken_folder: str = "", broken_because: str = "") -> None:
        super().__init__(
            f"no hook named '{shorten_name(name)}'",
            because=f"{broken_folder} is not a valid hook: {broken_because}" if broken_folder else "",
            try_this="list the hooks: retinue hook list",
        )


class HookChanged(Conflict):
    """The given hash is not the hash of the hook's current version."""

    code = "hook.changed"

    def __init__(self, name: str, *, hash_shown: str) -> None:
        super().__init__(
            f"the current version of the hook '{name}' is not the one that you read",
            because=f"its hash starts with {hash_shown}; the hook has changed, or the hash was mistyped",
            try_this=f"read it again: retinue hook show {name}",
        )


class HooksUnavailable(NotFound):
    """This server has no hook support."""

    code = "hook.none"

    def __init__(self) -> None:
        super().__init__(
            "this server has no hooks",
            because="it was started without hook support",
            try_this="start it with: retinue run",
        )
