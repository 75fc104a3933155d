"""A person at a terminal: types into a real pseudo-terminal and reads the screen of a small emulator."""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from cli.emulator import Screen
from cli.server_process import command, environment

from retinue.testing.wait_conditions import wait_until_sync

# A shell would set the controlling terminal. Here the child process does it before it becomes the command.
_EXEC_WITH_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class PtyChat:
    def __init__(self, home: Path, *words: str, columns: int = 80, rows: int = 24, term: str = "xterm") -> None:
        self.screen = Screen(columns, rows)
        self.raw = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _EXEC_WITH_TERMINAL, *command(*words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment(home, TERM=term, LANG="C.UTF-8", PYTHONUTF8="1"),
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_until(self, seen: Callable[[str], bool], *, what: str) -> str:
        """Read output until the screen shows the text."""

        def is_seen() -> bool:
            if seen(self.screen.text):
                return True
            if not self._read(0.05) and self.process.poll() is not None and not self._read(0.2):
                assert seen(self.screen.text), f"it left before {what}; the screen shows:\n{self.screen.text}"
            return False

        wait_until_sync(is_seen, f"the screen shows {what}", poll_s=0, describe=lambda: self.screen.text)
        return self.screen.text

    def wait_for(self, words: str, *, times: int = 1) -> str:
        return self.wait_until(lambda text: text.count(words) >= times, what=f"{times} x {words!r}")

    def wait_for_end(self) -> int:
        """Wait until the process has ended, and read its last output."""

        def has_ended() -> bool:
            ended = self.process.poll() is not None  # first: it may write and end between these two
            return not self._read(0.05) and ended

        wait_until_sync(has_ended, "the command ends", poll_s=0, describe=lambda: self.screen.text)
        return self.process.wait()

    @property
    def echoes(self) -> bool:
        """Whether the terminal echoes input, as for a shell."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return False
        try:
            heard = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        text = self._decode(heard)
        self.raw += text
        self.screen.feed(text)
        return bool(heard)
