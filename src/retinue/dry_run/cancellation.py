"""How a rehearsal is broken off: at a good moment, and with nothing left behind.

A signal that raises where it is caught may end a task that nobody asks after, or be lost in a clean-up of the
interpreter. So it is written down, and heeded between two steps.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_S = 0.05  # how soon work that waits for something outside is broken off


class Left(Exception):  # nobody's error
    """Someone wants us to end. `status` is what the process ends with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Leaving:
    """Whether someone wants us to end."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def at(self, *numbers: signal.Signals) -> Generator[None]:
        """Have these signals written down, instead of what they would do."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals come to the main thread alone
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
        """As `asyncio.run`, broken off when someone wants us to end."""
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
