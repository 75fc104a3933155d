"""Makes Ctrl-C readable from a file descriptor, so that `select` can wait for it."""

from __future__ import annotations

import os
import signal


class InterruptHandler:
    """Handles Ctrl-C.

    After `set_deferring(True)`, the first Ctrl-C only makes the file descriptor `fd` readable. Any other Ctrl-C
    raises `KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        for end in (self.fd, self._writer):
            os.set_blocking(end, False)
        self._count = 0
        self._is_deferring = False
        self._previous_sigint = signal.signal(signal.SIGINT, self._on_signal)
        self._previous_sigterm = signal.signal(
            signal.SIGTERM, _exit_on_signal
        )  # as SystemExit, so that the terminal is restored
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._count += 1
        if not self._is_deferring or self._count > 1:
            raise KeyboardInterrupt

    def set_deferring(self, is_deferring: bool) -> None:
        self.was_interrupted()
        self._is_deferring = is_deferring
        self._count = 0

    def was_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed since the last call."""
        try:
            return bool(os.read(self.fd, 64))
        except BlockingIOError:
            return False

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        signal.signal(signal.SIGINT, self._previous_sigint)
        signal.signal(signal.SIGTERM, self._previous_sigterm)
        os.close(self.fd)
        os.close(self._writer)


def _exit_on_signal(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
