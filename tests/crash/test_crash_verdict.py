"""The verdict of the crash test, itself on trial: sound evidence is found sound, doctored evidence is seen through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retinue.domain.structs import replace
from retinue.testing.crash_evidence import Approval, Asking, Cut, Evidence, HandedOut, Letter, Mark, Run, Slot
from retinue.testing.crash_log import (
    Acknowledged,
    Answered,
    Brought,
    Complaint,
    Decided,
    Heard,
    LogEntry,
    Retried,
    Said,
    Sent,
    Settled,
    Shown,
)
from retinue.testing.crash_verdict import Wrong, judge


def letter(seq: int, id_: str, text: str, outcome: str, **kw: Any) -> Letter:
    given: dict[str, Any] = {
        "kind": "message",
        "source": "person:owner",
        "key": f"key-{id_}",
        "recipient": "agent:ada/0",
        "status": "done",
        "reply_to": None,
        "run": None,
        "retry_of": None,
        "outcomes": 1,
        "because": "so it is",
        "answer": None,
    }
    return Letter(seq=seq, id=id_, text=text, outcome=outcome, **given | kw)


def answer(seq: int, id_: str, text: str, reply_to: str) -> Letter:
    kw = {"kind": "answer", "source": "run", "recipient": "person:owner", "reply_to": reply_to}
    return letter(seq, id_, text, "delivered", **kw)


def from_elsewhere(seq: int, id_: str, message: str, text: str, *, reply_to: str | None) -> Letter:
    kw = {"kind": "answer", "source": "external:f", "key": message, "recipient": "agent:fay/f", "reply_to": reply_to}
    return letter(seq, id_, text, "noted", **kw)


LETTERS = [
    letter(1, "q1", "s0-m1 two-tools 0.1", "answered", answer="a1", run="r1"),
    letter(2, "q2", "s0-m2 plain", "answered", answer="a2", run="r2"),
    letter(3, "q3", "s0-m3 ask", "answered", answer="a2", run="r2"),
    answer(4, "a1", "<s0-m1 appended interrupted>", "q1"),
    answer(5, "a2", "<s0-m2>\n<s0-m3 appended>", "q3"),
    letter(6, "q4", "s1-m1 plain", "delivered", recipient="channel:steady:room-1"),
    letter(7, "q5", "s2-m1 plain", "delivered", recipient="channel:risky:room-2"),
    letter(8, "q6", "s2-m2 plain", "interrupted", recipient="channel:risky:room-2"),
    letter(9, "n6", "may have arrived", "delivered", kind="notice", source="house", reply_to="q6"),
    letter(10, "q7", "s3-m1 fail", "dead", run="r3"),
    letter(11, "n7", "it broke", "delivered", kind="notice", source="house", reply_to="q7"),
    letter(12, "q8", "s3-m1 fail", "dead", run="r4", source="retry", key="q7/1", retry_of="q7"),
    letter(13, "n8", "it broke", "delivered", kind="notice", source="house", reply_to="q8"),
    letter(14, "d1", "owner allowed", "noted", kind="decision", key="p1/decision"),
    letter(15, "q10", "s4-m1 plain", "answered", answer="a10", run="r5", recipient="agent:fay/f"),
    letter(16, "x1", "s4-m1 plain", "delivered", kind="delegation", source="run", recipient="channel:external:f"),
    from_elsewhere(17, "c1", "x1-1", "<s4-m1>", reply_to="x1"),
    answer(18, "a10", "<s4-m1>", "q10"),
    from_elsewhere(19, "c2", "x1-2", "by the way: x1", reply_to=None),
]
QUESTIONS = [each for each in LETTERS if each.kind == "message" and each.source == "person:owner"]
LOG: list[LogEntry] = [
    *(Sent(t=0, token=each.token, key=each.key, to="agent:ada") for each in QUESTIONS),
    Sent(t=0, token="s9-m1", key="never-answered", to="agent:ada"),
    *(
        Acknowledged(t=1, token=each.token, key=each.key, envelope=each.id, session="s", duplicate=False)
        for each in QUESTIONS
    ),
    Decided(t=2, approval="p1", token="s0-m3", allow=True),
    Answered(t=2, seq=20, envelope="a1", text="<s0-m1 appended interrupted>"),
    Answered(t=2, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>"),
    Answered(t=2, seq=22, envelope="a10", text="<s4-m1>"),
    Brought(t=2, letter="x1", session="f", text="s4-m1 plain"),
    Said(t=2, session="f", message="x1-1", request="x1", text="<s4-m1>"),
    Heard(t=2, session="f", message="x1-1", envelope="c1", answers="x1"),
    Said(t=2, session="f", message="x1-2", request="x1", text="by the way: x1"),
    Heard(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    Heard(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    Settled(t=3, envelope="q1", outcome="answered"),
    Retried(t=3, envelope="q7"),
    Shown(t=4, session="s", answers=["<s0-m1 appended interrupted>", "<s0-m2>\n<s0-m3 appended>"]),
]
ELSEWHERE = Run(id="r5", status="completed", final_text="<s4-m1>")
HANDED_OUT = HandedOut(id="x1", session="f", state="done", result="c1", run="r5")


def slot(schedule: str, at_s: int, state: str, envelope: str | None = None, **kw: Any) -> Slot:
    given: dict[str, Any] = {"until_ms": None, "because": "", "outcome": "answered" if state == "ran" else None}
    return Slot(schedule=schedule, at_ms=at_s * 1000, state=state, envelope=envelope, **given | kw)


SLOTS = [
    slot("tick", 2, "ran", "t1"),
    slot("tick", 4, "skipped", until_ms=9_000, because="missed: the house was closed"),
    slot("tick", 10, "waiting", "t2"),
    slot("gated", 3, "ran", "g1"),
    slot("gated", 6, "working", "g2"),
    slot("gated", 9, "waiting", "g3"),
]
SOUND = Evidence(
    log=LOG,
    witness=[Mark("r1-0-1", "s0-m1/1"), Mark("r2-0-1", "s0-m3")],
    rooms={
        "steady": [Mark("q4", "s1-m1 plain"), Mark("q4", "s1-m1 plain")],
        "risky": [Mark("q5/0/2", "s2-m1 plain"), Mark("q5/1/2", "s2-m1 plain")],
    },
    letters=LETTERS,
    runs=[
        Run(id="r1", status="completed", final_text="<s0-m1 appended interrupted>"),
        Run(id="r2", status="completed", final_text="<s0-m2>\n<s0-m3 appended>"),
        Run(id="r3", status="failed", final_text=None),
        Run(id="r4", status="failed", final_text=None),
        ELSEWHERE,
    ],
    handed_out=[HANDED_OUT],
    slots=SLOTS,
    cuts=[Cut(run="r1", word="s0-m1/2")],
    approvals=[Approval(id="p1", state="allowed", run="r2", word="s0-m3", decision="noted")],
    told={20: "a1", 21: "a2", 22: "a10"},
)


def test_a_call_by_a_yes_or_by_a_grant_is_sound() -> None:
    asking = [Asking("s", "s0-m3"), Asking("t", "s0-m1/1")]
    assert judge(replace(SOUND, asking=asking, granted=frozenset({"t"}))).ok


def test_sound_evidence_is_found_sound() -> None:
    verdict = judge(SOUND)
    assert verdict.ok, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: ok (0 lost, 0 doubled, 0 reordered, 0 run twice")


def without(id_: str) -> Evidence:
    return replace(SOUND, letters=[each for each in LETTERS if each.id != id_])


def changed(id_: str, **kw: Any) -> Evidence:
    return replace(SOUND, letters=[replace(each, **kw) if each.id == id_ else each for each in LETTERS])


def with_letter(extra: Letter) -> Evidence:
    return replace(SOUND, letters=[*LETTERS, extra])


def unlogged(entry: type[Any]) -> Evidence:
    return replace(SOUND, log=[each for each in LOG if not isinstance(each, entry)])


def logged(entry: LogEntry) -> Evidence:
    return replace(SOUND, log=[*LOG, entry])


def came(*others: Slot, without: tuple[Slot, ...] = ()) -> Evidence:
    slots = sorted(
        (each for each in (*SLOTS, *others) if each not in without), key=lambda each: (each.schedule, each.at_ms)
    )
    return replace(SOUND, slots=slots)


DOCTORED: dict[str, tuple[Wrong, Callable[[], Evidence]]] = {
    "a schedule never came": (Wrong.LOST, lambda: came(without=tuple(SLOTS[:3]))),
    "a slot is told of nowhere": (Wrong.LOST, lambda: came(without=(SLOTS[1],))),
    "a slot came twice": (Wrong.DOUBLED, lambda: came(slot("tick", 2, "ran", "t3"))),
    "an envelope stands for two slots": (
        Wrong.DOUBLED,
        lambda: came(slot("gated", 6, "working", "g1"), without=(SLOTS[4],)),
    ),
    "a slot was skipped, and nobody knows why": (
        Wrong.UNEXPLAINED,
        lambda: came(slot("tick", 4, "skipped", until_ms=9_000), without=(SLOTS[1],)),
    ),
    "a slot ran, and its envelope is still open": (
        Wrong.LOST,
        lambda: came(slot("tick", 2, "ran", "t1", outcome=None), without=(SLOTS[0],)),
    ),
    "an acknowledged envelope is not stored": (Wrong.LOST, lambda: without("q2")),
    "an acknowledged envelope is another": (Wrong.CONTRADICTED, lambda: changed("q2", key="another")),
    "an envelope is stored twice": (
        Wrong.DOUBLED,
        lambda: with_letter(letter(15, "q9", "s0-m2 plain", "answered", answer="a2", key="key-q2")),
    ),
    "an envelope is still open": (Wrong.LOST, lambda: changed("q2", status="pending", outcome=None, outcomes=0)),
    "an envelope has two outcomes": (Wrong.DOUBLED, lambda: changed("q2", outcomes=2)),
    "an outcome has no because": (Wrong.UNEXPLAINED, lambda: changed("q2", because="")),
    "nobody was told of a dead letter": (Wrong.UNEXPLAINED, lambda: without("n7")),
    "an answer is missing": (Wrong.LOST, lambda: without("a1")),
    "an answer speaks of something else": (Wrong.LOST, lambda: changed("a1", text="<s0-m9>")),
    "a question is answered twice": (
        Wrong.DOUBLED,
        lambda: with_letter(answer(15, "a3", "<s0-m2>", "q2")),
    ),
    "a question that was given up is answered": (
        Wrong.DOUBLED,
        lambda: with_letter(answer(15, "a3", "<s3-m1>", "q7")),
    ),
    "answers come in another order": (Wrong.REORDERED, lambda: changed("a1", seq=6)),
    "an answer takes questions in another order": (
        Wrong.REORDERED,
        lambda: changed("a2", text="<s0-m3 appended>\n<s0-m2>"),
    ),
    "questions are stored in another order": (
        Wrong.REORDERED,
        lambda: replace(SOUND, letters=[LETTERS[1], LETTERS[0], *LETTERS[2:]]),
    ),
    "the news never told of an answer": (Wrong.LOST, lambda: unlogged(Answered)),
    "the news told of an answer twice": (
        Wrong.DOUBLED,
        lambda: logged(Answered(t=5, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>")),
    ),
    "the news told of an answer that is gone": (
        Wrong.CONTRADICTED,
        lambda: logged(Answered(t=5, seq=22, envelope="a9", text="<s0-m4>")),
    ),
    "an outcome is not what was told": (
        Wrong.CONTRADICTED,
        lambda: logged(Settled(t=5, envelope="q2", outcome="dead")),
    ),
    "a session shows what was never said": (
        Wrong.CONTRADICTED,
        lambda: logged(Shown(t=5, session="s", answers=["<s0-m1>"])),
    ),
    "the client complained": (Wrong.CONTRADICTED, lambda: logged(Complaint(t=5, text="the news is gone"))),
    "a call was run twice": (
        Wrong.RUN_TWICE,
        lambda: replace(SOUND, witness=[*SOUND.witness, Mark("r1-0-1", "s0-m1/1")]),
    ),
    "a call was not run, and the model read that it was": (Wrong.CONTRADICTED, lambda: replace(SOUND, witness=[])),
    "a call that was cut off is not said to be": (
        Wrong.UNEXPLAINED,
        lambda: replace(SOUND, cuts=[*SOUND.cuts, Cut(run="r2", word="s0-m3")]),
    ),
    "a call is said to be cut off and was not": (Wrong.CONTRADICTED, lambda: replace(SOUND, cuts=[])),
    "a call nobody asked for was run": (
        Wrong.UNASKED,
        lambda: replace(SOUND, witness=[*SOUND.witness, Mark("r9-0-1", "s7-m7")]),
    ),
    "a decision that was acknowledged is not stored": (
        Wrong.LOST,
        lambda: logged(Decided(t=5, approval="p9", token="s0-m9", allow=True)),
    ),
    "a denied call was run": (
        Wrong.UNASKED,
        lambda: replace(SOUND, approvals=[replace(SOUND.approvals[0], state="denied")]),
    ),
    "a call was run that nobody was asked about": (
        Wrong.UNASKED,
        lambda: replace(SOUND, asking=[Asking("s", "s0-m1/1")], granted=frozenset({"another"})),
    ),
    "an allowed call was never run": (Wrong.LOST, lambda: replace(SOUND, witness=SOUND.witness[:1])),
    "a delivery never came": (Wrong.LOST, lambda: replace(SOUND, rooms={"steady": [], "risky": []})),
    "a part of a delivery never came": (
        Wrong.LOST,
        lambda: replace(SOUND, rooms=SOUND.rooms | {"risky": SOUND.rooms["risky"][:1]}),
    ),
    "the parts of a delivery came in another order": (
        Wrong.REORDERED,
        lambda: replace(SOUND, rooms=SOUND.rooms | {"risky": SOUND.rooms["risky"][::-1]}),
    ),
    "a delivery came twice where that matters": (
        Wrong.DOUBLED,
        lambda: replace(SOUND, rooms=SOUND.rooms | {"risky": [*SOUND.rooms["risky"], SOUND.rooms["risky"][1]]}),
    ),
    "deliveries came in another order": (
        Wrong.REORDERED,
        lambda: replace(SOUND, rooms=SOUND.rooms | {"risky": [Mark("q6", "s2-m2 plain"), *SOUND.rooms["risky"]]}),
    ),
    "something came that is not stored": (
        Wrong.UNASKED,
        lambda: replace(SOUND, rooms=SOUND.rooms | {"steady": [*SOUND.rooms["steady"], Mark("q9", "s1-m2 plain")]}),
    ),
    "something is stored that nobody sent": (
        Wrong.UNASKED,
        lambda: with_letter(letter(15, "q9", "s8-m1 plain", "answered", answer="a2")),
    ),
    "a retry nobody asked for": (Wrong.UNASKED, lambda: unlogged(Retried)),
    "a retry that was acknowledged is not stored": (Wrong.LOST, lambda: without("q8")),
    "a retry goes out twice": (
        Wrong.DOUBLED,
        lambda: replace(
            SOUND,
            letters=[
                *(replace(each, outcome="answered", answer="a9") if each.id == "q8" else each for each in LETTERS),
                letter(15, "q9", "s3-m1 fail", "dead", run="r4", source="retry", key="q7/2", retry_of="q7"),
            ],
        ),
    ),
    "a run is still open": (
        Wrong.LOST,
        lambda: replace(SOUND, runs=[*SOUND.runs, Run(id="r9", status="parked", final_text=None)]),
    ),
    "what was heard from elsewhere is not stored": (Wrong.LOST, lambda: without("c2")),
    "what was said again was heard as something new": (
        Wrong.DOUBLED,
        lambda: logged(Heard(t=5, session="f", message="x1-1", envelope="c2", answers=None)),
    ),
    "what was said elsewhere is stored twice": (
        Wrong.DOUBLED,
        lambda: with_letter(from_elsewhere(20, "c3", "x1-2", "by the way: x1", reply_to=None)),
    ),
    "a letter is answered twice from elsewhere": (Wrong.DOUBLED, lambda: changed("c2", reply_to="x1")),
    "what was said elsewhere went to another session": (
        Wrong.MISDELIVERED,
        lambda: changed("c1", recipient="agent:fay/g"),
    ),
    "what was said to one letter was taken for the answer to another": (
        Wrong.MISDELIVERED,
        lambda: logged(Heard(t=5, session="f", message="x1-1", envelope="c1", answers="x9")),
    ),
    "a letter ended with the answer to another": (Wrong.MISDELIVERED, lambda: changed("c1", text="<s4-m2>")),
    "a letter ended with what another session was told": (
        Wrong.MISDELIVERED,
        lambda: replace(SOUND, handed_out=[replace(HANDED_OUT, session="g")]),
    ),
    "the run says something else than was answered": (
        Wrong.MISDELIVERED,
        lambda: replace(SOUND, runs=[*SOUND.runs[:-1], replace(ELSEWHERE, final_text="<s4-m1 other>")]),
    ),
    "a letter that was answered is given up": (
        Wrong.LOST,
        lambda: replace(SOUND, handed_out=[replace(HANDED_OUT, state="failed", result=None)]),
    ),
    "a letter to elsewhere is still open": (
        Wrong.LOST,
        lambda: replace(SOUND, handed_out=[replace(HANDED_OUT, state="open", result=None)]),
    ),
    "a letter is delivered and never came there": (Wrong.LOST, lambda: unlogged(Brought)),
    "something is stored that nobody said elsewhere": (Wrong.UNASKED, lambda: unlogged(Said)),
    "the ledger does not hold": (Wrong.LEDGER, lambda: replace(SOUND, ledger=["WRONG counted"])),
}


@pytest.mark.parametrize("what", DOCTORED)
def test_doctored_evidence_is_seen_through(what: str) -> None:
    wrong, doctored = DOCTORED[what]
    verdict = judge(doctored())
    assert verdict.count(wrong) >= 1, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: FAILED")
