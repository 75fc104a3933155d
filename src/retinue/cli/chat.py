"""`retinue chat`: where the lines come from, and what a line that begins with a slash means at this door."""

from __future__ import annotations

import os
import sys

from retinue.cli import answers, verbs
from retinue.cli.client import call, home
from retinue.cli.errors import FAILED, OK, CliError, HouseClosed, nearest
from retinue.cli.output import has_colours, short
from retinue.cli.talk import STOP_WORDS, Talk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Generator
    from typing import Any

READ_BYTES = 64 * 1024
COMMANDS = {
    "/stop": "stop what runs here, and clear what waits",
    "/reset [WORDS]": "begin a fresh context, with words to carry over",
    "/allow [ID]": "let the agent do what it asked for; with `session` or `always`, from then on",
    "/deny [ID]": "do not let it",
    "/status": "who is here, and what waits for you",
    "/why ID": "why something became what it is",
    "/help": "this list",
    "/quit": "leave; what was sent is still worked on",
    "//WORDS": "send words that begin with a slash",
}
SCOPES = ("once", "session", "always")
# Understood at every door, and answered by the house.
HOUSE_COMMANDS = {
    "/model [NAME]": "which models there are, or think with another one",
    "/think [LEVEL]": "how much effort goes into replies",
    "/context": "how much the agent has in mind",
    "/compact [WORDS]": "tell the context in short, minding words, and go on from there",
    "/new [WORDS]": "begin a fresh context, and work on words in it",
    "/whoami": "who you are here",
}


def chat(options: Namespace) -> int:
    status = call("house.status")
    names = [agent["name"] for agent in status["agents"]]
    options.agent = options.agent or status["default_agent"] or ""
    if options.agent not in names:
        raise _no_such_agent(options.agent, names)
    text = None if options.once is None else verbs.text_from(options.once)
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
        lines.close()  # whatever happened: the terminal is put in order
    if talk.at_keyboard:
        talk.failed = False  # it was told as it happened; leaving is no failure
    elif talk.conversation.awaited:
        talk.complain(_still_asked(list(talk.conversation.approvals)))


def _greet(talk: Talk, waiting: int) -> None:
    talk.view.aside([f"You are talking to {talk.agent} in {home()}. /help shows what else you can do."])
    if waiting:
        talk.view.aside([f"Questions that wait for you: {waiting}. /status shows them."])


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
    """One line: words for the agent, or a command of this door."""
    if line.startswith("/") and not line.startswith("//"):
        name, _, words = line[1:].partition(" ")
        _perform(talk, name, words.strip())
    elif line and (envelope := _send(talk, line)):  # with both slashes: the house takes one off
        talk.wait_for(envelope)


def _send(talk: Talk, text: str) -> str:
    """Nothing where a person gave up waiting for a closed house."""
    try:
        return talk.send(text)
    except KeyboardInterrupt:
        if not talk.at_keyboard:
            raise
        talk.clear()
        talk.view.aside(["given up; should it have arrived all the same, its answer will come here"])
        return ""


def _perform(talk: Talk, name: str, words: str) -> None:
    match name:
        case "help":
            both = {**COMMANDS, **HOUSE_COMMANDS}
            talk.show([f"  {command:<20}{meaning}" for command, meaning in both.items()])
        case "status":
            talk.show(answers.status_lines(call("house.status")))
        case "why":
            talk.show(call("house.why", {"id": words})["lines"])
        case "stop":
            _needs_session(talk, name)
            talk.show(answers.stop_lines(talk.stop(words or STOP_WORDS)))
        case "reset":
            _needs_session(talk, name)
            call("session.reset", {"session": talk.session, "message": words})
        case "allow" | "deny":
            _decide(talk, words, allow=name == "allow")
        case _ if f"/{name}" in {command.split()[0] for command in HOUSE_COMMANDS}:
            if envelope := _send(talk, f"/{name} {words}".strip()):
                talk.wait_for(envelope)
        case _:
            raise _no_such_command(name)


def _needs_session(talk: Talk, name: str) -> None:
    if not talk.session:
        raise CliError(
            f"there is nothing to {name} yet",
            code="session.not-begun",
            because="this conversation has not begun",
            try_this="write something first",
        )


def _decide(talk: Talk, words: str, *, allow: bool) -> None:
    """Answer a question; without an id, the one that is open here. Then watch what comes of it."""
    still_open = list(talk.conversation.approvals)
    id_, scope, because = _decision(words)
    if not id_ and len(still_open) != 1:
        raise CliError(
            "which question?",
            code="approval.unnamed",
            because=f"{len(still_open)} are open in this session",
            try_this=f"/{'allow' if allow else 'deny'} {short(still_open[0]) if still_open else 'ID'}",
        )
    answer = {"id": id_ or still_open[0], "allow": allow, "because": because}
    call("approval.answer", {**answer, "scope": scope} if allow else answer)
    talk.conversation.parked = False  # the run goes on, and says so as news
    for envelope in list(talk.conversation.awaited):
        talk.wait_for(envelope)


def _decision(words: str) -> tuple[str, str, str]:
    """`[ID] [once|session|always] [WORDS]`. Where it begins with a scope, the id is left out."""
    id_, _, rest = words.partition(" ")
    if id_ in SCOPES:
        return "", id_, rest.strip()
    scope, _, because = rest.strip().partition(" ")
    return (id_, scope, because.strip()) if scope in SCOPES else (id_, "once", rest.strip())


def _no_such_command(name: str) -> CliError:
    known = [command[1:].split()[0] for command in (*COMMANDS, *HOUSE_COMMANDS) if not command.startswith("//")]
    return CliError(
        f"there is no /{name} here",
        code="command.unknown",
        because="a line that begins with a slash is a command",
        try_this=f"/{nearest(name, known) or 'help'}, or //{name} to send it as words",
    )


def _still_asked(approvals: list[str]) -> CliError:
    return CliError(
        "no answer yet: the agent waits for a decision",
        code="approval.open",
        because="there are no more lines to read",
        try_this=f"retinue allow {short(approvals[0]) if approvals else 'ID'}",
    )


# Where lines come from


def _typed(talk: Talk) -> Generator[str]:
    """By hand. News is shown above the prompt until the first key; Ctrl-C twice leaves."""
    from retinue.cli.keyboard import Keyboard  # termios and readline: only for someone who types

    prompt = f"to {talk.agent}: "
    leaving = False
    with Keyboard(colours=has_colours(sys.stdout)) as keyboard:
        while True:
            try:
                talk.wait_for_input(keyboard.fd, prompt)
                line = keyboard.line(prompt).strip()
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
    """By another program, or from a file."""
    fd = sys.stdin.fileno()
    by_hand = sys.stdin.isatty() and sys.stdout.isatty()  # at a terminal that can only print
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
    """What was read, as text; repeated on a terminal, where nobody has typed it."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise verbs.not_text() from None
    if text and talk.on_terminal:
        talk.view.show([f"to {talk.agent}: {text}"])
    return text
