"""Writes a changed settings file, atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.config.loader import Configuration, examine, file_from, home_from, load, read_text, text_hash
from retinue.config.settings_diff import Change, diff
from retinue.config.toml_patch import Changes, patch
from retinue.config.toml_source import reason
from retinue.domain.errors import Conflict, Invalid

NEW_FILE_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The file after a change, and the settings that changed."""

    configuration: Configuration
    changes: tuple[Change, ...]


def change_file(environment: Mapping[str, str], changes: Changes, *, expected_hash: str) -> Written:
    """Patch the settings file of this instance. It is written completely or not at all."""
    file = file_from(environment, home_from(environment))
    text = text_of(file)
    result = patch(text, changes, expected_hash=expected_hash, validate=lambda new: load(environment, text=new))
    after = load(environment, text=result)
    before = examine(environment, text=text).configuration  # a change may be the fix for an invalid file
    write(file, result, expected_hash=expected_hash)
    return Written(
        configuration=after,
        changes=tuple(diff((before.settings, before.staff), (after.settings, after.staff))),
    )


def write(file: Path, text: str, *, expected_hash: str) -> None:
    """Replace the file atomically and durably, keeping its mode."""
    file = file.resolve()  # A symlink stays, and its target is replaced.
    try:
        mode = file.stat().st_mode & 0o7777
    except FileNotFoundError:
        mode = NEW_FILE_MODE
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(text.encode())
            os.fchmod(descriptor, mode)
            opened.flush()
            os.fsync(descriptor)
        if text_hash(text_of(file)) != expected_hash:  # another process wrote it in the meantime
            raise Conflict(
                f"{file} has changed since it was read",
                because="someone else wrote it in this very moment",
                try_this="read the settings again, and make the change once more",
                code="config.changed",
            )
        os.rename(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def text_of(file: Path) -> str:
    """Return the current text; empty if there is no file yet."""
    try:
        return read_text(file)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{file} cannot be read",
            because=reason(error),
            try_this="make it a text file that the house may read",
            code="config.unreadable",
        ) from None
