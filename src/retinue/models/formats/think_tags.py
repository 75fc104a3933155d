"""Separates thinking that comes as text between tags at the start of a reply: `<think>…</think>`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from retinue.models.base import Text, Thinking

_OPEN = "<think>"
_CLOSE = "</think>"


class _Where(Enum):
    START = auto()
    OPENED = auto()  # after the opening tag
    THINKING = auto()
    AFTER = auto()  # after the closing tag
    TEXT = auto()


class ThinkTags:
    """Takes text as it arrives, and separates thinking from text.

    A tag anywhere but at the start is ordinary text.

    Whitespace around the tags belongs to neither.
    """

    __slots__ = ("_held", "_where", "passed")

    def __init__(self) -> None:
        self._where = _Where.START
        self._held: str = ""
        self.passed = False  # whether everything from here on is text: checked at every event

    def off(self) -> None:
        """Treat everything as text: this server sends thinking in another field."""
        if self._where is _Where.START:
            self._pass()

    def _pass(self) -> None:
        self._where, self.passed = _Where.TEXT, True

    def feed(self, words: str) -> Iterator[Text | Thinking]:
        if self._held:
            words, self._held = self._held + words, ""
        if self._where is _Where.START:
            stripped = words.lstrip()
            if stripped.startswith(_OPEN):
                self._where = _Where.OPENED
                words = stripped[len(_OPEN) :]
            elif _OPEN.startswith(stripped):
                self._held = words
                return
            else:
                self._pass()
        if self._where is _Where.OPENED:
            words = words.lstrip()
            if words:
                self._where = _Where.THINKING
        if self._where is _Where.THINKING:
            thought, closed, words = self._thought(words)
            if thought:
                yield Thinking(thought)
            if not closed:
                return
            self._where = _Where.AFTER
        if self._where is _Where.AFTER:
            words = words.lstrip()
            if words:
                self._pass()
        if words:
            yield Text(words)

    def end(self) -> Iterator[Text | Thinking]:
        held, self._held = self._held, ""
        if self._where is _Where.THINKING:
            if held := held.rstrip():
                yield Thinking(held)
        elif held:
            yield Text(held)

    def _thought(self, words: str) -> tuple[str, bool, str]:
        thought, tag, after = words.partition(_CLOSE)
        if tag:
            return thought.rstrip(), True, after
        # The tag may be cut in two, and whitespace may turn out to precede it.
        length = next((n for n in range(len(_CLOSE) - 1, 0, -1) if words.endswith(_CLOSE[:n])), 0)
        kept = words[: len(words) - length].rstrip()
        self._held = words[len(kept) :]
        return kept, False, ""
