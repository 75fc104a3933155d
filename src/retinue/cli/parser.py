"""Parses the command line. Only the parser of the typed command is built, so that a command starts fast."""

from __future__ import annotations

import argparse
import os

from retinue.cli.aliases import ALIASES, split_command
from retinue.cli.errors import CliError, UsageError, find_nearest
from retinue.cli.operation_table import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from retinue.cli.operation_table import Operation, Parameter

HELP_COLUMNS_MAX = 100
CHAT_WAIT_S = 120.0
DOWN_WAIT_S = 30.0
UP_WAIT_S = 60.0
LOG_LINES_DEFAULT = 50
DRY_RUN_DAYS_DEFAULT = 30
SHELLS = ("bash", "zsh", "fish")
NULL = object()
"""Stands for JSON null: the user removes the value of a parameter. A parameter that was not given has no entry."""


class CliHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter with a given width. Otherwise argparse would import `shutil` at every start to find the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_get_columns())


def _get_columns() -> int:
    try:
        return min(os.get_terminal_size(1).columns, HELP_COLUMNS_MAX)
    except OSError:
        return HELP_COLUMNS_MAX


class CommandParser(argparse.ArgumentParser):
    """Argument parser that raises `UsageError`, with a reason and a next step."""

    typed_words: Sequence[str] = ()  # the arguments being parsed, searched for renamed options

    def error(self, message: str) -> NoReturn:
        _raise_if_option_renamed(self.prog, self.typed_words)
        because, try_this = "the command line is invalid", f"{self.prog} --help"
        if message.startswith("unrecognized arguments: "):
            because = f"{self.prog} has no such option or argument"
            options = [name for action in self._actions for name in action.option_strings]
            meant = [find_nearest(word.partition("=")[0], options) for word in message.split() if word.startswith("-")]
            try_this = f"{self.prog} {meant[0]}" if meant and meant[0] else try_this
        elif message.startswith("the following arguments are required: "):
            because = " ".join(self.format_usage().split())
        raise UsageError(message, because=because, try_this=try_this)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in choices:
            option = action.option_strings[0] if action.option_strings else str(action.metavar)
            meant = find_nearest(str(value), choices) or choices[0]
            raise UsageError(
                f"invalid value for {option}: '{value}'",
                because=f"it must be one of {', '.join(choices)}",
                try_this=f"{option} {meant}" if action.option_strings else f"{self.prog} {meant}",
            )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. The result contains the command, its operation and its options. Help is a command too."""
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        return argparse.Namespace(command="help", noun="", json=False)
    first, *rest = words
    if first not in ALIASES and not list_verbs(first) and (rest or not _suggest_command(first)):
        _load_plugin_operations()
    verbs = list_verbs(first)
    if verbs and rest and rest[0] in verbs:
        return _parse_options(build_operation_parser(_find_command(first, rest[0])), f"{first} {rest[0]}", rest[1:])
    if first in ALIASES:
        return _parse_options(build_alias_parser(first), first, rest)
    if not verbs:
        _raise_if_command_renamed(words)
        raise _unknown_command_error(first)
    if not rest or rest[0] in ("-h", "--help"):
        return argparse.Namespace(command="help", noun=first, json=False)
    _raise_if_command_renamed(words)
    raise _unknown_verb_error(first, rest[0], verbs)


def _parse_options(parser: CommandParser, command: str, arguments: list[str]) -> argparse.Namespace:
    parser.typed_words = arguments
    options = parser.parse_args(arguments)
    options.command = command
    return options


def list_verbs(noun: str) -> list[str]:
    return [verb for each in list_operations() for found, verb in [split_command(each[0])] if found == noun]


def list_nouns() -> list[str]:
    return list(dict.fromkeys([split_command(each[0])[0] for each in list_operations()]))


def find_operation(name: str) -> Operation:
    return next(each for each in list_operations() if each[0] == name)


def _find_command(noun: str, verb: str) -> Operation:
    return next(each for each in list_operations() if split_command(each[0]) == (noun, verb))


def list_operations() -> tuple[Operation, ...]:
    """Return the built-in operations, and the operations of plugins if they were loaded."""
    return (*OPERATIONS, *_plugin_operations) if _plugin_operations else OPERATIONS


_plugin_operations: list[Operation] = []


def _load_plugin_operations() -> None:
    """Load the operations of plugins from the server, because an unknown noun may belong to a plugin.

    The operations are never cached on disk, because plugins can be enabled and disabled at any time. If the server does
    not respond, the noun is reported as unknown.
    """
    from retinue.cli.client import list_plugin_operations

    try:
        _plugin_operations[:] = [_to_operation(*each) for each in list_plugin_operations()]
    except (CliError, LookupError, TypeError, ValueError):
        return


def _to_operation(name: str, summary: str, has_effect: bool, level: str, parameters: Sequence[Parameter]) -> Operation:
    """Convert an operation from JSON, which has lists instead of tuples, to the form of the built-in table."""
    return (name, summary, has_effect, level, tuple((*each[:5], tuple(each[5]), each[6]) for each in parameters))


def _suggest_command(word: str) -> str:
    return find_nearest(word, [*ALIASES, *list_nouns()])


def _unknown_command_error(word: str) -> UsageError:
    meant = _suggest_command(word)
    if not meant:
        commands = [split_command(each[0]) for each in OPERATIONS]
        verb = find_nearest(word, [each[1] for each in commands])
        meant = next((f"{each[0]} {each[1]}" for each in commands if verb and each[1] == verb), "")
    return UsageError(
        f"no command named '{word}'" + (f": did you mean '{meant}'?" if meant else ""),
        because="this is neither a command nor a noun",
        try_this=f"retinue {meant}" if meant else "retinue --help",
        code="usage.unknown_command",
    )


def _raise_if_command_renamed(words: Sequence[str]) -> None:
    """If the words are the old name of a command or noun, raise an error that gives the new name."""
    from retinue.cli.renamed_commands import RENAMED_COMMANDS  # imported here because only old commands need it

    for old in (" ".join(words[:2]), words[0]):
        if (new := RENAMED_COMMANDS.get(old)) is not None:
            raise _renamed_error(f"retinue {old}", f"retinue {new}")
    nouns = {new.partition(" ")[0] for old, new in RENAMED_COMMANDS.items() if old.startswith(f"{words[0]} ")}
    if len(nouns) == 1 and words[0] not in list_nouns():
        raise _renamed_error(f"retinue {words[0]}", f"retinue {nouns.pop()}")


def _raise_if_option_renamed(prog: str, words: Sequence[str]) -> None:
    """If one of the words is the old name of an option, raise an error that gives the new name."""
    from retinue.cli.renamed_commands import RENAMED_COMMANDS

    command = prog.removeprefix("retinue ")
    for word in words:
        old = word.partition("=")[0]
        if (new := RENAMED_COMMANDS.get(f"{command} {old}")) is not None:
            option = new.removeprefix(f"{command} ")
            raise _renamed_error(old, option, command=f"{prog} {option}")


def _renamed_error(old: str, new: str, *, command: str = "") -> UsageError:
    return UsageError(
        f"`{old}` is now `{new}`",
        because="it was renamed, and its old name is not accepted",
        try_this=command or f"{new} --help",
        code="usage.renamed",
    )


def _unknown_verb_error(noun: str, word: str, verbs: list[str]) -> UsageError:
    meant = find_nearest(word, verbs)
    return UsageError(
        f"no command named '{noun} {word}'" + (f": did you mean '{noun} {meant}'?" if meant else ""),
        because=f"the verbs of {noun} are {', '.join(verbs)}",
        try_this=f"retinue {noun} {meant}" if meant else f"retinue {noun}",
        code="usage.unknown_command",
    )


# Parsers of single commands


def build_alias_parser(alias: str) -> CommandParser:
    """Build the parser of a short command such as `chat`."""
    operation, summary, examples, positionals, fixed_values = ALIASES[alias]
    parser = _build_parser(alias, summary, examples)
    add = parser.add_argument
    if operation:
        _add_operation(parser, find_operation(operation), positionals=positionals, fixed_values=dict(fixed_values))
        return parser
    match alias:
        case "chat":
            add("--agent", default="", metavar="NAME", help="agent to chat with (default: the default agent)")
            add(
                "--session",
                default="",
                metavar="NAME",
                help="name of a separate conversation with the agent; a new name starts a new conversation",
            )
            add("--once", metavar="TEXT", help="send this text, print the answer and exit; - reads the text from stdin")
            _add_wait(parser, "time to wait for the server if it is not running, in seconds", CHAT_WAIT_S)
            _add_json(parser)
        case "up":
            add("--force", action="store_true", help="stop the server first if it is already running")
            _add_wait(parser, "maximum time to wait until the server answers, in seconds", UP_WAIT_S)
            _add_json(parser)
        case "down":
            _add_wait(parser, "time for active runs to finish before the server is killed, in seconds", DOWN_WAIT_S)
            _add_json(parser)
        case "logs":
            add(
                "--lines",
                type=int,
                default=LOG_LINES_DEFAULT,
                metavar="N",
                help=f"number of lines to show, counted from the end (default: {LOG_LINES_DEFAULT})",
            )
            add("--follow", action="store_true", help="keep running, and show new lines as they are written")
        case "restore":
            add("folder", metavar="FOLDER", help="backup folder created by `retinue backup`")
        case "dry-run":
            add(
                "--days",
                type=int,
                default=DRY_RUN_DAYS_DEFAULT,
                metavar="N",
                help=f"number of days to simulate (default: {DRY_RUN_DAYS_DEFAULT})",
            )
            add(
                "--from",
                dest="start",
                default="",
                metavar="TIME",
                help="start of the simulated time, such as +1d or 2027-03-27 (default: now)",
            )
            add(
                "--run-duration",
                default="",
                metavar="SPAN",
                help="duration of each simulated run, such as 90s (default: that of the schedule's last run)",
            )
            add(
                "--seed",
                type=int,
                default=0,
                metavar="N",
                help="random seed that decides the order of runs with the same start time (default: 0)",
            )
            add(
                "--gates",
                action="store_true",
                help="run the command of each gate once, in the sandbox; by default, all gates are assumed to be open",
            )
            add(
                "--keep",
                default="",
                metavar="FOLDER",
                help="keep the copy of the data, with the simulated runs, in this folder",
            )
            add("--all", action="store_true", help="show all runs, not only the first 100")
            _add_json(parser)
        case "service":
            add("action", metavar="install", nargs="?", choices=("install",), help="also show how to install the unit")
        case "join":
            add("invitation", metavar="INVITATION", help="invitation printed by `retinue person invite`")
            _add_json(parser)
        case "completion":
            add("shell", metavar="SHELL", choices=SHELLS, help="shell: bash, zsh or fish")
        case _:
            pass
    return parser


def build_operation_parser(operation: Operation) -> CommandParser:
    name, summary, *_ = operation
    parser = _build_parser(" ".join(split_command(name)), summary, "")
    _add_operation(parser, operation, positionals=(), fixed_values={})
    return parser


def _build_parser(command: str, summary: str, examples: str) -> CommandParser:
    shown = "\n".join(f"  {line}" for line in examples.split("\n"))
    return CommandParser(
        prog=f"retinue {command}",
        description=summary,
        epilog=f"examples:\n{shown}" if examples else None,
        formatter_class=CliHelpFormatter,
        allow_abbrev=False,
    )


def _add_operation(
    parser: CommandParser, operation: Operation, *, positionals: tuple[str, ...], fixed_values: dict[str, object]
) -> None:
    operation_name, _, effect, _, parameters = operation
    parser.set_defaults(operation=operation_name, key="", wait=0.0)
    for parameter in parameters:
        name, _, _, marks, *_ = parameter
        if name in fixed_values:
            parser.set_defaults(**{to_dest(name): fixed_values[name]})
        elif name in positionals or "positional" in marks:
            _add_positional(parser, parameter)
        else:
            _add_option(parser, parameter)
    if effect and all(parameter[0] != "key" for parameter in parameters):
        parser.add_argument(
            "--key",
            default="",
            metavar="KEY",
            help="idempotency key: a request that is repeated with the same key is performed only once",
        )
    if operation_name == "envelope.send":
        _add_wait(parser, "time to wait for the server if it is not running, in seconds", 0.0)
    _add_json(parser)


def to_dest(name: str) -> str:
    """Return the attribute name under which argparse stores the value of a parameter.

    The prefix prevents clashes with other attributes, such as `command`.
    """
    return f"p_{name}"


def _add_positional(parser: CommandParser, parameter: Parameter) -> None:
    name, option, _, marks, _, _, words = parameter
    metavar = option[2:].upper().replace("-", "_")
    words += "; - reads it from stdin" if parameter[2] == "long_text" else ""
    nargs = None if "required" in marks else "?"
    parser.add_argument(to_dest(name), metavar=metavar, nargs=nargs, help=_escape_help(words))


def _add_option(parser: CommandParser, parameter: Parameter) -> None:
    name, option, kind, marks, default, choices, words = parameter
    required = "required" in marks and "nullable" not in marks
    shown_default = "" if default is None or isinstance(default, bool) else str(default)
    notes = [", ".join(choices), f"default: {shown_default}" if shown_default else ""]
    words += f" ({'; '.join(filter(None, notes))})" if any(notes) else ""
    if kind == "boolean":
        group = parser.add_mutually_exclusive_group(required=required)
        shown, hidden = (f"--no-{option[2:]}", option) if default is True else (option, f"--no-{option[2:]}")
        prefix = "do not " if default is True else ""
        group.add_argument(
            shown,
            dest=to_dest(name),
            action="store_const",
            const=default is not True,
            help=_escape_help(prefix + words),
        )
        plain = f"opposite of {shown}" if required else argparse.SUPPRESS
        group.add_argument(hidden, dest=to_dest(name), action="store_const", const=default is True, help=plain)
        return
    metavar = {"number": "N", "decimal": "N", "file": "FILE", "json": "JSON", "long_text": "TEXT"}.get(kind)
    parser.add_argument(
        option,
        dest=to_dest(name),
        required=required,
        action="append" if "repeated" in marks else "store",
        type={"number": int, "decimal": float, "json": _parse_json}.get(kind, str),
        choices=choices or None,
        metavar=metavar or option[2:].upper().replace("-", "_"),
        help=_escape_help(
            words + ("; can be repeated" if "repeated" in marks else "; or @FILE" if kind == "json" else "")
        ),
    )
    if "nullable" in marks:
        parser.add_argument(
            f"--no-{option[2:]}", dest=to_dest(name), action="store_const", const=NULL, help="remove the value"
        )


def _escape_help(text: str) -> str:
    return text.replace("%", "%%")


def _parse_json(text: str) -> object:
    """Parse a JSON value. `@FILE` reads it from a file."""
    import json

    try:
        if text.startswith("@"):
            with open(text[1:], encoding="utf-8") as file:
                text = file.read()
        value = json.loads(text)
        return NULL if value is None else value
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read '{text[1:]}' ({error.strerror})") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not valid JSON") from None


def _add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the response as JSON")


def _add_wait(parser: CommandParser, help_text: str, default_s: float) -> None:
    help_text = f"{help_text} (default: {default_s:g})"
    parser.add_argument("--wait", type=float, default=default_s, metavar="SECONDS", help=help_text)
