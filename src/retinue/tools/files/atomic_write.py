"""Writes a file atomically and never follows a link."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress

from msgspec import Struct

from retinue.domain.permission import is_within
from retinue.store.agents.file_trust import ctime_ms
from retinue.tools.files.errors import FileChanged
from retinue.tools.files.path_access import (
    ResolvedPath,
    convert_os_error,
    enter_folder,
    enter_or_create_folder,
    open_regular_file,
)

TEMP_PREFIX = ".retinue-"
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_EXISTING_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW_MODE = 0o666  # reduced by the umask
_KEPT_MODE_BITS = 0o777
_temp_numbers = itertools.count()


class WrittenFile(Struct, frozen=True):
    """The result of writing a file atomically."""

    ctime_ms: int
    is_new: bool


def missing_folders(resolved: ResolvedPath) -> list[str]:
    """Return the parent folders that do not exist yet. `write_atomically` would create them."""
    missing: list[str] = []
    folder = os.path.dirname(resolved.real)
    while is_within(folder, resolved.root) and not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing[::-1]


def write_atomically(
    resolved: ResolvedPath, data: bytes, *, text: str, was: os.stat_result | None = None
) -> WrittenFile:
    """Create or replace a file, with its missing parent folders. Readers see the old or the new file.

    A replaced file keeps its mode. It keeps its owner if the server may set the owner. If `was`, an
    earlier status of the file, is given, the file is replaced only if it is unchanged since then.
    """
    folder, name = os.path.split(resolved.real)
    try:
        with _enter_or_create(folder, resolved, text=text) as parent:
            old = _stat_or_none(name, parent)
            if old is not None:
                # Renaming over a file needs no write permission on it. We require that permission anyway.
                os.close(open_regular_file(name, parent, text=text, flags=_EXISTING_FLAGS))
            with _create_temp_file(parent, mode=_NEW_MODE if old is None else 0o600) as (temp, writing):
                if old is not None:
                    _keep_owner_and_mode(writing, old)
                _write_all(writing, data)
                os.fsync(writing)
                if was is not None:
                    _require_unchanged(was, _stat_or_none(name, parent), text)
                os.rename(temp, name, src_dir_fd=parent, dst_dir_fd=parent)
                placed = os.fstat(writing)
            _fsync_folder(parent)
        return WrittenFile(ctime_ms(placed), old is None)
    except OSError as error:
        raise convert_os_error(text, error) from error


@contextmanager
def _enter_or_create(folder: str, resolved: ResolvedPath, *, text: str) -> Generator[int]:
    """Open a folder without following links. Missing folders inside the writable folder are created."""
    kept = folder if not is_within(folder, resolved.root) else os.path.dirname(resolved.root)
    with enter_folder(kept, text=text) as top:
        opened = os.dup(top)
    try:
        for part in folder[len(kept) :].split("/"):
            if part:
                deeper = enter_or_create_folder(part, opened)
                os.close(opened)
                opened = deeper
        yield opened
    finally:
        os.close(opened)


@contextmanager
def _create_temp_file(folder: int, *, mode: int) -> Generator[tuple[str, int]]:
    """Create a file in the folder and delete it afterwards, unless it was renamed."""
    while True:
        name = f"{TEMP_PREFIX}{os.getpid()}-{next(_temp_numbers)}"
        try:
            writing = os.open(name, _CREATE_FLAGS, mode, dir_fd=folder)
            break
        except FileExistsError:  # left by a crashed process with the same pid
            continue
    try:
        yield name, writing
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        os.close(writing)


def _stat_or_none(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _keep_owner_and_mode(writing: int, old: os.stat_result) -> None:
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(writing, old.st_uid, old.st_gid)
    os.fchmod(writing, old.st_mode & _KEPT_MODE_BITS)


def _write_all(writing: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(writing, left) :]


def _require_unchanged(was: os.stat_result, now: os.stat_result | None, text: str) -> None:
    if now is None or (now.st_dev, now.st_ino, now.st_ctime_ns) != (was.st_dev, was.st_ino, was.st_ctime_ns):
        raise FileChanged(text)


def _fsync_folder(folder: int) -> None:
    """Call fsync on the folder, so that the new name survives a power failure."""
    with suppress(OSError):  # some file systems do not support it, and the file is already written
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)
