"""The verdict of the crash test, itself on trial: sound evidence is found sound, doctored evidence is seen through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retinue.domain.structs import replace
from retinue.testing.crash_evidence import (
    ApprovalCall,
    CrashEvidence,
    InterruptedCall,
    OutsideMark,
    StoredApproval,
    StoredEnvelope,
    StoredOccurrence,
    StoredRequest,
    StoredRun,
)
from retinue.testing.crash_log import (
    AcknowledgedEntry,
    AnsweredEntry,
    AnyLogEntry,
    CallbackEntry,
    CallbackResultEntry,
    ComplaintEntry,
    DecidedEntry,
    FinalAnswersEntry,
    RequestEntry,
    RetriedEntry,
    SentEntry,
    SettledEntry,
)
from retinue.testing.crash_verdict import FindingKind, judge_evidence


def letter(seq: int, id_: str, text: str, outcome: str, **kw: Any) -> StoredEnvelope:
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
    return StoredEnvelope(seq=seq, id=id_, text=text, outcome=outcome, **given | kw)


def answer(seq: int, id_: str, text: str, reply_to: str) -> StoredEnvelope:
    kw = {"kind": "answer", "source": "run", "recipient": "person:owner", "reply_to": reply_to}
    return letter(seq, id_, text, "delivered", **kw)


def from_elsewhere(seq: int, id_: str, message: str, text: str, *, reply_to: str | None) -> StoredEnvelope:
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
LOG: list[AnyLogEntry] = [
    *(SentEntry(t=0, token=each.token, key=each.key, to="agent:ada") for each in QUESTIONS),
    SentEntry(t=0, token="s9-m1", key="never-answered", to="agent:ada"),
    *(
        AcknowledgedEntry(t=1, token=each.token, key=each.key, envelope=each.id, session="s", duplicate=False)
        for each in QUESTIONS
    ),
    DecidedEntry(t=2, approval="p1", token="s0-m3", allow=True),
    AnsweredEntry(t=2, seq=20, envelope="a1", text="<s0-m1 appended interrupted>"),
    AnsweredEntry(t=2, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>"),
    AnsweredEntry(t=2, seq=22, envelope="a10", text="<s4-m1>"),
    RequestEntry(t=2, letter="x1", session="f", text="s4-m1 plain"),
    CallbackEntry(t=2, session="f", message="x1-1", request="x1", text="<s4-m1>"),
    CallbackResultEntry(t=2, session="f", message="x1-1", envelope="c1", answers="x1"),
    CallbackEntry(t=2, session="f", message="x1-2", request="x1", text="by the way: x1"),
    CallbackResultEntry(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    CallbackResultEntry(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    SettledEntry(t=3, envelope="q1", outcome="answered"),
    RetriedEntry(t=3, envelope="q7"),
    FinalAnswersEntry(t=4, session="s", answers=["<s0-m1 appended interrupted>", "<s0-m2>\n<s0-m3 appended>"]),
]
ELSEWHERE = StoredRun(id="r5", status="completed", final_text="<s4-m1>")
HANDED_OUT = StoredRequest(id="x1", session="f", state="done", result="c1", run="r5")


def slot(schedule: str, at_s: int, state: str, envelope: str | None = None, **kw: Any) -> StoredOccurrence:
    given: dict[str, Any] = {"until_ms": None, "because": "", "outcome": "answered" if state == "ran" else None}
    return StoredOccurrence(schedule=schedule, at_ms=at_s * 1000, state=state, envelope=envelope, **given | kw)


SLOTS = [
    slot("tick", 2, "ran", "t1"),
    slot("tick", 4, "skipped", until_ms=9_000, because="missed: the house was closed"),
    slot("tick", 10, "waiting", "t2"),
    slot("gated", 3, "ran", "g1"),
    slot("gated", 6, "working", "g2"),
    slot("gated", 9, "waiting", "g3"),
]
SOUND = CrashEvidence(
    log=LOG,
    tool_marks=[OutsideMark("r1-0-1", "s0-m1/1"), OutsideMark("r2-0-1", "s0-m3")],
    channel_marks={
        "steady": [OutsideMark("q4", "s1-m1 plain"), OutsideMark("q4", "s1-m1 plain")],
        "risky": [OutsideMark("q5/0/2", "s2-m1 plain"), OutsideMark("q5/1/2", "s2-m1 plain")],
    },
    envelopes=LETTERS,
    runs=[
        StoredRun(id="r1", status="completed", final_text="<s0-m1 appended interrupted>"),
        StoredRun(id="r2", status="completed", final_text="<s0-m2>\n<s0-m3 appended>"),
        StoredRun(id="r3", status="failed", final_text=None),
        StoredRun(id="r4", status="failed", final_text=None),
        ELSEWHERE,
    ],
    requests=[HANDED_OUT],
    occurrences=SLOTS,
    interrupted_calls=[InterruptedCall(run="r1", word="s0-m1/2")],
    approvals=[StoredApproval(id="p1", state="allowed", run="r2", word="s0-m3", decision="noted")],
    envelopes_by_event={20: "a1", 21: "a2", 22: "a10"},
)


def test_a_call_by_a_yes_or_by_a_grant_is_sound() -> None:
    asking = [ApprovalCall("s", "s0-m3"), ApprovalCall("t", "s0-m1/1")]
    assert judge_evidence(replace(SOUND, approval_calls=asking, granted_sessions=frozenset({"t"}))).is_ok


def test_sound_evidence_is_found_sound() -> None:
    verdict = judge_evidence(SOUND)
    assert verdict.is_ok, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: ok (0 lost, 0 doubled, 0 reordered, 0 run twice")


def without(id_: str) -> CrashEvidence:
    return replace(SOUND, envelopes=[each for each in LETTERS if each.id != id_])


def changed(id_: str, **kw: Any) -> CrashEvidence:
    return replace(SOUND, envelopes=[replace(each, **kw) if each.id == id_ else each for each in LETTERS])


def with_letter(extra: StoredEnvelope) -> CrashEvidence:
    return replace(SOUND, envelopes=[*LETTERS, extra])


def unlogged(entry: type[Any]) -> CrashEvidence:
    return replace(SOUND, log=[each for each in LOG if not isinstance(each, entry)])


def logged(entry: AnyLogEntry) -> CrashEvidence:
    return replace(SOUND, log=[*LOG, entry])


def came(*others: StoredOccurrence, without: tuple[StoredOccurrence, ...] = ()) -> CrashEvidence:
    slots = sorted(
        (each for each in (*SLOTS, *others) if each not in without), key=lambda each: (each.schedule, each.at_ms)
    )
    return replace(SOUND, occurrences=slots)


DOCTORED: dict[str, tuple[FindingKind, Callable[[], CrashEvidence]]] = {
    "a schedule never came": (FindingKind.LOST, lambda: came(without=tuple(SLOTS[:3]))),
    "a slot is told of nowhere": (FindingKind.LOST, lambda: came(without=(SLOTS[1],))),
    "a slot came twice": (FindingKind.DOUBLED, lambda: came(slot("tick", 2, "ran", "t3"))),
    "an envelope stands for two slots": (
        FindingKind.DOUBLED,
        lambda: came(slot("gated", 6, "working", "g1"), without=(SLOTS[4],)),
    ),
    "a slot was skipped, and nobody knows why": (
        FindingKind.UNEXPLAINED,
        lambda: came(slot("tick", 4, "skipped", until_ms=9_000), without=(SLOTS[1],)),
    ),
    "a slot ran, and its envelope is still open": (
        FindingKind.LOST,
        lambda: came(slot("tick", 2, "ran", "t1", outcome=None), without=(SLOTS[0],)),
    ),
    "an acknowledged envelope is not stored": (FindingKind.LOST, lambda: without("q2")),
    "an acknowledged envelope is another": (FindingKind.CONTRADICTED, lambda: changed("q2", key="another")),
    "an envelope is stored twice": (
        FindingKind.DOUBLED,
        lambda: with_letter(letter(15, "q9", "s0-m2 plain", "answered", answer="a2", key="key-q2")),
    ),
    "an envelope is still open": (FindingKind.LOST, lambda: changed("q2", status="pending", outcome=None, outcomes=0)),
    "an envelope has two outcomes": (FindingKind.DOUBLED, lambda: changed("q2", outcomes=2)),
    "an outcome has no because": (FindingKind.UNEXPLAINED, lambda: changed("q2", because="")),
    "nobody was told of a dead letter": (FindingKind.UNEXPLAINED, lambda: without("n7")),
    "an answer is missing": (FindingKind.LOST, lambda: without("a1")),
    "an answer speaks of something else": (FindingKind.LOST, lambda: changed("a1", text="<s0-m9>")),
    "a question is answered twice": (
        FindingKind.DOUBLED,
        lambda: with_letter(answer(15, "a3", "<s0-m2>", "q2")),
    ),
    "a question that was given up is answered": (
        FindingKind.DOUBLED,
        lambda: with_letter(answer(15, "a3", "<s3-m1>", "q7")),
    ),
    "answers come in another order": (FindingKind.REORDERED, lambda: changed("a1", seq=6)),
    "an answer takes questions in another order": (
        FindingKind.REORDERED,
        lambda: changed("a2", text="<s0-m3 appended>\n<s0-m2>"),
    ),
    "questions are stored in another order": (
        FindingKind.REORDERED,
        lambda: replace(SOUND, envelopes=[LETTERS[1], LETTERS[0], *LETTERS[2:]]),
    ),
    "the news never told of an answer": (FindingKind.LOST, lambda: unlogged(AnsweredEntry)),
    "the news told of an answer twice": (
        FindingKind.DOUBLED,
        lambda: logged(AnsweredEntry(t=5, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>")),
    ),
    "the news told of an answer that is gone": (
        FindingKind.CONTRADICTED,
        lambda: logged(AnsweredEntry(t=5, seq=22, envelope="a9", text="<s0-m4>")),
    ),
    "an outcome is not what was told": (
        FindingKind.CONTRADICTED,
        lambda: logged(SettledEntry(t=5, envelope="q2", outcome="dead")),
    ),
    "a session shows what was never said": (
        FindingKind.CONTRADICTED,
        lambda: logged(FinalAnswersEntry(t=5, session="s", answers=["<s0-m1>"])),
    ),
    "the client complained": (FindingKind.CONTRADICTED, lambda: logged(ComplaintEntry(t=5, text="the news is gone"))),
    "a call was run twice": (
        FindingKind.RUN_TWICE,
        lambda: replace(SOUND, tool_marks=[*SOUND.tool_marks, OutsideMark("r1-0-1", "s0-m1/1")]),
    ),
    "a call was not run, and the model read that it was": (
        FindingKind.CONTRADICTED,
        lambda: replace(SOUND, tool_marks=[]),
    ),
    "a call that was cut off is not said to be": (
        FindingKind.UNEXPLAINED,
        lambda: replace(SOUND, interrupted_calls=[*SOUND.interrupted_calls, InterruptedCall(run="r2", word="s0-m3")]),
    ),
    "a call is said to be cut off and was not": (
        FindingKind.CONTRADICTED,
        lambda: replace(SOUND, interrupted_calls=[]),
    ),
    "a call nobody asked for was run": (
        FindingKind.UNREQUESTED,
        lambda: replace(SOUND, tool_marks=[*SOUND.tool_marks, OutsideMark("r9-0-1", "s7-m7")]),
    ),
    "a decision that was acknowledged is not stored": (
        FindingKind.LOST,
        lambda: logged(DecidedEntry(t=5, approval="p9", token="s0-m9", allow=True)),
    ),
    "a denied call was run": (
        FindingKind.UNREQUESTED,
        lambda: replace(SOUND, approvals=[replace(SOUND.approvals[0], state="denied")]),
    ),
    "a call was run that nobody was asked about": (
        FindingKind.UNREQUESTED,
        lambda: replace(SOUND, approval_calls=[ApprovalCall("s", "s0-m1/1")], granted_sessions=frozenset({"another"})),
    ),
    "an allowed call was never run": (FindingKind.LOST, lambda: replace(SOUND, tool_marks=SOUND.tool_marks[:1])),
    "a delivery never came": (FindingKind.LOST, lambda: replace(SOUND, channel_marks={"steady": [], "risky": []})),
    "a part of a delivery never came": (
        FindingKind.LOST,
        lambda: replace(SOUND, channel_marks=SOUND.channel_marks | {"risky": SOUND.channel_marks["risky"][:1]}),
    ),
    "the parts of a delivery came in another order": (
        FindingKind.REORDERED,
        lambda: replace(SOUND, channel_marks=SOUND.channel_marks | {"risky": SOUND.channel_marks["risky"][::-1]}),
    ),
    "a delivery came twice where that matters": (
        FindingKind.DOUBLED,
        lambda: replace(
            SOUND,
            channel_marks=SOUND.channel_marks
            | {"risky": [*SOUND.channel_marks["risky"], SOUND.channel_marks["risky"][1]]},
        ),
    ),
    "deliveries came in another order": (
        FindingKind.REORDERED,
        lambda: replace(
            SOUND,
            channel_marks=SOUND.channel_marks
            | {"risky": [OutsideMark("q6", "s2-m2 plain"), *SOUND.channel_marks["risky"]]},
        ),
    ),
    "something came that is not stored": (
        FindingKind.UNREQUESTED,
        lambda: replace(
            SOUND,
            channel_marks=SOUND.channel_marks
            | {"steady": [*SOUND.channel_marks["steady"], OutsideMark("q9", "s1-m2 plain")]},
        ),
    ),
    "something is stored that nobody sent": (
        FindingKind.UNREQUESTED,
        lambda: with_letter(letter(15, "q9", "s8-m1 plain", "answered", answer="a2")),
    ),
    "a retry nobody asked for": (FindingKind.UNREQUESTED, lambda: unlogged(RetriedEntry)),
    "a retry that was acknowledged is not stored": (FindingKind.LOST, lambda: without("q8")),
    "a retry goes out twice": (
        FindingKind.DOUBLED,
        lambda: replace(
            SOUND,
            envelopes=[
                *(replace(each, outcome="answered", answer="a9") if each.id == "q8" else each for each in LETTERS),
                letter(15, "q9", "s3-m1 fail", "dead", run="r4", source="retry", key="q7/2", retry_of="q7"),
            ],
        ),
    ),
    "a run is still open": (
        FindingKind.LOST,
        lambda: replace(SOUND, runs=[*SOUND.runs, StoredRun(id="r9", status="parked", final_text=None)]),
    ),
    "what was heard from elsewhere is not stored": (FindingKind.LOST, lambda: without("c2")),
    "what was said again was heard as something new": (
        FindingKind.DOUBLED,
        lambda: logged(CallbackResultEntry(t=5, session="f", message="x1-1", envelope="c2", answers=None)),
    ),
    "what was said elsewhere is stored twice": (
        FindingKind.DOUBLED,
        lambda: with_letter(from_elsewhere(20, "c3", "x1-2", "by the way: x1", reply_to=None)),
    ),
    "a letter is answered twice from elsewhere": (FindingKind.DOUBLED, lambda: changed("c2", reply_to="x1")),
    "what was said elsewhere went to another session": (
        FindingKind.MISDELIVERED,
        lambda: changed("c1", recipient="agent:fay/g"),
    ),
    "what was said to one letter was taken for the answer to another": (
        FindingKind.MISDELIVERED,
        lambda: logged(CallbackResultEntry(t=5, session="f", message="x1-1", envelope="c1", answers="x9")),
    ),
    "a letter ended with the answer to another": (FindingKind.MISDELIVERED, lambda: changed("c1", text="<s4-m2>")),
    "a letter ended with what another session was told": (
        FindingKind.MISDELIVERED,
        lambda: replace(SOUND, requests=[replace(HANDED_OUT, session="g")]),
    ),
    "the run says something else than was answered": (
        FindingKind.MISDELIVERED,
        lambda: replace(SOUND, runs=[*SOUND.runs[:-1], replace(ELSEWHERE, final_text="<s4-m1 other>")]),
    ),
    "a letter that was answered is given up": (
        FindingKind.LOST,
        lambda: replace(SOUND, requests=[replace(HANDED_OUT, state="failed", result=None)]),
    ),
    "a letter to elsewhere is still open": (
        FindingKind.LOST,
        lambda: replace(SOUND, requests=[replace(HANDED_OUT, state="open", result=None)]),
    ),
    "a letter is delivered and never came there": (FindingKind.LOST, lambda: unlogged(RequestEntry)),
    "something is stored that nobody said elsewhere": (FindingKind.UNREQUESTED, lambda: unlogged(CallbackEntry)),
    "the ledger does not hold": (FindingKind.LEDGER, lambda: replace(SOUND, ledger_findings=["WRONG counted"])),
}


@pytest.mark.parametrize("what", DOCTORED)
def test_doctored_evidence_is_seen_through(what: str) -> None:
    wrong, doctored = DOCTORED[what]
    verdict = judge_evidence(doctored())
    assert verdict.count(wrong) >= 1, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: FAILED")
