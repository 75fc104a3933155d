"""Rewrites settings files of an earlier version so that all settings have their new names.

Only the names change. All other bytes stay, including comments, order and indentation. tomlkit cannot rename a key
without moving it, so this module replaces the text of each name. It then parses the result and checks that nothing
else has changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.config.errors import InvalidSettings
from retinue.config.file_writer import read_current_text, replace_settings_file, write_durably
from retinue.config.renamed_settings import (
    Platforms,
    RenamedSetting,
    Table,
    find_platforms,
    list_old_names,
    rename_path,
    rename_settings,
)
from retinue.config.settings_loader import BACKUP_SUFFIX, examine_configuration, hash_settings_text
from retinue.config.toml_positions import find_spans


class RewrittenFile(Struct, frozen=True, kw_only=True):
    """The result of replacing old names in one settings file.

    If the file could not be written, `problem` says why.
    """

    file: Path
    renamed: tuple[RenamedSetting, ...]
    backup: Path
    problem: str = ""

    def format_lines(self) -> list[str]:
        """Return the lines to print or log: what happened to the file, then each renamed setting."""
        heading = (
            f"{self.file} contains old names of settings and cannot be rewritten: {self.problem}"
            if self.problem
            else f"renamed settings in {self.file}; the previous file is {self.backup}"
        )
        return [heading, *(f"  {each.old} -> {each.new}" for each in self.renamed)]


def upgrade_settings_files(environment: Mapping[str, str]) -> tuple[RewrittenFile, ...]:
    """Rename settings with old names in all settings files of this instance. Each file is backed up first.

    If a file has a setting under both names, this function raises `InvalidSettings` and changes no file, because only
    a person can decide which of the two is meant. Each file is replaced atomically. If the process is killed, some
    files may still have old names. The next start replaces these too.

    A file that cannot be written, such as one on a read-only file system, is not an error: the server must still start
    after an upgrade. `problem` contains the reason. The server then uses the new names in memory, and logs a warning at
    every start until the file is changed.
    """
    examined = examine_configuration(environment, accept_old_names=True)
    renamed = examined.configuration.renamed
    if examined.has_conflicts:
        raise InvalidSettings(examined.faults)
    platforms = find_platforms(examined.tree)
    return tuple(_upgrade_file(file, platforms) for file in renamed)


def _upgrade_file(file: Path, platforms: Platforms) -> RewrittenFile:
    backup = file.with_name(file.name + BACKUP_SUFFIX)
    text = read_current_text(file)
    tree = cast(Table, tomllib.loads(text))
    renamed = tuple(list_old_names(rename_settings(tree, platforms).renamed, tree, platforms))
    result = RewrittenFile(file=file, renamed=renamed, backup=backup)
    new = rename_text(text, platforms)
    if new is None:
        return RewrittenFile(
            file=file,
            renamed=renamed,
            backup=backup,
            problem="the old names cannot be replaced without other changes; edit the file yourself",
        )
    try:
        if not backup.exists():  # an existing backup is kept: it is from before the first renaming
            write_durably(backup, text, mode=file.stat().st_mode & 0o7777)
        replace_settings_file(file, new, expected_hash=hash_settings_text(text))
    except OSError as error:
        return RewrittenFile(file=file, renamed=renamed, backup=backup, problem=error.strerror or str(error))
    return result


def rename_text(text: str, platforms: Platforms) -> str | None:
    """Return the text with the new names, or None if anything other than the names would change."""
    tree = cast(Table, tomllib.loads(text))
    found = rename_settings(tree, platforms)
    values = {each.path: each.value for each in found.renamed if each.value is not None}
    made, at = "", 0
    try:
        spans = find_spans(text)
    except (IndexError, RecursionError):
        return None
    for span in spans:
        if span.is_key:
            new = rename_path(span.path, platforms)[-1]
            if new == span.path[-1]:
                continue
            name = str(new)
        elif span.path in values:
            name = f'"{values[span.path]}"'
        else:
            continue
        made, at = made + text[at : span.start] + name, span.end
    made += text[at:]
    try:
        return made if repr(tomllib.loads(made)) == repr(found.tree) else None
    except tomllib.TOMLDecodeError:
        return None
