"""What one session has said so far, put together from news and deltas. Pure: events in, calls on a view out.

News is the truth and comes in order, each piece once. Deltas run ahead of it and may be lost, repeated or taken back
by a later attempt, so they only ever make up the one unfinished text at the end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class View(Protocol):
        """Where a conversation is shown."""

        def said(self, thinking: str, text: str, *, ours: bool) -> None:
            """The words of a turn that goes on with calls; `ours` where its run works on what we sent."""
            ...

        def called(self, tool: str, arguments: dict[str, Any]) -> None: ...

        def returned(self, tool: str, output: str, *, failed: bool) -> None: ...

        def asked(self, question: dict[str, Any]) -> None:
            """As the news of it says."""
            ...

        def decided(self, approval: str, state: str, by: str) -> None: ...

        def answered(self, text: str, to: str, *, ours: bool) -> None:
            """The answer, word for word."""
            ...

        def mail(self, sender: str, text: str) -> None:
            """Someone else wrote into this session."""
            ...

        def notice(self, text: str) -> None:
            """Plain words from the house."""
            ...

        def ended(self, ending: Ending) -> None: ...

        def was_reset(self, because: str) -> None: ...


ENDED_KEPT_MAX = 16


class Ending:
    """How an envelope, or the run over it, ended."""

    def __init__(self, outcome: str, *, because: str = "", answer: str | None = None, text: str = "") -> None:
        self.outcome = outcome
        self.because = because
        self.answer = answer
        self.text = text

    @property
    def answered(self) -> bool:
        return self.outcome == "answered"


class Partial:
    """What a model has said so far in one attempt at a reply."""

    def __init__(self, turn: int, attempt: int) -> None:
        self.turn = turn
        self.attempt = attempt
        self.text = ""
        self.thinking = ""

    def add(self, kind: str, offset: int, text: str) -> None:
        """A piece that we have is left out, and one that does not follow on waits for the state to be told again."""
        said = self.thinking if kind == "thinking" else self.text
        if offset > len(said) or offset + len(text) <= len(said):
            return
        said = said[:offset] + text
        if kind == "thinking":
            self.thinking = said
        else:
            self.text = said


class Conversation:
    """One session as this terminal has seen it, up to `cursor`."""

    def __init__(self, view: View, *, cursor: int) -> None:
        self.cursor = cursor
        self.lost = False  # our cursor was unknown to the house: what we wait for must be asked for
        self.parked = False
        self.awaited: list[str] = []  # our own, not yet ended
        self.endings: dict[str, Ending] = {}  # our own, ended, for whoever waits to take
        self.approvals: dict[str, str] = {}  # open ones, and the run each belongs to
        self.switched: dict[str, Any] | None = None  # somebody went on with another agent: who, and where
        self.ours = False  # the run that goes on here works on something of ours
        self._view = view
        self._own: set[str] = set()
        self._told: set[str] = set()
        self._run: str = ""
        self._closed: int | None = None  # the last turn of this run whose reply is news, if we know
        self._ended: list[str] = []
        self._partials: dict[str, Partial] = {}
        self._answer = ("", "", "")  # told just before the run that it ends: its id, its words, for whom

    def own(self, envelope: str) -> None:
        """We sent this one: its words need no showing, and its end is waited for."""
        self._own.add(envelope)
        self.awaited.append(envelope)

    def ended(self, envelope: str, ending: Ending) -> None:
        if envelope in self.awaited:
            self.awaited.remove(envelope)
            self.endings[envelope] = ending

    def was_told(self, envelope: str, ending: Ending, to: str) -> None:
        """We asked for this end, because its news was lost to us; should it come after all, it is not shown again."""
        if ending.answer:
            self._told.add(ending.answer)
            self._view.answered(ending.text, to, ours=True)
            self._view.ended(ending)
        self.ended(envelope, ending)

    @property
    def partial(self) -> Partial | None:
        """What is being said right now. A later turn waits until the one before it is news."""
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
                pass  # a newer house may tell more than we know to show

    def _partial_of(self, data: dict[str, Any]) -> Partial | None:
        """Where a delta belongs; None where it comes too late."""
        run, turn, attempt = data["run"], data["turn"], data["attempt"]
        if run in self._ended or (run == self._run and self._closed is not None and turn <= self._closed):
            return None
        if not self._run:  # we came in the middle of it
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
            pass  # told with their approval
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
        if data["status"] != "completed":  # a run that went on without its answer leaves the question open
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
    """What someone wrote, without the line that their page puts before it."""
    if not text.startswith("<context"):
        return text
    import re  # for the few who look at what came by a page

    return re.sub(r'\A<context(?: [a-z][a-z0-9-]*="[^"<>\n]*")* />(?:\n|\Z)', "", text, count=1)
