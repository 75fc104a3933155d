"""Parses the context line, which says what a person had on the screen while writing.

The web app puts the line before the person's text. It is `<context panel-id="p1" panel-type="chat" panel-title="Garden"
mode="brief" />` and a newline. The server stores the line with the text, as received, and never creates or changes one.
It removes the line only to show the text to people or to parse it. The line can contain anything, like the rest of the
person's text, so the server does not rely on it. The web app builds it in `web/src/lib/context.ts`.
"""

from __future__ import annotations

import re

LINE_LENGTH_MAX = 131_072  # the longest possible line, with every character escaped
_LINE_START = "<context"
_LINE = re.compile(r'<context(?P<attributes>(?: [a-z][a-z0-9-]*="[^"<>\n]*")*) />(?:\n|\Z)')
_ATTRIBUTE = re.compile(r' ([a-z][a-z0-9-]*)="([^"<>\n]*)"')
_ENTITY = re.compile(r"&(amp|lt|gt|quot|#39);")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "#39": "'"}


def text_without_context(text: str) -> str:
    """Return the text that the person wrote. A first line that is not exactly a context line is part of that text."""
    found = _find(text)
    return text[found.end() :] if found else text


def context_line(text: str) -> str:
    """Return the context line as received, with its newline, or an empty string if there is none."""
    found = _find(text)
    return text[: found.end()] if found else ""


def context_attributes(text: str) -> dict[str, str]:
    """Return the attributes of the context line, or no attributes if there is no such line.

    If an attribute appears twice, the first counts.
    """
    found = _find(text)
    pairs = _ATTRIBUTE.findall(found["attributes"]) if found else ()
    return {name: _unescape(value) for name, value in reversed(pairs)}


def _find(text: str) -> re.Match[str] | None:
    return _LINE.match(text, 0, LINE_LENGTH_MAX) if text.startswith(_LINE_START) else None


def _unescape(value: str) -> str:
    return _ENTITY.sub(lambda entity: _ENTITIES[entity[1]], value)
