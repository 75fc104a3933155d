"""One run of `retinue chat`: sends messages and follows each to its outcome, across server restarts.

Every message has a random idempotency key, and events are read by cursor. So a message is accepted
once and every answer is shown once.
"""

from __future__ import annotations

import json
import os
import sys
import time

from retinue.cli.chat_state import Conversation, Ending
from retinue.cli.chat_views import OnceView, PlainView, TerminalView
from retinue.cli.client import call, post
from retinue.cli.errors import CliError, HouseClosed
from retinue.cli.event_follower import Follower
from retinue.cli.interrupts import Interrupts
from retinue.cli.output import complain, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

TICK_S = 1.0
HEARD_WITHIN_S = 5.0
CLOSED_WORDS = "the house is closed, waiting..."
OPEN_WORDS = "the house is open again"
STOP_WORDS = "stopped from the terminal"
SESSIONS_SEARCHED = 50
OWNER = "person:owner"


class Talk:
    """Sends messages to one agent, waits for their outcomes and shows events in a view."""

    def __init__(self, options: Namespace, status: dict[str, Any]) -> None:
        self.agent: str = options.agent
        self.failed = False  # a message was not answered, or a command failed
        self.on_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not options.json
        self.at_keyboard = self.on_terminal and sys.stdin.isatty() and options.once is None
        self.view = _view(options, on_terminal=self.on_terminal)
        self.view.always = status["you"] == OWNER
        self.conversation = Conversation(self.view, cursor=status["cursor"])
        self.interrupts = Interrupts()
        self._name: str = options.session
        self._there = ""  # the session after a switch to another agent
        self._told_until = 0  # cursor of the last event that our last message caused
        self._me: str = status["you"]
        self._json: bool = options.json
        self._wait_s: float = options.wait
        self._follower = Follower(self.conversation, self._house_changed)
        self._open = True
        self._footer = ""

    @property
    def session(self) -> str:
        return self._follower.session

    def close(self) -> None:
        self._follower.close()
        self.interrupts.close()
        self.view.close()

    def find_session(self) -> None:
        """Follow the session that this conversation used before, if it is among the recent ones."""
        origin = f"terminal:{self._me}/{self._name.casefold()}" if self._name else f"terminal:{self._me}"
        found = call("session.list", {"limit": SESSIONS_SEARCHED})["sessions"]
        ours = (s["sessionId"] for s in found if (s["agentId"], s["origin"]) == (self.agent, origin))
        self._follower.session = next(ours, "")

    def send(self, text: str) -> str:
        """Send a text, repeating it until it is accepted, and return the envelope id. Ctrl-C gives up."""
        self.interrupts.be_patient(False)
        self.footer("")
        where = {"session": self._there} if self._there else {"conversation": self._name}
        envelope = {"to": f"agent:{self.agent}", "text": text, "key": os.urandom(16).hex(), **where}
        sent = post(envelope, wait_s=self._wait_s, waiting=lambda: self._house_changed(False))
        self._house_changed(True)
        self.conversation.own(sent["envelope"])
        self.conversation.parked = False  # a suspended run resumes without a decision when a new message arrives
        if sent["outcome"] == "answered":  # by the server itself, in the accepting commit: no run follows
            self._look_up(sent["envelope"])
        elif sent["outcome"] and not sent["duplicate"]:  # the outcome of a duplicate arrives as an event
            self.conversation.ended(sent["envelope"], Ending(sent["outcome"], because=sent["because"]))
        self._follower.session = sent["session"]
        self._told_until = sent["cursor"]
        return sent["envelope"]

    def hear_all(self) -> None:
        """Read the events that our last message caused, such as a switch to another agent."""
        patience = time.monotonic() + HEARD_WITHIN_S
        while self.conversation.cursor < self._told_until and time.monotonic() < patience:
            self._hear([])

    def wait_for(self, envelope: str, *, through_questions: bool = False) -> None:
        """Show events until this envelope has an outcome, or its run is suspended to wait for a person."""
        self.interrupts.be_patient(True)
        self.footer(f"{self.agent} is at work; Ctrl-C stops it")
        while envelope in self.conversation.awaited:
            if self.conversation.parked and not through_questions:
                break
            if self._follower.closed_s > self._wait_s:
                raise self._gave_up(envelope)
            self._hear([self.interrupts.fd])
            if self._open and (partial := self.conversation.partial):
                self.view.live(partial.thinking, partial.text, ours=self.conversation.ours)
            if self.interrupts.noted():
                self._stop()
        self.clear()
        self._report()

    def wait_for_input(self, fd: int, footer: str = "") -> None:
        """Show events until `fd` is readable."""
        self.interrupts.be_patient(False)
        self.footer(footer)
        while fd not in self._hear([fd]):
            self._report()
        self.clear()
        self._report()

    def _hear(self, also: list[int]) -> list[int]:
        ready = self._follower.step(TICK_S, also)
        if self.conversation.lost:
            self._catch_up()
        if self.conversation.switched is not None:
            self._go_on_elsewhere(self.conversation.switched)
        return ready

    def _go_on_elsewhere(self, switched: dict[str, Any]) -> None:
        """Continue with the other agent if this principal switched. Ignore a switch by another principal."""
        self.conversation.switched = None
        if switched["by"] == self._me:
            self.agent, self._there = switched["agent"], switched["to"]
            self.view.talks_to(self.agent)
            self._follower.go(self._there)

    def footer(self, words: str) -> None:
        """Set the bottom line, and above it a notice if the server is down."""
        self._footer = words
        self.view.footer(words if self._open else "\n".join(filter(None, (CLOSED_WORDS, words))))

    def clear(self) -> None:
        """Remove the footer, so that other code can write at the bottom of the terminal."""
        self._footer = ""
        self.view.footer("")

    def complain(self, error: CliError) -> None:
        self.failed = True
        self.view.close()
        complain(error)

    def stop(self, why: str = STOP_WORDS) -> dict[str, Any]:
        return call("session.stop", {"session": self.session, "why": why})

    def _stop(self) -> None:
        """Stop the session after the first Ctrl-C. The result arrives as an event."""
        self.footer(f"stopping {self.agent}; Ctrl-C once more leaves")
        try:
            self.stop()
        except CliError as error:
            self.footer(f"{error.sentence}; Ctrl-C once more leaves")

    def _house_changed(self, is_open: bool) -> None:
        if is_open == self._open:
            return
        self._open = is_open
        self.view.waiting(OPEN_WORDS if is_open else CLOSED_WORDS)
        self.footer(self._footer)

    def _gave_up(self, envelope: str) -> HouseClosed:
        closed = HouseClosed(f"nobody has answered for {self._wait_s:g} s")
        closed.sentence = f"the house is closed; envelope {short(envelope)} is kept, and worked on when it opens"
        closed.try_this = f"retinue up, then: retinue show {short(envelope)}"
        return closed

    def _catch_up(self) -> None:
        """Request the outcomes of awaited envelopes, because the server no longer has the events after our cursor."""
        try:
            for envelope in list(self.conversation.awaited):
                self._look_up(envelope)
        except HouseClosed:
            return  # retried when the server answers again
        self.conversation.lost = False

    def _look_up(self, envelope: str) -> None:
        shown = call("envelope.show", {"id": envelope})
        if "outcome" not in shown:
            return
        ending = Ending(shown["outcome"], because=shown["because"], answer=shown["answer"])
        answer = call("envelope.show", {"id": ending.answer}) if ending.answer else {"text": "", "to": ""}
        ending.text = answer["text"]
        self.conversation.was_told(envelope, ending, answer["to"])

    def _report(self) -> None:
        """Report each new outcome: as JSON if requested, and as text if there is no answer to show."""
        for envelope in list(self.conversation.endings):
            ending = self.conversation.endings.pop(envelope)
            if self._json:
                self._print_json(envelope, ending)
            if not ending.answered:
                self.failed = True
                self._say_unanswered(envelope, ending)

    def _say_unanswered(self, envelope: str, ending: Ending) -> None:
        if self.view.explains:
            self.view.aside([f"({ending.outcome}; /why {short(envelope)} tells more)"])
            return
        self.view.close()
        complain(
            CliError(
                f"no answer: the envelope is {ending.outcome}",
                code=f"envelope.{ending.outcome}",
                because=ending.because,
                try_this=f"retinue why {short(envelope)}",
            )
        )

    def _print_json(self, envelope: str, ending: Ending) -> None:
        form = {
            "envelope": envelope,
            "session": self.session,
            "outcome": ending.outcome,
            "because": ending.because,
            "answer": ending.answer,
            "text": ending.text,
        }
        sys.stdout.write(json.dumps(form, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def show(self, lines: Sequence[str]) -> None:
        self.view.show(lines)


def _view(options: Namespace, *, on_terminal: bool) -> PlainView | TerminalView:
    once = options.once is not None
    if not on_terminal:
        return PlainView(sys.stdout, sys.stderr, steps=not once, answers=not options.json)
    if once:
        return OnceView(sys.stdout, sys.stderr, agent=options.agent)
    return TerminalView(sys.stdout, agent=options.agent)
