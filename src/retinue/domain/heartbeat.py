"""Heartbeats: an agent looks by itself, every so often, whether something needs attention.

What it looks at is its checklist: `HEARTBEAT.md` where it works, and the tasks in its folder `heartbeat`. All that is
due is one prompt. Where nothing needs attention it says `HEARTBEAT_OK`, and nobody is bothered.
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
ACK_CHARS_MAX = 300  # beside the token, in an answer that is still no more than an acknowledgement
ACK_CHARS_MOST = 10_000
SAME_WORDS_S = 86_400  # for so long, what was delivered is not delivered again
TASKS_MAX = 100
TASK_ID_LENGTH_MAX = 64
TITLE_CHARS_MAX = 100
MARKUP_CHARS_MAX = 200  # that may stand around the token
TAKEN_MAX = 20  # tokens that are taken from one text
CHECKLIST = "HEARTBEAT.md"
FOLDER = "heartbeat"
PERSON = "person"  # instead of a channel: what goes into somebody's own inbox
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
    """What is shown of heartbeats somewhere; None: as it is shown elsewhere."""

    ok: bool | None = None  # that nothing needs attention
    alerts: bool | None = None  # what does
    indicator: bool | None = None  # a sign of life, for pages

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
    """How the heartbeat of one agent goes, on top of what any schedule says."""

    asked_for: bool = True  # by the settings; otherwise it beats because there are tasks
    active_start: str = ""  # such as 08:00; empty: from midnight on
    active_end: str = ""  # up to 24:00
    active_zone: str = ""  # empty: the schedule's
    ack_chars_max: int = ACK_CHARS_MAX
    shown: Shown = BUILT_IN
    channels: Mapping[str, Shown] = field(default_factory=dict[str, Shown])
    accounts: Mapping[str, Shown] = field(default_factory=dict[str, Shown])

    def shown_at(self, to: Address | None) -> Shown:
        """An account's own word, then its channel's, then that for all of them."""
        plain = self.shown.over(BUILT_IN)
        if to is None:
            return plain
        account = to.name if to.kind is AddressKind.CHANNEL else PERSON
        channel = self.channels.get(channel_of(account), Shown())
        return self.accounts.get(account, Shown()).over(channel).over(plain)


def channel_of(account: str) -> str:
    """Several connectors to one place are told apart behind a hyphen: `telegram`, `telegram-2`."""
    return account.partition("-")[0]


# --- when it beats ---


def minute_of(text: str) -> int | None:
    """Of the day, for `HH:MM`, up to 24:00; None for anything else."""
    fits = _TIME.fullmatch(text.strip())
    minute = int(fits["hour"]) * 60 + int(fits["minute"]) if fits else _DAY_MINUTES + 1
    return minute if minute <= _DAY_MINUTES else None


def is_active(heartbeat: Heartbeat, moment: datetime, zone: ZoneInfo) -> bool:
    """By the clock on the wall. Hours that end before they begin go across midnight; those that end as they begin are
    all there are."""
    start = minute_of(heartbeat.active_start) if heartbeat.active_start else 0
    end = minute_of(heartbeat.active_end) if heartbeat.active_end else _DAY_MINUTES
    if start is None or end is None or start == end:
        return True
    local = moment.astimezone(zone)
    minute = local.hour * 60 + local.minute
    return start <= minute < end if start < end else minute >= start or minute < end


# --- what is to be done ---


class Task(Struct, frozen=True, kw_only=True):
    """One file of the folder, without its gate."""

    id: str
    title: str
    text: str


def task_id(text: str) -> str:
    """An id that is a name of a file and nothing else."""
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
    """A free choice of ours, for a task that was given none."""
    words = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")
    return words[:TASK_ID_LENGTH_MAX].strip("-") or "task"


def is_empty(checklist: str) -> bool:
    """Whether nothing is on it: blank lines, headings, items without a word, comments."""
    lines = (line.strip() for line in _COMMENT.sub("", checklist).splitlines())
    return all(not line or _HEADING.match(line) or _BLANK_ITEM.fullmatch(line) for line in lines)


def batch(tasks: Sequence[Task]) -> str:
    """One task is its own words. Several are numbered, by their titles, and bear their ids."""
    if len(tasks) == 1:
        return tasks[0].text
    ordered = sorted(tasks, key=lambda task: (task.title.casefold(), task.id))
    parts = [f"## {number}. {task.title}\n\nid: {task.id}\n\n{task.text}" for number, task in enumerate(ordered, 1)]
    asks = f"{len(tasks)} tasks are due. Do each of them, and say for each what came of it only where somebody needs to"
    return "\n\n".join(("# Heartbeat run", f"{asks} know it. {OTHERWISE}", *parts))


def prompt_of(own: str, checklist: str, tasks: Sequence[Task]) -> str:
    """All that is due, as one prompt. `own` are words that the settings put before it."""
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
    """What is left when the token is taken from where the text begins and ends, with the markup that was around it.
    Elsewhere it is part of what is said."""
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
    """And not a piece of a longer one."""
    before, after = text[max(0, at - MARKUP_CHARS_MAX) : at], text[at + len(TOKEN) :]
    return not re.search(r"[A-Za-z0-9]_*\Z", before) and not re.match(r"_*[A-Za-z0-9]", after)


def _with_its_markup(text: str, at: int) -> tuple[int, int]:
    """From where to where the token goes, with what opens just before it and closes just behind it."""
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
    """Its markup opened where the text begins, or nowhere that matters."""
    opened = _OPENING.match(text)
    return text[opened.end() :] if opened is not None and _closing(opened) == closed[0] else text


def spoken(text: str, *, ack_chars_max: int = ACK_CHARS_MAX) -> str:
    """What a heartbeat has to say, without the token; nothing where it is an acknowledgement: the token, and no more
    than so many characters beside it."""
    left = without_token(text)
    if left == text.strip():
        return left
    return "" if len(left) <= ack_chars_max else left
