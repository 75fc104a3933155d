"""Separates thinking that comes as text between tags at the start of a reply: `<think>…</think>`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from retinue.models.base import TextChunk, ThinkingChunk

_OPEN = "<think>"
_CLOSE = "</think>"


class _TagState(Enum):
    START = auto()
    AFTER_OPENING = auto()  # after the opening tag
    THINKING = auto()
    AFTER_CLOSING = auto()  # after the closing tag
    TEXT = auto()


class ThinkTagParser:
    """Takes the text of a reply as it arrives, and separates thinking from the rest.

    A tag anywhere but at the start is ordinary text. Whitespace around the tags is dropped.
    """

    __slots__ = ("_held", "_state", "is_text_only")

    def __init__(self) -> None:
        self._state = _TagState.START
        self._held: str = ""
        self.is_text_only = False  # whether everything from here on is text: checked at every event

    def disable(self) -> None:
        """Treat everything as text, because the provider sends thinking in another field."""
        if self._state is _TagState.START:
            self._switch_to_text()

    def _switch_to_text(self) -> None:
        self._state, self.is_text_only = _TagState.TEXT, True

    def feed(self, text: str) -> Iterator[TextChunk | ThinkingChunk]:
        if self._held:
            text, self._held = self._held + text, ""
        if self._state is _TagState.START:
            stripped = text.lstrip()
            if stripped.startswith(_OPEN):
                self._state = _TagState.AFTER_OPENING
                text = stripped[len(_OPEN) :]
            elif _OPEN.startswith(stripped):
                self._held = text
                return
            else:
                self._switch_to_text()
        if self._state is _TagState.AFTER_OPENING:
            text = text.lstrip()
            if text:
                self._state = _TagState.THINKING
        if self._state is _TagState.THINKING:
            thought, closed, text = self._split_thinking(text)
            if thought:
                yield ThinkingChunk(thought)
            if not closed:
                return
            self._state = _TagState.AFTER_CLOSING
        if self._state is _TagState.AFTER_CLOSING:
            text = text.lstrip()
            if text:
                self._switch_to_text()
        if text:
            yield TextChunk(text)

    def finish(self) -> Iterator[TextChunk | ThinkingChunk]:
        held, self._held = self._held, ""
        if self._state is _TagState.THINKING:
            if held := held.rstrip():
                yield ThinkingChunk(held)
        elif held:
            yield TextChunk(held)

    def _split_thinking(self, text: str) -> tuple[str, bool, str]:
        thought, tag, after = text.partition(_CLOSE)
        if tag:
            return thought.rstrip(), True, after
        # The tag may be cut in two, and whitespace may turn out to precede it.
        length = next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)
        kept = text[: len(text) - length].rstrip()
        self._held = text[len(kept) :]
        return kept, False, ""
