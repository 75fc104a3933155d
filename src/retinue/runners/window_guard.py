"""The guard before a model: one that can hardly have its instructions in mind is not asked."""

from __future__ import annotations

import logging

from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFacts

log = logging.getLogger(__name__)

WINDOW_TOKENS_MIN = 16_000
WINDOW_TOKENS_SMALL = 32_000


class WindowTooSmall(RetinueError):
    """The model cannot have enough in mind to work here; it was not asked."""

    code = "model.window-too-small"


def require_window(facts: ModelFacts) -> None:
    """Raises for a model with too small a window, before anything is sent to it. One that cannot use tools is only
    talked with, and needs no more than it has."""
    if facts.window_tokens >= WINDOW_TOKENS_MIN or not facts.tools:
        return
    raise WindowTooSmall(
        f"{facts.ref} can have only {facts.window_tokens:,} tokens in mind",
        because=f"instructions, tools and a conversation need at least {WINDOW_TOKENS_MIN:,}",
        try_this=f"choose another model, or set `window_tokens` of '{facts.ref}' if it can take more",
    )


def window_warning(facts: ModelFacts) -> str:
    """A word on a model whose window is small; empty where it is not. One too small for any work has its error."""
    if facts.window_tokens >= WINDOW_TOKENS_SMALL:
        return ""
    if facts.window_tokens < WINDOW_TOKENS_MIN:
        return f"{facts.ref} is not asked: {facts.window_tokens:,} tokens in mind are fewer than {WINDOW_TOKENS_MIN:,}"
    return (
        f"{facts.ref} can have only {facts.window_tokens:,} tokens in mind: conversations will often be compacted "
        f"(under {WINDOW_TOKENS_SMALL:,} is small; `window_tokens` of the model says otherwise, if it can take more)"
    )


class WindowGuard:
    """`require_window` for each call, with one line in the log for each model whose window is small."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, int]] = set()  # as many as there are models in the settings

    def admit(self, facts: ModelFacts) -> None:
        if not window_warning(facts):
            return
        require_window(facts)
        known = (str(facts.ref), facts.window_tokens)
        if known not in self._warned:
            self._warned.add(known)
            fields = {"model": known[0], "window_tokens": known[1], "small_below_tokens": WINDOW_TOKENS_SMALL}
            log.warning("model window small", extra=fields)
