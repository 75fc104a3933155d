"""Hearing of changes in a folder, without looking for them: an idle house costs nothing.

On Linux the kernel tells (inotify). Elsewhere someone looks every few seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

from retinue.domain.ports import Clock

LOOK_S = 5.0
READ_BYTES = 65_536

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x8, 0x40, 0x80, 0x100, 0x200, 0x400
_CHANGES = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _CREATE


class Watcher:
    """Calls `changed` after something in the folder was written, moved, made or removed; sometimes for nothing."""

    def __init__(self, folder: Path, clock: Clock, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._clock = clock
        self._changed = changed
        self._fd: int | None = None
        self._take_back: Callable[[], None] | None = None

    def start(self) -> None:
        self._fd = _told_by_the_kernel(self._folder)
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._heard)
        else:
            self._look_later()

    def stop(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._take_back is not None:
            self._take_back()

    def _heard(self) -> None:
        if self._fd is None:
            return
        try:
            while os.read(self._fd, READ_BYTES):
                pass
        except BlockingIOError:
            pass
        self._changed()

    def _look_later(self) -> None:
        self._take_back = self._clock.later(LOOK_S, self._look)

    def _look(self) -> None:
        self._changed()
        self._look_later()


def _told_by_the_kernel(folder: Path) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _CHANGES) < 0:
        os.close(fd)
        if ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EACCES):
            return None
        raise OSError(ctypes.get_errno(), "cannot be watched", str(folder))
    return fd
