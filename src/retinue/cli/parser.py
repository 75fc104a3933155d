"""What can be typed after `retinue`. Only the command that was typed is built: the others would cost time."""

from __future__ import annotations

import argparse
import os

from retinue.cli.errors import UsageError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

COLUMNS = 100
CHAT_WAIT_S = 120.0

QUEUE_MODES = ("collect", "followup", "steer", "steer-backlog", "interrupt")
OVERFLOWS = ("refuse", "oldest", "summarize")

# Name: what it does, and examples.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": (
        "Open the house in the foreground.",
        "retinue run\nRETINUE_HOME=/srv/house retinue run",
    ),
    "chat": (
        "Talk with an agent.",
        'retinue chat\nretinue chat --agent clerk --session taxes\nretinue chat --once "What is on today?"\n'
        'retinue chat --once - < question.txt\nprintf "one\\ntwo\\n" | retinue chat',
    ),
    "send": (
        "Send an envelope, and do not wait for its answer.",
        'retinue send agent:guide "Good morning"\nretinue send agent:guide "Water the plants" --deliver-at +2h\n'
        "retinue send agent:guide - --attach report.pdf < words.txt",
    ),
    "show": ("Show an envelope.", "retinue show 1a2b3c4d"),
    "thread": ("Show what an envelope replies to, back to the first.", "retinue thread 1a2b3c4d"),
    "why": ("Tell why something became what it is.", "retinue why 1a2b3c4d"),
    "ledger": ("Prove from the store that nothing is lost.", "retinue ledger"),
    "dead": ("List envelopes that could not be worked on.", "retinue dead --limit 50"),
    "retry": ("Send a dead envelope once more.", "retinue retry 1a2b3c4d"),
    "status": ("Say who is here, and what waits for you.", "retinue status"),
    "stop": ("Stop what runs in a session, and clear what waits.", 'retinue stop 5e6f7a8b --why "wrong file"'),
    "reset": ("Begin a fresh context in a session.", 'retinue reset 5e6f7a8b "We were at chapter 3."'),
    "queue": (
        "Set how mail queues while an agent is busy; with no option, as the agent does.",
        "retinue queue 5e6f7a8b --mode steer\nretinue queue 5e6f7a8b",
    ),
    "allow": ("Let an agent do what it asked for.", "retinue allow 9c8d7e6f"),
    "deny": ("Do not let an agent do what it asked for.", "retinue deny 9c8d7e6f"),
    "sessions": ("List the recent sessions.", "retinue sessions --limit 50"),
}
EXITS = """\
exit codes:
  0  done
  1  refused, or not answered; the reason is on stderr
  2  not understood
  3  no house is open
  4  a short id that names more than one thing; they are listed on stderr"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width: argparse would import half the library to find it out, at every start."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=_columns())


def _columns() -> int:
    try:
        return min(os.get_terminal_size(1).columns, COLUMNS)
    except OSError:
        return COLUMNS


class Parser(argparse.ArgumentParser):
    """Says what is wrong the way the whole house does."""

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
            option = action.option_strings[0]
            raise UsageError(
                f"{option} cannot be '{value}'",
                because=f"it is one of {', '.join(choices)}",
                try_this=f"{option} {nearest(str(value), choices) or choices[0]}",
            )


def overview() -> str:
    """`retinue --help`."""
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{summary}" for name, (summary, _) in COMMANDS.items())
    return (
        "usage: retinue COMMAND [...]\n\nA house with a staff of agents that loses nothing.\n\n"
        f"commands:\n{listed}\n\n`retinue COMMAND --help` tells more.\n\n"
        "examples:\n  retinue run\n  retinue chat\n  retinue ledger\n\n"
        f"{EXITS}\n\n"
        "RETINUE_HOME says which house (~/.retinue); RETINUE_TOKEN who you are (its owner).\n"
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command and its options; `help` and `version` are commands too."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return argparse.Namespace(command="help", json=False)
    command, *rest = arguments
    if command not in COMMANDS:
        raise _unknown(command)
    options = build(command).parse_args(rest)
    options.command = command
    return options


def _unknown(command: str) -> UsageError:
    meant = nearest(command, list(COMMANDS))
    return UsageError(
        f"there is no command '{command}'",
        because=f"the commands are {', '.join(COMMANDS)}",
        try_this=f"retinue {meant}" if meant else "retinue --help",
        code="usage.unknown-command",
    )


def build(command: str) -> Parser:
    summary, examples = COMMANDS[command]
    shown = "\n".join(f"  {line}" for line in examples.split("\n"))
    parser = Parser(
        prog=f"retinue {command}",
        description=summary,
        epilog=f"examples:\n{shown}",
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    match command:
        case "chat":
            add("--agent", default="guide", metavar="NAME", help="who to talk with (guide)")
            add("--session", default="", metavar="NAME", help="a conversation of its own, by any name you like")
            add("--once", metavar="TEXT", help="send this, print the answer and leave; - reads it from stdin")
            _add_wait(parser, CHAT_WAIT_S)
        case "send":
            add("to", metavar="TO", help="agent:NAME, agent:NAME/SESSION, person:NAME or channel:INSTANCE:ROOM")
            add("text", metavar="TEXT", help="the words; - reads them from stdin")
            add("--deliver-at", default="", metavar="WHEN", help="not before: +2h30m, or 2026-01-28T20:30")
            add("--expires-at", default="", metavar="WHEN", help="not after")
            add("--reply-to", default="", metavar="ID", help="the envelope this answers")
            add("--attach", action="append", default=[], metavar="FILE", help="a file; can be given again")
            add("--key", default="", metavar="KEY", help="of two envelopes with the same key one is accepted")
            add("--conversation", default="", metavar="NAME", help="a conversation of its own, as in chat")
            _add_wait(parser, 0.0)
        case "show" | "thread" | "why" | "retry" | "allow" | "deny":
            add("id", metavar="ID", help="8 or more digits of an id")
        case "stop" | "reset" | "queue":
            _add_session(parser, command)
        case "dead" | "sessions":
            add("--limit", type=int, default=10, metavar="N", help="how many (10)")
        case _:
            pass
    if command != "run":
        add("--json", action="store_true", help="the answer as the API gives it")
    return parser


def _add_wait(parser: Parser, default_s: float) -> None:
    words = f"how long to wait for a closed house ({default_s:g})"
    parser.add_argument("--wait", type=float, default=default_s, metavar="SECONDS", help=words)


def _add_session(parser: Parser, command: str) -> None:
    add = parser.add_argument
    add("session", metavar="SESSION", help="8 or more digits of a session's id: see `retinue sessions`")
    match command:
        case "stop":
            add("--why", default="", metavar="WORDS", help="kept with what was stopped")
        case "reset":
            add("message", nargs="?", default="", metavar="MESSAGE", help="words to carry into the fresh context")
        case _:
            add("--mode", choices=QUEUE_MODES, help="what mail does while a run is active")
            add("--cap", type=int, metavar="N", help="how much may wait")
            add("--overflow", choices=OVERFLOWS, help="what happens beyond that")
