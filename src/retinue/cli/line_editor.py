"""A person at the keys: lines that are edited as people are used to, and typing ahead that spoils nothing."""

from __future__ import annotations

import sys
import termios

from retinue.cli.live_region import BOLD, PLAIN

try:
    import readline  # input() uses it from here on: history, and keys that edit
except ImportError:
    readline = None


class Keyboard:
    """The keys of a terminal: unechoed while an agent speaks, so that typing ahead spoils nothing; kept for later."""

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
        """One line, edited. EOFError at its end, KeyboardInterrupt for Ctrl-C."""
        self._restore()
        try:
            return input(self._styled(prompt))
        finally:
            self._hush()

    def _styled(self, prompt: str) -> str:
        if not self._colours or readline is None:
            return prompt
        return f"\x01{BOLD}\x02{prompt}\x01{PLAIN}\x02"  # the marks tell readline what takes no room

    def _hush(self) -> None:
        quiet = list(self._usual)
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(self.fd, termios.TCSADRAIN, quiet)

    def _restore(self) -> None:
        termios.tcsetattr(self.fd, termios.TCSADRAIN, self._usual)
