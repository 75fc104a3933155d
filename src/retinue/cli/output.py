"""Prints output for people: `key: value` lines with keys in kebab-case, and short ids. Only a terminal gets colors."""

from __future__ import annotations

import os
import sys

from retinue.cli.errors import CliError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

SHORT_ID_LENGTH = 8
ID_LENGTH = 32
INDENT = "  "
INVISIBLE_CHARS = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
)  # printable by definition, but invisible


def has_colors(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def configure_stream(stream: TextIO) -> None:
    """Make a pipe use UTF-8 in every locale. On a terminal, replace characters that it cannot encode."""
    reconfigure = getattr(stream, "reconfigure", None)  # missing on simple streams in tests
    if reconfigure is None:
        return
    if stream.isatty():
        reconfigure(errors="replace")
    else:
        reconfigure(encoding="utf-8", errors="surrogatepass")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout. On a terminal, control characters are escaped."""
    _write(sys.stdout, "".join(f"{line}\n" for line in lines))


def print_error(error: CliError) -> None:
    """Print an error to stderr."""
    sys.stdout.flush()
    _write(sys.stderr, "".join(f"{line}\n" for line in error.to_lines()), red_prefix="error:")


def _write(stream: TextIO, text: str, *, red_prefix: str = "") -> None:
    if stream.isatty():
        from retinue.cli.live_region import RED, RESET, escape_controls

        text = escape_controls(text)
        if red_prefix and has_colors(stream) and text.startswith(red_prefix):
            text = f"{RED}{red_prefix}{RESET}{text[len(red_prefix) :]}"
    stream.write(text)
    stream.flush()


def shorten_id(value: str) -> str:
    """Shorten an id, or the session id at the end of an address. Any other value is returned unchanged."""
    head, slash, tail = value.rpartition("/")
    is_id = len(tail) == ID_LENGTH and all(digit in "0123456789abcdef" for digit in tail)
    return head + slash + tail[:SHORT_ID_LENGTH] if is_id else value


def to_kebab_case(key: str) -> str:
    """Convert a snake_case or camelCase key to kebab-case."""
    return "".join(f"-{char.lower()}" if char.isupper() else "-" if char == "_" else char for char in str(key)).lstrip(
        "-"
    )


def format_quantity(count: int, noun: str) -> str:
    """Format a count with its noun, in the singular for 1: `1 run`, `2 runs`."""
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def format_pair(key: str, value: object) -> list[str]:
    """Format one `key: value` line. A value of several lines becomes an indented block below the key."""
    match value:
        case None | "":
            return [f"{key}: none"]
        case bool():
            return [f"{key}: {'yes' if value else 'no'}"]
        case str() if "\n" in value:
            return [f"{key}:", *(INDENT + line for line in value.split("\n"))]
        case str():
            return [f"{key}: {shorten_id(value)}"]
        case _:
            return [f"{key}: {value}"]


def format_pairs(data: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Format the given keys of an object, in the given order. Keys that the object lacks are omitted."""
    return [line for key in keys if key in data for line in format_pair(to_kebab_case(key), data[key])]


def join_blocks(line_blocks: Sequence[list[str]]) -> list[str]:
    """Join blocks of lines with an empty line between blocks."""
    lines: list[str] = []
    for form in line_blocks:
        lines += ["", *form] if lines else form
    return lines


def indent(lines: Sequence[str]) -> list[str]:
    return [INDENT + line for line in lines]


def format_call(call: dict[str, Any]) -> str:
    """Format a tool call with its complete arguments. Invisible characters are escaped."""
    return f"{call['tool']} {to_exact_json(call['arguments'])}"


def to_exact_json(value: object) -> str:
    import json

    plain = json.dumps(value, ensure_ascii=False)
    return "".join(
        char if char.isprintable() and char not in INVISIBLE_CHARS else json.dumps(char)[1:-1] for char in plain
    )
