"""Parses the command line. Only the parser of the typed command is built, to start fast."""

from __future__ import annotations

import argparse
import os

from retinue.cli.aliases import SHORTS
from retinue.cli.errors import CliError, UsageError, nearest
from retinue.cli.operation_table import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from retinue.cli.operation_table import Operation, Parameter

COLUMNS = 100
CHAT_WAIT_S = 120.0
DOWN_WAIT_S = 30.0
UP_WAIT_S = 60.0
LOG_LINES = 50
DAYS = 30
SHELLS = ("bash", "zsh", "fish")
NULL = object()
"""Stands for a value that is taken away, which is not the same as one that was not given."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter with a known width: argparse would import `shutil` to find it, at every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())


def _columns() -> int:
    try:
        return min(os.get_terminal_size(1).columns, COLUMNS)
    except OSError:
        return COLUMNS


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `UsageError`, with a reason and a next step."""

    def error(self, message: str) -> NoReturn:
        because, try_this = "the words do not fit", f"{self.prog} --help"
        if message.startswith("unrecognized arguments: "):
            because = f"{self.prog} takes no such words"
            options = [name for action in self._actions for name in action.option_strings]
            meant = [nearest(word.partition("=")[0], options) for word in message.split() if word.startswith("-")]
            try_this = f"{self.prog} {meant[0]}" if meant and meant[0] else try_this
        elif message.startswith("the following arguments are required: "):
            because = " ".join(self.format_usage().split())
        raise UsageError(message, because=because, try_this=try_this)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in choices:
            option = action.option_strings[0] if action.option_strings else str(action.metavar)
            meant = nearest(str(value), choices) or choices[0]
            raise UsageError(
                f"{option} cannot be '{value}'",
                because=f"it is one of {', '.join(choices)}",
                try_this=f"{option} {meant}" if action.option_strings else f"{self.prog} {meant}",
            )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command, its operation and its options. Help is a command too."""
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        return argparse.Namespace(command="help", noun="", json=False)
    first, *rest = words
    if first not in SHORTS and not verbs_of(first) and (rest or not _meant(first)):
        _ask_for_more()
    verbs = verbs_of(first)
    if verbs and rest and rest[0] in verbs:
        return _parse(build_operation(find(f"{first}.{rest[0]}")), f"{first} {rest[0]}", rest[1:])
    if first in SHORTS:
        return _parse(build(first), first, rest)
    if not verbs:
        raise _unknown(first)
    if not rest or rest[0] in ("-h", "--help"):
        return argparse.Namespace(command="help", noun=first, json=False)
    raise _unknown_verb(first, rest[0], verbs)


def _parse(parser: Parser, command: str, words: list[str]) -> argparse.Namespace:
    options = parser.parse_args(words)
    options.command = command
    return options


def verbs_of(noun: str) -> list[str]:
    return [each[1] for each in operations() if each[0] == noun]


def nouns() -> list[str]:
    return list(dict.fromkeys([each[0] for each in operations()]))


def find(operation: str) -> Operation:
    noun, _, verb = operation.partition(".")
    return next(each for each in operations() if each[0] == noun and each[1] == verb)


def operations() -> tuple[Operation, ...]:
    """Return the built-in operations, and those of plugins if they were loaded."""
    return (*OPERATIONS, *_brought) if _brought else OPERATIONS


_brought: list[Operation] = []


def _ask_for_more() -> None:
    """Load the operations of plugins from the server, because an unknown noun may be theirs.

    They are never cached: plugins come and go, and only the server knows which are enabled. If it
    does not answer, the noun stays unknown.
    """
    from retinue.cli.client import brought

    try:
        _brought[:] = [_operation(*each) for each in brought()]
    except (CliError, LookupError, TypeError, ValueError):
        return


def _operation(
    noun: str, verb: str, summary: str, effect: bool, level: str, parameters: Sequence[Parameter]
) -> Operation:
    """Convert an operation from JSON, which has lists instead of tuples."""
    return (noun, verb, summary, effect, level, tuple((*each[:5], tuple(each[5]), each[6]) for each in parameters))


def _meant(word: str) -> str:
    return nearest(word, [*SHORTS, *nouns()])


def _unknown(word: str) -> UsageError:
    meant = _meant(word)
    if not meant:
        verb = nearest(word, [each[1] for each in OPERATIONS])
        meant = next((f"{each[0]} {each[1]}" for each in OPERATIONS if verb and each[1] == verb), "")
    return UsageError(
        f"there is no command '{word}'" + (f": did you mean '{meant}'?" if meant else ""),
        because="no short name and no noun is called so",
        try_this=f"retinue {meant}" if meant else "retinue --help",
        code="usage.unknown-command",
    )


def _unknown_verb(noun: str, word: str, verbs: list[str]) -> UsageError:
    meant = nearest(word, verbs)
    return UsageError(
        f"there is no '{noun} {word}'" + (f": did you mean '{noun} {meant}'?" if meant else ""),
        because=f"what can be done with it is {', '.join(verbs)}",
        try_this=f"retinue {noun} {meant}" if meant else f"retinue {noun}",
        code="usage.unknown-command",
    )


# Parsers of single commands


def build(short: str) -> Parser:
    """Build the parser of an alias."""
    operation, summary, examples, places, said = SHORTS[short]
    parser = _parser(short, summary, examples)
    add = parser.add_argument
    if operation:
        _add_operation(parser, find(operation), places=places, said=dict(said))
        return parser
    match short:
        case "chat":
            add("--agent", default="", metavar="NAME", help="who to talk with; left out, who answers for the house")
            add("--session", default="", metavar="NAME", help="a conversation of its own, by any name you like")
            add("--once", metavar="TEXT", help="send this, print the answer and leave; - reads it from stdin")
            _add_wait(parser, "how long to wait for a closed house", CHAT_WAIT_S)
            _add_json(parser)
        case "up":
            add("--force", action="store_true", help="close the one that is open first, and wait until it is")
            _add_wait(parser, "how long to wait until it answers", UP_WAIT_S)
            _add_json(parser)
        case "down":
            _add_wait(parser, "how long to let it finish before it is ended", DOWN_WAIT_S)
            _add_json(parser)
        case "logs":
            add("--lines", type=int, default=LOG_LINES, metavar="N", help=f"how many of the last ({LOG_LINES})")
            add("--follow", action="store_true", help="go on with what is logged from now on")
        case "restore":
            add("folder", metavar="FOLDER", help="what `retinue backup` made")
        case "rehearse":
            add("--days", type=int, default=DAYS, metavar="N", help=f"how many ({DAYS})")
            add(
                "--from",
                dest="begin",
                default="",
                metavar="TIME",
                help="when it begins, as in `send --deliver-at` (now)",
            )
            add(
                "--run-takes", default="", metavar="SPAN", help="how long each run takes; left out, as long as the last"
            )
            add("--seed", type=int, default=0, metavar="N", help="what decides who goes first at the same moment (0)")
            add("--gates", action="store_true", help="run each gate once, confined; left out, all are taken as open")
            add("--keep", default="", metavar="FOLDER", help="keep the copy there")
            add("--all", action="store_true", help="show every run, however many there are")
            _add_json(parser)
        case "service":
            add("action", metavar="install", nargs="?", choices=("install",), help="say how to install it")
        case "join":
            add("invitation", metavar="INVITATION", help="what `retinue person invite` printed for you")
            _add_json(parser)
        case "completion":
            add("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
        case _:
            pass
    return parser


def build_operation(operation: Operation) -> Parser:
    noun, verb, summary, *_ = operation
    parser = _parser(f"{noun} {verb}", summary, "")
    _add_operation(parser, operation, places=(), said={})
    return parser


def _parser(command: str, summary: str, examples: str) -> Parser:
    shown = "\n".join(f"  {line}" for line in examples.split("\n"))
    return Parser(
        prog=f"retinue {command}",
        description=summary,
        epilog=f"examples:\n{shown}" if examples else None,
        formatter_class=Formatter,
        allow_abbrev=False,
    )


def _add_operation(parser: Parser, operation: Operation, *, places: tuple[str, ...], said: dict[str, object]) -> None:
    noun, verb, _, effect, _, parameters = operation
    parser.set_defaults(operation=f"{noun}.{verb}", key="", wait=0.0)
    for parameter in parameters:
        name, _, _, marks, *_ = parameter
        if name in said:
            parser.set_defaults(**{dest(name): said[name]})
        elif name in places or "place" in marks:
            _add_place(parser, parameter)
        else:
            _add_option(parser, parameter)
    if effect and all(parameter[0] != "key" for parameter in parameters):
        parser.add_argument("--key", default="", metavar="KEY", help="asked twice with the same key, it is done once")
    if f"{noun}.{verb}" == "envelope.send":
        _add_wait(parser, "how long to wait for a closed house", 0.0)
    _add_json(parser)


def dest(name: str) -> str:
    """Return the attribute for a parameter's value. The prefix separates it from the command's own options."""
    return f"p_{name}"


def _add_place(parser: Parser, parameter: Parameter) -> None:
    name, option, _, marks, _, _, words = parameter
    metavar = option[2:].upper().replace("-", "_")
    words += "; - reads it from stdin" if parameter[2] == "words" else ""
    nargs = None if "required" in marks else "?"
    parser.add_argument(dest(name), metavar=metavar, nargs=nargs, help=_help(words))


def _add_option(parser: Parser, parameter: Parameter) -> None:
    name, option, kind, marks, default, choices, words = parameter
    required = "required" in marks and "nullable" not in marks
    if default not in (None, ""):
        words += f" ({'yes' if default is True else 'no' if default is False else default})"
    if choices:
        words += f": {', '.join(choices)}" if default in (None, "") else f" of {', '.join(choices)}"
    if kind == "flag":
        group = parser.add_mutually_exclusive_group(required=required)
        shown, hidden = (f"--no-{option[2:]}", option) if default is True else (option, f"--no-{option[2:]}")
        no = "not: " if default is True else ""
        group.add_argument(
            shown, dest=dest(name), action="store_const", const=default is not True, help=_help(no + words)
        )
        plain = None if required else argparse.SUPPRESS
        group.add_argument(hidden, dest=dest(name), action="store_const", const=default is True, help=plain)
        return
    metavar = {"number": "N", "decimal": "N", "file": "FILE", "json": "JSON", "words": "TEXT"}.get(kind)
    parser.add_argument(
        option,
        dest=dest(name),
        required=required,
        action="append" if "repeated" in marks else "store",
        type={"number": int, "decimal": float, "json": _json}.get(kind, str),
        choices=choices or None,
        metavar=metavar or option[2:].upper().replace("-", "_"),
        help=_help(words + ("; can be given again" if "repeated" in marks else "; or @FILE" if kind == "json" else "")),
    )
    if "nullable" in marks:
        parser.add_argument(
            f"--no-{option[2:]}", dest=dest(name), action="store_const", const=NULL, help="take it away"
        )


def _help(words: str) -> str:
    return words.replace("%", "%%")


def _json(text: str) -> object:
    """Parse a JSON value. `@FILE` reads it from a file."""
    import json

    try:
        if text.startswith("@"):
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        value = json.loads(text)
        return NULL if value is None else value
    except OSError as error:
        raise argparse.ArgumentTypeError(f"'{text[1:]}' cannot be read ({error.strerror})") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is no JSON") from None


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="the answer as the API gives it")


def _add_wait(parser: Parser, words: str, default_s: float) -> None:
    words = f"{words} ({default_s:g})"
    parser.add_argument("--wait", type=float, default=default_s, metavar="SECONDS", help=words)
