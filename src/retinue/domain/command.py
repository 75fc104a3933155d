"""Commands: mail to the house itself, written in a conversation with a slash before it. No model reads them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

COMMAND_LENGTH_MAX = 32


class CommandName(StrEnum):
    HELP = "help"
    STATUS = "status"
    NEW = "new"
    RESET = "reset"
    STOP = "stop"
    ABORT = "abort"
    WHOAMI = "whoami"
    CONTEXT = "context"
    COMPACT = "compact"
    MODEL = "model"
    THINK = "think"
    ALLOW = "allow"
    DENY = "deny"


SUMMARIES = {
    CommandName.HELP: ("/help", "this list"),
    CommandName.STATUS: ("/status", "how this conversation stands"),
    CommandName.NEW: ("/new [WORDS]", "begin a fresh context, and work on WORDS in it"),
    CommandName.RESET: ("/reset [WORDS]", "begin a fresh context, and keep WORDS in it"),
    CommandName.STOP: ("/stop", "stop what runs here, and clear what waits"),
    CommandName.ABORT: ("/abort", "the same as /stop"),
    CommandName.WHOAMI: ("/whoami", "who you are here"),
    CommandName.CONTEXT: ("/context", "how much the agent has in mind"),
    CommandName.COMPACT: ("/compact [WORDS]", "tell the context in short, minding WORDS, and go on from there"),
    CommandName.MODEL: ("/model [NAME]", "which models there are, or think with another one"),
    CommandName.THINK: ("/think [LEVEL]", "how much effort goes into replies"),
    CommandName.ALLOW: (
        "/allow ID [session|always] [WORDS]",
        "let the agent do what it asked for",
    ),
    CommandName.DENY: ("/deny ID [WORDS]", "do not let it"),
}


_BY_WORD = {name.value: name for name in CommandName}


@dataclass(frozen=True, slots=True)
class Command:
    """`name` is None for a word that is no command of ours; `word` is what was written."""

    name: CommandName | None
    word: str
    rest: str = ""


def parse(text: str) -> Command | None:
    """What a text asks of the house; None where it is plain mail. `//words` is plain mail that begins with a slash.

    A path (`/etc/hosts`) is plain mail too: a command is one word of letters.
    """
    if not text.startswith("/") or text.startswith("//"):
        return None
    head, _, rest = text[1:].partition("\n") if "\n" in text.split(" ", 1)[0] else text[1:].partition(" ")
    word = head.strip().removesuffix(":").casefold()
    if not word.isalpha() or len(word) > COMMAND_LENGTH_MAX:
        return None
    return Command(_BY_WORD.get(word), word, rest.strip())


def unescaped(text: str) -> str:
    """`//words` as the agent reads it."""
    return text[1:] if text.startswith("//") else text


def help_lines() -> list[str]:
    width = max(len(form) for form, _ in SUMMARIES.values())
    return [f"{form:<{width}}  {what}" for form, what in SUMMARIES.values()]


def unknown(word: str) -> str:
    """An answer to a command that is none: never silence."""
    from difflib import get_close_matches  # only when something was mistyped

    near = get_close_matches(word, [name.value for name in CommandName], n=1)
    hint = f" Did you mean /{near[0]}?" if near else ""
    return f"There is no command /{word}.{hint} /help lists them; write //{word} to send it as words."
