"""What a person is shown before they decide: the exact calls, with nothing in them that hides or pretends.

Pure. Arguments come from a model, and from whoever wrote what it has read. They are shown as JSON on one line each,
every character that cannot be seen as its number. What is too long is cut, and says so outside of its quotes, where no
argument can write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from retinue.domain.permission import Permission
from retinue.domain.tool import Call

VALUE_CHARS_MAX = 2_000  # of one argument
VALUE_TAIL_CHARS = 500  # of these, from its end: what matters may stand there
ARGUMENTS_SHOWN_MAX = 40  # of one call
CALLS_CHARS_MAX = 16_000  # of all calls together
WORDS_CHARS_MAX = 1_000  # of a reason
PERMISSIONS_SHOWN_MAX = 20
ALL_OF_IT = "all of it: retinue status"

# Printable, says Unicode, and yet nothing is to be seen: fillers, joiners, blanks, marks that only choose a variant.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    *(chr(code) for code in range(0xFE00, 0xFE0F)),  # U+FE0F alone is in many an honest emoji
    *(chr(code) for code in range(0xE0100, 0xE01F0)),
}


def seen(text: str) -> str:
    """The same text in one line, with every character that a person would not see as its number."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and char not in _BLANK else _number(char) for char in text)


def _number(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def words(text: str) -> str:
    """Somebody's words, in one line and not too many."""
    shown = seen(text.strip())
    return shown if len(shown) <= WORDS_CHARS_MAX else f"{shown[:WORDS_CHARS_MAX]} [cut]"


def value(argument: Any) -> str:
    shown = seen(json.dumps(argument, ensure_ascii=False, default=str))
    if len(shown) <= VALUE_CHARS_MAX:
        return shown
    head, tail = shown[: VALUE_CHARS_MAX - VALUE_TAIL_CHARS], shown[-VALUE_TAIL_CHARS:]
    left_out = len(shown) - VALUE_CHARS_MAX
    quote = '"' if isinstance(argument, str) else ""
    return f"{head}{quote} [cut: {left_out} characters are not shown here; {ALL_OF_IT}] {quote}{tail}"


def call_lines(calls: Sequence[Call]) -> list[str]:
    lines: list[str] = []
    room = CALLS_CHARS_MAX
    for number, call in enumerate(calls):
        block = _block(call)
        room -= sum(len(line) for line in block)
        if room < 0 and number:
            lines.append(f"[cut: {len(calls) - number} more calls are not shown here; {ALL_OF_IT}]")
            break
        lines += block
    return lines


def _block(call: Call) -> list[str]:
    lines = [f"- {seen(call.tool)}"]
    room = CALLS_CHARS_MAX
    for number, (name, argument) in enumerate(call.arguments.items()):
        line = f"    {name if name.isidentifier() and name.isascii() else value(name)}: {value(argument)}"
        room -= len(line)
        if number >= ARGUMENTS_SHOWN_MAX or (room < 0 and number):
            more = len(call.arguments) - number
            lines.append(f"    [cut: {more} more arguments are not shown here; {ALL_OF_IT}]")
            break
        lines.append(line)
    return lines


def what(calls: Sequence[Call], would_grant: Sequence[Permission]) -> str:
    """What was asked for, in a few words."""
    named = list(dict.fromkeys(call.tool for call in calls)) or [str(each) for each in would_grant]
    return words(", ".join(named))


def question(
    *,
    id_: str,
    asker: str,
    background: bool,
    for_whom: str,
    calls: Sequence[Call],
    because: str,
    gives: Sequence[Permission],
    would_grant: Sequence[Permission],
    until: datetime,
    always: bool,
) -> str:
    """`id_` is the short one. `asker` is the agent's name; `background` says that nobody sits behind its session.
    `always`: whoever is asked may grant for good."""
    whose = f"{asker}, which works in the background," if background else asker
    for_longer = f"/allow {id_} session" + (f", or /allow {id_} always" if always else "")
    if calls:
        lines = [f"{whose} asks: may I do this?", *call_lines(calls)]
        lines += [f"It would reach: {_named(gives)}"] if gives else []
        lines += [f"Because: {words(because)}", f"Answer with: /allow {id_} or /deny {id_}"]
        lines += [f"For longer than once ({_named(would_grant)}): {for_longer}"] if would_grant else []
    else:
        good_for = f"/allow {id_} (for this conversation)" if for_whom == asker else f"/allow {id_} (for a day)"
        lines = [
            f"{whose} asks: may {'I' if for_whom == asker else for_whom} have {_named(would_grant)}?",
            f"Because: {words(because)}",
            f"Answer with: {good_for}" + (f", /allow {id_} always" if always else "") + f", or /deny {id_}",
        ]
    lines.append(f"It can be answered until {until:%Y-%m-%d %H:%M} UTC.")
    return "\n".join(lines)


def _named(permissions: Sequence[Permission]) -> str:
    """Each as a whole: a path that is cut is another path."""
    named = [seen(str(each)) for each in permissions[:PERMISSIONS_SHOWN_MAX]]
    more = len(permissions) - len(named)
    return ", ".join(named) + (f" [cut: {more} more are not shown here]" if more else "")
