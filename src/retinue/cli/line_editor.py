"""Reads edited lines from a terminal, and keeps text typed ahead from disturbing the output."""

from __future__ import annotations

import sys
import termios

from retinue.cli.live_region import BOLD, PLAIN

try:
    import readline  # once imported, it gives input() history and line editing
except ImportError:
    readline = None


class Keyboard:
    """Terminal input. Echo is off between prompts, and text typed ahead is kept for the next prompt."""

    def __init__(self, *, colours: bool) -> None:
        self.fd = sys.stdin.fileno()
        self._colours = colours
        self._usual = termios.tcgetattr(self.fd)

    def __enter__(self) -> Keyboard:
        self._hush()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def line(self, prompt: str) -> str:
        """Read one edited line. Raises EOFError at the end of input and KeyboardInterrupt on Ctrl-C."""
        self._restore()
        try:
            return input(self._styled(prompt))
        finally:
            self._hush()

    def _styled(self, prompt: str) -> str:
        if not self._colours or readline is None:
            return prompt
        return f"\x01{BOLD}\x02{prompt}\x01{PLAIN}\x02"  # \x01 and \x02 enclose what readline counts as zero columns

    def _hush(self) -> None:
        quiet = list(self._usual)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self.fd, termios.TCSADRAIN, quiet)

    def _restore(self) -> None:
        termios.tcsetattr(self.fd, termios.TCSADRAIN, self._usual)
