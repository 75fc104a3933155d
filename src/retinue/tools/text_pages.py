"""Splits long text into pages. Lines and columns count from 1, and only a newline character ends a line."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from retinue.text.redaction import redact_part


class TextPage(Struct, frozen=True, kw_only=True):
    """One page of text.

    `next_line` is None at the end of the text. `next_column` is greater than 1 if the page ended in
    the middle of a line.
    """

    text: str
    first_line: int
    last_line: int
    next_line: int | None = None
    next_column: int = 1


def slice_page(
    text: str,
    *,
    line: int = 1,
    column: int = 1,
    lines_max: int,
    chars_max: int,
    redact: Callable[[str], str] | None = None,
) -> TextPage | None:
    """Return the page that starts at the position, or None if the text has no such position.

    A page ends at the end of a line, unless the line alone is too long. `redact` removes secrets
    from the returned text; positions refer to the original text.
    """
    start = _find_line_start(text, line)
    if start is None or (column > 1 and column > _find_lines_end(text, start, 1) - start):
        return None
    start += column - 1
    end = _find_lines_end(text, start, lines_max)
    if end - start > chars_max:
        cut = text.rfind("\n", start, start + chars_max) + 1
        end = cut if cut > start else start + chars_max
    shown = text[start:end]
    breaks = shown.count("\n")
    last = line + breaks - (1 if shown.endswith("\n") else 0)
    redacted = redact_part(text, start, end, redact) if redact is not None else shown
    if end >= len(text):
        return TextPage(text=redacted, first_line=line, last_line=max(last, line))
    next_column = 1 if shown.endswith("\n") else (column if not breaks else 1) + len(shown) - (shown.rfind("\n") + 1)
    return TextPage(
        text=redacted, first_line=line, last_line=max(last, line), next_line=line + breaks, next_column=next_column
    )


def line_count(text: str) -> int:
    return text.count("\n") + (0 if text.endswith("\n") or not text else 1)


def format_next_page(page: TextPage) -> str:
    """Return the arguments of a tool call that reads the next page, formatted for the model."""
    column = f", column={page.next_column}" if page.next_column != 1 else ""
    return f"offset={page.next_line}{column}"


def _find_line_start(text: str, line: int) -> int | None:
    start = 0
    for _ in range(line - 1):
        found = text.find("\n", start)
        if found < 0:
            return None
        start = found + 1
    return start if start < len(text) or line == 1 else None


def _find_lines_end(text: str, start: int, lines: int) -> int:
    end = start
    for _ in range(lines):
        found = text.find("\n", end)
        if found < 0:
            return len(text)
        end = found + 1
    return end
