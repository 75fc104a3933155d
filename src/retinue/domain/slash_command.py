"""Slash commands: messages to the server itself, written in a conversation. No model reads them.

Most commands must be a whole message. Two kinds may also be part of a message. A directive applies to that message
only, and is removed before the agent reads the message. A shortcut is answered by the server, separately from the
rest of the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from retinue.domain.display_options import Elevation, ReasoningDisplay, Verbosity
from retinue.domain.model import EFFORTS
from retinue.domain.session import Overflow, QueueMode
from retinue.domain.trust import Trust

COMMAND_LENGTH_MAX = 32
DESCRIPTION_LENGTH_MAX = 100
INLINE_COMMANDS_MAX = 8  # commands per message; any further ones are plain text
COMMAND_TRUSTS = frozenset({Trust.OWNER, Trust.PERSON})  # trust levels whose commands are executed


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
    CommandName.HELP: ("/help", "list the commands"),
    CommandName.STATUS: ("/status", "show the status of this conversation"),
    CommandName.WHOAMI: ("/whoami", "show who you are on this server"),
    CommandName.NEW: (
        "/new [MODEL] [WORDS]",
        "reset the context, switch to MODEL if given, and send WORDS to the agent",
    ),
    CommandName.RESET: ("/reset [WORDS]", "reset the context; WORDS become the first message of the new context"),
    CommandName.STOP: ("/stop", "stop the current run, and discard waiting messages"),
    CommandName.ABORT: ("/abort", "same as /stop"),
    CommandName.COMPACT: (
        "/compact [WORDS]",
        "replace the context with a summary, with WORDS as instructions for the summary",
    ),
    CommandName.CONTEXT: ("/context [list|detail|json]", "show the size of the context and its parts"),
    CommandName.USAGE: (
        "/usage [off|tokens|full|cost]",
        "show the usage of this conversation, or show it below each answer",
    ),
    CommandName.MODEL: ("/model [NAME]", "list the models, or choose another model"),
    CommandName.THINK: ("/think [LEVEL]", "set the reasoning effort of the model"),
    CommandName.VERBOSE: (
        "/verbose [off|on|full]",
        "show tool calls while the agent works; `full` also shows their results",
    ),
    CommandName.REASONING: (
        "/reasoning [off|on|stream]",
        "send the model's reasoning before the answer, or stream it",
    ),
    CommandName.ELEVATED: ("/elevated [off|on|ask|full]", "set whether commands run outside the sandbox"),
    CommandName.QUEUE: (
        "/queue [MODE] [debounce:2s] [cap:25] [drop:summarize]",
        "set what happens to messages that arrive while the agent works",
    ),
    CommandName.SEND: ("/send [on|off|inherit]", "set whether answers of this conversation are sent to its channel"),
    CommandName.ALLOW: ("/allow ID [session|always] [WORDS]", "allow what the agent asked for"),
    CommandName.APPROVE: ("/approve ID [allow-once|allow-always|deny]", "same as /allow or /deny"),
    CommandName.DENY: ("/deny ID [WORDS]", "deny what the agent asked for"),
    CommandName.AGENTS: ("/agents", "list the agents"),
    CommandName.SWITCH: ("/switch AGENT [WORDS]", "continue with another agent; /switch back [WORDS] returns"),
    CommandName.SKILL: ("/skill NAME [WORDS]", "use a skill, with WORDS as its input"),
}
COMMAND_ALIASES = {"commands": CommandName.HELP, "id": CommandName.WHOAMI}
COMMANDS_BY_WORD = {**{name.value: name for name in CommandName}, **COMMAND_ALIASES}

SHORTCUTS = frozenset({CommandName.HELP, CommandName.STATUS, CommandName.WHOAMI})
DEFAULT = "default"  # clears the session's own choice
EFFORT_WORDS = {"off": "none", "minimal": "low", **{effort: effort for effort in EFFORTS}}
"""Words that people can use for a model's effort, each with the effort that it means."""
QUEUE_MODES = {"queue": QueueMode.STEER, "steer+backlog": QueueMode.STEER_BACKLOG, **{m.value: m for m in QueueMode}}
OVERFLOW_WORDS = {"old": Overflow.OLDEST, "new": Overflow.REFUSE, **{overflow.value: overflow for overflow in Overflow}}
_DIRECTIVE_VALUES: dict[CommandName, frozenset[str]] = {
    CommandName.THINK: frozenset({*EFFORT_WORDS, DEFAULT}),
    CommandName.VERBOSE: frozenset({*Verbosity, DEFAULT}),
    CommandName.REASONING: frozenset({*ReasoningDisplay, DEFAULT}),
    CommandName.ELEVATED: frozenset({*Elevation, DEFAULT}),
}
DIRECTIVES = frozenset({*_DIRECTIVE_VALUES, CommandName.MODEL, CommandName.QUEUE})

_SEPARATORS = " \t\r\n.,;:!?…"
ABORT_WORDS = frozenset({"stop", "esc", "abort", "wait", "exit", "interrupt"})
_ABORT_LENGTH_MAX = 16  # including surrounding whitespace and punctuation
_NUMBER = re.compile(r"\s{0,8}([1-9])[.)]?\s{0,8}")

_LEADING_COMMAND = re.compile(r"/([^\W\d_]\w*)(:?)(?=\s|\Z)")
_DIRECTIVE_VALUE = re.compile(r"\s*([A-Za-z]+)(?=\s|\Z|[,.;!?])")
_NOTHING_MORE = re.compile(r"\s*\Z")
_MODEL_REFERENCE = re.compile(r"\s*(\S+)")
_QUEUE_WORD = re.compile(r"\s*((?:debounce|cap|drop):\S+|[A-Za-z+-]+)(?=\s|\Z)")
_INLINE_WORDS = "|".join(sorted(word for word, name in COMMANDS_BY_WORD.items() if name in SHORTCUTS | DIRECTIVES))
# Text in backticks, or in a line that begins with `>`, is quoted and may be from anyone, so it contains no commands.
_INLINE_COMMAND = re.compile(
    rf"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>[^\n]*|(?<!\S)/({_INLINE_WORDS}):?(?=\s|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)


class SlashCommand(Struct, frozen=True):
    """One command. `name` is None for an unknown command. `word` is the word after the slash.

    `raw` is the original text. With `is_bare`, the message is a word or number without a slash, such as `stop`. It is a
    command only while there is something to stop or to answer.
    """

    name: CommandName | None
    word: str
    arguments: str = ""
    raw: str = ""
    is_bare: bool = False


class ParsedCommands(Struct, frozen=True):
    """The commands and plain text of a message, in order.

    `has_leading_slash` means that the message begins with a slash.
    """

    pieces: tuple[str | SlashCommand, ...]
    has_leading_slash: bool = True

    @property
    def commands(self) -> tuple[SlashCommand, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, SlashCommand))

    @property
    def is_only_commands(self) -> bool:
        """Whether the message has only commands. Whitespace and punctuation between them do not count as text."""
        return all(isinstance(piece, SlashCommand) or not piece.strip(_SEPARATORS) for piece in self.pieces)

    def text_without(self, commands: Iterable[SlashCommand]) -> str:
        """Return the text without the given commands.

        The whitespace around a removed command becomes a single space.
        """
        out = list(commands)
        text, gap = "", False
        for piece in self.pieces:
            if isinstance(piece, SlashCommand) and piece in out:
                gap = True
                continue
            words = piece.raw if isinstance(piece, SlashCommand) else piece
            if gap:
                text, words, gap = _close_gap(text, words), words.lstrip(" \t"), False
            text += words
        return text.strip() if out else text


def _close_gap(before: str, after: str) -> str:
    before = before.rstrip(" \t")
    apart = before and not before.endswith("\n") and not after.lstrip(" \t").startswith(("\n", ",", ".", ";", "!", "?"))
    return f"{before} " if apart else before


class SkillCommand(Struct, frozen=True, kw_only=True):
    """A skill that people can call with a slash command.

    With a `tool`, the text goes directly to that tool as its `argument`, and no model is called.
    """

    name: str
    skill: str
    description: str
    tool: str = ""
    argument: str = ""

    @property
    def short_description(self) -> str:
        """The skill's description, shortened for a list."""
        description = self.description
        return (
            description
            if len(description) <= DESCRIPTION_LENGTH_MAX
            else f"{description[: DESCRIPTION_LENGTH_MAX - 1]}…"
        )


def parse_commands(text: str) -> ParsedCommands | None:
    """Parse the commands in a message. Returns None if it contains no commands.

    `//text` is a plain message that begins with a slash. A path (`/etc/hosts`) is plain text too: a command is one
    word.
    """
    if "/" not in text:
        return _parse_abort_word(text)
    first = _LEADING_COMMAND.match(text)
    if first is None or len(first[1]) > COMMAND_LENGTH_MAX:
        pieces = tuple(_parse_inline(text))
        return (
            ParsedCommands(pieces, has_leading_slash=False)
            if any(isinstance(piece, SlashCommand) for piece in pieces)
            else None
        )
    word, behind = first[1].casefold(), first.end()
    name = COMMANDS_BY_WORD.get(word)
    if name in SHORTCUTS:
        return ParsedCommands(
            (SlashCommand(name, word, raw=first[0]), *_parse_inline(text, behind, limit=INLINE_COMMANDS_MAX - 1))
        )
    taken = _take_arguments(name, text, behind) if name in DIRECTIVES else None
    if taken is None:
        return ParsedCommands((SlashCommand(name, word, text[behind:].strip(), raw=text),))
    rest, end = taken
    return ParsedCommands(
        (SlashCommand(name, word, rest, raw=text[:end]), *_parse_inline(text, end, limit=INLINE_COMMANDS_MAX - 1))
    )


def _parse_abort_word(text: str) -> ParsedCommands | None:
    if len(text) > _ABORT_LENGTH_MAX:
        return None
    word = text.strip(_SEPARATORS).casefold()
    return (
        ParsedCommands((SlashCommand(CommandName.STOP, word, raw=text, is_bare=True),), has_leading_slash=False)
        if word in ABORT_WORDS
        else None
    )


def parse_number(text: str) -> ParsedCommands | None:
    """Parse a message that is a single digit.

    In a channel with a numbered question, the digit is the answer. In any other channel, it is plain text.
    """
    found = _NUMBER.fullmatch(text) if len(text) <= _ABORT_LENGTH_MAX else None
    return (
        ParsedCommands((SlashCommand(CommandName.APPROVE, found[1], raw=text, is_bare=True),), has_leading_slash=False)
        if found
        else None
    )


def _parse_inline(text: str, at: int = 0, *, limit: int = INLINE_COMMANDS_MAX) -> Iterator[str | SlashCommand]:
    """Yield the plain text and the commands within a message. A directive without a valid value is plain text."""
    for found in _INLINE_COMMAND.finditer(text, at):
        if found[1] is None or found.start() < at:
            continue
        if not limit:
            break
        word = found[1].casefold()
        name = COMMANDS_BY_WORD[word]
        rest, end = "", found.end()
        if name in DIRECTIVES:
            taken = _take_arguments(name, text, end)
            if taken is None or not taken[0]:
                continue
            rest, end = taken
        yield text[at : found.start()]
        yield SlashCommand(name, word, rest, raw=text[found.start() : end])
        at, limit = end, limit - 1
    yield text[at:]


def _take_arguments(name: CommandName | None, text: str, at: int) -> tuple[str, int] | None:
    """Return the arguments of a directive and where they end.

    Returns None if the text after the directive is not a valid argument.
    """
    if _NOTHING_MORE.match(text, at):
        return "", len(text)
    if name is CommandName.QUEUE:
        return _take_queue_arguments(text, at)
    found = (_MODEL_REFERENCE if name is CommandName.MODEL else _DIRECTIVE_VALUE).match(text, at)
    if found is None or name is None or found[1].casefold() not in _DIRECTIVE_VALUES.get(name, {found[1].casefold()}):
        return None
    return found[1], found.end()


def _take_queue_arguments(text: str, at: int) -> tuple[str, int] | None:
    words: list[str] = []
    while found := _QUEUE_WORD.match(text, at):
        word = found[1].casefold()
        if ":" not in word and (words or word not in {*QUEUE_MODES, DEFAULT, "reset"}):
            break
        words.append(word)
        at = found.end()
    return (" ".join(words), at) if words else None


def is_directive(command: SlashCommand) -> bool:
    """Whether the command is a directive with a valid value, so that it can apply to a single message."""
    return (
        command.name in DIRECTIVES
        and bool(command.arguments)
        and _take_arguments(command.name, command.arguments, 0) is not None
    )


def unescape_slash(text: str) -> str:
    """Return the text as the agent reads it: `//text` becomes `/text`."""
    return text[1:] if text.startswith("//") else text


def format_help(skills: Sequence[SkillCommand] = ()) -> list[str]:
    forms = [*SUMMARIES.values(), *((f"/{each.name} [WORDS]", f"skill: {each.short_description}") for each in skills)]
    width = min(max(len(form) for form, _ in forms), COMMAND_LENGTH_MAX)
    return [f"{form:<{width}}  {what}" for form, what in forms]


def unknown_command_text(word: str, skills: Sequence[SkillCommand] = ()) -> str:
    """Return the answer to an unknown command."""
    from difflib import get_close_matches  # imported only for a mistyped command

    near = get_close_matches(word, [*COMMANDS_BY_WORD, *(each.name for each in skills)], n=1)
    hint = f" Did you mean /{near[0]}?" if near else ""
    return f"Unknown command /{word}.{hint} /help lists the commands; write //{word} to send it as text."
