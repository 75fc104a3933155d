"""Errors of the file tools: one class for each error code."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.permission import PermissionKind, is_fully_visible
from retinue.tools.base import ToolFailed

PATH_SHOWN_MAX = 200  # characters
GLOB_SHOWN_MAX = 100  # characters


def format_path(text: str) -> str:
    """Format a path for an error: shortened, and with invisible characters escaped."""
    shown = text if len(text) <= PATH_SHOWN_MAX else text[:PATH_SHOWN_MAX] + "..."
    return shown if is_fully_visible(shown) else repr(shown)[1:-1]


# --- paths ---


class PathInvalid(ToolFailed):
    """The text cannot be a path: it is empty, too long, or has invisible characters."""

    code = "path.invalid"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"invalid path: '{format_path(path)}'", because=because, try_this="use a path such as notes/today.md"
        )


class PathProtected(ToolFailed):
    """The path is protected: no permission makes it accessible to an agent."""

    code = "path.protected"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"you cannot access '{format_path(path)}'",
            because=because,
            try_this="use another path; no permission gives access to this one",
        )


class PathOutside(ToolFailed):
    """The path is outside of what the agent may read or write."""

    code = "path.outside"

    def __init__(self, path: str, *, access: PermissionKind, real: str) -> None:
        super().__init__(
            f"you cannot {access} '{format_path(path)}'",
            because="it is outside your workspace, and no granted permission covers it",
            try_this=f"use a path in your workspace, or request {access}:{format_path(real)} with request_permission",
        )


class PathNotRelative(ToolFailed):
    """The path is not relative, or leads out of its folder."""

    code = "path.not_relative"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"invalid path: '{format_path(path)}'",
            because="it must be relative and must not lead out of the folder",
            try_this="use a path such as SOUL.md",
        )


class PathLinksOutside(ToolFailed):
    """A link leads to a path that the agent may not access."""

    code = "path.link_outside"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"you cannot follow the link '{format_path(path)}'",
            because="it leads to a path that you cannot access",
            try_this="use the path that it leads to; a person can then be asked for access",
        )


class PathThroughLink(ToolFailed):
    """A part of the path became a link while it was opened."""

    code = "path.link"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"cannot open '{format_path(path)}'",
            because="a part of the path was replaced by a link while it was opened",
            try_this="try again, or use the path that the link leads to",
        )


class PathNotFound(ToolFailed):
    """No file or folder has this path. `through_file` is set if a part of the path is not a folder."""

    code = "path.not_found"

    def __init__(self, path: str, *, through_file: bool = False) -> None:
        super().__init__(
            f"no file or folder '{format_path(path)}'",
            because="a part of the path is not a folder"
            if through_file
            else "it does not exist, or was moved or deleted",
            try_this="use ls or find to see the files",
        )


class PathIsFolder(ToolFailed):
    """The path is a folder, and a file was expected."""

    code = "path.is_folder"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{format_path(path)}' is a folder",
            because="only files can be read or written",
            try_this="use ls to see the files in it",
        )


class PathNotFolder(ToolFailed):
    """The path is not a folder, and a folder was expected."""

    code = "path.not_folder"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{format_path(path)}' is not a folder",
            because="a command must run in a folder",
            try_this="set `workdir` to a folder, or leave it out",
        )


class PathNotRegularFile(ToolFailed):
    """The path is a device, a socket or a FIFO."""

    code = "path.not_regular_file"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{format_path(path)}' is not a regular file",
            because="only regular files can be read or written",
            try_this="use ls to see the files",
        )


class PathDiskFull(ToolFailed):
    """There is no space left on the disk, or the quota is used up."""

    code = "path.disk_full"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"no disk space left for '{format_path(path)}'",
            because="the disk is full; nothing was changed",
            try_this="ask the owner to free disk space",
        )


class PathUnusable(ToolFailed):
    """The operating system refused to open the file or folder, or to write to it."""

    code = "path.unusable"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"cannot access '{format_path(path)}'",
            because=because or "the operating system gave no reason",
            try_this="check the path with ls, or use another one",
        )


# --- files ---


class FileChanged(ToolFailed):
    """Another process or call wrote the file after it was read."""

    code = "file.changed"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{format_path(path)}' has changed since it was read",
            because="another process or call has written it; nothing was changed",
            try_this="read it again",
        )


class FileTooLarge(ToolFailed):
    """The file is larger than the limit for reading."""

    code = "file.too_large"

    def __init__(self, path: str, *, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"'{format_path(path)}' is too large",
            because=f"it is {size_bytes:,} bytes, and the limit is {bytes_max:,} bytes",
            try_this="use find with `text`, or a command that extracts the part you need",
        )


class WrittenFileTooLarge(ToolFailed):
    """The file would be larger than the limit for writing."""

    code = "file.would_be_too_large"

    def __init__(self, path: str, *, bytes_max: int) -> None:
        super().__init__(
            f"'{format_path(path)}' would be too large",
            because=f"the limit is {bytes_max:,} bytes; nothing was changed",
            try_this="write several smaller files",
        )


class FileNotUtf8(ToolFailed):
    """The file is not UTF-8, so it cannot be edited as text."""

    code = "file.not_utf8"

    def __init__(self, path: str, *, at_byte: int) -> None:
        super().__init__(
            f"'{format_path(path)}' is not a text file",
            because=f"byte {at_byte} is not valid UTF-8",
            try_this="change it with a command",
        )


class FileNotShown(ToolFailed):
    """The file is not text, so it cannot be shown, and it is too large to be attached."""

    code = "file.not_text"

    def __init__(self, path: str, *, media_type: str, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"cannot show '{format_path(path)}'",
            because=f"it is not text ({media_type}, {size_bytes:,} bytes), and only files of at most "
            f"{bytes_max:,} bytes can be attached",
            try_this="use a command that extracts the part you need",
        )


class TextNotWritable(ToolFailed):
    """The text to write has characters that cannot be stored."""

    code = "file.text_invalid"

    def __init__(self) -> None:
        super().__init__(
            "cannot write this text", because="it has NUL characters or lone surrogates", try_this="remove them"
        )


class FileLineNotFound(ToolFailed):
    """The file has no text at the requested line and column."""

    code = "file.line_not_found"

    def __init__(self, *, line: int, column: int, line_count: int) -> None:
        super().__init__(
            f"no text at line {line}, column {column}",
            because=f"the last line of the file is {line_count}, or line {line} is shorter",
            try_this="use a smaller offset or column",
        )


class InstructionsOwnerOnly(ToolFailed):
    """A run that is not on behalf of the owner tried to change instructions or memory."""

    code = "file.instructions_owner_only"

    def __init__(self, action: str, *, principal: str) -> None:
        super().__init__(
            f"you cannot {action} on behalf of {principal}",
            because="instructions and memory are shared by everyone who talks to this agent, so only runs for the "
            "owner may change them",
            try_this="write another file, or ask the owner to make this change",
        )


# --- find ---


class FindTextInvalid(ToolFailed):
    """The text to search for is too long, or has more than one line."""

    code = "find.text_invalid"

    def __init__(self, *, chars_max: int) -> None:
        super().__init__(
            "invalid value for `text`",
            because=f"it must be one line of at most {chars_max:,} characters",
            try_this="search for a part of it",
        )


class GlobInvalid(ToolFailed):
    """The glob is empty or too long."""

    code = "glob.invalid"

    def __init__(self, glob: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid glob: '{glob[:GLOB_SHOWN_MAX]}'",
            because=f"it must have 1 to {chars_max} characters",
            try_this="use a glob such as *.md or docs/**/*.md",
        )


# --- edit ---


class EditOldEmpty(ToolFailed):
    """The text to replace is empty."""

    code = "edit.empty"

    def __init__(self, path: str, *, edit: str) -> None:
        super().__init__(
            f"{edit} cannot be applied to '{path}'; nothing was changed",
            because="`old` is empty",
            try_this="set `old` to the text to replace; to create a file, use write",
        )


class EditUnchanged(ToolFailed):
    """The old and the new text of an edit are the same."""

    code = "edit.no_change"

    def __init__(self, path: str, *, edit: str) -> None:
        super().__init__(
            f"{edit} would not change '{path}'", because="`old` and `new` are the same", try_this="leave this edit out"
        )


class EditTextNotFound(ToolFailed):
    """The file does not contain the text to replace. `nearest` is the most similar line, with its number."""

    code = "edit.not_found"

    def __init__(self, path: str, *, edit: str, nearest: tuple[int, str] | None) -> None:
        similar = f"; line {nearest[0]} is the most similar: {nearest[1]!r}" if nearest is not None else ""
        super().__init__(
            f"{edit} cannot be applied to '{path}'; nothing was changed",
            because="`old` is not in the file",
            try_this=f"read the file again and copy the text exactly{similar}",
        )


class EditAmbiguous(ToolFailed):
    """The file contains the text to replace more than once."""

    code = "edit.ambiguous"

    def __init__(self, path: str, *, edit: str, lines: Sequence[int]) -> None:
        super().__init__(
            f"{edit} cannot be applied to '{path}'; nothing was changed",
            because=f"`old` occurs more than once: in lines {', '.join(map(str, lines))}",
            try_this="add surrounding lines to `old` until it is unique, or set `replace_all`",
        )


class EditsOverlap(ToolFailed):
    """Two edits of one call would change the same text."""

    code = "edit.overlap"

    def __init__(self, path: str, *, first: str, second: str, line: int) -> None:
        super().__init__(
            f"{first} and {second} overlap in '{path}'; nothing was changed",
            because=f"both would change line {line}",
            try_this="combine them into one edit",
        )
