"""Answers of the house as lines for people: `key: value` in kebab-case, ids short, colours only on a terminal."""

from __future__ import annotations

import os
import sys

from retinue.cli.errors import CliError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

SHORT_LENGTH = 8
ID_LENGTH = 32
INDENT = "  "
UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # printable, and yet nothing is to be seen


def has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def prepare(stream: TextIO) -> None:
    """Programs are given UTF-8 whatever the locale; a terminal what it can show."""
    reconfigure = getattr(stream, "reconfigure", None)  # a test may have put something simpler in its place
    if reconfigure is None:
        return
    if stream.isatty():
        reconfigure(errors="replace")
    else:
        reconfigure(encoding="utf-8", errors="surrogatepass")


def say(lines: Iterable[str]) -> None:
    """To whoever asked. On a terminal, nothing in the lines can act on it."""
    _write(sys.stdout, "".join(f"{line}\n" for line in lines))


def complain(error: CliError) -> None:
    """On the side where errors go."""
    sys.stdout.flush()
    _write(sys.stderr, "".join(f"{line}\n" for line in error.lines()), mark="error:")


def _write(stream: TextIO, text: str, *, mark: str = "") -> None:
    if stream.isatty():
        from retinue.cli.live_region import PLAIN, RED, visible

        text = visible(text)
        if mark and has_colours(stream) and text.startswith(mark):
            text = f"{RED}{mark}{PLAIN}{text[len(mark) :]}"
    stream.write(text)
    stream.flush()


def short(value: str) -> str:
    """An id as people see it; an address with its session's id shortened; anything else as it is."""
    head, slash, tail = value.rpartition("/")
    is_id = len(tail) == ID_LENGTH and all(digit in "0123456789abcdef" for digit in tail)
    return head + slash + tail[:SHORT_LENGTH] if is_id else value


def pair(key: str, value: object) -> list[str]:
    """`key: value`, or the key alone above an indented block where the value has several lines."""
    match value:
        case None | "":
            return [f"{key}: none"]
        case bool():
            return [f"{key}: {'yes' if value else 'no'}"]
        case str() if "\n" in value:
            return [f"{key}:", *(INDENT + line for line in value.split("\n"))]
        case str():
            return [f"{key}: {short(value)}"]
        case _:
            return [f"{key}: {value}"]


def pairs(form: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Those of these keys that the form has, in this order."""
    return [line for key in keys if key in form for line in pair(key, form[key])]


def blocks(forms: Sequence[list[str]]) -> list[str]:
    """One below the other, with an empty line between."""
    lines: list[str] = []
    for form in forms:
        lines += ["", *form] if lines else form
    return lines


def indented(lines: Sequence[str]) -> list[str]:
    return [INDENT + line for line in lines]


def call_line(call: dict[str, Any]) -> str:
    """A call exactly as it would be made, with nothing in it that could hide."""
    return f"{call['tool']} {exact(call['arguments'])}"


def exact(value: object) -> str:
    import json

    plain = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() and char not in UNSEEN else json.dumps(char)[1:-1] for char in plain)
