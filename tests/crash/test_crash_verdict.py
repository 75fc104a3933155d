"""The checks of the crash test themselves: they accept correct evidence and detect altered evidence."""

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


def stored_envelope(seq: int, id_: str, text: str, outcome: str, **kw: Any) -> StoredEnvelope:
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
    return stored_envelope(seq, id_, text, "delivered", **kw)


def external_answer(seq: int, id_: str, message: str, text: str, *, reply_to: str | None) -> StoredEnvelope:
    kw = {"kind": "answer", "source": "external:f", "key": message, "recipient": "agent:fay/f", "reply_to": reply_to}
    return stored_envelope(seq, id_, text, "noted", **kw)


ENVELOPES = [
    stored_envelope(1, "q1", "s0-m1 two-tools 0.1", "answered", answer="a1", run="r1"),
    stored_envelope(2, "q2", "s0-m2 plain", "answered", answer="a2", run="r2"),
    stored_envelope(3, "q3", "s0-m3 ask", "answered", answer="a2", run="r2"),
    answer(4, "a1", "<s0-m1 appended interrupted>", "q1"),
    answer(5, "a2", "<s0-m2>\n<s0-m3 appended>", "q3"),
    stored_envelope(6, "q4", "s1-m1 plain", "delivered", recipient="channel:steady:room-1"),
    stored_envelope(7, "q5", "s2-m1 plain", "delivered", recipient="channel:risky:room-2"),
    stored_envelope(8, "q6", "s2-m2 plain", "interrupted", recipient="channel:risky:room-2"),
    stored_envelope(9, "n6", "may have arrived", "delivered", kind="notice", source="server", reply_to="q6"),
    stored_envelope(10, "q7", "s3-m1 fail", "dead", run="r3"),
    stored_envelope(11, "n7", "it broke", "delivered", kind="notice", source="server", reply_to="q7"),
    stored_envelope(12, "q8", "s3-m1 fail", "dead", run="r4", source="retry", key="q7/1", retry_of="q7"),
    stored_envelope(13, "n8", "it broke", "delivered", kind="notice", source="server", reply_to="q8"),
    stored_envelope(14, "d1", "owner allowed", "noted", kind="decision", key="p1/decision"),
    stored_envelope(15, "q10", "s4-m1 plain", "answered", answer="a10", run="r5", recipient="agent:fay/f"),
    stored_envelope(
        16, "x1", "s4-m1 plain", "delivered", kind="delegation", source="run", recipient="channel:external:f"
    ),
    external_answer(17, "c1", "x1-1", "<s4-m1>", reply_to="x1"),
    answer(18, "a10", "<s4-m1>", "q10"),
    external_answer(19, "c2", "x1-2", "by the way: x1", reply_to=None),
]
SENT_MESSAGES = [each for each in ENVELOPES if each.kind == "message" and each.source == "person:owner"]
LOG: list[AnyLogEntry] = [
    *(SentEntry(t=0, token=each.token, key=each.key, to="agent:ada") for each in SENT_MESSAGES),
    SentEntry(t=0, token="s9-m1", key="never-answered", to="agent:ada"),
    *(
        AcknowledgedEntry(t=1, token=each.token, key=each.key, envelope=each.id, session="s", duplicate=False)
        for each in SENT_MESSAGES
    ),
    DecidedEntry(t=2, approval="p1", token="s0-m3", allow=True),
    AnsweredEntry(t=2, seq=20, envelope="a1", text="<s0-m1 appended interrupted>"),
    AnsweredEntry(t=2, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>"),
    AnsweredEntry(t=2, seq=22, envelope="a10", text="<s4-m1>"),
    RequestEntry(t=2, envelope="x1", session="f", text="s4-m1 plain"),
    CallbackEntry(t=2, session="f", message="x1-1", request="x1", text="<s4-m1>"),
    CallbackResultEntry(t=2, session="f", message="x1-1", envelope="c1", answers="x1"),
    CallbackEntry(t=2, session="f", message="x1-2", request="x1", text="by the way: x1"),
    CallbackResultEntry(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    CallbackResultEntry(t=2, session="f", message="x1-2", envelope="c2", answers=None),
    SettledEntry(t=3, envelope="q1", outcome="answered"),
    RetriedEntry(t=3, envelope="q7"),
    FinalAnswersEntry(t=4, session="s", answers=["<s0-m1 appended interrupted>", "<s0-m2>\n<s0-m3 appended>"]),
]
EXTERNAL_RUN = StoredRun(id="r5", status="completed", final_text="<s4-m1>")
EXTERNAL_REQUEST = StoredRequest(id="x1", session="f", state="done", result="c1", run="r5")


def stored_occurrence(schedule: str, at_s: int, state: str, envelope: str | None = None, **kw: Any) -> StoredOccurrence:
    given: dict[str, Any] = {"until_ms": None, "because": "", "outcome": "answered" if state == "ran" else None}
    return StoredOccurrence(schedule=schedule, at_ms=at_s * 1000, state=state, envelope=envelope, **given | kw)


OCCURRENCES = [
    stored_occurrence("tick", 2, "ran", "t1"),
    stored_occurrence("tick", 4, "skipped", until_ms=9_000, because="missed: the server was not running"),
    stored_occurrence("tick", 10, "waiting", "t2"),
    stored_occurrence("gated", 3, "ran", "g1"),
    stored_occurrence("gated", 6, "working", "g2"),
    stored_occurrence("gated", 9, "waiting", "g3"),
]
SOUND_EVIDENCE = CrashEvidence(
    log=LOG,
    tool_marks=[OutsideMark("r1-0-1", "s0-m1/1"), OutsideMark("r2-0-1", "s0-m3")],
    channel_marks={
        "steady": [OutsideMark("q4", "s1-m1 plain"), OutsideMark("q4", "s1-m1 plain")],
        "risky": [OutsideMark("q5/0/2", "s2-m1 plain"), OutsideMark("q5/1/2", "s2-m1 plain")],
    },
    envelopes=ENVELOPES,
    runs=[
        StoredRun(id="r1", status="completed", final_text="<s0-m1 appended interrupted>"),
        StoredRun(id="r2", status="completed", final_text="<s0-m2>\n<s0-m3 appended>"),
        StoredRun(id="r3", status="failed", final_text=None),
        StoredRun(id="r4", status="failed", final_text=None),
        EXTERNAL_RUN,
    ],
    requests=[EXTERNAL_REQUEST],
    occurrences=OCCURRENCES,
    interrupted_calls=[InterruptedCall(run="r1", word="s0-m1/2")],
    approvals=[StoredApproval(id="p1", state="allowed", run="r2", word="s0-m3", decision="noted")],
    envelopes_by_event={20: "a1", 21: "a2", 22: "a10"},
)


def test_the_crash_verdict_accepts_a_call_that_an_approval_or_a_grant_allowed() -> None:
    asking = [ApprovalCall("s", "s0-m3"), ApprovalCall("t", "s0-m1/1")]
    assert judge_evidence(replace(SOUND_EVIDENCE, approval_calls=asking, granted_sessions=frozenset({"t"}))).is_ok


def test_the_crash_verdict_accepts_correct_evidence() -> None:
    verdict = judge_evidence(SOUND_EVIDENCE)
    assert verdict.is_ok, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: ok (0 lost, 0 doubled, 0 reordered, 0 run twice")


def without(id_: str) -> CrashEvidence:
    return replace(SOUND_EVIDENCE, envelopes=[each for each in ENVELOPES if each.id != id_])


def with_changed_envelope(id_: str, **kw: Any) -> CrashEvidence:
    return replace(SOUND_EVIDENCE, envelopes=[replace(each, **kw) if each.id == id_ else each for each in ENVELOPES])


def with_envelope(extra: StoredEnvelope) -> CrashEvidence:
    return replace(SOUND_EVIDENCE, envelopes=[*ENVELOPES, extra])


def without_log_entries(entry: type[Any]) -> CrashEvidence:
    return replace(SOUND_EVIDENCE, log=[each for each in LOG if not isinstance(each, entry)])


def with_log_entry(entry: AnyLogEntry) -> CrashEvidence:
    return replace(SOUND_EVIDENCE, log=[*LOG, entry])


def with_occurrences(*others: StoredOccurrence, without: tuple[StoredOccurrence, ...] = ()) -> CrashEvidence:
    slots = sorted(
        (each for each in (*OCCURRENCES, *others) if each not in without), key=lambda each: (each.schedule, each.at_ms)
    )
    return replace(SOUND_EVIDENCE, occurrences=slots)


MANIPULATED: dict[str, tuple[FindingKind, Callable[[], CrashEvidence]]] = {
    "a schedule has no occurrence": (FindingKind.LOST, lambda: with_occurrences(without=tuple(OCCURRENCES[:3]))),
    "an occurrence is missing": (FindingKind.LOST, lambda: with_occurrences(without=(OCCURRENCES[1],))),
    "an occurrence is stored twice": (
        FindingKind.DOUBLED,
        lambda: with_occurrences(stored_occurrence("tick", 2, "ran", "t3")),
    ),
    "an envelope has two occurrences": (
        FindingKind.DOUBLED,
        lambda: with_occurrences(stored_occurrence("gated", 6, "working", "g1"), without=(OCCURRENCES[4],)),
    ),
    "a skipped occurrence has no reason": (
        FindingKind.UNEXPLAINED,
        lambda: with_occurrences(stored_occurrence("tick", 4, "skipped", until_ms=9_000), without=(OCCURRENCES[1],)),
    ),
    "an occurrence ran and its envelope is still open": (
        FindingKind.LOST,
        lambda: with_occurrences(stored_occurrence("tick", 2, "ran", "t1", outcome=None), without=(OCCURRENCES[0],)),
    ),
    "an acknowledged envelope is not stored": (FindingKind.LOST, lambda: without("q2")),
    "an acknowledged envelope has another key": (
        FindingKind.CONTRADICTED,
        lambda: with_changed_envelope("q2", key="another"),
    ),
    "an envelope is stored twice": (
        FindingKind.DOUBLED,
        lambda: with_envelope(stored_envelope(15, "q9", "s0-m2 plain", "answered", answer="a2", key="key-q2")),
    ),
    "an envelope is still open": (
        FindingKind.LOST,
        lambda: with_changed_envelope("q2", status="pending", outcome=None, outcomes=0),
    ),
    "an envelope has two outcomes": (FindingKind.DOUBLED, lambda: with_changed_envelope("q2", outcomes=2)),
    "an outcome has no reason": (FindingKind.UNEXPLAINED, lambda: with_changed_envelope("q2", because="")),
    "a dead letter has no notification": (FindingKind.UNEXPLAINED, lambda: without("n7")),
    "an answer is missing": (FindingKind.LOST, lambda: without("a1")),
    "an answer has another text": (FindingKind.LOST, lambda: with_changed_envelope("a1", text="<s0-m9>")),
    "an envelope is answered twice": (
        FindingKind.DOUBLED,
        lambda: with_envelope(answer(15, "a3", "<s0-m2>", "q2")),
    ),
    "a failed envelope is answered": (
        FindingKind.DOUBLED,
        lambda: with_envelope(answer(15, "a3", "<s3-m1>", "q7")),
    ),
    "answers are in another order": (FindingKind.REORDERED, lambda: with_changed_envelope("a1", seq=6)),
    "an answer has its questions in another order": (
        FindingKind.REORDERED,
        lambda: with_changed_envelope("a2", text="<s0-m3 appended>\n<s0-m2>"),
    ),
    "envelopes are stored in another order": (
        FindingKind.REORDERED,
        lambda: replace(SOUND_EVIDENCE, envelopes=[ENVELOPES[1], ENVELOPES[0], *ENVELOPES[2:]]),
    ),
    "no event reports an answer": (FindingKind.LOST, lambda: without_log_entries(AnsweredEntry)),
    "two events report an answer": (
        FindingKind.DOUBLED,
        lambda: with_log_entry(AnsweredEntry(t=5, seq=21, envelope="a2", text="<s0-m2>\n<s0-m3 appended>")),
    ),
    "an event reports an answer that is not stored": (
        FindingKind.CONTRADICTED,
        lambda: with_log_entry(AnsweredEntry(t=5, seq=22, envelope="a9", text="<s0-m4>")),
    ),
    "an outcome differs from its event": (
        FindingKind.CONTRADICTED,
        lambda: with_log_entry(SettledEntry(t=5, envelope="q2", outcome="dead")),
    ),
    "a session shows answers that are not stored": (
        FindingKind.CONTRADICTED,
        lambda: with_log_entry(FinalAnswersEntry(t=5, session="s", answers=["<s0-m1>"])),
    ),
    "the client reported a complaint": (
        FindingKind.CONTRADICTED,
        lambda: with_log_entry(ComplaintEntry(t=5, text="an event is missing")),
    ),
    "a call was run twice": (
        FindingKind.RUN_TWICE,
        lambda: replace(SOUND_EVIDENCE, tool_marks=[*SOUND_EVIDENCE.tool_marks, OutsideMark("r1-0-1", "s0-m1/1")]),
    ),
    "a call was not run although its result says so": (
        FindingKind.CONTRADICTED,
        lambda: replace(SOUND_EVIDENCE, tool_marks=[]),
    ),
    "an interrupted call is not reported as interrupted": (
        FindingKind.UNEXPLAINED,
        lambda: replace(
            SOUND_EVIDENCE,
            interrupted_calls=[*SOUND_EVIDENCE.interrupted_calls, InterruptedCall(run="r2", word="s0-m3")],
        ),
    ),
    "a call is reported as interrupted and was not": (
        FindingKind.CONTRADICTED,
        lambda: replace(SOUND_EVIDENCE, interrupted_calls=[]),
    ),
    "a call was run that no model requested": (
        FindingKind.UNREQUESTED,
        lambda: replace(SOUND_EVIDENCE, tool_marks=[*SOUND_EVIDENCE.tool_marks, OutsideMark("r9-0-1", "s7-m7")]),
    ),
    "a decision that was acknowledged is not stored": (
        FindingKind.LOST,
        lambda: with_log_entry(DecidedEntry(t=5, approval="p9", token="s0-m9", allow=True)),
    ),
    "a denied call was run": (
        FindingKind.UNREQUESTED,
        lambda: replace(SOUND_EVIDENCE, approvals=[replace(SOUND_EVIDENCE.approvals[0], state="denied")]),
    ),
    "a call was run without an approval": (
        FindingKind.UNREQUESTED,
        lambda: replace(
            SOUND_EVIDENCE, approval_calls=[ApprovalCall("s", "s0-m1/1")], granted_sessions=frozenset({"another"})
        ),
    ),
    "an allowed call was never run": (
        FindingKind.LOST,
        lambda: replace(SOUND_EVIDENCE, tool_marks=SOUND_EVIDENCE.tool_marks[:1]),
    ),
    "a delivery did not arrive": (
        FindingKind.LOST,
        lambda: replace(SOUND_EVIDENCE, channel_marks={"steady": [], "risky": []}),
    ),
    "a part of a delivery did not arrive": (
        FindingKind.LOST,
        lambda: replace(
            SOUND_EVIDENCE,
            channel_marks=SOUND_EVIDENCE.channel_marks | {"risky": SOUND_EVIDENCE.channel_marks["risky"][:1]},
        ),
    ),
    "the parts of a delivery arrived in another order": (
        FindingKind.REORDERED,
        lambda: replace(
            SOUND_EVIDENCE,
            channel_marks=SOUND_EVIDENCE.channel_marks | {"risky": SOUND_EVIDENCE.channel_marks["risky"][::-1]},
        ),
    ),
    "a delivery was repeated on a connector that must not repeat": (
        FindingKind.DOUBLED,
        lambda: replace(
            SOUND_EVIDENCE,
            channel_marks=SOUND_EVIDENCE.channel_marks
            | {"risky": [*SOUND_EVIDENCE.channel_marks["risky"], SOUND_EVIDENCE.channel_marks["risky"][1]]},
        ),
    ),
    "deliveries arrived in another order": (
        FindingKind.REORDERED,
        lambda: replace(
            SOUND_EVIDENCE,
            channel_marks=SOUND_EVIDENCE.channel_marks
            | {"risky": [OutsideMark("q6", "s2-m2 plain"), *SOUND_EVIDENCE.channel_marks["risky"]]},
        ),
    ),
    "a message was delivered that is not stored": (
        FindingKind.UNREQUESTED,
        lambda: replace(
            SOUND_EVIDENCE,
            channel_marks=SOUND_EVIDENCE.channel_marks
            | {"steady": [*SOUND_EVIDENCE.channel_marks["steady"], OutsideMark("q9", "s1-m2 plain")]},
        ),
    ),
    "an envelope is stored that no client sent": (
        FindingKind.UNREQUESTED,
        lambda: with_envelope(stored_envelope(15, "q9", "s8-m1 plain", "answered", answer="a2")),
    ),
    "a retry without a request": (FindingKind.UNREQUESTED, lambda: without_log_entries(RetriedEntry)),
    "a retry that was acknowledged is not stored": (FindingKind.LOST, lambda: without("q8")),
    "a retry is stored twice": (
        FindingKind.DOUBLED,
        lambda: replace(
            SOUND_EVIDENCE,
            envelopes=[
                *(replace(each, outcome="answered", answer="a9") if each.id == "q8" else each for each in ENVELOPES),
                stored_envelope(15, "q9", "s3-m1 fail", "dead", run="r4", source="retry", key="q7/2", retry_of="q7"),
            ],
        ),
    ),
    "a run is still open": (
        FindingKind.LOST,
        lambda: replace(
            SOUND_EVIDENCE, runs=[*SOUND_EVIDENCE.runs, StoredRun(id="r9", status="suspended", final_text=None)]
        ),
    ),
    "an accepted callback is not stored": (FindingKind.LOST, lambda: without("c2")),
    "a repeated callback is accepted as a new one": (
        FindingKind.DOUBLED,
        lambda: with_log_entry(CallbackResultEntry(t=5, session="f", message="x1-1", envelope="c2", answers=None)),
    ),
    "a callback is stored twice": (
        FindingKind.DOUBLED,
        lambda: with_envelope(external_answer(20, "c3", "x1-2", "by the way: x1", reply_to=None)),
    ),
    "a request to an external agent is answered twice": (
        FindingKind.DOUBLED,
        lambda: with_changed_envelope("c2", reply_to="x1"),
    ),
    "a callback went to another session": (
        FindingKind.MISDELIVERED,
        lambda: with_changed_envelope("c1", recipient="agent:fay/g"),
    ),
    "a callback is recorded as the answer to another request": (
        FindingKind.MISDELIVERED,
        lambda: with_log_entry(CallbackResultEntry(t=5, session="f", message="x1-1", envelope="c1", answers="x9")),
    ),
    "a request has the answer to another request": (
        FindingKind.MISDELIVERED,
        lambda: with_changed_envelope("c1", text="<s4-m2>"),
    ),
    "a request has the answer of another session": (
        FindingKind.MISDELIVERED,
        lambda: replace(SOUND_EVIDENCE, requests=[replace(EXTERNAL_REQUEST, session="g")]),
    ),
    "the final text of the run differs from the answer": (
        FindingKind.MISDELIVERED,
        lambda: replace(
            SOUND_EVIDENCE, runs=[*SOUND_EVIDENCE.runs[:-1], replace(EXTERNAL_RUN, final_text="<s4-m1 other>")]
        ),
    ),
    "an answered request is marked as failed": (
        FindingKind.LOST,
        lambda: replace(SOUND_EVIDENCE, requests=[replace(EXTERNAL_REQUEST, state="failed", result=None)]),
    ),
    "a request to an external agent is still open": (
        FindingKind.LOST,
        lambda: replace(SOUND_EVIDENCE, requests=[replace(EXTERNAL_REQUEST, state="open", result=None)]),
    ),
    "a delivered request did not arrive at the external agent": (
        FindingKind.LOST,
        lambda: without_log_entries(RequestEntry),
    ),
    "a callback is stored that no external agent sent": (
        FindingKind.UNREQUESTED,
        lambda: without_log_entries(CallbackEntry),
    ),
    "the ledger is inconsistent": (
        FindingKind.LEDGER,
        lambda: replace(SOUND_EVIDENCE, ledger_findings=["WRONG counted"]),
    ),
}


@pytest.mark.parametrize("what", MANIPULATED)
def test_the_crash_verdict_detects_manipulated_evidence(what: str) -> None:
    wrong, manipulated = MANIPULATED[what]
    verdict = judge_evidence(manipulated())
    assert verdict.count(wrong) >= 1, verdict.lines()
    assert verdict.lines()[-1].startswith("crash verdict: FAILED")
