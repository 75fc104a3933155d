"""Writes changed settings files atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.config.errors import SettingsFileChanged, SettingsFileUnreadable
from retinue.config.settings_diff import SettingChange, diff_configurations
from retinue.config.settings_loader import (
    Configuration,
    examine_configuration,
    find_data_directory,
    find_settings_file,
    hash_settings_text,
    load_configuration,
    read_settings_text,
)
from retinue.config.toml_patch import Changes, patch_settings_text
from retinue.config.toml_source import read_error_reason

NEW_FILE_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFileChange:
    """The result of changing the settings file: the new configuration and the settings that changed."""

    configuration: Configuration
    changes: tuple[SettingChange, ...]


def patch_settings_file(environment: Mapping[str, str], changes: Changes, *, expected_hash: str) -> SettingsFileChange:
    """Change some settings in the settings file of this instance. The file is replaced atomically."""
    file = find_settings_file(environment, find_data_directory(environment))
    text = read_current_text(file)
    result = patch_settings_text(
        text, changes, expected_hash=expected_hash, validate=lambda new: load_configuration(environment, text=new)
    )
    after = load_configuration(environment, text=result)
    before = examine_configuration(environment, text=text).configuration  # the change may fix an invalid file
    replace_settings_file(file, result, expected_hash=expected_hash)
    return SettingsFileChange(
        configuration=after,
        changes=tuple(
            diff_configurations((before.settings, before.declarations), (after.settings, after.declarations))
        ),
    )


def replace_settings_file(file: Path, text: str, *, expected_hash: str) -> None:
    """Replace a settings file atomically and durably, with the same file mode.

    Raises `SettingsFileChanged` if the hash of the current file is not the expected hash.
    """
    file = file.resolve()  # A symlink stays, and its target is replaced.
    try:
        mode = file.stat().st_mode & 0o7777
    except FileNotFoundError:
        mode = NEW_FILE_MODE
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def check_unchanged() -> None:
        if hash_settings_text(read_current_text(file)) != expected_hash:  # another process wrote it in the meantime
            raise SettingsFileChanged(file)

    write_durably(file, text, mode=mode, before_rename=check_unchanged)


def write_durably(file: Path, text: str, *, mode: int, before_rename: Callable[[], None] = lambda: None) -> None:
    """Write a file completely or not at all, and flush it to disk.

    `before_rename` is called before the new file takes the place of the old one. If it raises an error, the old file
    stays unchanged.
    """
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(text.encode())
            os.fchmod(descriptor, mode)
            opened.flush()
            os.fsync(descriptor)
        before_rename()
        os.rename(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_current_text(file: Path) -> str:
    """Return the current text of a settings file, or an empty string if the file does not exist."""
    try:
        return read_settings_text(file)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise SettingsFileUnreadable(file, because=read_error_reason(error)) from None
