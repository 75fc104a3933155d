"""Heartbeats: periodic check-ins in which an agent looks for anything that needs attention.

The agent works through its checklist: `HEARTBEAT.md` in its workspace, and the tasks in its
`heartbeat` folder. Everything due goes into one prompt. If nothing needs attention, the agent
replies `HEARTBEAT_OK`, and no one is notified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import Struct, field

from retinue.domain.address import Address, AddressKind
from retinue.domain.value_errors import HeartbeatTaskIdInvalid

OK_TOKEN = "HEARTBEAT_OK"
DEFAULT_EVERY_S = 1800.0
HEARTBEAT_EVERY_S_MIN = 10.0
DEFAULT_ACK_CHARS_MAX = 300  # longest text besides the token in a reply that still counts as an acknowledgement
ACK_CHARS_LIMIT = 10_000
REPEAT_SUPPRESSED_S = 86_400  # a repeated alert is suppressed for this long
TASKS_MAX = 100
TASK_ID_LENGTH_MAX = 64
TASK_TITLE_CHARS_MAX = 100
TOKEN_MARKUP_CHARS_MAX = 200  # longest markup around the token
TOKENS_REMOVED_MAX = 20  # tokens removed from one text
CHECKLIST_FILE = "HEARTBEAT.md"
TASKS_FOLDER = "heartbeat"
PERSON_CONNECTOR = "person"  # used in place of a connector name for alerts to a person's own inbox
OK_INSTRUCTION = f"If nothing needs attention, answer {OK_TOKEN}."
CHECKLIST_PROMPT = (
    "Do what the checklist below says, and nothing else. Do not repeat or continue tasks from earlier "
    f"conversations that are not on it. {OK_INSTRUCTION}"
)
PROMPT_WITHOUT_CHECKLIST = (
    f"Check whether anything needs attention. Do not repeat tasks that are already done. {OK_INSTRUCTION}"
)

_DAY_MINUTES = 24 * 60
_TIME = re.compile(r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])")
_TASK_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_HEADING = re.compile(r"#+(?:\s|\Z)")
_BLANK_ITEM = re.compile(r"(?:[-*+]|[0-9]{1,3}[.)])\s*(?:\[[\sxX]?\]\s*)?")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


class HeartbeatVisibility(Struct, frozen=True, kw_only=True):
    """Which heartbeat messages are shown.

    A field that is None has the value of the next more general level (see `Heartbeat.visibility_at`).
    """

    ok: bool | None = None  # acknowledgements: replies saying that nothing needs attention
    alerts: bool | None = None  # replies saying that something needs attention
    indicator: bool | None = None  # a status indicator in clients

    def with_defaults(self, defaults: HeartbeatVisibility) -> HeartbeatVisibility:
        return HeartbeatVisibility(
            ok=defaults.ok if self.ok is None else self.ok,
            alerts=defaults.alerts if self.alerts is None else self.alerts,
            indicator=defaults.indicator if self.indicator is None else self.indicator,
        )

    @property
    def is_hidden(self) -> bool:
        return not (self.ok or self.alerts or self.indicator)


DEFAULT_VISIBILITY = HeartbeatVisibility(ok=False, alerts=True, indicator=True)


class Heartbeat(Struct, frozen=True, kw_only=True):
    """The heartbeat settings of one agent, in addition to those of its schedule."""

    asked_for: bool = True  # enabled in the settings; if false, it runs only because there are tasks
    active_start: str = ""  # such as 08:00; empty: midnight
    active_end: str = ""  # at most 24:00; empty: midnight
    active_zone: str = ""  # empty: the schedule's zone
    ack_chars_max: int = DEFAULT_ACK_CHARS_MAX
    shown: HeartbeatVisibility = DEFAULT_VISIBILITY
    channels: Mapping[str, HeartbeatVisibility] = field(default_factory=dict[str, HeartbeatVisibility])
    accounts: Mapping[str, HeartbeatVisibility] = field(default_factory=dict[str, HeartbeatVisibility])

    def visibility_at(self, address: Address | None) -> HeartbeatVisibility:
        """Return which heartbeat messages are shown at an address.

        The connector's value comes first, then the platform's, then the general value.
        """
        plain = self.shown.with_defaults(DEFAULT_VISIBILITY)
        if address is None:
            return plain
        account = address.name if address.kind is AddressKind.CHANNEL else PERSON_CONNECTOR
        channel = self.channels.get(platform_of(account), HeartbeatVisibility())
        return self.accounts.get(account, HeartbeatVisibility()).with_defaults(channel).with_defaults(plain)


def platform_of(connector: str) -> str:
    """Return the platform in a connector name, such as `telegram` for `telegram-2`."""
    return connector.partition("-")[0]


# --- active hours ---


def parse_minute_of_day(text: str) -> int | None:
    """Return a time `HH:MM`, up to 24:00, in minutes since midnight. Returns None for any other text."""
    fits = _TIME.fullmatch(text.strip())
    minute = int(fits["hour"]) * 60 + int(fits["minute"]) if fits else _DAY_MINUTES + 1
    return minute if minute <= _DAY_MINUTES else None


def is_active(heartbeat: Heartbeat, moment: datetime, zone: ZoneInfo) -> bool:
    """Whether `moment` is within the active hours, by the wall clock in `zone`.

    Active hours that end before they begin cross midnight. If start and end are equal, the whole day is active.
    """
    start = parse_minute_of_day(heartbeat.active_start) if heartbeat.active_start else 0
    end = parse_minute_of_day(heartbeat.active_end) if heartbeat.active_end else _DAY_MINUTES
    if start is None or end is None or start == end:
        return True
    local = moment.astimezone(zone)
    minute = local.hour * 60 + local.minute
    return start <= minute < end if start < end else minute >= start or minute < end


# --- tasks and the prompt ---


class HeartbeatTask(Struct, frozen=True, kw_only=True):
    """A task of a heartbeat's checklist, read from its file. The command of its gate is not included."""

    id: str
    title: str
    text: str


def validate_task_id(text: str) -> str:
    """Return the task id without surrounding whitespace. Raises Invalid if it is not a safe file name."""
    given = text.strip()
    if len(given) > TASK_ID_LENGTH_MAX or not _TASK_ID.fullmatch(given) or ".." in given or given.endswith("."):
        raise HeartbeatTaskIdInvalid(given, chars_max=TASK_ID_LENGTH_MAX)
    return given


def derive_task_id(title: str) -> str:
    """Return the id of a task, derived from its title."""
    words = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")
    return words[:TASK_ID_LENGTH_MAX].strip("-") or "task"


def is_checklist_empty(checklist: str) -> bool:
    """Whether a checklist has only blank lines, headings, empty items and comments."""
    lines = (line.strip() for line in _COMMENT.sub("", checklist).splitlines())
    return all(not line or _HEADING.match(line) or _BLANK_ITEM.fullmatch(line) for line in lines)


def format_tasks(tasks: Sequence[HeartbeatTask]) -> str:
    """Return the prompt for the due tasks: the text of a single task, or a numbered list with titles and ids."""
    if len(tasks) == 1:
        return tasks[0].text
    ordered = sorted(tasks, key=lambda task: (task.title.casefold(), task.id))
    parts = [f"## {number}. {task.title}\n\nid: {task.id}\n\n{task.text}" for number, task in enumerate(ordered, 1)]
    instruction = (
        f"{len(tasks)} tasks are due. Do each of them, and report the result of a task only if a person needs to "
        "know it."
    )
    return "\n\n".join(("# Heartbeat run", f"{instruction} {OK_INSTRUCTION}", *parts))


def build_prompt(custom_prompt: str, checklist: str, tasks: Sequence[HeartbeatTask]) -> str:
    """Return one prompt with the checklist and the due tasks of a heartbeat.

    `custom_prompt` comes from the settings and replaces the default instruction.
    """
    parts: list[str] = []
    if checklist:
        parts += [custom_prompt or CHECKLIST_PROMPT, f"# {CHECKLIST_FILE}\n\n{checklist}"]
    elif custom_prompt or not tasks:
        parts.append(custom_prompt or PROMPT_WITHOUT_CHECKLIST)
    if tasks:
        parts.append(format_tasks(tasks))
    return "\n\n".join(parts)


# --- the reply ---

_MARKS = r"\*+|_+|`+|~+|[(\[\"']"
_TAG = r"<(?P<tag>[A-Za-z][A-Za-z0-9]{0,20})(?:\s[^<>]{0,100})?>"
_END_TAG = r"</(?P<end>[A-Za-z][A-Za-z0-9]{0,20})\s*>"
_OPENS = re.compile(rf"(?:{_MARKS}|{_TAG})\Z")
_OPENING = re.compile(rf"{_MARKS}|{_TAG}")
_CLOSING = re.compile(rf"\*+|_+|`+|~+|[)\]\"']|{_END_TAG}")
_BRACKETS = {"(": ")", "[": "]"}
_LEADING_MARKUP = re.compile(r"(?:[*_`~#>\s(\[\"'-]|<[^<>]{1,120}>)*")
_TRAILING_MARKUP = re.compile(r"(?:[*_`~\s)\]\"'.!]|<[^<>]{1,120}>)*")
_BULLET = re.compile(r"(?:\A|\n)[ \t]*(?:[-*+>]|#+)[ \t]*\Z")
_PUNCTUATION = ".!?,;:"
_SPACE = re.compile(r"&nbsp;", re.IGNORECASE)


def remove_token(text: str) -> str:
    """Remove the token `HEARTBEAT_OK`, with the markup around it, from the start and end of a reply.

    A token in the middle of the reply stays.
    """
    if OK_TOKEN not in text:
        return text.strip()
    left, taken = _SPACE.sub("\N{NO-BREAK SPACE}", text).strip(), 0
    while OK_TOKEN in left and taken < TOKENS_REMOVED_MAX:
        shorter = _remove_from_start(left)
        if shorter is None:
            shorter = _remove_from_end(left)
        if shorter is None:
            break
        left, taken = shorter.strip(), taken + 1
    return left if taken else text.strip()


def _remove_from_start(text: str) -> str | None:
    at = text.index(OK_TOKEN)
    start, end = _token_range(text, at)
    lead = text[:start]
    if not _is_whole_word(text, at) or len(lead) > TOKEN_MARKUP_CHARS_MAX or not _LEADING_MARKUP.fullmatch(lead):
        return None
    rest = text[end:]
    for opened in _OPENING.finditer(lead):
        rest = rest.rstrip().removesuffix(_closing_markup(opened))
    return rest


def _remove_from_end(text: str) -> str | None:
    at = text.rindex(OK_TOKEN)
    start, end = _token_range(text, at)
    trail = text[end:]
    if not _is_whole_word(text, at) or len(trail) > TOKEN_MARKUP_CHARS_MAX or not _TRAILING_MARKUP.fullmatch(trail):
        return None
    rest = _BULLET.sub("", text[:start])
    for closed in reversed(list(_CLOSING.finditer(trail))):
        rest = _remove_opening(rest.lstrip(), closed)
    return rest


def _is_whole_word(text: str, at: int) -> bool:
    """Whether the token at this position is a separate word, not part of a longer word."""
    before, after = text[max(0, at - TOKEN_MARKUP_CHARS_MAX) : at], text[at + len(OK_TOKEN) :]
    return not re.search(r"[A-Za-z0-9]_*\Z", before) and not re.match(r"_*[A-Za-z0-9]", after)


def _token_range(text: str, at: int) -> tuple[int, int]:
    """Return the range to remove: the token, with markup that opens just before it and closes just after it."""
    start, end = at, at + len(OK_TOKEN)
    while True:
        while end < len(text) and text[end] in _PUNCTUATION:
            end += 1
        before = text[max(0, start - TOKEN_MARKUP_CHARS_MAX) : start].rstrip()
        after = text[end : end + TOKEN_MARKUP_CHARS_MAX]
        opened = _OPENS.search(before)
        closing = _closing_markup(opened) if opened is not None else ""
        if opened is None or not after.lstrip().startswith(closing):
            return start, end
        gap = len(text[max(0, start - TOKEN_MARKUP_CHARS_MAX) : start]) - len(before)
        start -= gap + len(opened[0])
        end += len(after) - len(after.lstrip()) + len(closing)


def _closing_markup(opened: re.Match[str]) -> str:
    return f"</{opened['tag']}>" if opened["tag"] else _BRACKETS.get(opened[0], opened[0])


def _remove_opening(text: str, closed: re.Match[str]) -> str:
    """Remove the opening markup at the start of the text, if `closed` closes it."""
    opened = _OPENING.match(text)
    return text[opened.end() :] if opened is not None and _closing_markup(opened) == closed[0] else text


def alert_text(text: str, *, ack_chars_max: int = DEFAULT_ACK_CHARS_MAX) -> str:
    """Return the alert in a heartbeat reply, without the token `HEARTBEAT_OK`.

    The alert is empty if the reply only acknowledges the heartbeat. That is, the reply has the token
    and at most `ack_chars_max` other characters.
    """
    left = remove_token(text)
    if left == text.strip():
        return left
    return "" if len(left) <= ack_chars_max else left
