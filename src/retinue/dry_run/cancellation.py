"""Cancels a dry run at a safe point, so that no temporary files remain.

An exception in a signal handler could end a task that no code awaits, or be lost in a destructor.
The handler therefore only records the signal, and the dry run checks for a recorded signal between
two steps.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

CHECK_INTERVAL_S = 0.05  # interval between two checks for a signal while the coroutine waits


class DryRunCancelled(Exception):  # not an error
    """A signal cancelled the dry run. `exit_code` is the exit code for the process."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class SignalRecorder:
    """Records the first signal that asks the process to end."""

    def __init__(self) -> None:
        self.signal_number = 0

    @contextmanager
    def record_signals(self, *numbers: signal.Signals) -> Generator[None]:
        """Record these signals instead of letting them end the process."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread gets signals
            return
        before = {number: signal.signal(number, self._record) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def raise_if_signalled(self) -> None:
        if self.signal_number:
            raise DryRunCancelled(self.signal_number)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine like `asyncio.run`, and cancel it if the process receives a signal."""
        return asyncio.run(self._run_cancellable(work))

    async def _run_cancellable(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=CHECK_INTERVAL_S)
            if self.signal_number:
                task.cancel()
        self.raise_if_signalled()
        return task.result()

    def _record(self, number: int, _frame: object) -> None:
        self.signal_number = self.signal_number or number
