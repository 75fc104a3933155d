"""Parses a command line that has only one meaning: words, and how one command follows another.

Everything that a shell would expand, redirect, substitute or run in the background is refused, in
every form of quoting. So the argv that a rule judges is the argv that runs.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.domain.errors import Invalid

COMMAND_CHARS_MAX = 32_768
WORDS_MAX = 1_000
PARTS_MAX = 32

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED_IN_DOUBLE = '$`"\\'
_SAFE = re.compile(r"[A-Za-z0-9_./:,@%+=-]+")

# The meaning of a character to a shell, outside all quotes.
_MEANING = {
    "$": "it has an expansion",
    "`": "it has a command substitution",
    "*": "it has a pattern of file names",
    "?": "it has a pattern of file names",
    "[": "it has a pattern of file names",
    "]": "it has a pattern of file names",
    "{": "it has braces",
    "}": "it has braces",
    "~": "it has a home folder to expand",
    "(": "it has a subshell or a substitution",
    ")": "it has a subshell or a substitution",
    "<": "it has a redirection",
    ">": "it has a redirection",
    "&": "it would be left running beside the shell",
    "!": "it has an exclamation mark outside quotes",
}
_RESERVED_WORDS = "if then else elif fi do done case esac while until for in select function time coproc [[ ]] { } !"
_RESERVED = frozenset(_RESERVED_WORDS.split())


class Follows(StrEnum):
    """How a command follows the one before it."""

    AND = "&&"
    OR = "||"
    THEN = ";"
    PIPE = "|"


class Part(Struct, frozen=True):
    """One command of a command line. `operator` is None for the first."""

    argv: tuple[str, ...]
    follows: Follows | None = None


class Line(Struct, frozen=True):
    parts: tuple[Part, ...]

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The argv if there is only one command; otherwise None."""
        return self.parts[0].argv if len(self.parts) == 1 else None


class NotPlain(Invalid):
    """A command line that uses shell syntax."""

    code = "command.not-plain"


def parse(command: str) -> Line:
    """Return the commands of a line, word for word as `/bin/sh` would run them.

    Raises `ShellSyntaxRefused` for anything else.
    """
    return _Reader(storable_command(command)).line()


def storable_command(command: str) -> str:
    """Return the command if it can be stored and shown: not empty, not too long, no invisible characters."""
    because = ""
    if not command.strip():
        because = "there is nothing in it"
    elif len(command) > COMMAND_CHARS_MAX:
        because = f"it is longer than {COMMAND_CHARS_MAX} characters"
    elif found := _UNSEEN.search(command):
        because = f"it has a character that cannot be seen (U+{ord(found[0]):04X})"
    if because:
        raise Invalid(
            "this is not a command that can be run",
            because=because,
            try_this="write it on one line, or put it into a script",
            code="command.invalid",
        )
    return command


def quoted(word: str) -> str:
    """Quote a word so that any shell reads it back unchanged."""
    return word if _SAFE.fullmatch(word) and not word.startswith("=") else "'" + word.replace("'", "'\\''") + "'"


def rendered(line: Line) -> str:
    """Format the command line for a shell, with nothing left to expand."""
    said: list[str] = []
    for part in line.parts:
        if part.follows is not None:
            said.append(part.follows.value)
        # A quoted first word is neither a reserved word nor an assignment.
        said.append(" ".join(["'" + part.argv[0].replace("'", "'\\''") + "'", *map(quoted, part.argv[1:])]))
    return " ".join(said)


class _Reader:
    """Scans a command line once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._parts: list[Part] = []
        self._words: list[str] = []
        self._word: list[str] | None = None  # None between words: an empty quoted string is a word too
        self._follows: Follows | None = None
        self._count = 0

    def line(self) -> Line:
        while self._at < len(self._text):
            self._step()
        self._end_part()
        return Line(tuple(self._parts))

    def _step(self) -> None:
        char = self._take()
        match char:
            case " " | "\t":
                self._end_word()
            case "\n":
                raise self._refused("it goes on in another line")
            case "'":
                self._single()
            case '"':
                self._double()
            case "\\":
                self._add(self._escaped())
            case ";":
                self._next_part(Follows.THEN)
            case "|":
                self._next_part(Follows.OR if self._took("|") else Follows.PIPE)
            case "&" if self._took("&"):
                self._next_part(Follows.AND)
            case "#" if self._word is None:
                raise self._refused("it has a comment")
            case _ if char in _MEANING:
                raise self._refused(_MEANING[char])
            case _:
                self._add(char)

    def _single(self) -> None:
        end = self._text.find("'", self._at)
        if end < 0:
            raise self._refused("a quote is not closed")
        self._add(self._checked(self._text[self._at : end]))
        self._at = end + 1

    def _double(self) -> None:
        self._add("")
        while True:
            if self._at >= len(self._text):
                raise self._refused("a quote is not closed")
            char = self._take()
            match char:
                case '"':
                    return
                case "$" | "`":
                    raise self._refused(f"{_MEANING[char]} inside double quotes")
                case "\\" if self._text[self._at : self._at + 1] in tuple(_ESCAPED_IN_DOUBLE):
                    self._add(self._take())
                case _:
                    self._add(self._checked(char))

    def _escaped(self) -> str:
        if self._at >= len(self._text):
            raise self._refused("it ends in a backslash")
        return self._checked(self._take())

    def _checked(self, text: str) -> str:
        if "\n" in text:
            raise self._refused("it goes on in another line")
        return text

    def _take(self) -> str:
        char = self._text[self._at]
        self._at += 1
        return char

    def _took(self, char: str) -> bool:
        if self._text[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True

    def _add(self, text: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(text)

    def _end_word(self) -> None:
        if self._word is None:
            return
        self._words.append("".join(self._word))
        self._word = None
        self._count += 1
        if self._count > WORDS_MAX:
            raise self._refused(f"it has more than {WORDS_MAX} words")

    def _next_part(self, follows: Follows) -> None:
        self._end_part()
        self._follows = follows

    def _end_part(self) -> None:
        self._end_word()
        if not self._words:
            raise self._refused("a command is missing at one side of && || ; or |")
        program = self._words[0]
        if not program or program in _RESERVED:
            raise self._refused(f"it begins with {program!r}, which a shell reads in its own way")
        if "=" in program:
            raise self._refused("it sets a variable before the command")
        self._parts.append(Part(tuple(self._words), self._follows))
        self._words = []
        if len(self._parts) > PARTS_MAX:
            raise self._refused(f"it has more than {PARTS_MAX} commands")

    def _refused(self, because: str) -> NotPlain:
        return NotPlain(
            "this command is more than plain words",
            because=because,
            try_this="put what is meant literally into single quotes, and run one command at a time",
        )
