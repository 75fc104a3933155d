"""Removes from an answer the text that the same run has already sent to the channel."""

from __future__ import annotations

import re
from collections.abc import Iterable

REPEATED_CHARS_MIN = 10  # shorter text is often repeated on purpose: "Yes.", "Done."

_WHITESPACE = re.compile(r"\s+")


def remove_repeated_text(text: str, sent_texts: Iterable[str]) -> str:
    """Return the answer without the text that its run has already sent to the channel.

    Returns an empty string if no text remains.
    """
    rest = text
    for words in sent_texts:
        plain, before = _normalize(rest), _normalize(words)
        if not plain:
            break
        if plain == before or (len(plain) >= REPEATED_CHARS_MIN and plain in before):
            return ""
        if len(before) >= REPEATED_CHARS_MIN and words.strip() in rest:
            rest = rest.replace(words.strip(), "", 1).strip()
    return rest


def _normalize(text: str) -> str:
    return _WHITESPACE.sub(" ", text).strip().casefold()
