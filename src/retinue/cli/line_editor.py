"""Reads lines from a terminal with line editing. Text that is typed during output does not disturb the output."""

from __future__ import annotations

import sys
import termios

from retinue.cli.live_region import BOLD, RESET

try:
    import readline  # once imported, it gives input() history and line editing
except ImportError:
    readline = None


class LineEditor:
    """Reads lines from a terminal. Between prompts, typed text is not echoed, and appears at the next prompt."""

    def __init__(self, *, use_colors: bool) -> None:
        self.fd = sys.stdin.fileno()
        self._use_colors = use_colors
        self._saved_attributes = termios.tcgetattr(self.fd)

    def __enter__(self) -> LineEditor:
        self._disable_echo()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def read_line(self, prompt: str) -> str:
        """Read one edited line. Raises EOFError at the end of input and KeyboardInterrupt on Ctrl-C."""
        self._restore()
        try:
            return input(self._style_prompt(prompt))
        finally:
            self._disable_echo()

    def _style_prompt(self, prompt: str) -> str:
        if not self._use_colors or readline is None:
            return prompt
        return f"\x01{BOLD}\x02{prompt}\x01{RESET}\x02"  # \x01 and \x02 enclose what readline counts as zero columns

    def _disable_echo(self) -> None:
        quiet = list(self._saved_attributes)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self.fd, termios.TCSADRAIN, quiet)

    def _restore(self) -> None:
        termios.tcsetattr(self.fd, termios.TCSADRAIN, self._saved_attributes)
