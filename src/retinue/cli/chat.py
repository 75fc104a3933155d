"""`retinue chat`: reads lines from a keyboard or stdin, runs local commands and sends the rest."""

from __future__ import annotations

import os
import sys

from retinue.cli import operation_command
from retinue.cli.chat_session import Talk
from retinue.cli.client import call, home
from retinue.cli.errors import FAILED, OK, CliError, HouseClosed, nearest
from retinue.cli.output import has_colours, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Generator, Sequence
    from typing import Any

READ_BYTES = 64 * 1024
HELP_WIDTH = 32  # the same width as in the server's list of commands
# Handled here. Any other line that begins with a slash goes to the server, as in every other channel.
COMMANDS = {
    "/why ID": "why something became what it is",
    "/quit": "leave; what was sent is still worked on",
    "//WORDS": "send words that begin with a slash",
}
DECIDING = ("allow", "approve", "deny")  # without an id: the only open approval of this session
SCOPES = ("once", "session", "always", "allow-once", "allow-session", "allow-always")


def chat(options: Namespace) -> int:
    status = call("house.status")
    names = [agent["name"] for agent in status["agents"]]
    options.agent = options.agent or status["default_agent"] or ""
    if options.agent not in names:
        raise _no_such_agent(options.agent, names)
    text = None if options.once is None else operation_command.text_from(options.once)
    talk = Talk(options, status)
    try:
        if text is not None:
            talk.wait_for(talk.send(text), through_questions=True)
        else:
            _converse(talk, status)
    finally:
        talk.close()
    return FAILED if talk.failed else OK


def _no_such_agent(name: str, names: list[str]) -> CliError:
    return CliError(
        f"there is no agent '{name}' in this house",
        code="agent.not-found",
        because=f"its staff are {', '.join(names)}",
        try_this=f"retinue chat --agent {nearest(name, names) or names[0]}" if names else "retinue status",
    )


def _converse(talk: Talk, status: dict[str, Any]) -> None:
    talk.find_session()
    if talk.at_keyboard:
        _greet(talk, len(status["approvals"]))
    lines = _typed(talk) if talk.at_keyboard else _piped(talk)
    try:
        for line in lines:
            if line in ("/quit", "/exit"):
                break
            _try(talk, line)
    finally:
        lines.close()  # restores the terminal settings
    if talk.at_keyboard:
        talk.failed = False  # each failure was shown when it happened, so the exit code is 0
    elif talk.conversation.awaited:
        talk.complain(_still_asked(list(talk.conversation.approvals)))


def _greet(talk: Talk, waiting: int) -> None:
    talk.view.aside([f"You are talking to {talk.agent} in {home()}. /help shows what else you can do."])
    if waiting:
        talk.view.aside([f"Questions that wait for you: {waiting}. `retinue status` shows them."])


def _try(talk: Talk, line: str) -> None:
    try:
        _take(talk, line)
    except HouseClosed as closed:
        if not talk.at_keyboard:
            raise
        talk.complain(closed)
    except CliError as error:
        talk.complain(error)


def _take(talk: Talk, line: str) -> None:
    """Run one line: a local command, or a text to send. Of two leading slashes the server removes one."""
    if not line.startswith("/") or line.startswith("//"):
        if line and (envelope := _send(talk, line)):
            talk.wait_for(envelope)
        return
    head, _, words = line[1:].partition(" ")
    name = head.removesuffix(":").casefold()
    if name == "why":
        talk.show(call("house.why", {"id": words.strip()})["lines"])
        return
    deciding = name in DECIDING
    parked = talk.conversation.parked and not deciding  # the server answers other commands; the run stays suspended
    if envelope := _send(talk, named(name, words.strip(), list(talk.conversation.approvals)) if deciding else line):
        talk.conversation.parked = parked
        talk.wait_for(envelope)
        talk.hear_all()
    if name in ("help", "commands"):
        talk.show([f"{command:<{HELP_WIDTH}}  {meaning}" for command, meaning in COMMANDS.items()])
    for waiting in list(talk.conversation.awaited) if deciding else ():
        talk.wait_for(waiting)


def _send(talk: Talk, text: str) -> str:
    """Send a text and return its envelope id, or "" if the user stops waiting for the server with Ctrl-C."""
    try:
        return talk.send(text)
    except KeyboardInterrupt:
        if not talk.at_keyboard:
            raise
        talk.clear()
        talk.view.aside(["given up; should it have arrived all the same, its answer will come here"])
        return ""


def named(name: str, words: str, still_open: Sequence[str]) -> str:
    """Return the slash command with an approval id, which may be omitted if exactly one approval is open."""
    first = words.partition(" ")[0].casefold()
    if first and first not in SCOPES and not (name == "approve" and first == "deny"):
        return f"/{name} {words}"
    if len(still_open) != 1:
        raise CliError(
            "which question?",
            code="approval.unnamed",
            because=f"{len(still_open)} are open in this session",
            try_this=f"/{name} {short(still_open[0]) if still_open else 'ID'}",
        )
    return f"/{name} {short(still_open[0])} {words}".strip()


def _still_asked(approvals: list[str]) -> CliError:
    return CliError(
        "no answer yet: the agent waits for a decision",
        code="approval.open",
        because="there are no more lines to read",
        try_this=f"retinue allow {short(approvals[0]) if approvals else 'ID'}",
    )


# Line sources


def _typed(talk: Talk) -> Generator[str]:
    """Yield lines typed at a terminal. Events appear above the prompt until the first key; Ctrl-C twice leaves."""
    from retinue.cli.line_editor import Keyboard  # imports termios and readline, which only a terminal needs

    leaving = False
    with Keyboard(colours=has_colours(sys.stdout)) as keyboard:
        while True:
            try:
                talk.wait_for_input(keyboard.fd, f"to {talk.agent}: ")
                line = keyboard.line(f"to {talk.agent}: ").strip()
                leaving = False
                yield line
            except EOFError:
                talk.view.show([""])
                return
            except KeyboardInterrupt:
                if leaving:
                    raise
                leaving = True
                talk.clear()
                talk.view.aside(["Ctrl-C once more leaves, and so does /quit."])


def _piped(talk: Talk) -> Generator[str]:
    """Yield lines from stdin: a pipe, a file or a dumb terminal."""
    fd = sys.stdin.fileno()
    by_hand = sys.stdin.isatty() and sys.stdout.isatty()  # a terminal without cursor control
    waiting = b""
    while True:
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            yield _shown(talk, line)
        if by_hand:
            sys.stdout.write(f"to {talk.agent}: ")
            sys.stdout.flush()
        talk.wait_for_input(fd)
        heard = os.read(fd, READ_BYTES)
        if not heard:
            break
        waiting += heard
    yield _shown(talk, waiting)


def _shown(talk: Talk, line: bytes) -> str:
    """Decode a line from stdin. Echo it if the output is a terminal, since it was not typed there."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise operation_command.not_text() from None
    if text and talk.on_terminal:
        talk.view.show([f"to {talk.agent}: {text}"])
    return text
