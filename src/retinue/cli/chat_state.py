"""Builds the state of one session from events and deltas. It does no I/O: it gets events and calls methods of a view.

Events are authoritative: each arrives once and in order. A delta is a piece of streamed text. It arrives before the
event with the whole text, and may be lost, repeated or replaced. Deltas are used only for text that is still streaming.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class ChatView(Protocol):
        """Shows a conversation, on a terminal or in a pipe."""

        def show_turn_text(self, thinking: str, text: str, *, is_ours: bool) -> None:
            """Show the text of a turn that makes tool calls.

            `is_ours` is true if the turn's run is working on a message that this process sent.
            """
            ...

        def show_call(self, tool: str, arguments: dict[str, Any]) -> None: ...

        def show_result(self, tool: str, output: str, *, failed: bool) -> None: ...

        def show_approval(self, event: dict[str, Any]) -> None:
            """Show an approval that is waiting for an answer. `event` is the event that announces the approval."""
            ...

        def show_decision(self, approval: str, state: str, by: str) -> None: ...

        def show_answer(self, text: str, recipient: str, *, is_ours: bool) -> None:
            """Show an answer verbatim."""
            ...

        def show_incoming(self, sender: str, text: str) -> None:
            """Show a message that another sender wrote to this session."""
            ...

        def show_server_text(self, text: str) -> None:
            """Show text that the server itself wrote."""
            ...

        def show_end(self, end: EnvelopeEnd) -> None: ...

        def show_reset(self, because: str) -> None: ...


ENDED_RUNS_KEPT_MAX = 16


class EnvelopeEnd:
    """The outcome of an envelope, with the reason and the answer, if there is one."""

    def __init__(self, outcome: str, *, because: str = "", answer_id: str | None = None, answer_text: str = "") -> None:
        self.outcome = outcome
        self.because = because
        self.answer_id = answer_id
        self.answer_text = answer_text

    @property
    def is_answered(self) -> bool:
        return self.outcome == "answered"


class StreamedReply:
    """The text streamed so far in one attempt at a model reply."""

    def __init__(self, turn: int, attempt: int) -> None:
        self.turn = turn
        self.attempt = attempt
        self.text = ""
        self.thinking = ""

    def add_delta(self, kind: str, offset: int, text: str) -> None:
        """Append a delta. Ignore it if it is a repetition or follows a gap: the next snapshot contains its text."""
        current = self.thinking if kind == "thinking" else self.text
        if offset > len(current) or offset + len(text) <= len(current):
            return
        current = current[:offset] + text
        if kind == "thinking":
            self.thinking = current
        else:
            self.text = current


class ChatState:
    """The state of one session after all events up to `cursor`."""

    def __init__(self, view: ChatView, *, cursor: int) -> None:
        self.cursor = cursor
        self.has_lost_events = False  # the server no longer knew our cursor: outcomes must be requested
        self.is_suspended = False
        self.awaited_envelopes: list[str] = []  # sent here, without an outcome yet
        self.unreported_ends: dict[str, EnvelopeEnd] = {}  # of envelopes sent here, until they are reported
        self.open_approvals: dict[str, str] = {}  # open approvals: id to run
        self.pending_switch: dict[str, Any] | None = None  # a person switched to another agent: the event
        self.is_our_run = False  # the current run is working on an envelope sent here
        self._view = view
        self._sent_envelopes: set[str] = set()
        self._shown_answers: set[str] = set()
        self._current_run: str = ""
        self._last_stored_turn: int | None = None  # last turn of this run whose reply is stored, if known
        self._ended_runs: list[str] = []
        self._streamed_replies: dict[str, StreamedReply] = {}
        self._last_answer = ("", "", "")  # id, text and recipient; its event precedes the end of the run

    def add_sent_envelope(self, envelope: str) -> None:
        """Add an envelope that this process sent. Its text is not shown again, and its outcome is awaited."""
        self._sent_envelopes.add(envelope)
        self.awaited_envelopes.append(envelope)

    def record_end(self, envelope: str, end: EnvelopeEnd) -> None:
        if envelope in self.awaited_envelopes:
            self.awaited_envelopes.remove(envelope)
            self.unreported_ends[envelope] = end

    def show_requested_end(self, envelope: str, end: EnvelopeEnd, recipient: str) -> None:
        """Show an outcome that was requested from the server, because the event with the outcome may have been lost.

        If the event arrives later, the outcome is not shown again.
        """
        if end.answer_id:
            self._shown_answers.add(end.answer_id)
            self._view.show_answer(end.answer_text, recipient, is_ours=True)
            self._view.show_end(end)
        self.record_end(envelope, end)

    @property
    def streamed_reply(self) -> StreamedReply | None:
        """The reply that is being streamed, or None. A reply is shown only after the previous reply has been stored."""
        partial = self._streamed_replies.get(self._current_run)
        if partial is None or (self._last_stored_turn is not None and partial.turn != self._last_stored_turn + 1):
            return None
        return partial

    def apply(self, name: str, data: dict[str, Any]) -> None:
        match name:
            case "event":
                if data["seq"] > self.cursor:
                    self.cursor = data["seq"]
                    self._apply_event(data["event"], data)
            case "delta":
                if partial := self._find_streamed_reply(data):
                    partial.add_delta(data["kind"], data["offset"], data["text"])
            case "hello" | "partials":
                for form in data["partials"]:
                    if partial := self._find_streamed_reply(form):
                        partial.add_delta("thinking", 0, form["thinking"])
                        partial.add_delta("text", 0, form["text"])
            case "reset":
                self.cursor = data["cursor"]
                self.has_lost_events = True
            case _:
                pass  # a newer server may send events unknown to this version

    def _find_streamed_reply(self, data: dict[str, Any]) -> StreamedReply | None:
        """Return the reply to which a delta belongs, or None if that reply was already stored or replaced."""
        run, turn, attempt = data["run"], data["turn"], data["attempt"]
        if run in self._ended_runs or (
            run == self._current_run and self._last_stored_turn is not None and turn <= self._last_stored_turn
        ):
            return None
        if not self._current_run:  # we connected during this run
            self._current_run, self._last_stored_turn, self.is_our_run = run, turn - 1, False
        partial = self._streamed_replies.get(run)
        if partial is None or (turn, attempt) > (partial.turn, partial.attempt):
            partial = self._streamed_replies[run] = StreamedReply(turn, attempt)
        return partial if (turn, attempt) == (partial.turn, partial.attempt) else None

    def _apply_event(self, kind: str, data: dict[str, Any]) -> None:
        match kind:
            case "envelope.accepted":
                self._apply_envelope(data)
            case "envelope.settled":
                self._record_ends([data["envelope"]], EnvelopeEnd(data["outcome"], because=data["because"]))
            case "run.started":
                self._start_run(data["run"])
                self._last_stored_turn = -1
                self._join_envelopes(data["envelopes"])
            case "run.resumed":
                self._start_run(data["run"])
            case "run.joined":
                self._join_envelopes(data["envelopes"])
            case "run.suspended":
                self.is_suspended = True
            case "run.ended":
                self._end_run(data)
            case "step.opened":
                self._view.show_call(data["tool"], data["arguments"])
            case "step.closed":
                self._apply_step(data)
            case "approval.created":
                self.open_approvals[data["approval"]] = data["run"]
                self._view.show_approval(data)
            case "approval.decided":
                self.open_approvals.pop(data["approval"], None)
                self._view.show_decision(data["approval"], data["state"], data["by"])
            case "session.reset":
                self._view.show_reset(data.get("because", ""))
            case "session.switched":
                self.pending_switch = data
            case _:
                pass

    def _apply_envelope(self, data: dict[str, Any]) -> None:
        kind, comes_in = data.get("kind"), str(data.get("to")).endswith(f"/{data['session']}")
        if data["envelope"] in self._sent_envelopes:
            self._sent_envelopes.remove(data["envelope"])
        elif kind in ("approval", "decision"):
            pass  # shown with their approval
        elif comes_in and kind:
            self._view.show_incoming(data["from"], strip_context_line(data["text"]))
        elif kind == "answer":
            self._last_answer = (data["envelope"], data["text"], data["to"])
        elif kind:
            self._view.show_server_text(data["text"])

    def _start_run(self, run: str) -> None:
        self.is_suspended = False
        if run != self._current_run:
            self._current_run, self._last_stored_turn, self.is_our_run = run, None, False
            first = self._streamed_replies.get(run)
            self._streamed_replies = {run: first} if first else {}

    def _join_envelopes(self, envelopes: Sequence[str]) -> None:
        self.is_our_run = self.is_our_run or any(envelope in self.awaited_envelopes for envelope in envelopes)

    def _apply_step(self, data: dict[str, Any]) -> None:
        record: dict[str, Any] = data.get("record") or {"kind": "", "body": {}}
        body: dict[str, Any] = record["body"]
        match record["kind"]:
            case "assistant":
                self._start_run(data["run"])
                self._last_stored_turn = data["turn"]
                self._view.show_turn_text(body.get("thinking", ""), body["text"], is_ours=self.is_our_run)
            case "tool":
                self._view.show_result(body["tool"], body["output"], failed=body["failed"])
            case "note":
                self._view.show_result("", body["text"], failed=False)
            case _:
                pass

    def _end_run(self, data: dict[str, Any]) -> None:
        run: str = data["run"]
        self._ended_runs = [*self._ended_runs[1 - ENDED_RUNS_KEPT_MAX :], run]
        self._streamed_replies.pop(run, None)
        if data["status"] != "completed":  # a run that completed without a decision leaves its approval open
            self.open_approvals = {id_: of for id_, of in self.open_approvals.items() if of != run}
        self.is_suspended = False
        self._current_run = ""
        ours = any(envelope in self.awaited_envelopes for envelope in data["envelopes"])
        ending = EnvelopeEnd(data["outcome"], because=data.get("because", ""), answer_id=data.get("answer"))
        answer, text, to = self._last_answer
        if ending.answer_id and ending.answer_id == answer:
            ending.answer_text = text
            if answer not in self._shown_answers:
                self._view.show_answer(text, to, is_ours=ours)
        self._record_ends(data["envelopes"], ending)
        self._view.show_end(ending)

    def _record_ends(self, envelopes: Sequence[str], end: EnvelopeEnd) -> None:
        for envelope in envelopes:
            self.record_end(envelope, end)


def strip_context_line(text: str) -> str:
    """Return a message without the context line that the web app puts before it."""
    if not text.startswith("<context"):
        return text
    import re  # imported here because only messages from the web app need it

    return re.sub(r'\A<context(?: [a-z][a-z0-9-]*="[^"<>\n]*")* />(?:\n|\Z)', "", text, count=1)
