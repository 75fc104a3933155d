"""Parses command lines that mean the same in every shell: plain words, and operators between commands.

Everything that a shell would expand, redirect, substitute or run in the background is refused. The
command that the policy checks is therefore exactly the command that runs.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.text.errors import CommandLineInvalid, ShellSyntaxRefused

COMMAND_CHARS_MAX = 32_768
WORDS_MAX = 1_000
COMMANDS_MAX = 32

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED_IN_DOUBLE = '$`"\\'
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z0-9_./:,@%+=-]+")

# The meaning of a character to a shell, outside all quotes.
_SHELL_SYNTAX = {
    "$": "it has an expansion",
    "`": "it has a command substitution",
    "*": "it has a file name pattern",
    "?": "it has a file name pattern",
    "[": "it has a file name pattern",
    "]": "it has a file name pattern",
    "{": "it has braces",
    "}": "it has braces",
    "~": "it has a ~ to expand",
    "(": "it has a subshell or a substitution",
    ")": "it has a subshell or a substitution",
    "<": "it has a redirection",
    ">": "it has a redirection",
    "&": "it starts a background job",
    "!": "it has an exclamation mark outside quotes",
}
_RESERVED_WORDS = "if then else elif fi do done case esac while until for in select function time coproc [[ ]] { } !"
_RESERVED = frozenset(_RESERVED_WORDS.split())


class CommandOperator(StrEnum):
    """The operator between two commands of a command line."""

    AND = "&&"
    OR = "||"
    SEQUENCE = ";"
    PIPE = "|"


class SimpleCommand(Struct, frozen=True):
    """One command of a command line.

    `operator` is the operator before the command. It is None for the first command.
    """

    argv: tuple[str, ...]
    operator: CommandOperator | None = None


class CommandLine(Struct, frozen=True):
    commands: tuple[SimpleCommand, ...]

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The argv of the command, or None if the line has several commands."""
        return self.commands[0].argv if len(self.commands) == 1 else None


def parse_command_line(command: str) -> CommandLine:
    """Return the commands of a command line, with the words that `/bin/sh` would pass to them.

    Raises `ShellSyntaxRefused` if the line uses any other shell syntax.
    """
    return _CommandLineParser(check_command(command)).parse()


def check_command(command: str) -> str:
    """Return the command unchanged.

    Raises `CommandLineInvalid` if the command is empty, too long, or has invisible characters.
    """
    because = ""
    if not command.strip():
        because = "it is empty"
    elif len(command) > COMMAND_CHARS_MAX:
        because = f"it is longer than {COMMAND_CHARS_MAX} characters"
    elif found := _INVISIBLE.search(command):
        because = f"it has an invisible character (U+{ord(found[0]):04X})"
    if because:
        raise CommandLineInvalid(because=because)
    return command


def quote_word(word: str) -> str:
    """Quote a word so that any shell reads it unchanged, as one word."""
    return (
        word
        if _NEEDS_NO_QUOTES.fullmatch(word) and not word.startswith("=")
        else "'" + word.replace("'", "'\\''") + "'"
    )


def format_command_line(line: CommandLine) -> str:
    """Format the command line for a shell, quoted so that the shell expands nothing."""
    words: list[str] = []
    for part in line.commands:
        if part.operator is not None:
            words.append(part.operator.value)
        # A quoted first word is neither a reserved word nor an assignment.
        words.append(" ".join(["'" + part.argv[0].replace("'", "'\\''") + "'", *map(quote_word, part.argv[1:])]))
    return " ".join(words)


class _CommandLineParser:
    """Scans a command line once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._commands: list[SimpleCommand] = []
        self._words: list[str] = []
        self._word: list[str] | None = None  # None between words: an empty quoted string is a word too
        self._operator: CommandOperator | None = None
        self._word_count = 0

    def parse(self) -> CommandLine:
        while self._at < len(self._text):
            self._step()
        self._end_command()
        return CommandLine(tuple(self._commands))

    def _step(self) -> None:
        char = self._next_char()
        match char:
            case " " | "\t":
                self._end_word()
            case "\n":
                raise ShellSyntaxRefused(because="it continues on another line")
            case "'":
                self._read_single_quoted()
            case '"':
                self._read_double_quoted()
            case "\\":
                self._add(self._read_escaped())
            case ";":
                self._next_command(CommandOperator.SEQUENCE)
            case "|":
                self._next_command(CommandOperator.OR if self._skip_if("|") else CommandOperator.PIPE)
            case "&" if self._skip_if("&"):
                self._next_command(CommandOperator.AND)
            case "#" if self._word is None:
                raise ShellSyntaxRefused(because="it has a comment")
            case _ if char in _SHELL_SYNTAX:
                raise ShellSyntaxRefused(because=_SHELL_SYNTAX[char])
            case _:
                self._add(char)

    def _read_single_quoted(self) -> None:
        end = self._text.find("'", self._at)
        if end < 0:
            raise ShellSyntaxRefused(because="a quote is not closed")
        self._add(self._check_one_line(self._text[self._at : end]))
        self._at = end + 1

    def _read_double_quoted(self) -> None:
        self._add("")
        while True:
            if self._at >= len(self._text):
                raise ShellSyntaxRefused(because="a quote is not closed")
            char = self._next_char()
            match char:
                case '"':
                    return
                case "$" | "`":
                    raise ShellSyntaxRefused(because=f"{_SHELL_SYNTAX[char]} inside double quotes")
                case "\\" if self._text[self._at : self._at + 1] in tuple(_ESCAPED_IN_DOUBLE):
                    self._add(self._next_char())
                case _:
                    self._add(self._check_one_line(char))

    def _read_escaped(self) -> str:
        if self._at >= len(self._text):
            raise ShellSyntaxRefused(because="it ends with a backslash")
        return self._check_one_line(self._next_char())

    def _check_one_line(self, text: str) -> str:
        if "\n" in text:
            raise ShellSyntaxRefused(because="it continues on another line")
        return text

    def _next_char(self) -> str:
        char = self._text[self._at]
        self._at += 1
        return char

    def _skip_if(self, char: str) -> bool:
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
        self._word_count += 1
        if self._word_count > WORDS_MAX:
            raise ShellSyntaxRefused(because=f"it has more than {WORDS_MAX} words")

    def _next_command(self, operator: CommandOperator) -> None:
        self._end_command()
        self._operator = operator

    def _end_command(self) -> None:
        self._end_word()
        if not self._words:
            raise ShellSyntaxRefused(because="a command is missing before or after && || ; or |")
        program = self._words[0]
        if not program or program in _RESERVED:
            raise ShellSyntaxRefused(because=f"it begins with {program!r}, which is shell syntax")
        if "=" in program:
            raise ShellSyntaxRefused(because="it sets a variable before the command")
        self._commands.append(SimpleCommand(tuple(self._words), self._operator))
        self._words = []
        if len(self._commands) > COMMANDS_MAX:
            raise ShellSyntaxRefused(because=f"it has more than {COMMANDS_MAX} commands")
