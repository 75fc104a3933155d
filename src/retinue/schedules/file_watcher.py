"""Watches a directory for changes.

On Linux, inotify reports changes, so an idle server does no work. Other systems poll every few
seconds.
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

POLL_INTERVAL_S = 5.0
READ_BYTES = 65_536
DEBOUNCE_S = 0.05  # an editor writes a file in several steps, and one check covers them all
RETRY_S = 1.0  # retry delay after a failure

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x8, 0x40, 0x80, 0x100, 0x200, 0x400
_CHANGE_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _CREATE


class DirectoryWatcher:
    """Calls `on_change` after a file in the directory was written, moved, created or removed.

    `on_change` may also be called without a change.
    """

    def __init__(self, directory: Path, clock: Clock, on_change: Callable[[], None]) -> None:
        self._directory = directory
        self._clock = clock
        self._on_change = on_change
        self._fd: int | None = None
        self._cancel_timer: Callable[[], None] | None = None

    def start(self) -> None:
        self._fd = _open_inotify(self._directory)
        if self._fd is not None:
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
        else:
            self._schedule_poll()

    def stop(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._cancel_timer is not None:
            self._cancel_timer()

    def _on_readable(self) -> None:
        if self._fd is None:
            return
        try:
            while os.read(self._fd, READ_BYTES):
                pass
        except BlockingIOError:
            pass
        self._on_change()

    def _schedule_poll(self) -> None:
        self._cancel_timer = self._clock.call_later(POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        self._on_change()
        self._schedule_poll()


class DebouncedTask:
    """Runs a task soon after `trigger` is called.

    Several calls in a short time run the task only once. A task that fails is run again.
    """

    def __init__(self, task: Callable[[], Awaitable[None]], clock: Clock, *, name: str) -> None:
        self._action = task
        self._clock = clock
        self._name = name
        self._triggered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def trigger(self) -> None:
        self._triggered.set()

    async def _run(self) -> None:
        while True:
            await self._triggered.wait()
            await asyncio.sleep(DEBOUNCE_S)
            self._triggered.clear()
            try:
                await self._action()
            except (StoreError, OSError) as error:
                log.warning("watched files not read", extra={"what": self._name, "error": str(error)})
                await self._clock.sleep(RETRY_S)
                self._triggered.set()


def _open_inotify(directory: Path) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(directory), _CHANGE_MASK) < 0:
        os.close(fd)
        if ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EACCES):
            return None
        raise OSError(ctypes.get_errno(), "cannot watch the directory", str(directory))
    return fd
