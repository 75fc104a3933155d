"""Errors of agent definitions, instructions, skills and hooks: one class for each code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from retinue.config.renamed_settings import find_new_parameter
from retinue.domain.errors import Conflict, Invalid, TooLarge

# --- agents ---


class AgentFieldUnknown(Invalid):
    """Agents have no field of this name."""

    code = "agent.field_unknown"

    def __init__(self, name: str, *, fields: Sequence[str]) -> None:
        new = find_new_parameter(name, fields)
        super().__init__(
            f"an agent has no field {name[:64]!r}",
            because=f"`{name}` is now `{new}`" if new else f"its fields are {', '.join(fields)}",
            try_this=f"use {new}" if new else "use one of these fields",
        )


class WorkspaceUnusable(Invalid):
    """The workspace of an agent does not exist and cannot be created."""

    code = "agent.workspace_unusable"

    def __init__(self, folder: Path, *, because: str) -> None:
        super().__init__(
            f"the workspace {folder} cannot be created",
            because=because,
            try_this="create the folder, or set another workspace for the agent",
        )


# --- exports and imports of sessions ---


class SessionTooLongToExport(TooLarge):
    """The history of a session exceeds the limit for one export."""

    code = "session.too_long_to_export"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "this session is too long for one export",
            because=f"the limit is {chars_max:,} characters of history",
            try_this="enable the mirror, which writes sessions to a folder as they grow",
        )


class ImportTooLong(TooLarge):
    """The history file of an imported session has more lines than the limit."""

    code = "import.too_long"

    def __init__(self, file: str, *, lines: int, lines_max: int) -> None:
        super().__init__(
            f"{file} has too many lines: {lines:,}",
            because=f"the limit is {lines_max:,}",
            try_this="remove the oldest lines",
        )


class ImportUnreadable(Invalid):
    """A file or line of an imported session cannot be read."""

    code = "import.unreadable"

    def __init__(self, part: str, *, because: str) -> None:
        super().__init__(
            f"cannot import {part}",
            because=because,
            try_this="import the three files exactly as the export wrote them",
        )


# --- instructions ---


class ContextFileMissing(Invalid):
    """A file in an agent's `context_files` does not exist."""

    code = "instructions.context_file_missing"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the context file '{name}' does not exist",
            because="`context_files` of the agent names it, but the workspace has no such file",
            try_this="create it, or remove it from `context_files`",
        )


class ContextFileUnreadable(Invalid):
    """A file in an agent's `context_files` is too large or is not text."""

    code = "instructions.context_file_unreadable"

    def __init__(self, name: str, *, bytes_max: int) -> None:
        super().__init__(
            f"the context file '{name}' cannot be read",
            because=f"it is not UTF-8 text, or larger than {bytes_max:,} bytes",
            try_this="remove it from `context_files`, or convert it to text",
        )


class TooManyContextFiles(Invalid):
    """The patterns in an agent's `context_files` match more files than the limit."""

    code = "instructions.too_many_context_files"

    def __init__(self, *, files_max: int) -> None:
        super().__init__(
            "too many context files",
            because=f"the limit is {files_max} for each agent",
            try_this="name fewer in `context_files`, or combine several into one",
        )


class InvalidTemplate(Invalid):
    """A template for the system prompt is invalid and is not used."""

    code = "instructions.template_invalid"

    def __init__(self, location: str, *, because: str) -> None:
        super().__init__(
            f"invalid instructions template: {location}",
            because=because,
            try_this="correct it, using docs/reference/instructions.md, then check it: retinue agent prompt NAME",
        )


# --- skills ---


class SkillInvalid(Invalid):
    """A field of a SKILL.md has an invalid value."""

    code = "skill.invalid"

    def __init__(self, because: str) -> None:
        super().__init__("invalid skill", because=because, try_this="correct its SKILL.md")


class SkillFrontMatterInvalid(Invalid):
    """The front matter of a SKILL.md or HOOK.md has a syntax error."""

    code = "skill.front_matter_invalid"

    def __init__(self, line: int, because: str) -> None:
        super().__init__(
            "invalid front matter",
            because=f"line {line}: {because}",
            try_this="start the file with a line ---, `name: NAME`, `description: PURPOSE`, and a line ---",
        )


class SkillFolderInvalid(Invalid):
    """The folder of a skill contains a file that is not allowed in a skill."""

    code = "skill.folder_invalid"

    def __init__(self, *, because: str, try_this: str) -> None:
        super().__init__("this folder is not a valid skill", because=because, try_this=try_this)


class SkillLinkOutside(Invalid):
    """A file of a skill is a broken link, or a link to a place outside of the skills folder."""

    code = "skill.link_outside"

    def __init__(self, path: Path) -> None:
        super().__init__(
            "a file of this skill is outside its folder",
            because=f"{path} is a link out of the skills folder, or a broken link",
            try_this="replace the link with a copy of the file",
        )


class SkillTooLarge(Invalid):
    """A skill exceeds a limit, which `because` names."""

    code = "skill.too_large"

    def __init__(self, because: str) -> None:
        super().__init__("this skill is too large", because=because, try_this="move large files out of its folder")


class SkillBundleIncomplete(Invalid):
    """The command of an exported skill is missing from its folder, or is not executable."""

    code = "skill.bundle_incomplete"

    def __init__(self, cli: str) -> None:
        super().__init__(
            "this exported skill is incomplete",
            because=f"{cli} is missing from its folder, or not executable",
            try_this="export it again: retinue skill export NAME",
        )


class SkillSubsetInvalid(Invalid):
    """The skills that were selected for a session are not a valid list of names."""

    code = "skill.subset_invalid"

    def __init__(self, *, names_max: int) -> None:
        super().__init__(
            "invalid skills for a session",
            because=f"the skills of a session must be a list of at most {names_max} names",
            try_this='use for example ["weather"], [] for none, or null for all',
        )


class ExportTargetExists(Conflict):
    """The target of a skill export already exists and is not an earlier export of the same operations."""

    code = "skill.target_exists"

    def __init__(self, target: Path) -> None:
        super().__init__(
            f"{target} already exists",
            because="it is not an export of these operations, and would be overwritten",
            try_this="choose another folder, or move this one away",
        )


class ExportTargetUnwritable(Invalid):
    """A skill cannot be exported to this folder."""

    code = "skill.target_unwritable"

    def __init__(self, target: Path, *, because: str) -> None:
        super().__init__(
            f"cannot write to {target}", because=because, try_this="choose a folder that the server can write to"
        )


# --- hooks ---


class HookFolderInvalid(Invalid):
    """A folder with a HOOK.md is not a valid hook."""

    code = "hook.folder_invalid"

    def __init__(self, because: str) -> None:
        super().__init__("this folder is not a valid hook", because=because, try_this="correct its HOOK.md and files")
