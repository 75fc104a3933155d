"""Parses the front matter of a SKILL.md: a strict subset of YAML.

Each line has the form `key: value`. A value is one of these:

    text            a string, plain or in quotes
    true, false     a boolean
    [...], {...}    JSON, after the key or on the lines below; `[a, b]` needs no quotes
    | or >          a text block, which is on the lines below
    (nothing)       a block of keys, or of list items with `-`, on the lines below

Anchors, tags and other YAML features are refused, so that every program reads a file in the same
way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from retinue.agents.errors import SkillFrontMatterInvalid

LINES_MAX = 400
DEPTH_MAX = 6
FENCE = "---"

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*:(?:\s+(.*))?")
_TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(\s*[}\]])')
_ITEM = re.compile(r"""(?:\A|(?<=,))\s*(?:'[^']*'|"[^"]*"|[^,'"\[\]{}]*)\s*(?=,|\Z)""")
_RESERVED_STARTS = "&*!%@`"


class _Line(Struct, frozen=True):
    number: int
    indent: int
    text: str


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a file, and the text below it."""
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        raise SkillFrontMatterInvalid(1, "the file must start with front matter, between two lines ---")
    end = next((n for n, line in enumerate(lines[1 : LINES_MAX + 2], 1) if line.rstrip() == FENCE), None)
    if end is None:
        raise SkillFrontMatterInvalid(1, f"its front matter has more than {LINES_MAX} lines, or no closing line ---")
    return _parse_lines(lines[1:end]), "\n".join(lines[end + 1 :]).strip("\n")


def _parse_lines(lines: Sequence[str]) -> dict[str, Any]:
    rows = [_parse_row(number, line) for number, line in enumerate(lines, 2)]
    found, rest = _parse_table(rows, 0, 1)
    if rest:
        raise SkillFrontMatterInvalid(rest[0].number, "this line has less indentation than those above it")
    return found


def _parse_row(number: int, line: str) -> _Line:
    text = line.rstrip()
    bare = text.lstrip(" ")
    if bare.startswith("\t"):
        raise SkillFrontMatterInvalid(number, "indent with spaces, not with tabs")
    return _Line(number, len(text) - len(bare), bare)


def _is_empty(row: _Line) -> bool:
    return not row.text or row.text.startswith("#")


def _parse_table(rows: Sequence[_Line], indent: int, depth: int) -> tuple[dict[str, Any], Sequence[_Line]]:
    """Return the keys and values at this indentation, and the rows below them that are not parsed yet."""
    if depth > DEPTH_MAX:
        raise SkillFrontMatterInvalid(rows[0].number, f"keys are nested more than {DEPTH_MAX} deep")
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
            raise SkillFrontMatterInvalid(row.number, "a line must be `key: value`")
        key, value = fits[1], (fits[2] or "").strip()
        if key in found:
            raise SkillFrontMatterInvalid(row.number, f"the key `{key}` occurs twice")
        found[key], rows = _parse_value(value, row, rows[1:], depth)
    return found, rows


def _parse_value(text: str, row: _Line, rows: Sequence[_Line], depth: int) -> tuple[Any, Sequence[_Line]]:
    if text in ("|", "|-", ">", ">-"):
        return _parse_block(text[0], row, rows)
    if text and not text.startswith("#"):
        return _parse_scalar(text, row.number), rows
    below = next((each for each in rows if not _is_empty(each)), None)
    if below is None or below.indent < row.indent or (below.indent == row.indent and not _is_item(below)):
        return "", rows
    if _is_item(below):
        return _parse_items(rows, below.indent)
    if below.text[0] in "{[":
        return _parse_multiline_flow(row, rows)
    return _parse_table(rows, below.indent, depth + 1)


def _is_item(row: _Line) -> bool:
    return row.text == "-" or row.text.startswith("- ")


def _parse_items(rows: Sequence[_Line], indent: int) -> tuple[list[Any], Sequence[_Line]]:
    found: list[Any] = []
    while rows:
        row = rows[0]
        if _is_empty(row):
            rows = rows[1:]
            continue
        if row.indent < indent or not _is_item(row):
            break
        if row.indent > indent:
            raise SkillFrontMatterInvalid(row.number, "a list cannot contain a list")
        found.append(_parse_scalar(row.text[1:].strip(), row.number))
        rows = rows[1:]
    return found, rows


def _parse_block(style: str, row: _Line, rows: Sequence[_Line]) -> tuple[str, Sequence[_Line]]:
    """Return a text block. After `|`, line breaks are kept. After `>`, single line breaks become spaces."""
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


def _parse_scalar(text: str, number: int) -> Any:
    if text[:1] in ("{", "["):
        return _parse_flow(text, number)
    if text[:1] == '"':
        try:
            value: Any = json.loads(text)
        except ValueError:
            raise SkillFrontMatterInvalid(number, "text in double quotes must be a valid JSON string") from None
        return value
    if text[:1] == "'":
        if len(text) < 2 or text[-1] != "'" or "'" in text[1:-1].replace("''", ""):
            raise SkillFrontMatterInvalid(number, "text that begins with a single quote must end with one")
        return text[1:-1].replace("''", "'")
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    if plain[:1] and plain[0] in _RESERVED_STARTS:
        raise SkillFrontMatterInvalid(number, f"text that starts with {plain[0]} must be in quotes")
    if plain in ("true", "false"):
        return plain == "true"
    return "" if plain in ("null", "~") else plain


def _parse_flow(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise SkillFrontMatterInvalid(number, "it is nested too deeply") from None
    items = _ITEM.findall(text[1:-1])
    if text[0] != "[" or text[-1:] != "]" or ",".join(items) != text[1:-1]:
        raise SkillFrontMatterInvalid(number, "a list or an object on one line must be JSON; a list may also be [a, b]")
    return [_parse_scalar(word, number) for each in items if (word := each.strip())]


def _parse_multiline_flow(row: _Line, rows: Sequence[_Line]) -> tuple[Any, Sequence[_Line]]:
    """Parse a JSON object that spans several lines. Trailing commas, which JSON forbids, are allowed."""
    text, rest = _parse_block("|", row, rows)
    return _parse_flow(_TRAILING_COMMA.sub(lambda found: found[1] or found[2], text), row.number), rest
