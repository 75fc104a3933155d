"""Slash commands: messages to the server itself, written in a conversation. No model reads them.

A command is a whole message. A directive may also stand within a message: it then applies to that
message only, and is removed before the agent reads it. A shortcut may too; the server answers it
separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from retinue.domain.display_options import Elevation, Reasoning, Verbosity
from retinue.domain.model import EFFORTS
from retinue.domain.session import Overflow, QueueMode
from retinue.domain.trust import Trust

COMMAND_LENGTH_MAX = 32
LINE_LENGTH_MAX = 100
INLINE_MAX = 8  # per message; any further ones are plain text
ENTITLED = frozenset({Trust.OWNER, Trust.PERSON})  # trust levels whose commands are executed


class CommandName(StrEnum):
    HELP = "help"
    STATUS = "status"
    WHOAMI = "whoami"
    NEW = "new"
    RESET = "reset"
    STOP = "stop"
    ABORT = "abort"
    COMPACT = "compact"
    CONTEXT = "context"
    USAGE = "usage"
    MODEL = "model"
    THINK = "think"
    VERBOSE = "verbose"
    REASONING = "reasoning"
    ELEVATED = "elevated"
    QUEUE = "queue"
    SEND = "send"
    ALLOW = "allow"
    APPROVE = "approve"
    DENY = "deny"
    AGENTS = "agents"
    SWITCH = "switch"
    SKILL = "skill"


SUMMARIES = {
    CommandName.HELP: ("/help", "this list"),
    CommandName.STATUS: ("/status", "how this conversation stands"),
    CommandName.WHOAMI: ("/whoami", "who you are here"),
    CommandName.NEW: (
        "/new [MODEL] [WORDS]",
        "begin a fresh context, with another model if one is named, and work on WORDS in it",
    ),
    CommandName.RESET: ("/reset [WORDS]", "begin a fresh context, and keep WORDS in it"),
    CommandName.STOP: ("/stop", "stop what runs here, and clear what waits"),
    CommandName.ABORT: ("/abort", "the same as /stop"),
    CommandName.COMPACT: ("/compact [WORDS]", "tell the context in short, minding WORDS, and go on from there"),
    CommandName.CONTEXT: ("/context [list|detail|json]", "how much the agent has in mind, and of what"),
    CommandName.USAGE: ("/usage [off|tokens|full|cost]", "what was used here, or a line about it below each answer"),
    CommandName.MODEL: ("/model [NAME]", "which models there are, or think with another one"),
    CommandName.THINK: ("/think [LEVEL]", "how much effort goes into replies"),
    CommandName.VERBOSE: ("/verbose [off|on|full]", "tell of each call as it is made, or also what came of it"),
    CommandName.REASONING: (
        "/reasoning [off|on|stream]",
        "send the thoughts before an answer, or show them as they come",
    ),
    CommandName.ELEVATED: ("/elevated [off|on|ask|full]", "run commands outside of the sandbox"),
    CommandName.QUEUE: (
        "/queue [MODE] [debounce:2s] [cap:25] [drop:summarize]",
        "what mail does that comes while the agent is busy",
    ),
    CommandName.SEND: ("/send [on|off|inherit]", "whether what is said here goes out to its channel"),
    CommandName.ALLOW: ("/allow ID [session|always] [WORDS]", "let the agent do what it asked for"),
    CommandName.APPROVE: ("/approve ID [allow-once|allow-always|deny]", "the same as /allow, or /deny"),
    CommandName.DENY: ("/deny ID [WORDS]", "do not let it"),
    CommandName.AGENTS: ("/agents", "who is on the staff"),
    CommandName.SWITCH: ("/switch AGENT [WORDS]", "go on with another agent; /switch back [WORDS] comes back"),
    CommandName.SKILL: ("/skill NAME [WORDS]", "have a skill used on WORDS"),
}
OTHER_NAMES = {"commands": CommandName.HELP, "id": CommandName.WHOAMI}
BY_WORD = {**{name.value: name for name in CommandName}, **OTHER_NAMES}

SHORTCUTS = frozenset({CommandName.HELP, CommandName.STATUS, CommandName.WHOAMI})
DEFAULT = "default"  # clears the session's own choice
EFFORT_WORDS = {"off": "none", "minimal": "low", **{effort: effort for effort in EFFORTS}}
"""What is written for an effort, and which it is."""
QUEUE_MODES = {"queue": QueueMode.STEER, "steer+backlog": QueueMode.STEER_BACKLOG, **{m.value: m for m in QueueMode}}
DROPS = {"old": Overflow.OLDEST, "new": Overflow.REFUSE, **{overflow.value: overflow for overflow in Overflow}}
_LEVELS: dict[CommandName, frozenset[str]] = {
    CommandName.THINK: frozenset({*EFFORT_WORDS, DEFAULT}),
    CommandName.VERBOSE: frozenset({*Verbosity, DEFAULT}),
    CommandName.REASONING: frozenset({*Reasoning, DEFAULT}),
    CommandName.ELEVATED: frozenset({*Elevation, DEFAULT}),
}
DIRECTIVES = frozenset({*_LEVELS, CommandName.MODEL, CommandName.QUEUE})

_BETWEEN_WORDS = " \t\r\n.,;:!?…"
ABORT_WORDS = frozenset({"stop", "esc", "abort", "wait", "exit", "interrupt"})
_ABORT_LENGTH_MAX = 16  # including surrounding whitespace and punctuation
_NUMBER = re.compile(r"\s{0,8}([1-9])[.)]?\s{0,8}")

_WHOLE = re.compile(r"/([^\W\d_]\w*)(:?)(?=\s|\Z)")
_LEVEL = re.compile(r"\s*([A-Za-z]+)(?=\s|\Z|[,.;!?])")
_NOTHING_MORE = re.compile(r"\s*\Z")
_REFERENCE = re.compile(r"\s*(\S+)")
_QUEUE_WORD = re.compile(r"\s*((?:debounce|cap|drop):\S+|[A-Za-z+-]+)(?=\s|\Z)")
_INLINE_WORDS = "|".join(sorted(word for word, name in BY_WORD.items() if name in SHORTCUTS | DIRECTIVES))
# Text in backticks, or in a line after `>`, is quoted and may be anyone's, so it is no command.
_INLINE = re.compile(
    rf"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>[^\n]*|(?<!\S)/({_INLINE_WORDS}):?(?=\s|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)


class Command(Struct, frozen=True):
    """One command. `name` is None for an unknown command; `word` is what was written, without the
    slash.

    `raw` is the original text. `is_bare`: a word without a slash, which is a command only while
    something runs.
    """

    name: CommandName | None
    word: str
    rest: str = ""
    raw: str = ""
    bare: bool = False


class Asked(Struct, frozen=True):
    """The commands and plain text of a message, in order. `has_leading_slash`: the message begins
    with a slash."""

    pieces: tuple[str | Command, ...]
    begins: bool = True

    @property
    def commands(self) -> tuple[Command, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Command))

    @property
    def whole(self) -> bool:
        """Whether nothing is left for the agent to read except whitespace and punctuation."""
        return all(isinstance(piece, Command) or not piece.strip(_BETWEEN_WORDS) for piece in self.pieces)

    def without(self, taken: Iterable[Command]) -> str:
        """Return the text without these commands. Surrounding whitespace is collapsed."""
        out = list(taken)
        text, gap = "", False
        for piece in self.pieces:
            if isinstance(piece, Command) and piece in out:
                gap = True
                continue
            words = piece.raw if isinstance(piece, Command) else piece
            if gap:
                text, words, gap = _closed(text, words), words.lstrip(" \t"), False
            text += words
        return text.strip() if out else text


def _closed(before: str, after: str) -> str:
    before = before.rstrip(" \t")
    apart = before and not before.endswith("\n") and not after.lstrip(" \t").startswith(("\n", ",", ".", ";", "!", "?"))
    return f"{before} " if apart else before


class SkillCommand(Struct, frozen=True, kw_only=True):
    """A skill that has its own slash command.

    With a `tool`, the text goes directly to that tool as its `argument`, and no model is called.
    """

    name: str
    skill: str
    description: str
    tool: str = ""
    argument: str = ""

    @property
    def line(self) -> str:
        """The description, shortened for a list."""
        said = self.description
        return said if len(said) <= LINE_LENGTH_MAX else f"{said[: LINE_LENGTH_MAX - 1]}…"


def read(text: str) -> Asked | None:
    """Parse the commands in a text; None if it is a plain message. `//text` is a plain message that
    begins with a slash.

    A path (`/etc/hosts`) is plain text too: a command is one word.
    """
    if "/" not in text:
        return _read_bare(text)
    first = _WHOLE.match(text)
    if first is None or len(first[1]) > COMMAND_LENGTH_MAX:
        pieces = tuple(_inline(text))
        return Asked(pieces, begins=False) if any(isinstance(piece, Command) for piece in pieces) else None
    word, behind = first[1].casefold(), first.end()
    name = BY_WORD.get(word)
    if name in SHORTCUTS:
        return Asked((Command(name, word, raw=first[0]), *_inline(text, behind, room=INLINE_MAX - 1)))
    taken = _take(name, text, behind) if name in DIRECTIVES else None
    if taken is None:
        return Asked((Command(name, word, text[behind:].strip(), raw=text),))
    rest, end = taken
    return Asked((Command(name, word, rest, raw=text[:end]), *_inline(text, end, room=INLINE_MAX - 1)))


def _read_bare(text: str) -> Asked | None:
    if len(text) > _ABORT_LENGTH_MAX:
        return None
    word = text.strip(_BETWEEN_WORDS).casefold()
    return Asked((Command(CommandName.STOP, word, raw=text, bare=True),), begins=False) if word in ABORT_WORDS else None


def read_number(text: str) -> Asked | None:
    """Parse a single digit. It is an answer in a channel with a numbered question, and plain text
    elsewhere."""
    found = _NUMBER.fullmatch(text) if len(text) <= _ABORT_LENGTH_MAX else None
    return Asked((Command(CommandName.APPROVE, found[1], raw=text, bare=True),), begins=False) if found else None


def _inline(text: str, at: int = 0, *, room: int = INLINE_MAX) -> Iterator[str | Command]:
    """Yield the plain text and the commands within it. A directive without a valid value is plain
    text."""
    for found in _INLINE.finditer(text, at):
        if found[1] is None or found.start() < at:
            continue
        if not room:
            break
        word = found[1].casefold()
        name = BY_WORD[word]
        rest, end = "", found.end()
        if name in DIRECTIVES:
            taken = _take(name, text, end)
            if taken is None or not taken[0]:
                continue
            rest, end = taken
        yield text[at : found.start()]
        yield Command(name, word, rest, raw=text[found.start() : end])
        at, room = end, room - 1
    yield text[at:]


def _take(name: CommandName | None, text: str, at: int) -> tuple[str, int] | None:
    """Return the arguments that follow a directive and where they end; None if they do not fit it."""
    if _NOTHING_MORE.match(text, at):
        return "", len(text)
    if name is CommandName.QUEUE:
        return _take_queue(text, at)
    found = (_REFERENCE if name is CommandName.MODEL else _LEVEL).match(text, at)
    if found is None or name is None or found[1].casefold() not in _LEVELS.get(name, {found[1].casefold()}):
        return None
    return found[1], found.end()


def _take_queue(text: str, at: int) -> tuple[str, int] | None:
    words: list[str] = []
    while found := _QUEUE_WORD.match(text, at):
        word = found[1].casefold()
        if ":" not in word and (words or word not in {*QUEUE_MODES, DEFAULT, "reset"}):
            break
        words.append(word)
        at = found.end()
    return (" ".join(words), at) if words else None


def directs(command: Command) -> bool:
    """Whether the command can apply to a single message."""
    return command.name in DIRECTIVES and bool(command.rest) and _take(command.name, command.rest, 0) is not None


def unescaped(text: str) -> str:
    """Return `//text` as the agent reads it."""
    return text[1:] if text.startswith("//") else text


def help_lines(skills: Sequence[SkillCommand] = ()) -> list[str]:
    forms = [*SUMMARIES.values(), *((f"/{each.name} [WORDS]", f"skill: {each.line}") for each in skills)]
    width = min(max(len(form) for form, _ in forms), COMMAND_LENGTH_MAX)
    return [f"{form:<{width}}  {what}" for form, what in forms]


def unknown(word: str, skills: Sequence[SkillCommand] = ()) -> str:
    """Return the answer to an unknown command. It never goes unanswered."""
    from difflib import get_close_matches  # imported only for a mistyped command

    near = get_close_matches(word, [*BY_WORD, *(each.name for each in skills)], n=1)
    hint = f" Did you mean /{near[0]}?" if near else ""
    return f"There is no command /{word}.{hint} /help lists them; write //{word} to send it as words."
