"""What is shown of a session, whatever order, gap or repetition its events come with."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.cli.chat_state import ChatState, EnvelopeEnd


class Recorder:
    """A view that writes down what it was told."""

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


class Teller:
    """Tells a conversation what the house would."""

    def __init__(self) -> None:
        self.view = Recorder()
        self.conversation = ChatState(self.view, cursor=0)
        self.seq = 0

    def news(self, what: str, **body: Any) -> None:
        self.seq += 1
        self.conversation.apply("news", {"seq": self.seq, "news": what, "session": "s", **body})

    def mail(self, id_: str, text: str, *, sender: str = "person:maria") -> None:
        self.news("envelope.accepted", envelope=id_, kind="message", text=text, to="agent:guide/s", **{"from": sender})

    def delta(self, text: str, *, offset: int, run: str = "r", turn: int = 0, attempt: int = 1) -> None:
        form = {"run": run, "turn": turn, "attempt": attempt, "kind": "text", "offset": offset, "text": text}
        self.conversation.apply("delta", form)

    def partials(self, *forms: tuple[str, int, int, str]) -> None:
        told = [{"run": r, "turn": t, "attempt": a, "text": x, "thinking": ""} for r, t, a, x in forms]
        self.conversation.apply("hello", {"cursor": self.seq, "partials": told})

    def start(self, *envelopes: str, run: str = "r") -> None:
        self.news("run.started", run=run, envelopes=envelopes)

    def close_turn(self, turn: int, text: str, *, run: str = "r") -> None:
        record = {"kind": "assistant", "body": {"text": text, "thinking": "", "calls": []}}
        self.news("step.closed", run=run, turn=turn, index=0, record=record)

    def end(self, *envelopes: str, text: str | None, run: str = "r", outcome: str = "answered") -> None:
        if text is not None:
            answer = {"kind": "answer", "text": text, "to": "person:owner", "from": "agent:guide/s"}
            self.news("envelope.accepted", envelope=f"{run}-answer", **answer)
        ids = {"answer": None if text is None else f"{run}-answer", "envelopes": envelopes}
        self.news("run.ended", run=run, status="completed", outcome=outcome, **ids)

    @property
    def live(self) -> str | None:
        partial = self.conversation.streamed_reply
        return None if partial is None else partial.text


@pytest.fixture
def teller() -> Teller:
    return Teller()


def test_an_answer_to_ours_is_shown_once_and_kept_for_whoever_waits(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("e")
    teller.mail("e", "hello", sender="person:owner")
    teller.start("e")
    teller.delta("Hi", offset=0)
    teller.end("e", text="Hi there")

    assert teller.view.shown == [("answered", "Hi there", True), ("ended", "answered")]
    assert teller.conversation.unreported_ends["e"].answer_text == "Hi there"
    assert teller.conversation.awaited_envelopes == []


def test_news_that_is_told_again_after_a_reconnect_is_taken_once(teller: Teller) -> None:
    teller.mail("e", "hello")
    teller.seq = 0
    teller.mail("e", "hello")

    assert teller.view.shown == [("mail", "person:maria", "hello")]


def test_the_mail_of_others_is_shown_and_their_answer_is_not_taken_for_ours(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("mine")
    teller.mail("theirs", "me first")
    teller.start("theirs")
    teller.end("theirs", text="to maria")

    assert teller.view.shown == [
        ("mail", "person:maria", "me first"),
        ("answered", "to maria", False),
        ("ended", "answered"),
    ]
    assert teller.conversation.awaited_envelopes == ["mine"]


def test_of_several_of_ours_in_one_run_all_end_with_it(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("a")
    teller.conversation.add_sent_envelope("b")
    teller.start("a", "b")
    teller.end("a", "b", text="both")

    assert {id_: ending.answer_text for id_, ending in teller.conversation.unreported_ends.items()} == {
        "a": "both",
        "b": "both",
    }


def test_deltas_that_repeat_what_the_state_had_told_are_taken_once(teller: Teller) -> None:
    teller.start()
    teller.partials(("r", 0, 1, "one two"))
    teller.delta("two", offset=4)
    teller.delta("two three", offset=4)
    teller.delta(" four", offset=13)

    assert teller.live == "one two three four"


def test_a_delta_that_does_not_follow_on_waits_for_the_state(teller: Teller) -> None:
    teller.start()
    teller.delta("one", offset=0)
    teller.delta("three", offset=8)
    assert teller.live == "one"

    teller.conversation.apply(
        "partials", {"partials": [{"run": "r", "turn": 0, "attempt": 1, "text": "one two three", "thinking": ""}]}
    )
    assert teller.live == "one two three"


def test_a_higher_attempt_replaces_the_text_and_a_lower_one_is_forgotten(teller: Teller) -> None:
    teller.start()
    teller.delta("first try", offset=0)
    teller.delta("second", offset=0, attempt=2)
    teller.delta(" of the first", offset=9, attempt=1)

    assert teller.live == "second"


def test_a_later_turn_is_not_shown_before_the_one_it_follows_is_news(teller: Teller) -> None:
    teller.start()
    teller.delta("turn 0", offset=0)
    teller.delta("turn 1", offset=0, turn=1)
    assert teller.live is None

    teller.close_turn(0, "turn 0")
    assert teller.live == "turn 1"


def test_deltas_that_come_after_their_turn_or_run_is_news_are_forgotten(teller: Teller) -> None:
    teller.start()
    teller.close_turn(0, "turn 0")
    teller.delta("turn 0", offset=0)
    assert teller.live is None

    teller.end(text="done")
    teller.delta("turn 1", offset=0, turn=1)
    assert teller.live is None


def test_a_run_that_ran_before_we_came_is_shown_from_where_it_is(teller: Teller) -> None:
    teller.partials(("r", 3, 1, "in the middle"))
    assert teller.live == "in the middle"

    teller.close_turn(3, "in the middle of it")
    teller.delta("next", offset=0, turn=4)
    assert teller.live == "next"


def test_a_run_that_is_taken_up_after_a_restart_is_shown_at_whatever_turn_it_is(teller: Teller) -> None:
    teller.news("run.resumed", run="r", after="a stop", attempt=2)
    teller.delta("turn 5", offset=0, turn=5, attempt=2)

    assert teller.live == "turn 5"


def test_the_words_of_the_next_run_wait_for_the_end_of_this_one(teller: Teller) -> None:
    teller.start()
    teller.delta("one", offset=0)
    teller.delta("two", offset=0, run="r2")
    assert teller.live == "one"

    teller.end(text="one")
    teller.start(run="r2")
    assert teller.live == "two"


def test_calls_results_and_questions_are_shown_as_they_become_news(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("e")
    teller.start("e")
    teller.close_turn(0, "Let me look.")
    teller.news("approval.asked", run="r", approval="a", calls=[])
    teller.news("run.parked", run="r", approval="a")
    assert teller.conversation.is_suspended

    teller.news("approval.decided", run="r", approval="a", state="allowed", by="owner")
    teller.news("run.resumed", run="r", after="a decision", attempt=1)
    assert not teller.conversation.is_suspended

    teller.news("step.opened", run="r", turn=0, index=1, tool="read", arguments={})
    result = {"kind": "tool", "body": {"call": "c", "tool": "read", "output": "words", "failed": False}}
    teller.news("step.closed", run="r", turn=0, index=1, record=result)
    assert teller.view.shown == [
        ("said", "Let me look.", True),
        ("asked", "a"),
        ("decided", "a", "allowed"),
        ("called", "read"),
        ("returned", "words", False),
    ]


def test_a_question_stays_open_when_its_run_went_on_without_it_and_not_when_it_was_stopped(teller: Teller) -> None:
    teller.news("approval.asked", run="r", approval="a", calls=[])
    teller.end(text="without it")
    assert list(teller.conversation.open_approvals) == ["a"]

    teller.news("approval.asked", run="r2", approval="b", calls=[])
    teller.news("run.ended", run="r2", status="cancelled", outcome="cancelled", because="stop", envelopes=[])
    assert list(teller.conversation.open_approvals) == ["a"]


def test_an_envelope_that_ends_without_a_run_ends_for_whoever_waits(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("e")
    teller.news("envelope.settled", envelope="e", outcome="expired", because="too late")

    assert (teller.conversation.unreported_ends["e"].outcome, teller.conversation.unreported_ends["e"].because) == (
        "expired",
        "too late",
    )


def test_a_cursor_that_the_house_does_not_know_is_noticed(teller: Teller) -> None:
    teller.conversation.apply("reset", {"cursor": 3, "because": "unknown"})

    assert teller.conversation.has_lost_events
    assert teller.conversation.cursor == 3


def test_an_answer_that_was_asked_for_is_not_shown_again_when_it_is_news_after_all(teller: Teller) -> None:
    teller.conversation.add_sent_envelope("e")
    teller.conversation.show_requested_end(
        "e", EnvelopeEnd("answered", answer_id="r-answer", answer_text="Hi"), "person:owner"
    )
    teller.start("e")
    teller.end("e", text="Hi")

    assert [shown for shown in teller.view.shown if shown[0] == "answered"] == [("answered", "Hi", True)]
    assert list(teller.conversation.unreported_ends) == ["e"]


def test_news_of_a_kind_we_do_not_know_yet_is_passed_over(teller: Teller) -> None:
    teller.news("moon.risen", phase="full")
    teller.conversation.apply("aurora", {})

    assert teller.view.shown == []
