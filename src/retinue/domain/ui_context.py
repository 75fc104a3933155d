"""The context line: what a person had before them as they wrote, which their page puts before their words.

`<context panel-id="p1" panel-type="chat" panel-title="Garden" mode="brief" />` and a newline. The house keeps it with
the words as it came, neither makes one nor rewrites one, and leaves it out only where it shows the words to people or
reads them itself. It is as much the person's word as the rest, and no more: nothing here is taken for a fact. How a
line is made is written in the page, `web/src/lib/context.ts`.
"""

from __future__ import annotations

import re

LINE_LENGTH_MAX = 131_072  # all that a page may say, with every character of it escaped
_BEGINS = "<context"
_LINE = re.compile(r'<context(?P<attributes>(?: [a-z][a-z0-9-]*="[^"<>\n]*")*) />(?:\n|\Z)')
_ATTRIBUTE = re.compile(r' ([a-z][a-z0-9-]*)="([^"<>\n]*)"')
_ENTITY = re.compile(r"&(amp|lt|gt|quot|#39);")
_MEANS = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "#39": "'"}


def words_of(text: str) -> str:
    """What the person wrote themselves. A first line that is not exactly a context line is theirs, too."""
    found = _find(text)
    return text[found.end() :] if found else text


def line_of(text: str) -> str:
    """The context line as it came, with its newline; empty where there is none."""
    found = _find(text)
    return text[: found.end()] if found else ""


def attributes_of(text: str) -> dict[str, str]:
    """What the line says, by name; nothing where there is none. Of two alike, the first counts."""
    found = _find(text)
    pairs = _ATTRIBUTE.findall(found["attributes"]) if found else ()
    return {name: _plain(value) for name, value in reversed(pairs)}


def _find(text: str) -> re.Match[str] | None:
    return _LINE.match(text, 0, LINE_LENGTH_MAX) if text.startswith(_BEGINS) else None


def _plain(value: str) -> str:
    return _ENTITY.sub(lambda entity: _MEANS[entity[1]], value)
