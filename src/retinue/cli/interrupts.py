"""Makes Ctrl-C available as a readable file descriptor, to wait for with `select`."""

from __future__ import annotations

import os
import signal


class Interrupts:
    """Handles Ctrl-C. While deferring, the first one only makes `fd` readable; others raise KeyboardInterrupt."""

    def __init__(self) -> None:
        self.fd, self._writer = os.pipe()
        for end in (self.fd, self._writer):
            os.set_blocking(end, False)
        self._count = 0
        self._patient = False
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        self._term_before = signal.signal(signal.SIGTERM, _leave)  # as SystemExit, so that the terminal is restored
        self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._count += 1
        if not self._patient or self._count > 1:
            raise KeyboardInterrupt

    def be_patient(self, patient: bool) -> None:
        self.noted()
        self._patient = patient
        self._count = 0

    def noted(self) -> bool:
        """Whether Ctrl-C was pressed since the last call."""
        try:
            return bool(os.read(self.fd, 64))
        except BlockingIOError:
            return False

    def close(self) -> None:
        signal.set_wakeup_fd(self._fd_before)
        signal.signal(signal.SIGINT, self._before)
        signal.signal(signal.SIGTERM, self._term_before)
        os.close(self.fd)
        os.close(self._writer)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
