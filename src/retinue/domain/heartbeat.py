"""Heartbeats: periodic check-ins in which an agent looks for anything that needs attention.

It works through its checklist: `HEARTBEAT.md` in its workspace, and the tasks in its `heartbeat`
folder. Everything due goes into one prompt. If nothing needs attention, it replies `HEARTBEAT_OK`
and no one is notified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import Struct, field

from retinue.domain.address import Address, AddressKind
from retinue.domain.errors import Invalid

TOKEN = "HEARTBEAT_OK"
EVERY_S = 1800.0
EVERY_S_MIN = 10.0
ACK_CHARS_MAX = 300  # besides the token, in a reply that still counts as an acknowledgement
ACK_CHARS_MOST = 10_000
SAME_WORDS_S = 86_400  # a repeated alert is suppressed for this long
TASKS_MAX = 100
TASK_ID_LENGTH_MAX = 64
TITLE_CHARS_MAX = 100
MARKUP_CHARS_MAX = 200  # of markup around the token
TAKEN_MAX = 20  # tokens removed from one text
CHECKLIST = "HEARTBEAT.md"
FOLDER = "heartbeat"
PERSON = "person"  # used in place of a connector name for alerts to a person's own inbox
OTHERWISE = f"If nothing needs attention, answer {TOKEN}."
PROMPT = (
    "Do what the checklist below says, and no more. What is not on it is not taken up again, whatever was said of it "
    f"before. {OTHERWISE}"
)
ALONE = f"Look whether anything needs attention. What was dealt with before is not taken up again. {OTHERWISE}"

_DAY_MINUTES = 24 * 60
_TIME = re.compile(r"(?P<hour>[01]?[0-9]|2[0-4]):(?P<minute>[0-5][0-9])")
_TASK_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_HEADING = re.compile(r"#+(?:\s|\Z)")
_BLANK_ITEM = re.compile(r"(?:[-*+]|[0-9]{1,3}[.)])\s*(?:\[[\sxX]?\]\s*)?")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


class Shown(Struct, frozen=True, kw_only=True):
    """Which heartbeat messages are shown; None: use the next level's value."""

    ok: bool | None = None  # replies that nothing needs attention
    alerts: bool | None = None  # alerts
    indicator: bool | None = None  # a status indicator in clients

    def over(self, other: Shown) -> Shown:
        return Shown(
            ok=other.ok if self.ok is None else self.ok,
            alerts=other.alerts if self.alerts is None else self.alerts,
            indicator=other.indicator if self.indicator is None else self.indicator,
        )

    @property
    def nothing(self) -> bool:
        return not (self.ok or self.alerts or self.indicator)


BUILT_IN = Shown(ok=False, alerts=True, indicator=True)


class Heartbeat(Struct, frozen=True, kw_only=True):
    """The heartbeat settings of one agent, in addition to those of its schedule."""

    asked_for: bool = True  # enabled in the settings; otherwise it runs because there are tasks
    active_start: str = ""  # such as 08:00; empty: midnight
    active_end: str = ""  # at most 24:00; empty: midnight
    active_zone: str = ""  # empty: the schedule's zone
    ack_chars_max: int = ACK_CHARS_MAX
    shown: Shown = BUILT_IN
    channels: Mapping[str, Shown] = field(default_factory=dict[str, Shown])
    accounts: Mapping[str, Shown] = field(default_factory=dict[str, Shown])

    def shown_at(self, to: Address | None) -> Shown:
        """Return the visibility for an address: the connector's setting, then the platform's, then the general one."""
        plain = self.shown.over(BUILT_IN)
        if to is None:
            return plain
        account = to.name if to.kind is AddressKind.CHANNEL else PERSON
        channel = self.channels.get(channel_of(account), Shown())
        return self.accounts.get(account, Shown()).over(channel).over(plain)


def channel_of(account: str) -> str:
    """Return the platform of a connector name: `telegram` for `telegram-2`."""
    return account.partition("-")[0]


# --- when it beats ---


def minute_of(text: str) -> int | None:
    """Return the minute of the day of `HH:MM`, up to 24:00; None for anything else."""
    fits = _TIME.fullmatch(text.strip())
    minute = int(fits["hour"]) * 60 + int(fits["minute"]) if fits else _DAY_MINUTES + 1
    return minute if minute <= _DAY_MINUTES else None


def is_active(heartbeat: Heartbeat, moment: datetime, zone: ZoneInfo) -> bool:
    """Whether `moment` is within the active hours, by the wall clock in `zone`.

    Hours that end before they begin cross midnight. Equal start and end mean the whole day.
    """
    start = minute_of(heartbeat.active_start) if heartbeat.active_start else 0
    end = minute_of(heartbeat.active_end) if heartbeat.active_end else _DAY_MINUTES
    if start is None or end is None or start == end:
        return True
    local = moment.astimezone(zone)
    minute = local.hour * 60 + local.minute
    return start <= minute < end if start < end else minute >= start or minute < end


# --- what is to be done ---


class Task(Struct, frozen=True, kw_only=True):
    """One task file, without its gate."""

    id: str
    title: str
    text: str


def task_id(text: str) -> str:
    """Return a task id that is a safe file name, or raise Invalid."""
    given = text.strip()
    if len(given) > TASK_ID_LENGTH_MAX or not _TASK_ID.fullmatch(given) or ".." in given or given.endswith("."):
        raise Invalid(
            f"'{given[:TASK_ID_LENGTH_MAX]}' cannot be the id of a task",
            because=f"it names a file: letters, digits, `.`, `_` and `-`, at most {TASK_ID_LENGTH_MAX} of them",
            try_this="for example: check-inbox",
            code="heartbeat.id-invalid",
        )
    return given


def id_from(title: str) -> str:
    """Derive a task id from its title."""
    words = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")
    return words[:TASK_ID_LENGTH_MAX].strip("-") or "task"


def is_empty(checklist: str) -> bool:
    """Whether a checklist has only blank lines, headings, empty items and comments."""
    lines = (line.strip() for line in _COMMENT.sub("", checklist).splitlines())
    return all(not line or _HEADING.match(line) or _BLANK_ITEM.fullmatch(line) for line in lines)


def batch(tasks: Sequence[Task]) -> str:
    """Return the prompt for the due tasks: the text of a single task, or a numbered list with titles and ids."""
    if len(tasks) == 1:
        return tasks[0].text
    ordered = sorted(tasks, key=lambda task: (task.title.casefold(), task.id))
    parts = [f"## {number}. {task.title}\n\nid: {task.id}\n\n{task.text}" for number, task in enumerate(ordered, 1)]
    asks = f"{len(tasks)} tasks are due. Do each of them, and say for each what came of it only where somebody needs to"
    return "\n\n".join(("# Heartbeat run", f"{asks} know it. {OTHERWISE}", *parts))


def prompt_of(own: str, checklist: str, tasks: Sequence[Task]) -> str:
    """Return one prompt for everything that is due. `custom_prompt` is text from the settings that
    comes first."""
    parts: list[str] = []
    if checklist:
        parts += [own or PROMPT, f"# {CHECKLIST}\n\n{checklist}"]
    elif own or not tasks:
        parts.append(own or ALONE)
    if tasks:
        parts.append(batch(tasks))
    return "\n\n".join(parts)


# --- what is said of it ---

_MARKS = r"\*+|_+|`+|~+|[(\[\"']"
_TAG = r"<(?P<tag>[A-Za-z][A-Za-z0-9]{0,20})(?:\s[^<>]{0,100})?>"
_END_TAG = r"</(?P<end>[A-Za-z][A-Za-z0-9]{0,20})\s*>"
_OPENS = re.compile(rf"(?:{_MARKS}|{_TAG})\Z")
_OPENING = re.compile(rf"{_MARKS}|{_TAG}")
_CLOSING = re.compile(rf"\*+|_+|`+|~+|[)\]\"']|{_END_TAG}")
_BRACKETS = {"(": ")", "[": "]"}
_LEADS = re.compile(r"(?:[*_`~#>\s(\[\"'-]|<[^<>]{1,120}>)*")
_TRAILS = re.compile(r"(?:[*_`~\s)\]\"'.!]|<[^<>]{1,120}>)*")
_BULLET = re.compile(r"(?:\A|\n)[ \t]*(?:[-*+>]|#+)[ \t]*\Z")
_STOPS = ".!?,;:"
_SPACE = re.compile(r"&nbsp;", re.IGNORECASE)


def without_token(text: str) -> str:
    """Remove the token from the start and end of a text, with the markup around it. Elsewhere it
    stays."""
    if TOKEN not in text:
        return text.strip()
    left, taken = _SPACE.sub("\N{NO-BREAK SPACE}", text).strip(), 0
    while TOKEN in left and taken < TAKEN_MAX:
        shorter = _taken_from_start(left)
        if shorter is None:
            shorter = _taken_from_end(left)
        if shorter is None:
            break
        left, taken = shorter.strip(), taken + 1
    return left if taken else text.strip()


def _taken_from_start(text: str) -> str | None:
    at = text.index(TOKEN)
    start, end = _with_its_markup(text, at)
    lead = text[:start]
    if not _is_a_word(text, at) or len(lead) > MARKUP_CHARS_MAX or not _LEADS.fullmatch(lead):
        return None
    rest = text[end:]
    for opened in _OPENING.finditer(lead):
        rest = rest.rstrip().removesuffix(_closing(opened))
    return rest


def _taken_from_end(text: str) -> str | None:
    at = text.rindex(TOKEN)
    start, end = _with_its_markup(text, at)
    trail = text[end:]
    if not _is_a_word(text, at) or len(trail) > MARKUP_CHARS_MAX or not _TRAILS.fullmatch(trail):
        return None
    rest = _BULLET.sub("", text[:start])
    for closed in reversed(list(_CLOSING.finditer(trail))):
        rest = _without_opening(rest.lstrip(), closed)
    return rest


def _is_a_word(text: str, at: int) -> bool:
    """Whether the token at this position is not part of a longer word."""
    before, after = text[max(0, at - MARKUP_CHARS_MAX) : at], text[at + len(TOKEN) :]
    return not re.search(r"[A-Za-z0-9]_*\Z", before) and not re.match(r"_*[A-Za-z0-9]", after)


def _with_its_markup(text: str, at: int) -> tuple[int, int]:
    """Return the range to remove: the token, with markup that opens just before it and closes just after it."""
    start, end = at, at + len(TOKEN)
    while True:
        while end < len(text) and text[end] in _STOPS:
            end += 1
        before = text[max(0, start - MARKUP_CHARS_MAX) : start].rstrip()
        after = text[end : end + MARKUP_CHARS_MAX]
        opened = _OPENS.search(before)
        closing = _closing(opened) if opened is not None else ""
        if opened is None or not after.lstrip().startswith(closing):
            return start, end
        gap = len(text[max(0, start - MARKUP_CHARS_MAX) : start]) - len(before)
        start -= gap + len(opened[0])
        end += len(after) - len(after.lstrip()) + len(closing)


def _closing(opened: re.Match[str]) -> str:
    return f"</{opened['tag']}>" if opened["tag"] else _BRACKETS.get(opened[0], opened[0])


def _without_opening(text: str, closed: re.Match[str]) -> str:
    """Remove the opening markup at the start of the text, if `closed` closes it."""
    opened = _OPENING.match(text)
    return text[opened.end() :] if opened is not None and _closing(opened) == closed[0] else text


def spoken(text: str, *, ack_chars_max: int = ACK_CHARS_MAX) -> str:
    """Return the alert in a heartbeat reply, without the token.

    Empty if the reply is an acknowledgement: the token and at most `ack_chars_max` other
    characters.
    """
    left = without_token(text)
    if left == text.strip():
        return left
    return "" if len(left) <= ack_chars_max else left
