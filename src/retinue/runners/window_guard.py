"""Rejects models whose context window is too small for instructions and tools."""

from __future__ import annotations

import logging

from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFacts

log = logging.getLogger(__name__)

WINDOW_TOKENS_MIN = 16_000
WINDOW_TOKENS_SMALL = 32_000


class WindowTooSmall(RetinueError):
    """The model's context window is too small; it was not called."""

    code = "model.window-too-small"


def require_window(facts: ModelFacts) -> None:
    """Raise for a model with too small a window, before anything is sent to it.

    A model without tools is only used for chat, and any window will do.
    """
    if facts.window_tokens >= WINDOW_TOKENS_MIN or not facts.tools:
        return
    raise WindowTooSmall(
        f"{facts.ref} can have only {facts.window_tokens:,} tokens in mind",
        because=f"instructions, tools and a conversation need at least {WINDOW_TOKENS_MIN:,}",
        try_this=f"choose another model, or set `window_tokens` of '{facts.ref}' if it can take more",
    )


def window_warning(facts: ModelFacts) -> str:
    """Return a warning for a model with a small window, or an empty string.

    A model that is too small for any work gets the text of its error.
    """
    if facts.window_tokens >= WINDOW_TOKENS_SMALL:
        return ""
    if facts.window_tokens < WINDOW_TOKENS_MIN:
        return f"{facts.ref} is not asked: {facts.window_tokens:,} tokens in mind are fewer than {WINDOW_TOKENS_MIN:,}"
    return (
        f"{facts.ref} can have only {facts.window_tokens:,} tokens in mind: conversations will often be compacted "
        f"(under {WINDOW_TOKENS_SMALL:,} is small; `window_tokens` of the model says otherwise, if it can take more)"
    )


class WindowGuard:
    """Checks each call with `require_window`, and logs one warning per model with a small window."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, int]] = set()  # at most one entry per configured model

    def admit(self, facts: ModelFacts) -> None:
        if not window_warning(facts):
            return
        require_window(facts)
        known = (str(facts.ref), facts.window_tokens)
        if known not in self._warned:
            self._warned.add(known)
            fields = {"model": known[0], "window_tokens": known[1], "small_below_tokens": WINDOW_TOKENS_SMALL}
            log.warning("model window small", extra=fields)
