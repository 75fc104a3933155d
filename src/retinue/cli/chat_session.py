"""Runs `retinue chat`: sends messages and follows each message to its outcome, across server restarts.

Every message has a random idempotency key, so a message that is sent again is accepted only once. Events are read from
a cursor, so each answer is shown once.
"""

from __future__ import annotations

import json
import os
import sys
import time

from retinue.cli.chat_state import ChatState, EnvelopeEnd
from retinue.cli.chat_views import OnceView, PlainView, TerminalView
from retinue.cli.client import call, send_until_accepted
from retinue.cli.errors import CliError, ServerNotAnswering
from retinue.cli.event_follower import EventFollower
from retinue.cli.interrupts import InterruptHandler
from retinue.cli.output import print_error, shorten_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

TICK_S = 1.0
DRAIN_EVENTS_S_MAX = 5.0
SERVER_DOWN_TEXT = "the server is not answering, waiting..."
SERVER_UP_TEXT = "the server is answering again"
STOP_REASON = "stopped from the terminal"
SESSIONS_SEARCHED_MAX = 50
OWNER_ADDRESS = "person:owner"


class ChatSession:
    """Sends messages to one agent, waits for their outcomes and shows events in a view."""

    def __init__(self, options: Namespace, status: dict[str, Any]) -> None:
        self.agent: str = options.agent
        self.has_failed = False  # a message was not answered, or a command failed
        self.on_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not options.json
        self.is_interactive = self.on_terminal and sys.stdin.isatty() and options.once is None
        self.view = _build_view(options, on_terminal=self.on_terminal)
        self.view.can_grant_always = status["principal"] == OWNER_ADDRESS
        self.state = ChatState(self.view, cursor=status["cursor"])
        self.interrupts = InterruptHandler()
        self._conversation_name: str = options.session
        self._switched_session = ""  # the session after a switch to another agent
        self._sent_cursor = 0  # cursor of the last event that our last message caused
        self._principal: str = status["principal"]
        self._prints_json: bool = options.json
        self._wait_s: float = options.wait
        self._follower = EventFollower(self.state, self._on_server_change)
        self._is_server_up = True
        self._footer_text = ""

    @property
    def session(self) -> str:
        return self._follower.session

    def close(self) -> None:
        self._follower.close()
        self.interrupts.close()
        self.view.close()

    def find_session(self) -> None:
        """Follow the session that belongs to this terminal conversation, if it is among the recent sessions."""
        origin = (
            f"terminal:{self._principal}/{self._conversation_name.casefold()}"
            if self._conversation_name
            else f"terminal:{self._principal}"
        )
        found = call("session.list", {"limit": SESSIONS_SEARCHED_MAX})["sessions"]
        ours = (s["sessionId"] for s in found if (s["agentId"], s["origin"]) == (self.agent, origin))
        self._follower.session = next(ours, "")

    def send(self, text: str) -> str:
        """Send text, retry until it is accepted, and return the id of its envelope. Ctrl-C stops the retries."""
        self.interrupts.set_deferring(False)
        self.set_footer("")
        where = (
            {"session": self._switched_session} if self._switched_session else {"conversation": self._conversation_name}
        )
        envelope = {"to": f"agent:{self.agent}", "text": text, "key": os.urandom(16).hex(), **where}
        sent = send_until_accepted(envelope, wait_s=self._wait_s, on_waiting=lambda: self._on_server_change(False))
        self._on_server_change(True)
        self.state.add_sent_envelope(sent["envelope"])
        self.state.is_suspended = False  # a suspended run resumes without a decision when a new message arrives
        if sent["outcome"] == "answered":  # by the server itself, in the accepting commit: no run follows
            self._look_up_end(sent["envelope"])
        elif sent["outcome"] and not sent["duplicate"]:  # the outcome of a duplicate arrives as an event
            self.state.record_end(sent["envelope"], EnvelopeEnd(sent["outcome"], because=sent["because"]))
        self._follower.session = sent["session"]
        self._sent_cursor = sent["cursor"]
        return sent["envelope"]

    def drain_events(self) -> None:
        """Read the events that the last message has caused, such as a switch to another agent."""
        patience = time.monotonic() + DRAIN_EVENTS_S_MAX
        while self.state.cursor < self._sent_cursor and time.monotonic() < patience:
            self._receive_events([])

    def wait_for(self, envelope: str, *, through_approvals: bool = False) -> None:
        """Show events until this envelope has an outcome, or its run is suspended to wait for a person."""
        self.interrupts.set_deferring(True)
        self.set_footer(f"{self.agent} is working; Ctrl-C stops it")
        while envelope in self.state.awaited_envelopes:
            if self.state.is_suspended and not through_approvals:
                break
            if self._follower.down_s > self._wait_s:
                raise self._wait_expired_error(envelope)
            self._receive_events([self.interrupts.fd])
            if self._is_server_up and (partial := self.state.streamed_reply):
                self.view.show_partial(partial.thinking, partial.text, is_ours=self.state.is_our_run)
            if self.interrupts.was_interrupted():
                self._stop_on_interrupt()
        self.clear_footer()
        self._report_ends()

    def wait_for_input(self, fd: int, footer_text: str = "") -> None:
        """Show events until the file descriptor `fd` is readable."""
        self.interrupts.set_deferring(False)
        self.set_footer(footer_text)
        while fd not in self._receive_events([fd]):
            self._report_ends()
        self.clear_footer()
        self._report_ends()

    def _receive_events(self, extra_fds: list[int]) -> list[int]:
        ready = self._follower.step(TICK_S, extra_fds)
        if self.state.has_lost_events:
            self._recover_lost_ends()
        if self.state.pending_switch is not None:
            self._follow_switch(self.state.pending_switch)
        return ready

    def _follow_switch(self, event: dict[str, Any]) -> None:
        """Continue the chat with the new agent if this chat's principal has switched to another agent.

        A switch by another principal is ignored.
        """
        self.state.pending_switch = None
        if event["by"] == self._principal:
            self.agent, self._switched_session = event["agent"], event["to"]
            self.view.set_agent(self.agent)
            self._follower.switch_session(self._switched_session)

    def set_footer(self, text: str) -> None:
        """Set the bottom line of the terminal. If the server is down, also show a notice above that line."""
        self._footer_text = text
        self.view.set_footer(text if self._is_server_up else "\n".join(filter(None, (SERVER_DOWN_TEXT, text))))

    def clear_footer(self) -> None:
        """Clear the bottom line of the terminal, so that other code can write there."""
        self._footer_text = ""
        self.view.set_footer("")

    def print_error(self, error: CliError) -> None:
        self.has_failed = True
        self.view.close()
        print_error(error)

    def stop_session(self, reason: str = STOP_REASON) -> dict[str, Any]:
        return call("session.stop", {"session": self.session, "reason": reason})

    def _stop_on_interrupt(self) -> None:
        """Stop the session's run, because the user pressed Ctrl-C. The outcome arrives as an event."""
        self.set_footer(f"stopping {self.agent}; press Ctrl-C again to leave")
        try:
            self.stop_session()
        except CliError as error:
            self.set_footer(f"{error.sentence}; press Ctrl-C again to leave")

    def _on_server_change(self, is_up: bool) -> None:
        if is_up == self._is_server_up:
            return
        self._is_server_up = is_up
        self.view.show_server_state(SERVER_UP_TEXT if is_up else SERVER_DOWN_TEXT)
        self.set_footer(self._footer_text)

    def _wait_expired_error(self, envelope: str) -> ServerNotAnswering:
        id_ = shorten_id(envelope)
        because = (
            f"no answer for {self._wait_s:g} s; envelope {id_} is stored, "
            "and will be processed when the server is running again"
        )
        error = ServerNotAnswering(because, may_have_arrived=True)
        error.try_this = f"retinue up, then: retinue show {id_}"
        return error

    def _recover_lost_ends(self) -> None:
        """Request the outcomes of awaited envelopes, because the server has deleted the events after our cursor."""
        try:
            for envelope in list(self.state.awaited_envelopes):
                self._look_up_end(envelope)
        except ServerNotAnswering:
            return  # retried when the server answers again
        self.state.has_lost_events = False

    def _look_up_end(self, envelope: str) -> None:
        shown = call("envelope.show", {"id": envelope})
        if "outcome" not in shown:
            return
        ending = EnvelopeEnd(shown["outcome"], because=shown["because"], answer_id=shown["answer"])
        answer = call("envelope.show", {"id": ending.answer_id}) if ending.answer_id else {"text": "", "to": ""}
        ending.answer_text = answer["text"]
        self.state.show_requested_end(envelope, ending, answer["to"])

    def _report_ends(self) -> None:
        """Report each new outcome: as JSON with `--json`, and as an error or a note if the message was not answered."""
        for envelope in list(self.state.unreported_ends):
            ending = self.state.unreported_ends.pop(envelope)
            if self._prints_json:
                self._print_json(envelope, ending)
            if not ending.is_answered:
                self.has_failed = True
                self._report_unanswered(envelope, ending)

    def _report_unanswered(self, envelope: str, end: EnvelopeEnd) -> None:
        if self.view.accepts_commands:
            self.view.show_note([f"({end.outcome}; for details: /why {shorten_id(envelope)})"])
            return
        self.view.close()
        print_error(
            CliError(
                f"no answer: the outcome of the envelope is '{end.outcome}'",
                code=f"envelope.{end.outcome}",
                because=end.because,
                try_this=f"retinue why {shorten_id(envelope)}",
            )
        )

    def _print_json(self, envelope: str, end: EnvelopeEnd) -> None:
        form = {
            "envelope": envelope,
            "session": self.session,
            "outcome": end.outcome,
            "because": end.because,
            "answer": end.answer_id,
            "text": end.answer_text,
        }
        sys.stdout.write(json.dumps(form, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def show(self, lines: Sequence[str]) -> None:
        self.view.show(lines)


def _build_view(options: Namespace, *, on_terminal: bool) -> PlainView | TerminalView:
    once = options.once is not None
    if not on_terminal:
        return PlainView(sys.stdout, sys.stderr, show_steps=not once, show_answers=not options.json)
    if once:
        return OnceView(sys.stdout, sys.stderr, agent=options.agent)
    return TerminalView(sys.stdout, agent=options.agent)
