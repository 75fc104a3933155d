"""State of one session, built from events and deltas. Pure: events in, calls on a view out.

Events are authoritative: each arrives once and in order. Deltas arrive earlier and may be lost,
repeated or replaced by a later attempt. So they only form the unfinished text at the end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class View(Protocol):
        """Shows a conversation."""

        def said(self, thinking: str, text: str, *, ours: bool) -> None:
            """Show the text of a turn that makes calls. `is_ours`: its run works on a message of ours."""
            ...

        def called(self, tool: str, arguments: dict[str, Any]) -> None: ...

        def returned(self, tool: str, output: str, *, failed: bool) -> None: ...

        def asked(self, question: dict[str, Any]) -> None:
            """Show an approval. `event` is the event that announces it."""
            ...

        def decided(self, approval: str, state: str, by: str) -> None: ...

        def answered(self, text: str, to: str, *, ours: bool) -> None:
            """Show an answer verbatim."""
            ...

        def mail(self, sender: str, text: str) -> None:
            """Show a message that another sender wrote to this session."""
            ...

        def notice(self, text: str) -> None:
            """Show a plain text from the server."""
            ...

        def ended(self, ending: Ending) -> None: ...

        def was_reset(self, because: str) -> None: ...


ENDED_KEPT_MAX = 16


class Ending:
    """Outcome of an envelope or of its run, with the answer if there is one."""

    def __init__(self, outcome: str, *, because: str = "", answer: str | None = None, text: str = "") -> None:
        self.outcome = outcome
        self.because = because
        self.answer = answer
        self.text = text

    @property
    def answered(self) -> bool:
        return self.outcome == "answered"


class Partial:
    """The text of one attempt at a model reply, as far as it was streamed."""

    def __init__(self, turn: int, attempt: int) -> None:
        self.turn = turn
        self.attempt = attempt
        self.text = ""
        self.thinking = ""

    def add(self, kind: str, offset: int, text: str) -> None:
        """Append a delta. Ignore a repeated one, and one after a gap: the next snapshot contains its text."""
        said = self.thinking if kind == "thinking" else self.text
        if offset > len(said) or offset + len(text) <= len(said):
            return
        said = said[:offset] + text
        if kind == "thinking":
            self.thinking = said
        else:
            self.text = said


class Conversation:
    """State of one session as far as this process has read its events, up to `cursor`."""

    def __init__(self, view: View, *, cursor: int) -> None:
        self.cursor = cursor
        self.lost = False  # the server no longer knew our cursor: outcomes must be requested
        self.parked = False
        self.awaited: list[str] = []  # sent here, without an outcome yet
        self.endings: dict[str, Ending] = {}  # of envelopes sent here, until they are reported
        self.approvals: dict[str, str] = {}  # open approvals: id to run
        self.switched: dict[str, Any] | None = None  # a person switched to another agent: the event
        self.ours = False  # the current run works on an envelope sent here
        self._view = view
        self._own: set[str] = set()
        self._told: set[str] = set()
        self._run: str = ""
        self._closed: int | None = None  # last turn of this run whose reply is stored, if known
        self._ended: list[str] = []
        self._partials: dict[str, Partial] = {}
        self._answer = ("", "", "")  # id, text and recipient; its event precedes the end of the run

    def own(self, envelope: str) -> None:
        """Add an envelope sent here. Its text is not shown again, and its outcome is awaited."""
        self._own.add(envelope)
        self.awaited.append(envelope)

    def ended(self, envelope: str, ending: Ending) -> None:
        if envelope in self.awaited:
            self.awaited.remove(envelope)
            self.endings[envelope] = ending

    def was_told(self, envelope: str, ending: Ending, to: str) -> None:
        """Show an outcome that was requested because its event was lost. A late event does not show it again."""
        if ending.answer:
            self._told.add(ending.answer)
            self._view.answered(ending.text, to, ours=True)
            self._view.ended(ending)
        self.ended(envelope, ending)

    @property
    def partial(self) -> Partial | None:
        """The reply being streamed. A turn becomes visible once the reply before it is stored."""
        partial = self._partials.get(self._run)
        if partial is None or (self._closed is not None and partial.turn != self._closed + 1):
            return None
        return partial

    def take(self, event: str, data: dict[str, Any]) -> None:
        match event:
            case "news":
                if data["seq"] > self.cursor:
                    self.cursor = data["seq"]
                    self._news(data["news"], data)
            case "delta":
                if partial := self._partial_of(data):
                    partial.add(data["kind"], data["offset"], data["text"])
            case "hello" | "partials":
                for form in data["partials"]:
                    if partial := self._partial_of(form):
                        partial.add("thinking", 0, form["thinking"])
                        partial.add("text", 0, form["text"])
            case "reset":
                self.cursor = data["cursor"]
                self.lost = True
            case _:
                pass  # a newer server may send events unknown to this version

    def _partial_of(self, data: dict[str, Any]) -> Partial | None:
        """Return the reply that a delta belongs to, or None if that reply is already stored or replaced."""
        run, turn, attempt = data["run"], data["turn"], data["attempt"]
        if run in self._ended or (run == self._run and self._closed is not None and turn <= self._closed):
            return None
        if not self._run:  # we connected during this run
            self._run, self._closed, self.ours = run, turn - 1, False
        partial = self._partials.get(run)
        if partial is None or (turn, attempt) > (partial.turn, partial.attempt):
            partial = self._partials[run] = Partial(turn, attempt)
        return partial if (turn, attempt) == (partial.turn, partial.attempt) else None

    def _news(self, kind: str, data: dict[str, Any]) -> None:
        match kind:
            case "envelope.accepted":
                self._mail(data)
            case "envelope.settled":
                self._settled([data["envelope"]], Ending(data["outcome"], because=data["because"]))
            case "run.started":
                self._begin(data["run"])
                self._closed = -1
                self._join(data["envelopes"])
            case "run.resumed":
                self._begin(data["run"])
            case "run.joined":
                self._join(data["envelopes"])
            case "run.parked":
                self.parked = True
            case "run.ended":
                self._end(data)
            case "step.opened":
                self._view.called(data["tool"], data["arguments"])
            case "step.closed":
                self._closed_step(data)
            case "approval.asked":
                self.approvals[data["approval"]] = data["run"]
                self._view.asked(data)
            case "approval.decided":
                self.approvals.pop(data["approval"], None)
                self._view.decided(data["approval"], data["state"], data["by"])
            case "session.reset":
                self._view.was_reset(data.get("because", ""))
            case "session.switched":
                self.switched = data
            case _:
                pass

    def _mail(self, data: dict[str, Any]) -> None:
        kind, comes_in = data.get("kind"), str(data.get("to")).endswith(f"/{data['session']}")
        if data["envelope"] in self._own:
            self._own.remove(data["envelope"])
        elif kind in ("approval", "decision"):
            pass  # shown with their approval
        elif comes_in and kind:
            self._view.mail(data["from"], words_of(data["text"]))
        elif kind == "answer":
            self._answer = (data["envelope"], data["text"], data["to"])
        elif kind:
            self._view.notice(data["text"])

    def _begin(self, run: str) -> None:
        self.parked = False
        if run != self._run:
            self._run, self._closed, self.ours = run, None, False
            first = self._partials.get(run)
            self._partials = {run: first} if first else {}

    def _join(self, envelopes: Sequence[str]) -> None:
        self.ours = self.ours or any(envelope in self.awaited for envelope in envelopes)

    def _closed_step(self, data: dict[str, Any]) -> None:
        record: dict[str, Any] = data.get("record") or {"kind": "", "body": {}}
        body: dict[str, Any] = record["body"]
        match record["kind"]:
            case "assistant":
                self._begin(data["run"])
                self._closed = data["turn"]
                self._view.said(body.get("thinking", ""), body["text"], ours=self.ours)
            case "tool":
                self._view.returned(body["tool"], body["output"], failed=body["failed"])
            case "note":
                self._view.returned("", body["text"], failed=False)
            case _:
                pass

    def _end(self, data: dict[str, Any]) -> None:
        run: str = data["run"]
        self._ended = [*self._ended[1 - ENDED_KEPT_MAX :], run]
        self._partials.pop(run, None)
        if data["status"] != "completed":  # a run that completed without a decision leaves its approval open
            self.approvals = {id_: of for id_, of in self.approvals.items() if of != run}
        self.parked = False
        self._run = ""
        ours = any(envelope in self.awaited for envelope in data["envelopes"])
        ending = Ending(data["outcome"], because=data.get("because", ""), answer=data.get("answer"))
        answer, text, to = self._answer
        if ending.answer and ending.answer == answer:
            ending.text = text
            if answer not in self._told:
                self._view.answered(text, to, ours=ours)
        self._settled(data["envelopes"], ending)
        self._view.ended(ending)

    def _settled(self, envelopes: Sequence[str], ending: Ending) -> None:
        for envelope in envelopes:
            self.ended(envelope, ending)


def words_of(text: str) -> str:
    """Return a message without the context line that the web app puts before it."""
    if not text.startswith("<context"):
        return text
    import re  # imported here because only messages from the web app need it

    return re.sub(r'\A<context(?: [a-z][a-z0-9-]*="[^"<>\n]*")* />(?:\n|\Z)', "", text, count=1)
