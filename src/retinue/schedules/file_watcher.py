"""Watches a directory for changes without polling, so that an idle server does no work.

Linux uses inotify. Other systems poll every few seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from retinue.domain.errors import StoreError
from retinue.domain.ports import Clock

log = logging.getLogger(__name__)

LOOK_S = 5.0
READ_BYTES = 65_536
SETTLE_S = 0.05  # an editor writes a file in several steps, and one check covers them all
AGAIN_S = 1.0  # retry delay after a failure

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x8, 0x40, 0x80, 0x100, 0x200, 0x400
_CHANGES = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _CREATE


class Watcher:
    """Calls `on_change` after a file in the directory was written, moved, created or removed.

    May call it needlessly.
    """

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


class Looking:
    """Runs a task after it was triggered: once for triggers close together, and again if it failed."""

    def __init__(self, look: Callable[[], Awaitable[None]], clock: Clock, *, what: str) -> None:
        self._look = look
        self._clock = clock
        self._what = what
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._forever(), name=self._what)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def poke(self) -> None:
        self._poked.set()

    async def _forever(self) -> None:
        while True:
            await self._poked.wait()
            await asyncio.sleep(SETTLE_S)
            self._poked.clear()
            try:
                await self._look()
            except (StoreError, OSError) as error:
                log.warning("not looked at", extra={"what": self._what, "error": str(error)})
                await self._clock.sleep(AGAIN_S)
                self._poked.set()


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
