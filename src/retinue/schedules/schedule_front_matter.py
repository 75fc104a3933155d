"""A schedule as a file: front matter with time and recipient, and the text below it.

    ---
    id: 4f0c…
    cron: "0 9 * * 1-5"
    to: agent:ada
    ---
    What is on today?

The file name is the schedule's name. The id identifies the schedule, so that a copy is not taken
for a second one. A file without an id is ignored and reported.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from retinue.agents.skill_front_matter import split
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import ID_LENGTH, ScheduleId
from retinue.schedules.schedule_parser import Form

FILE_BYTES_MAX = 262_144

# Names that other products use for these keys.
_ALIASES = {
    "schedule": "cron",
    "taskId": "id",
    "deleteAfterRun": "delete_after_run",
    "oneOff": "delete_after_run",
    "one_off": "delete_after_run",
    "once": "delete_after_run",
}
_GATE_ALIASES = {"timeoutMs": "timeout_ms", "allowedDomains": "domains"}
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_KEY_LINE = re.compile(r"(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\s*:")
_AT = re.compile(r"`\$\.(?P<key>[A-Za-z_]+)")


class Filed(msgspec.Struct, frozen=True):
    """The content of a schedule file."""

    id: ScheduleId
    form: Form
    enabled: bool


class NoId(Exception):
    """The file has no schedule id."""


def parse(text: str) -> Filed:
    """Parse a schedule file. Raises with the line number if it is invalid."""
    try:
        said, words = split(text)
    except RetinueError as error:
        raise _unreadable(error.because) from None
    lines = _lines(text)
    front = {_ALIASES.get(key, key): value for key, value in said.items()}
    front["gate"] = plain_gate(front.get("gate"))
    id_, enabled = front.pop("id", ""), front.pop("enabled", True)
    for known in ("name", "owner"):  # informational only: the file name and the store decide
        front.pop(known, None)
    if not id_:
        raise NoId
    if not isinstance(id_, str) or not _ID.fullmatch(id_.replace("-", "").lower()):
        raise _unreadable(f"line {lines.get('id', 1)}: an id is {ID_LENGTH} hex digits")
    if not isinstance(enabled, bool):
        raise _unreadable(f"line {lines.get('enabled', 1)}: `enabled` is true or false")
    if "text" in front:
        raise _unreadable(f"line {lines['text']}: the text stands below the front matter")
    if str(front.get("at", "")).strip().startswith(("+", "-")):
        raise _unreadable(f"line {lines['at']}: a file names the moment itself, not how far away it is")
    try:
        form = msgspec.convert({**front, "text": words}, Form, strict=False)
    except msgspec.ValidationError as error:
        key = found["key"] if (found := _AT.search(str(error))) else _unknown_key(str(error))
        raise _unreadable(f"line {lines.get(key, 1)}: {error}") from None
    return Filed(ScheduleId(id_.replace("-", "").lower()), form, enabled)


def plain_gate(said: Any) -> Any:
    """Return a gate table with our key names. A value that is not a table is returned unchanged."""
    if not isinstance(said, dict):
        return said
    return {_GATE_ALIASES.get(str(k), k): _number(k, v) for k, v in cast("dict[Any, Any]", said).items()}


def _number(key: Any, value: Any) -> Any:
    return int(value) if key in ("timeoutMs", "timeout_ms") and isinstance(value, str) and value.isdigit() else value


def _unknown_key(said: str) -> str:
    found = re.search(r"unknown field `(\w+)`", said)
    return found[1] if found else ""


def _lines(text: str) -> dict[str, int]:
    """Return the line number of each key."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if number > 1 and line.rstrip() == "---":
            break
        if fits := _KEY_LINE.match(line):
            found.setdefault(_ALIASES.get(fits["key"], fits["key"]), number)
    return found


def render(id_: str, form: Form, *, enabled: bool, owner: str = "") -> str:
    """Return the file text of a schedule. Parsing it again gives the same schedule."""
    front: dict[str, Any] = {"id": id_, **msgspec.to_builtins(form)}
    words = front.pop("text", "")
    if owner:
        front["owner"] = owner
    if not enabled:
        front["enabled"] = False
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()]
    return "\n".join(("---", *lines, "---", "", str(words), ""))


def _unreadable(because: str) -> Invalid:
    return Invalid(
        "this file of a schedule cannot be read",
        because=because,
        try_this="look at docs/guides/schedules.md for what may stand there",
        code="schedule.file-unreadable",
    )
