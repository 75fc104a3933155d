"""The file format of a schedule: front matter with id, time and recipient, and the text below it.

    ---
    id: 4f0c…
    cron: "0 9 * * 1-5"
    to: agent:ada
    ---
    What is on today?

The file name is the schedule's name. The schedule is identified by its id, so a copy of the file is
not a second schedule. A file without an id is ignored and reported.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from retinue.agents.skill_front_matter import split_front_matter
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ID_LENGTH, ScheduleId
from retinue.schedules.errors import ScheduleFileInvalid
from retinue.schedules.schedule_parser import ScheduleForm

SCHEDULE_FILE_BYTES_MAX = 262_144

# Names that other products and earlier versions use for these keys.
_ALIASES = {
    "place": "session",
    "deliver": "deliver_to",
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
_ERROR_KEY = re.compile(r"`\$\.(?P<key>[A-Za-z_]+)")


class ScheduleFile(msgspec.Struct, frozen=True):
    """The parsed content of a schedule file."""

    id: ScheduleId
    form: ScheduleForm
    is_enabled: bool


class MissingScheduleId(Exception):
    """Raised if the front matter of a schedule file has no id."""


def parse_schedule_file(text: str) -> ScheduleFile:
    """Parse a schedule file. If the file is invalid, the error has the line number."""
    try:
        fields, body = split_front_matter(text)
    except RetinueError as error:
        raise ScheduleFileInvalid(error.because) from None
    lines = _line_numbers(text)
    front = {_ALIASES.get(key, key): value for key, value in fields.items()}
    front["gate"] = normalize_gate_keys(front.get("gate"))
    id_, enabled = front.pop("id", ""), front.pop("enabled", True)
    for known in ("name", "owner"):  # informational only: the file name and the store decide
        front.pop(known, None)
    if not id_:
        raise MissingScheduleId
    if not isinstance(id_, str) or not _ID.fullmatch(id_.replace("-", "").lower()):
        raise ScheduleFileInvalid(f"line {lines.get('id', 1)}: an id must have {ID_LENGTH} hex digits")
    if not isinstance(enabled, bool):
        raise ScheduleFileInvalid(f"line {lines.get('enabled', 1)}: `enabled` must be true or false")
    if "text" in front:
        raise ScheduleFileInvalid(f"line {lines['text']}: the text must be below the front matter")
    if str(front.get("at", "")).strip().startswith(("+", "-")):
        raise ScheduleFileInvalid(f"line {lines['at']}: `at` must be an absolute time in a file")
    try:
        form = msgspec.convert({**front, "text": body}, ScheduleForm, strict=False)
    except msgspec.ValidationError as error:
        key = found["key"] if (found := _ERROR_KEY.search(str(error))) else _unknown_key_of(str(error))
        raise ScheduleFileInvalid(f"line {lines.get(key, 1)}: {error}") from None
    return ScheduleFile(ScheduleId(id_.replace("-", "").lower()), form, enabled)


def normalize_gate_keys(gate: Any) -> Any:
    """Return a gate table with alias keys replaced by our names. A value that is not a table is returned unchanged."""
    if not isinstance(gate, dict):
        return gate
    return {_GATE_ALIASES.get(str(k), k): _parse_timeout(k, v) for k, v in cast("dict[Any, Any]", gate).items()}


def _parse_timeout(key: Any, value: Any) -> Any:
    return int(value) if key in ("timeoutMs", "timeout_ms") and isinstance(value, str) and value.isdigit() else value


def _unknown_key_of(error_text: str) -> str:
    found = re.search(r"unknown field `(\w+)`", error_text)
    return found[1] if found else ""


def _line_numbers(text: str) -> dict[str, int]:
    """Return the line number of each key in the front matter, for error messages."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if number > 1 and line.rstrip() == "---":
            break
        if fits := _KEY_LINE.match(line):
            found.setdefault(_ALIASES.get(fits["key"], fits["key"]), number)
    return found


def render_schedule_file(id_: str, form: ScheduleForm, *, enabled: bool, owner: str = "") -> str:
    """Return the file text of a schedule. Parsing it again gives the same schedule."""
    front: dict[str, Any] = {"id": id_, **msgspec.to_builtins(form)}
    body = front.pop("text", "")
    if owner:
        front["owner"] = owner
    if not enabled:
        front["enabled"] = False
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()]
    return "\n".join(("---", *lines, "---", "", str(body), ""))
