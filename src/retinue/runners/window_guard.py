"""Rejects models whose context window is too small for instructions and tools."""

from __future__ import annotations

import logging

from retinue.domain.model import ModelFacts
from retinue.runners.errors import WindowTooSmall

log = logging.getLogger(__name__)

WINDOW_TOKENS_MIN = 16_000
WINDOW_TOKENS_SMALL = 32_000


def require_window(facts: ModelFacts) -> None:
    """Raise if a model's window is too small, before anything is sent to it.

    A model without tools is only used for chat, so any window is large enough.
    """
    if facts.window_tokens >= WINDOW_TOKENS_MIN or not facts.tools:
        return
    raise WindowTooSmall(facts, tokens_min=WINDOW_TOKENS_MIN)


def window_warning(facts: ModelFacts) -> str:
    """Return a warning for a model with a small window, or an empty string.

    If the window is too small for any call, the warning says that the model is not called.
    """
    if facts.window_tokens >= WINDOW_TOKENS_SMALL:
        return ""
    if facts.window_tokens < WINDOW_TOKENS_MIN:
        return (
            f"{facts.ref} is not called: its context window of {facts.window_tokens:,} tokens is below "
            f"{WINDOW_TOKENS_MIN:,}"
        )
    return (
        f"the context window of {facts.ref} is only {facts.window_tokens:,} tokens: conversations will be compacted "
        f"often (below {WINDOW_TOKENS_SMALL:,} is small; set `window_tokens` of the model if its window is larger)"
    )


class WindowChecker:
    """Raises if a model's window is too small, and logs one warning per model with a small window."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, int]] = set()  # at most one entry per configured model

    def check(self, facts: ModelFacts) -> None:
        if not window_warning(facts):
            return
        require_window(facts)
        known = (str(facts.ref), facts.window_tokens)
        if known not in self._warned:
            self._warned.add(known)
            fields = {"model": known[0], "window_tokens": known[1], "small_below_tokens": WINDOW_TOKENS_SMALL}
            log.warning("model window small", extra=fields)
