"""The text shown for a session, whichever order, gap or repetition its events have."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.cli.chat_state import ChatState, EnvelopeEnd


class Recorder:
    """A view that records its calls."""

    def __init__(self) -> None:
        self.shown: list[tuple[Any, ...]] = []

    def show_turn_text(self, thinking: str, text: str, *, is_ours: bool) -> None:
        self.shown.append(("said", text, is_ours))

    def show_call(self, tool: str, arguments: dict[str, Any]) -> None:
        self.shown.append(("called", tool))

    def show_result(self, tool: str, output: str, *, failed: bool) -> None:
        self.shown.append(("returned", output, failed))

    def show_approval(self, event: dict[str, Any]) -> None:
        self.shown.append(("asked", event["approval"]))

    def show_decision(self, approval: str, state: str, by: str) -> None:
        self.shown.append(("decided", approval, state))

    def show_answer(self, text: str, recipient: str, *, is_ours: bool) -> None:
        self.shown.append(("answered", text, is_ours))

    def show_incoming(self, sender: str, text: str) -> None:
        self.shown.append(("mail", sender, text))

    def show_server_text(self, text: str) -> None:
        self.shown.append(("notice", text))

    def show_end(self, end: EnvelopeEnd) -> None:
        self.shown.append(("ended", end.outcome))

    def show_reset(self, because: str) -> None:
        self.shown.append(("reset", because))


class EventSource:
    """Sends events to a conversation as the server does."""

    def __init__(self) -> None:
        self.view = Recorder()
        self.conversation = ChatState(self.view, cursor=0)
        self.seq = 0

    def send_event(self, what: str, **body: Any) -> None:
        self.seq += 1
        self.conversation.apply("event", {"seq": self.seq, "event": what, "session": "s", **body})

    def send_message_event(self, id_: str, text: str, *, sender: str = "person:maria") -> None:
        self.send_event(
            "envelope.accepted", envelope=id_, kind="message", text=text, to="agent:guide/s", **{"from": sender}
        )

    def delta(self, text: str, *, offset: int, run: str = "r", turn: int = 0, attempt: int = 1) -> None:
        form = {"run": run, "turn": turn, "attempt": attempt, "kind": "text", "offset": offset, "text": text}
        self.conversation.apply("delta", form)

    def send_hello(self, *forms: tuple[str, int, int, str]) -> None:
        told = [{"run": r, "turn": t, "attempt": a, "text": x, "thinking": ""} for r, t, a, x in forms]
        self.conversation.apply("hello", {"cursor": self.seq, "partials": told})

    def start(self, *envelopes: str, run: str = "r") -> None:
        self.send_event("run.started", run=run, envelopes=envelopes)

    def close_turn(self, turn: int, text: str, *, run: str = "r") -> None:
        record = {"kind": "assistant", "body": {"text": text, "thinking": "", "calls": []}}
        self.send_event("step.closed", run=run, turn=turn, index=0, record=record)

    def end(self, *envelopes: str, text: str | None, run: str = "r", outcome: str = "answered") -> None:
        if text is not None:
            answer = {"kind": "answer", "text": text, "to": "person:owner", "from": "agent:guide/s"}
            self.send_event("envelope.accepted", envelope=f"{run}-answer", **answer)
        ids = {"answer": None if text is None else f"{run}-answer", "envelopes": envelopes}
        self.send_event("run.ended", run=run, status="completed", outcome=outcome, **ids)

    @property
    def streamed_text(self) -> str | None:
        partial = self.conversation.streamed_reply
        return None if partial is None else partial.text


@pytest.fixture
def source() -> EventSource:
    return EventSource()


def test_the_chat_state_shows_the_answer_to_a_sent_envelope_once_and_keeps_it_for_the_caller(
    source: EventSource,
) -> None:
    source.conversation.add_sent_envelope("e")
    source.send_message_event("e", "hello", sender="person:owner")
    source.start("e")
    source.delta("Hi", offset=0)
    source.end("e", text="Hi there")

    assert source.view.shown == [("answered", "Hi there", True), ("ended", "answered")]
    assert source.conversation.unreported_ends["e"].answer_text == "Hi there"
    assert source.conversation.awaited_envelopes == []


def test_an_event_repeated_after_a_reconnect_is_applied_to_the_chat_state_once(source: EventSource) -> None:
    source.send_message_event("e", "hello")
    source.seq = 0
    source.send_message_event("e", "hello")

    assert source.view.shown == [("mail", "person:maria", "hello")]


def test_the_chat_state_shows_messages_of_others_and_their_answers_do_not_end_its_wait(source: EventSource) -> None:
    source.conversation.add_sent_envelope("mine")
    source.send_message_event("theirs", "me first")
    source.start("theirs")
    source.end("theirs", text="to maria")

    assert source.view.shown == [
        ("mail", "person:maria", "me first"),
        ("answered", "to maria", False),
        ("ended", "answered"),
    ]
    assert source.conversation.awaited_envelopes == ["mine"]


def test_all_envelopes_sent_by_chat_to_one_run_end_with_that_run(source: EventSource) -> None:
    source.conversation.add_sent_envelope("a")
    source.conversation.add_sent_envelope("b")
    source.start("a", "b")
    source.end("a", "b", text="both")

    assert {id_: ending.answer_text for id_, ending in source.conversation.unreported_ends.items()} == {
        "a": "both",
        "b": "both",
    }


def test_text_deltas_that_overlap_the_known_text_are_applied_to_the_chat_state_once(source: EventSource) -> None:
    source.start()
    source.send_hello(("r", 0, 1, "one two"))
    source.delta("two", offset=4)
    source.delta("two three", offset=4)
    source.delta(" four", offset=13)

    assert source.streamed_text == "one two three four"


def test_a_text_delta_with_a_gap_is_not_applied_to_the_chat_state_before_the_missing_text(source: EventSource) -> None:
    source.start()
    source.delta("one", offset=0)
    source.delta("three", offset=8)
    assert source.streamed_text == "one"

    source.conversation.apply(
        "partials", {"partials": [{"run": "r", "turn": 0, "attempt": 1, "text": "one two three", "thinking": ""}]}
    )
    assert source.streamed_text == "one two three"


def test_a_higher_attempt_replaces_the_text_in_the_chat_state_and_a_lower_attempt_is_ignored(
    source: EventSource,
) -> None:
    source.start()
    source.delta("first try", offset=0)
    source.delta("second", offset=0, attempt=2)
    source.delta(" of the first", offset=9, attempt=1)

    assert source.streamed_text == "second"


def test_the_chat_state_shows_a_later_turn_only_after_the_previous_turn_is_stored(source: EventSource) -> None:
    source.start()
    source.delta("turn 0", offset=0)
    source.delta("turn 1", offset=0, turn=1)
    assert source.streamed_text is None

    source.close_turn(0, "turn 0")
    assert source.streamed_text == "turn 1"


def test_the_chat_state_ignores_text_deltas_after_the_end_of_their_turn_or_run(source: EventSource) -> None:
    source.start()
    source.close_turn(0, "turn 0")
    source.delta("turn 0", offset=0)
    assert source.streamed_text is None

    source.end(text="done")
    source.delta("turn 1", offset=0, turn=1)
    assert source.streamed_text is None


def test_the_chat_state_shows_a_run_that_started_earlier_from_its_current_turn(source: EventSource) -> None:
    source.send_hello(("r", 3, 1, "in the middle"))
    assert source.streamed_text == "in the middle"

    source.close_turn(3, "in the middle of it")
    source.delta("next", offset=0, turn=4)
    assert source.streamed_text == "next"


def test_the_chat_state_shows_a_run_resumed_after_a_restart_from_its_current_turn(source: EventSource) -> None:
    source.send_event("run.resumed", run="r", after="a stop", attempt=2)
    source.delta("turn 5", offset=0, turn=5, attempt=2)

    assert source.streamed_text == "turn 5"


def test_the_chat_state_shows_the_text_of_the_next_run_only_after_the_end_of_the_current_run(
    source: EventSource,
) -> None:
    source.start()
    source.delta("one", offset=0)
    source.delta("two", offset=0, run="r2")
    assert source.streamed_text == "one"

    source.end(text="one")
    source.start(run="r2")
    assert source.streamed_text == "two"


def test_the_chat_state_shows_calls_results_and_approvals_in_event_order(source: EventSource) -> None:
    source.conversation.add_sent_envelope("e")
    source.start("e")
    source.close_turn(0, "Let me look.")
    source.send_event("approval.created", run="r", approval="a", calls=[])
    source.send_event("run.suspended", run="r", approval="a")
    assert source.conversation.is_suspended

    source.send_event("approval.decided", run="r", approval="a", state="allowed", by="owner")
    source.send_event("run.resumed", run="r", after="a decision", attempt=1)
    assert not source.conversation.is_suspended

    source.send_event("step.opened", run="r", turn=0, index=1, tool="read", arguments={})
    result = {"kind": "tool", "body": {"call": "c", "tool": "read", "output": "words", "failed": False}}
    source.send_event("step.closed", run="r", turn=0, index=1, record=result)
    assert source.view.shown == [
        ("said", "Let me look.", True),
        ("asked", "a"),
        ("decided", "a", "allowed"),
        ("called", "read"),
        ("returned", "words", False),
    ]


def test_an_approval_stays_open_in_the_chat_state_unless_its_run_was_cancelled(source: EventSource) -> None:
    source.send_event("approval.created", run="r", approval="a", calls=[])
    source.end(text="without it")
    assert list(source.conversation.open_approvals) == ["a"]

    source.send_event("approval.created", run="r2", approval="b", calls=[])
    source.send_event("run.ended", run="r2", status="cancelled", outcome="cancelled", because="stop", envelopes=[])
    assert list(source.conversation.open_approvals) == ["a"]


def test_an_envelope_settled_without_a_run_ends_the_wait_of_the_chat_state(source: EventSource) -> None:
    source.conversation.add_sent_envelope("e")
    source.send_event("envelope.settled", envelope="e", outcome="expired", because="too late")

    assert (source.conversation.unreported_ends["e"].outcome, source.conversation.unreported_ends["e"].because) == (
        "expired",
        "too late",
    )


def test_the_chat_state_notices_lost_events_if_its_cursor_is_unknown(source: EventSource) -> None:
    source.conversation.apply("reset", {"cursor": 3, "because": "unknown"})

    assert source.conversation.has_lost_events
    assert source.conversation.cursor == 3


def test_the_chat_state_does_not_show_a_requested_answer_again_when_its_event_arrives(source: EventSource) -> None:
    source.conversation.add_sent_envelope("e")
    source.conversation.show_requested_end(
        "e", EnvelopeEnd("answered", answer_id="r-answer", answer_text="Hi"), "person:owner"
    )
    source.start("e")
    source.end("e", text="Hi")

    assert [shown for shown in source.view.shown if shown[0] == "answered"] == [("answered", "Hi", True)]
    assert list(source.conversation.unreported_ends) == ["e"]


def test_the_chat_state_ignores_unknown_event_kinds(source: EventSource) -> None:
    source.send_event("moon.risen", phase="full")
    source.conversation.apply("aurora", {})

    assert source.view.shown == []
