"""Views of a conversation: a terminal shows text as it streams, and a pipe gets only final text."""

from __future__ import annotations

import os
import sys

from retinue.cli.live_region import BOLD, DIM, RESET, LiveRegion, escape_controls
from retinue.cli.output import format_call, format_quantity, has_colors, shorten_id, to_exact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO

    from retinue.cli.chat_state import EnvelopeEnd

RESULT_CHARS_MAX = 200
SHELL_COMMANDS = {"allow": "retinue allow", "deny": "retinue deny", "scope": "--scope "}


def format_approval_request(
    event: dict[str, Any], *, allow: str, deny: str, scope: str, can_grant_always: bool
) -> list[str]:
    """Format an approval with its exact calls and the commands that answer it.

    Commands that also allow later calls are shown only if the approval permits such a grant. A permanent grant is
    offered only to the owner. `event` is the event that announces the approval.
    """
    id_ = shorten_id(event["approval"])
    calls, grants, reach = event["calls"], event.get("would_grant", ()), event.get("gives", ())
    wanted = f"permission needed{_format_grantee(event)}: {_format_permissions(grants)} ({id_})"
    lines = [f"approval needed ({id_})" if calls else wanted, *(f"  {format_call(call)}" for call in calls)]
    lines += [f"  access: {_format_permissions(reach)}"] if reach else []
    lines += [f"  because: {to_exact_json(event['because'])[1:-1]}"] if event.get("because") else []
    lines.append(f"  {allow} {id_}   {deny} {id_}")
    if calls and grants:
        always = " (or always)" if can_grant_always else ""
        lines.append(f"  for longer ({_format_permissions(grants)}): {allow} {id_} {scope}session{always}")
    elif can_grant_always and not calls:
        lines.append(f"  permanently: {allow} {id_} {scope}always")
    return lines


def format_reset(because: str) -> str:
    return f"(context reset: {to_exact_json(because)[1:-1]})" if because else "(context reset)"


def _format_grantee(event: dict[str, Any]) -> str:
    """Return ` for AGENT` if an agent other than the asking one would get the permission, else an empty string."""
    asker = event.get("agent", "")
    grantee = event.get("grantee") or event.get("for_whom", asker)  # of an event, or of an approval that was listed
    return "" if grantee == asker else f" for {grantee}"


def _format_permissions(permissions: Sequence[str]) -> str:
    return ", ".join(to_exact_json(each)[1:-1] for each in permissions)


def format_call_step(tool: str, arguments: dict[str, Any]) -> str:
    return f"  · {tool} {to_exact_json(arguments)}"


def format_result_step(output: str, *, failed: bool) -> str:
    """Format a tool result as one line: its first line, shortened, and the number of further lines."""
    lines = [line for line in output.split("\n") if line.strip()]
    first = lines[0].strip() if lines else "(empty)"
    more = f" (and {format_quantity(len(lines) - 1, 'more line')})" if len(lines) > 1 else ""
    return f"  {'failed' if failed else '='} {first[:RESULT_CHARS_MAX]}{more}"


class PlainView:
    """Writes to a pipe or a file. Text is written once, when it is final.

    Answers are written to stdout. With `show_steps`, the text between tool calls is written there too. Notes are
    written to stderr if it is a terminal. Approvals are always written to stderr, because a person must see them.
    """

    accepts_commands = False  # whether slash commands such as /why can be typed
    can_grant_always = False  # whether this user may grant permanently

    def __init__(self, out: TextIO, err: TextIO, *, show_steps: bool, show_answers: bool = True) -> None:
        self._out = out
        self._err = err
        self._shows_steps = show_steps
        self._shows_answers = show_answers
        self._is_stderr_terminal = err.isatty()

    def set_agent(self, agent: str) -> None:
        """Do nothing, because this view does not show the agent's name."""

    def show_partial(self, thinking: str, text: str, *, is_ours: bool) -> None:
        """Do nothing, because unfinished text may still change."""

    def set_footer(self, text: str) -> None:
        """Do nothing, because a pipe has no line that could be replaced."""

    def show_server_state(self, text: str) -> None:
        """Show on stderr whether the server responds."""
        _write_line(self._err, text)

    def show_note(self, lines: Sequence[str]) -> None:
        for line in lines if self._is_stderr_terminal else ():
            _write_line(self._err, line)

    def show(self, lines: Sequence[str]) -> None:
        """Show the result of a local command."""
        for line in lines:
            _write_line(self._out if self._shows_answers else self._err, line)

    def show_turn_text(self, thinking: str, text: str, *, is_ours: bool) -> None:
        if text and is_ours and self._shows_steps and self._shows_answers:
            _write_line(self._out, text)
        elif text:
            self.show_note([text])

    def show_call(self, tool: str, arguments: dict[str, Any]) -> None:
        self.show_note([format_call_step(tool, arguments)])

    def show_result(self, tool: str, output: str, *, failed: bool) -> None:
        self.show_note([format_result_step(output, failed=failed)])

    def show_approval(self, event: dict[str, Any]) -> None:
        for line in format_approval_request(event, **SHELL_COMMANDS, can_grant_always=self.can_grant_always):
            _write_line(self._err, line)

    def show_decision(self, approval: str, state: str, by: str) -> None:
        self.show_note([f"{state} by {by} ({shorten_id(approval)})"])

    def show_answer(self, text: str, recipient: str, *, is_ours: bool) -> None:
        if not is_ours:
            self.show_note([f"(to {shorten_id(recipient)}) {text}"])
        elif self._shows_answers:
            _write_line(self._out, text)

    def show_incoming(self, sender: str, text: str) -> None:
        self.show_note([f"{shorten_id(sender)}: {text}"])

    def show_server_text(self, text: str) -> None:
        self.show_note([text])

    def show_end(self, end: EnvelopeEnd) -> None:
        """Do nothing, because the chat session reports the outcome."""

    def show_reset(self, because: str) -> None:
        self.show_note([format_reset(because)])

    def close(self) -> None:
        """Do nothing, because this view has no unfinished text."""


class TerminalView:
    """Writes to a terminal. Text is shown as it streams, and redrawn if a later attempt of the model differs."""

    can_grant_always = False  # whether this user may grant permanently
    accepts_commands = True

    def __init__(self, out: TextIO, *, agent: str, show_header: bool = True) -> None:
        self._out = out
        self._agent = agent
        self._shows_header = show_header
        self._has_colors = has_colors(out)
        self._region = LiveRegion(use_colors=self._has_colors)
        self._footer = ""
        self._deferred_lines: list[str] = []
        self._is_header_due = True

    def set_agent(self, agent: str) -> None:
        """Set the agent's name for the header of the next answers."""
        self._agent = agent

    def show_partial(self, thinking: str, text: str, *, is_ours: bool) -> None:
        if not thinking and not text:
            return
        self._write_header()
        self._footer = ""
        self._paint(escape_controls(thinking), escape_controls(text), is_growing=True)

    def set_footer(self, text: str) -> None:
        """Set the bottom line of the terminal. The next output overwrites the line."""
        self._footer = text
        self._paint(self._region.dim, self._region.plain)

    def show_server_state(self, text: str) -> None:
        """Do nothing, because the footer shows whether the server responds."""

    def show(self, lines: Sequence[str]) -> None:
        self._write_above([escape_controls(line) for line in lines])

    def show_note(self, lines: Sequence[str]) -> None:
        self._write_above([self._apply_style(DIM, escape_controls(line)) for line in lines])

    def show_turn_text(self, thinking: str, text: str, *, is_ours: bool) -> None:
        if thinking or text or not self._region.is_empty:
            self._write_final(escape_controls(thinking), escape_controls(text))

    def show_call(self, tool: str, arguments: dict[str, Any]) -> None:
        self._insert_before([format_call_step(tool, arguments)])

    def show_result(self, tool: str, output: str, *, failed: bool) -> None:
        self._insert_before([format_result_step(output, failed=failed)])

    def show_approval(self, event: dict[str, Any]) -> None:
        first, *rest = format_approval_request(
            event, allow="/allow", deny="/deny", scope="", can_grant_always=self.can_grant_always
        )
        self._write_above(
            [self._apply_style(BOLD, f"{self._agent}: {first}"), *(escape_controls(line) for line in rest)]
        )

    def show_decision(self, approval: str, state: str, by: str) -> None:
        self.show_note([f"({shorten_id(approval)} {state} by {by})"])

    def show_answer(self, text: str, recipient: str, *, is_ours: bool) -> None:
        self._write_final(self._region.dim, escape_controls(text))

    def show_incoming(self, sender: str, text: str) -> None:
        self._write_above([self._apply_style(BOLD, escape_controls(f"{shorten_id(sender)}:")), escape_controls(text)])
        self._is_header_due = True

    def show_server_text(self, text: str) -> None:
        self._write_above([self._apply_style(DIM, line) for line in escape_controls(text).split("\n")])

    def show_end(self, end: EnvelopeEnd) -> None:
        """Show the end of a run.

        If the run failed, its unfinished text stays on the screen, marked as interrupted. If the run answered, its
        unfinished text is erased.
        """
        mark = ""
        if end.is_answered:
            self._paint("", "")
            mark = "" if end.answer_id else f"({self._agent} did not reply)"
        elif end.outcome != "noted" and not self._region.is_empty:
            mark = "(interrupted)"
        self._finish_region(mark)
        self._is_header_due = True

    def show_reset(self, because: str) -> None:
        self.show_note([format_reset(because)])

    def close(self) -> None:
        self._footer = ""
        self._finish_region()

    def _write_final(self, dim: str, plain: str) -> None:
        """Replace the streamed text on the screen with its final version."""
        if dim or plain:
            self._write_header()
        self._paint(dim, plain)
        self._finish_region()

    def _finish_region(self, mark: str = "") -> None:
        """Leave the streamed text on the screen as it is now, then write the mark and the deferred lines below it."""
        columns, rows = self._get_size()
        self._write(self._region.finish(columns=columns, rows=rows))
        later, self._deferred_lines = self._deferred_lines, []
        self._write_above([*([self._apply_style(DIM, mark)] if mark else []), *later])

    def _insert_before(self, lines: Sequence[str]) -> None:
        """Write lines above the text that is being streamed, because they are about earlier events."""
        columns, rows = self._get_size()
        if not self._region.fits(columns=columns, rows=rows):
            self.show_note(lines)
            return
        dim, plain = self._region.dim, self._region.plain
        self._write(self._region.paint("", "", "", columns=columns, rows=rows))
        self.show_note([self._truncate(line) for line in lines])
        self._paint(dim, plain)

    def _write_above(self, lines: Sequence[str]) -> None:
        """Write lines above the footer. While an answer is streaming, the lines are deferred until the answer ends."""
        if not self._region.is_empty:
            self._deferred_lines += lines
            return
        footer, self._footer = self._footer, ""
        self._paint("", "")
        self._write("".join(f"{line}\n" for line in lines))
        self._footer = footer
        self._paint("", "")

    def _write_header(self) -> None:
        if self._is_header_due and self._region.is_empty:
            self._is_header_due = False
            if self._shows_header:
                self._write_above([self._apply_style(BOLD, f"{self._agent}:")])

    def _paint(self, dim: str, plain: str, *, is_growing: bool = False) -> None:
        columns, rows = self._get_size()
        if is_growing:
            self._write(self._region.extend(dim, plain, columns=columns, rows=rows))
        else:
            self._write(self._region.paint(dim, plain, self._footer, columns=columns, rows=rows))

    def _truncate(self, line: str) -> str:
        columns, _ = self._get_size()
        return line if len(line) < columns else line[: max(columns - 2, 1)] + "…"

    def _apply_style(self, style: str, text: str) -> str:
        return f"{style}{text}{RESET}" if self._has_colors and text else text

    def _get_size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()


class OnceView(TerminalView):
    """Shows the answer to `retinue chat --once` on a terminal.

    The answer is streamed to stdout. Everything else is written to stderr.
    """

    accepts_commands = False

    def __init__(self, out: TextIO, err: TextIO, *, agent: str) -> None:
        super().__init__(out, agent=agent, show_header=False)
        self._err = err

    def show_partial(self, thinking: str, text: str, *, is_ours: bool) -> None:
        if is_ours:
            super().show_partial(thinking, text, is_ours=is_ours)

    def show_turn_text(self, thinking: str, text: str, *, is_ours: bool) -> None:
        self._write_final("", "")  # not the answer: erase it, and show it on stderr instead
        if text:
            self.show_note([text])

    def show_answer(self, text: str, recipient: str, *, is_ours: bool) -> None:
        if is_ours:
            self._write_final("", escape_controls(text))

    def show_approval(self, event: dict[str, Any]) -> None:
        lines = format_approval_request(event, **SHELL_COMMANDS, can_grant_always=self.can_grant_always)
        self._write_above([escape_controls(line) for line in lines], force=True)

    def _write_above(self, lines: Sequence[str], *, force: bool = False) -> None:
        if not self._region.is_empty:
            self._deferred_lines += lines
        elif lines and (force or self._err.isatty()):
            footer, self._footer = self._footer, ""
            self._paint("", "")
            self._err.write("".join(f"{line}\n" for line in lines))
            self._err.flush()
            self._footer = footer
            self._paint("", "")


def _write_line(stream: TextIO, text: str) -> None:
    """Write a line to the stream. If it is a terminal, escape control characters."""
    sys.stdout.flush()
    stream.write((escape_controls(text) if stream.isatty() else text) + "\n")
    stream.flush()
