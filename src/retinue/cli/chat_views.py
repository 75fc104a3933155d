"""Views of a conversation: text as it streams on a terminal, or final text only into a pipe."""

from __future__ import annotations

import os
import sys

from retinue.cli.live_region import BOLD, DIM, PLAIN, Region, visible
from retinue.cli.output import call_line, exact, has_colours, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO

    from retinue.cli.chat_state import Ending

RESULT_SHOWN_MAX = 200
FROM_A_SHELL = {"allow": "retinue allow", "deny": "retinue deny", "scope": "--scope "}


def question_lines(question: dict[str, Any], *, allow: str, deny: str, scope: str, always: bool) -> list[str]:
    """Format an approval with its exact calls and the commands that answer it.

    A longer grant is offered only if the approval allows one, and a permanent one only to the owner.
    `event` is the event that announces the approval.
    """
    id_ = short(question["approval"])
    calls, grants, reach = question["calls"], question.get("would_grant", ()), question.get("gives", ())
    wish = f"may {_for_whom(question)} have {_named(grants)}? ({id_})"
    lines = [f"may I? ({id_})" if calls else wish, *(f"  {call_line(call)}" for call in calls)]
    lines += [f"  to reach: {_named(reach)}"] if reach else []
    lines += [f"  because: {exact(question['because'])[1:-1]}"] if question.get("because") else []
    lines.append(f"  {allow} {id_}   {deny} {id_}")
    if calls and grants:
        lines.append(f"  for longer ({_named(grants)}): {allow} {id_} {scope}session{' (or always)' if always else ''}")
    elif always and not calls:
        lines.append(f"  for good: {allow} {id_} {scope}always")
    return lines


def fresh_context(because: str) -> str:
    return f"(a fresh context begins: {exact(because)[1:-1]})" if because else "(a fresh context begins)"


def _for_whom(question: dict[str, Any]) -> str:
    asker = question.get("agent", "")
    return "I" if question.get("for_whom", asker) == asker else question["for_whom"]


def _named(permissions: Sequence[str]) -> str:
    return ", ".join(exact(each)[1:-1] for each in permissions)


def call_words(tool: str, arguments: dict[str, Any]) -> str:
    return f"  · {tool} {exact(arguments)}"


def result_words(output: str, *, failed: bool) -> str:
    """Format a tool result in one line."""
    lines = [line for line in output.split("\n") if line.strip()]
    first = lines[0].strip() if lines else "(nothing)"
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
    return f"  {'failed' if failed else '='} {first[:RESULT_SHOWN_MAX]}{more}"


class PlainView:
    """Writes to a pipe or a file: complete texts, each once, when they are final.

    Answers go to stdout, and with `show_steps` the text between calls does too. Notes go to stderr
    if that is a terminal. Approvals always go to stderr, since a person must see them.
    """

    explains = False  # whether slash commands such as /why can be typed
    always = False  # whether this user may grant permanently

    def __init__(self, out: TextIO, err: TextIO, *, steps: bool, answers: bool = True) -> None:
        self._out = out
        self._err = err
        self._steps = steps
        self._answers = answers
        self._heard = err.isatty()

    def talks_to(self, agent: str) -> None:
        """Do nothing: this view does not show the agent's name."""

    def live(self, thinking: str, text: str, *, ours: bool) -> None:
        """Do nothing: the text may still change."""

    def footer(self, words: str) -> None:
        """Do nothing: written lines cannot be erased here."""

    def waiting(self, words: str) -> None:
        """Show on stderr whether the server answers."""
        _put(self._err, words)

    def aside(self, lines: Sequence[str]) -> None:
        for line in lines if self._heard else ():
            _put(self._err, line)

    def show(self, lines: Sequence[str]) -> None:
        """Show the result of a local command."""
        for line in lines:
            _put(self._out if self._answers else self._err, line)

    def said(self, thinking: str, text: str, *, ours: bool) -> None:
        if text and ours and self._steps and self._answers:
            _put(self._out, text)
        elif text:
            self.aside([text])

    def called(self, tool: str, arguments: dict[str, Any]) -> None:
        self.aside([call_words(tool, arguments)])

    def returned(self, tool: str, output: str, *, failed: bool) -> None:
        self.aside([result_words(output, failed=failed)])

    def asked(self, question: dict[str, Any]) -> None:
        for line in question_lines(question, **FROM_A_SHELL, always=self.always):
            _put(self._err, line)

    def decided(self, approval: str, state: str, by: str) -> None:
        self.aside([f"{state} by {by} ({short(approval)})"])

    def answered(self, text: str, to: str, *, ours: bool) -> None:
        if not ours:
            self.aside([f"(to {short(to)}) {text}"])
        elif self._answers:
            _put(self._out, text)

    def mail(self, sender: str, text: str) -> None:
        self.aside([f"{short(sender)}: {text}"])

    def notice(self, text: str) -> None:
        self.aside([text])

    def ended(self, ending: Ending) -> None:
        """Do nothing: the chat session reports the outcome."""

    def was_reset(self, because: str) -> None:
        self.aside([fresh_context(because)])

    def close(self) -> None:
        """Do nothing: this view has no unfinished text."""


class TerminalView:
    """Writes to a terminal: text as it streams, redrawn if a later attempt differs."""

    always = False  # whether this user may grant permanently
    explains = True

    def __init__(self, out: TextIO, *, agent: str, headed: bool = True) -> None:
        self._out = out
        self._agent = agent
        self._headed = headed
        self._colours = has_colours(out)
        self._region = Region(colours=self._colours)
        self._footer = ""
        self._later: list[str] = []
        self._header_due = True

    def talks_to(self, agent: str) -> None:
        """Set the name for the header of the next answers."""
        self._agent = agent

    def live(self, thinking: str, text: str, *, ours: bool) -> None:
        if not thinking and not text:
            return
        self._header()
        self._footer = ""
        self._paint(visible(thinking), visible(text), growing=True)

    def footer(self, words: str) -> None:
        """Set the bottom line, which the next output overwrites."""
        self._footer = words
        self._paint(self._region.dim, self._region.plain)

    def waiting(self, words: str) -> None:
        """Do nothing: the footer shows it."""

    def show(self, lines: Sequence[str]) -> None:
        self._above([visible(line) for line in lines])

    def aside(self, lines: Sequence[str]) -> None:
        self._above([self._in(DIM, visible(line)) for line in lines])

    def said(self, thinking: str, text: str, *, ours: bool) -> None:
        if thinking or text or not self._region.empty:
            self._final(visible(thinking), visible(text))

    def called(self, tool: str, arguments: dict[str, Any]) -> None:
        self._before([call_words(tool, arguments)])

    def returned(self, tool: str, output: str, *, failed: bool) -> None:
        self._before([result_words(output, failed=failed)])

    def asked(self, question: dict[str, Any]) -> None:
        first, *rest = question_lines(question, allow="/allow", deny="/deny", scope="", always=self.always)
        self._above([self._in(BOLD, f"{self._agent}: {first}"), *(visible(line) for line in rest)])

    def decided(self, approval: str, state: str, by: str) -> None:
        self.aside([f"({short(approval)} {state} by {by})"])

    def answered(self, text: str, to: str, *, ours: bool) -> None:
        self._final(self._region.dim, visible(text))

    def mail(self, sender: str, text: str) -> None:
        self._above([self._in(BOLD, visible(f"{short(sender)}:")), visible(text)])
        self._header_due = True

    def notice(self, text: str) -> None:
        self._above([self._in(DIM, line) for line in visible(text).split("\n")])

    def ended(self, ending: Ending) -> None:
        """Keep and mark the unfinished text of a failed run. Erase text that is not part of an answer."""
        mark = ""
        if ending.answered:
            self._paint("", "")
            mark = "" if ending.answer else f"({self._agent} chose to say nothing)"
        elif ending.outcome != "noted" and not self._region.empty:
            mark = "(cut off)"
        self._leave(mark)
        self._header_due = True

    def was_reset(self, because: str) -> None:
        self.aside([fresh_context(because)])

    def close(self) -> None:
        self._footer = ""
        self._leave()

    def _final(self, dim: str, plain: str) -> None:
        """Replace the live text with the final one and keep it."""
        if dim or plain:
            self._header()
        self._paint(dim, plain)
        self._leave()

    def _leave(self, mark: str = "") -> None:
        """Keep the live text, add a mark below it, then write the deferred lines."""
        columns, rows = self._size()
        self._write(self._region.leave(columns=columns, rows=rows))
        later, self._later = self._later, []
        self._above([*([self._in(DIM, mark)] if mark else []), *later])

    def _before(self, lines: Sequence[str]) -> None:
        """Write lines above the live text: they happened before it, but their event arrived later."""
        columns, rows = self._size()
        if not self._region.fits(columns=columns, rows=rows):
            self.aside(lines)
            return
        dim, plain = self._region.dim, self._region.plain
        self._write(self._region.paint("", "", "", columns=columns, rows=rows))
        self.aside([self._cut(line) for line in lines])
        self._paint(dim, plain)

    def _above(self, lines: Sequence[str]) -> None:
        """Write lines above the footer. During an answer they are deferred to its end."""
        if not self._region.empty:
            self._later += lines
            return
        footer, self._footer = self._footer, ""
        self._paint("", "")
        self._write("".join(f"{line}\n" for line in lines))
        self._footer = footer
        self._paint("", "")

    def _header(self) -> None:
        if self._header_due and self._region.empty:
            self._header_due = False
            if self._headed:
                self._above([self._in(BOLD, f"{self._agent}:")])

    def _paint(self, dim: str, plain: str, *, growing: bool = False) -> None:
        columns, rows = self._size()
        if growing:
            self._write(self._region.grow(dim, plain, columns=columns, rows=rows))
        else:
            self._write(self._region.paint(dim, plain, self._footer, columns=columns, rows=rows))

    def _cut(self, line: str) -> str:
        columns, _ = self._size()
        return line if len(line) < columns else line[: max(columns - 2, 1)] + "…"

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{PLAIN}" if self._colours and text else text

    def _size(self) -> tuple[int, int]:
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
    """Shows one question asked from a terminal: the answer streams to stdout, all else goes to stderr."""

    explains = False

    def __init__(self, out: TextIO, err: TextIO, *, agent: str) -> None:
        super().__init__(out, agent=agent, headed=False)
        self._err = err

    def live(self, thinking: str, text: str, *, ours: bool) -> None:
        if ours:
            super().live(thinking, text, ours=ours)

    def said(self, thinking: str, text: str, *, ours: bool) -> None:
        self._final("", "")  # not the answer: erase it, and show it on stderr instead
        if text:
            self.aside([text])

    def answered(self, text: str, to: str, *, ours: bool) -> None:
        if ours:
            self._final("", visible(text))

    def asked(self, question: dict[str, Any]) -> None:
        lines = question_lines(question, **FROM_A_SHELL, always=self.always)
        self._above([visible(line) for line in lines], always=True)

    def _above(self, lines: Sequence[str], *, always: bool = False) -> None:
        if not self._region.empty:
            self._later += lines
        elif lines and (always or self._err.isatty()):
            footer, self._footer = self._footer, ""
            self._paint("", "")
            self._err.write("".join(f"{line}\n" for line in lines))
            self._err.flush()
            self._footer = footer
            self._paint("", "")


def _put(stream: TextIO, text: str) -> None:
    """Write a line. On a terminal, control characters are escaped."""
    sys.stdout.flush()
    stream.write((visible(text) if stream.isatty() else text) + "\n")
    stream.flush()
