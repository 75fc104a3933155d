"""Parses the front matter of a SKILL.md: a strict subset of YAML.

A line is `key: value`. A value is a text, plain or quoted; true or false; a JSON list or object on
one or several lines; `[a, b]`; a text block after `|` or `>`; or an indented block below, with keys
or a list with `-`.

Anchors, tags and other YAML features are refused, so there is only one way to read a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from retinue.domain.errors import Invalid

LINES_MAX = 400
DEPTH_MAX = 6
FENCE = "---"

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*:(?:\s+(.*))?")
_LOOSE_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(\s*[}\]])')
_ITEM = re.compile(r"""(?:\A|(?<=,))\s*(?:'[^']*'|"[^"]*"|[^,'"\[\]{}]*)\s*(?=,|\Z)""")
_FORBIDDEN = "&*!%@`"


class _Line(Struct, frozen=True):
    number: int
    indent: int
    text: str


def split(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter and the text below it."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        raise _wrong(1, "a SKILL.md begins with front matter, between two lines of ---")
    end = next((n for n, line in enumerate(lines[1 : LINES_MAX + 2], 1) if line.rstrip() == FENCE), None)
    if end is None:
        raise _wrong(1, f"its front matter does not end within {LINES_MAX} lines")
    return _read(lines[1:end]), "\n".join(lines[end + 1 :]).strip("\n")


def _read(lines: Sequence[str]) -> dict[str, Any]:
    rows = [_row(number, line) for number, line in enumerate(lines, 2)]
    found, rest = _table(rows, 0, 1)
    if rest:
        raise _wrong(rest[0].number, "this line stands further out than those above it")
    return found


def _row(number: int, line: str) -> _Line:
    text = line.rstrip()
    bare = text.lstrip(" ")
    if bare.startswith("\t"):
        raise _wrong(number, "lines are moved in with blanks, not with tabs")
    return _Line(number, len(text) - len(bare), bare)


def _is_empty(row: _Line) -> bool:
    return not row.text or row.text.startswith("#")


def _table(rows: Sequence[_Line], indent: int, depth: int) -> tuple[dict[str, Any], Sequence[_Line]]:
    """Return the keys at this indentation, and the remaining rows."""
    if depth > DEPTH_MAX:
        raise _wrong(rows[0].number, f"keys lie in each other more than {DEPTH_MAX} deep")
    found: dict[str, Any] = {}
    while rows:
        row = rows[0]
        if _is_empty(row):
            rows = rows[1:]
            continue
        if row.indent < indent:
            break
        fits = _KEY.fullmatch(row.text)
        if row.indent > indent or fits is None:
            raise _wrong(row.number, "a line is `key: value`")
        key, value = fits[1], (fits[2] or "").strip()
        if key in found:
            raise _wrong(row.number, f"`{key}` stands there twice")
        found[key], rows = _value(value, row, rows[1:], depth)
    return found, rows


def _value(text: str, row: _Line, rows: Sequence[_Line], depth: int) -> tuple[Any, Sequence[_Line]]:
    if text in ("|", "|-", ">", ">-"):
        return _block(text[0], row, rows)
    if text and not text.startswith("#"):
        return _single(text, row.number), rows
    below = next((each for each in rows if not _is_empty(each)), None)
    if below is None or below.indent < row.indent or (below.indent == row.indent and not _is_item(below)):
        return "", rows
    if _is_item(below):
        return _items(rows, below.indent)
    if below.text[0] in "{[":
        return _long_flow(row, rows)
    return _table(rows, below.indent, depth + 1)


def _is_item(row: _Line) -> bool:
    return row.text == "-" or row.text.startswith("- ")


def _items(rows: Sequence[_Line], indent: int) -> tuple[list[Any], Sequence[_Line]]:
    found: list[Any] = []
    while rows:
        row = rows[0]
        if _is_empty(row):
            rows = rows[1:]
            continue
        if row.indent < indent or not _is_item(row):
            break
        if row.indent > indent:
            raise _wrong(row.number, "a list does not lie in a list")
        found.append(_single(row.text[1:].strip(), row.number))
        rows = rows[1:]
    return found, rows


def _block(style: str, row: _Line, rows: Sequence[_Line]) -> tuple[str, Sequence[_Line]]:
    """Return a text of several lines: kept after `|`, folded after `>`."""
    taken: list[_Line] = []
    while rows and (not rows[0].text or rows[0].indent > row.indent):
        taken.append(rows[0])
        rows = rows[1:]
    margin = min((each.indent for each in taken if each.text), default=0)
    lines = [" " * (each.indent - margin) + each.text if each.text else "" for each in taken]
    text = "\n".join(lines).strip("\n")
    if style == ">":
        text = "\n".join(" ".join(part.split("\n")) for part in text.split("\n\n"))
    return text, rows


def _single(text: str, number: int) -> Any:
    if text[:1] in ("{", "["):
        return _flow(text, number)
    if text[:1] == '"':
        try:
            said: Any = json.loads(text)
        except ValueError:
            raise _wrong(number, "a text in double quotes ends with one, and is written as JSON writes it") from None
        return said
    if text[:1] == "'":
        if len(text) < 2 or text[-1] != "'" or "'" in text[1:-1].replace("''", ""):
            raise _wrong(number, "a text in single quotes ends with one")
        return text[1:-1].replace("''", "'")
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    if plain[:1] and plain[0] in _FORBIDDEN:
        raise _wrong(number, f"a text that begins with {plain[0]} stands in quotes")
    if plain in ("true", "false"):
        return plain == "true"
    return "" if plain in ("null", "~") else plain


def _flow(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise _wrong(number, "it is nested too deeply") from None
    items = _ITEM.findall(text[1:-1])
    if text[0] != "[" or text[-1:] != "]" or ",".join(items) != text[1:-1]:
        raise _wrong(number, "a list or an object on one line is written as JSON writes it, a list also as [a, b]")
    return [_single(word, number) for each in items if (word := each.strip())]


def _long_flow(row: _Line, rows: Sequence[_Line]) -> tuple[Any, Sequence[_Line]]:
    """Parse an object over several lines. Trailing commas, which JSON forbids, are allowed."""
    text, rest = _block("|", row, rows)
    return _flow(_LOOSE_COMMA.sub(lambda found: found[1] or found[2], text), row.number), rest


def _wrong(line: int, because: str) -> Invalid:
    return Invalid(
        "this SKILL.md cannot be read",
        because=f"line {line}: {because}",
        try_this="begin it with a line of ---, `name: NAME`, `description: WHAT FOR`, and a line of ---",
        code="skill.unreadable",
    )
