"""Formats an approval question: the exact calls, shown so that nothing in them is hidden or misleading.

The arguments of a call come from a model, and may contain text from anyone whose text the model
has read. Each argument is shown as JSON on one line, with every invisible character escaped. If an
argument is shortened, a notice says so. The notice is outside the quotes, where no argument can
imitate it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from retinue.domain.permission import Permission
from retinue.domain.tool import Call
from retinue.text.quantity import format_quantity

VALUE_CHARS_MAX = 2_000  # characters shown of one argument
VALUE_TAIL_CHARS = 500  # as many of these are from the end of the argument, where the important part may be
ARGUMENTS_SHOWN_MAX = 40  # per call
CALLS_CHARS_MAX = 16_000  # all calls together
REASON_CHARS_MAX = 1_000  # per reason
PERMISSIONS_SHOWN_MAX = 20
FULL_TEXT_HINT = "to see everything: retinue status"

# Unicode calls these printable, but they show nothing: fillers, joiners, blanks, variation selectors.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    *(chr(code) for code in range(0xFE00, 0xFE0F)),  # U+FE0F is missing: legitimate emoji use it
    *(chr(code) for code in range(0xE0100, 0xE01F0)),
}


def escape_invisible(text: str) -> str:
    """Return the text on one line, with every invisible character as its escape sequence."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() and char not in _INVISIBLE else _escape_code_point(char) for char in text)


def _escape_code_point(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shorten_reason(text: str) -> str:
    """Return the text on one line, shortened to `REASON_CHARS_MAX`."""
    shown = escape_invisible(text.strip())
    return shown if len(shown) <= REASON_CHARS_MAX else f"{shown[:REASON_CHARS_MAX]} [cut]"


def format_argument(argument: Any) -> str:
    shown = escape_invisible(json.dumps(argument, ensure_ascii=False, default=str))
    if len(shown) <= VALUE_CHARS_MAX:
        return shown
    head, tail = shown[: VALUE_CHARS_MAX - VALUE_TAIL_CHARS], shown[-VALUE_TAIL_CHARS:]
    left_out = len(shown) - VALUE_CHARS_MAX
    quote = '"' if isinstance(argument, str) else ""
    return f"{head}{quote} [cut: {left_out} characters are not shown here; {FULL_TEXT_HINT}] {quote}{tail}"


def format_calls(calls: Sequence[Call]) -> list[str]:
    lines: list[str] = []
    room = CALLS_CHARS_MAX
    for number, call in enumerate(calls):
        block = _format_call(call)
        room -= sum(len(line) for line in block)
        if room < 0 and number:
            lines.append(f"[cut: {format_quantity(len(calls) - number, 'more call')} not shown here; {FULL_TEXT_HINT}]")
            break
        lines += block
    return lines


def _format_call(call: Call) -> list[str]:
    lines = [f"- {escape_invisible(call.tool)}"]
    room = CALLS_CHARS_MAX
    for number, (name, argument) in enumerate(call.arguments.items()):
        label = name if name.isidentifier() and name.isascii() else format_argument(name)
        line = f"    {label}: {format_argument(argument)}"
        room -= len(line)
        if number >= ARGUMENTS_SHOWN_MAX or (room < 0 and number):
            more = len(call.arguments) - number
            lines.append(f"    [cut: {format_quantity(more, 'more argument')} not shown here; {FULL_TEXT_HINT}]")
            break
        lines.append(line)
    return lines


def summarize_request(calls: Sequence[Call], would_grant: Sequence[Permission]) -> str:
    """Return a short summary of an approval request: the names of the tools or, without calls, the permissions."""
    named = list(dict.fromkeys(call.tool for call in calls)) or [str(each) for each in would_grant]
    return shorten_reason(", ".join(named))


def format_question(
    *,
    id_: str,
    asker: str,
    is_background: bool,
    grantee: str,
    calls: Sequence[Call],
    because: str,
    permissions_needed: Sequence[Permission],
    would_grant: Sequence[Permission],
    expires_at: datetime,
    can_grant_always: bool,
) -> str:
    """Return the text of an approval question.

    `id_` is the short id of the approval. `asker` is the name of the agent that asks, and `grantee`
    the name of the agent that would receive the permissions. `is_background` means that no person
    takes part in the agent's session. `can_grant_always` means that the person who is asked may
    grant permissions permanently.
    """
    whose = f"{asker}, in the background," if is_background else asker
    for_longer = f"/allow {id_} session" + (f", or /allow {id_} always" if can_grant_always else "")
    if calls:
        lines = [f"{whose} asks: may I do this?", *format_calls(calls)]
        lines += [f"Permissions needed: {_format_permissions(permissions_needed)}"] if permissions_needed else []
        lines += [f"Because: {shorten_reason(because)}", f"Answer with: /allow {id_} or /deny {id_}"]
        lines += [f"To allow more than once ({_format_permissions(would_grant)}): {for_longer}"] if would_grant else []
    else:
        good_for = f"/allow {id_} (for this conversation)" if grantee == asker else f"/allow {id_} (for a day)"
        lines = [
            f"{whose} asks: may {'I' if grantee == asker else grantee} have {_format_permissions(would_grant)}?",
            f"Because: {shorten_reason(because)}",
            f"Answer with: {good_for}" + (f", /allow {id_} always" if can_grant_always else "") + f", or /deny {id_}",
        ]
    lines.append(f"The request expires at {expires_at:%Y-%m-%d %H:%M} UTC.")
    return "\n".join(lines)


def _format_permissions(permissions: Sequence[Permission]) -> str:
    """Format the permissions of a request.

    No permission is shortened, because a shortened path would name a different file.
    """
    named = [escape_invisible(str(each)) for each in permissions[:PERMISSIONS_SHOWN_MAX]]
    more = len(permissions) - len(named)
    return ", ".join(named) + (f" [cut: {more} more not shown here]" if more else "")
