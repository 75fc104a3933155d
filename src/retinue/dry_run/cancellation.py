"""Cancels a dry run at a safe point, without leaving anything behind.

A signal handler that raises could end a task that no code awaits, or be lost in a destructor. So
the handler only records the signal, which is checked between two steps.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_S = 0.05  # how often a wait for something outside checks for a signal


class Left(Exception):  # not an error
    """The dry run was cancelled by a signal. `exit_code` is that of the process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Leaving:
    """Records the first signal that asks the process to end."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def at(self, *numbers: signal.Signals) -> Generator[None]:
        """Record these signals instead of their default action."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread gets signals
            return
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def heed(self) -> None:
        if self.number:
            raise Left(self.number)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Like `asyncio.run`, but cancelled by a recorded signal."""
        return asyncio.run(self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if self.number:
                task.cancel()
        self.heed()
        return task.result()

    def _note(self, number: int, _frame: object) -> None:
        self.number = self.number or number
