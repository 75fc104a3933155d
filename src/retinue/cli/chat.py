"""`retinue chat`: reads lines from a keyboard or stdin, runs local commands and sends the rest."""

from __future__ import annotations

import os
import sys

from retinue.cli import operation_command
from retinue.cli.approval_prompts import DECISION_COMMANDS, add_approval_id, approval_pending_error
from retinue.cli.chat_session import ChatSession
from retinue.cli.client import call, get_data_dir
from retinue.cli.errors import EXIT_FAILED, EXIT_OK, CliError, ServerNotAnswering, find_nearest
from retinue.cli.output import has_colors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Generator
    from typing import Any

READ_BYTES = 64 * 1024
HELP_WIDTH = 32  # the same width as in the server's list of commands
# Handled here. Any other line that begins with a slash goes to the server, as in every other channel.
LOCAL_COMMANDS = {
    "/why ID": "explain what happened to an envelope, run, approval or session",
    "/quit": "leave the chat; sent messages are still processed",
    "//TEXT": "send text that begins with a slash",
}


def chat(options: Namespace) -> int:
    status = call("server.status")
    names = [agent["name"] for agent in status["agents"]]
    options.agent = options.agent or status["default_agent"] or ""
    if options.agent not in names:
        raise _agent_not_found_error(options.agent, names)
    text = None if options.once is None else operation_command.read_text(options.once)
    talk = ChatSession(options, status)
    try:
        if text is not None:
            talk.wait_for(talk.send(text), through_approvals=True)
        else:
            _handle_lines(talk, status)
    finally:
        talk.close()
    return EXIT_FAILED if talk.has_failed else EXIT_OK


def _agent_not_found_error(name: str, agent_names: list[str]) -> CliError:
    return CliError(
        f"no agent named '{name}'",
        code="agent.not_found",
        because=f"the agents are {', '.join(agent_names)}" if agent_names else "there are no agents yet",
        try_this=f"retinue chat --agent {find_nearest(name, agent_names) or agent_names[0]}"
        if agent_names
        else "retinue agent register NAME",
    )


def _handle_lines(chat_session: ChatSession, status: dict[str, Any]) -> None:
    chat_session.find_session()
    if chat_session.is_interactive:
        _show_greeting(chat_session, len(status["approvals"]))
    lines = _read_keyboard(chat_session) if chat_session.is_interactive else _read_stdin(chat_session)
    try:
        for line in lines:
            if line in ("/quit", "/exit"):
                break
            _handle_line(chat_session, line)
    finally:
        lines.close()  # restores the terminal settings
    if chat_session.is_interactive:
        chat_session.has_failed = False  # each failure was shown when it happened, so the exit code is 0
    elif chat_session.state.awaited_envelopes:
        chat_session.print_error(approval_pending_error(list(chat_session.state.open_approvals)))


def _show_greeting(chat_session: ChatSession, pending_approvals: int) -> None:
    chat_session.view.show_note([f"Chatting with {chat_session.agent} in {get_data_dir()}. Type /help for commands."])
    if pending_approvals:
        chat_session.view.show_note([f"Pending approvals: {pending_approvals}. To list them: retinue status"])


def _handle_line(chat_session: ChatSession, line: str) -> None:
    try:
        _dispatch_line(chat_session, line)
    except ServerNotAnswering as closed:
        if not chat_session.is_interactive:
            raise
        chat_session.print_error(closed)
    except CliError as error:
        chat_session.print_error(error)


def _dispatch_line(chat_session: ChatSession, line: str) -> None:
    """Execute a line as a local command, or send it. In text that begins with `//`, the server removes one slash."""
    if not line.startswith("/") or line.startswith("//"):
        if line and (envelope := _send(chat_session, line)):
            chat_session.wait_for(envelope)
        return
    head, _, words = line[1:].partition(" ")
    name = head.removesuffix(":").casefold()
    if name == "why":
        chat_session.show(call("server.why", {"id": words.strip()})["lines"])
        return
    deciding = name in DECISION_COMMANDS
    # The server answers other commands, and the run stays suspended.
    stays_suspended = chat_session.state.is_suspended and not deciding
    if envelope := _send(
        chat_session,
        add_approval_id(name, words.strip(), list(chat_session.state.open_approvals)) if deciding else line,
    ):
        chat_session.state.is_suspended = stays_suspended
        chat_session.wait_for(envelope)
        chat_session.drain_events()
    if name in ("help", "commands"):
        chat_session.show([f"{command:<{HELP_WIDTH}}  {meaning}" for command, meaning in LOCAL_COMMANDS.items()])
    for waiting in list(chat_session.state.awaited_envelopes) if deciding else ():
        chat_session.wait_for(waiting)


def _send(chat_session: ChatSession, text: str) -> str:
    """Send text and return its envelope id. Returns "" if the user presses Ctrl-C to stop waiting for the server."""
    try:
        return chat_session.send(text)
    except KeyboardInterrupt:
        if not chat_session.is_interactive:
            raise
        chat_session.clear_footer()
        chat_session.view.show_note(["stopped sending; if the message arrived after all, its answer appears here"])
        return ""


# Line sources


def _read_keyboard(chat_session: ChatSession) -> Generator[str]:
    """Yield lines typed at a terminal. Until a key is pressed, events are shown above the prompt.

    Pressing Ctrl-C twice at the prompt ends the chat.
    """
    from retinue.cli.line_editor import LineEditor  # imports termios and readline, which only a terminal needs

    leaving = False
    with LineEditor(use_colors=has_colors(sys.stdout)) as keyboard:
        while True:
            try:
                chat_session.wait_for_input(keyboard.fd, f"to {chat_session.agent}: ")
                line = keyboard.read_line(f"to {chat_session.agent}: ").strip()
                leaving = False
                yield line
            except EOFError:
                chat_session.view.show([""])
                return
            except KeyboardInterrupt:
                if leaving:
                    raise
                leaving = True
                chat_session.clear_footer()
                chat_session.view.show_note(["Press Ctrl-C again to leave, or type /quit."])


def _read_stdin(chat_session: ChatSession) -> Generator[str]:
    """Yield lines from stdin if it is a pipe, a file or a terminal without line editing."""
    fd = sys.stdin.fileno()
    by_hand = sys.stdin.isatty() and sys.stdout.isatty()  # a terminal without cursor control
    waiting = b""
    while True:
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            yield _decode_line(chat_session, line)
        if by_hand:
            sys.stdout.write(f"to {chat_session.agent}: ")
            sys.stdout.flush()
        chat_session.wait_for_input(fd)
        data = os.read(fd, READ_BYTES)
        if not data:
            break
        waiting += data
    yield _decode_line(chat_session, waiting)


def _decode_line(chat_session: ChatSession, line: bytes) -> str:
    """Decode a line from stdin. If stdout is a terminal, print the line too, because it was not typed there."""
    try:
        text = line.decode().strip()
    except UnicodeDecodeError:
        raise operation_command.not_utf8_error() from None
    if text and chat_session.on_terminal:
        chat_session.view.show([f"to {chat_session.agent}: {text}"])
    return text
