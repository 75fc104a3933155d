"""The verdict of the crash test: a pure function of the evidence. In a correct server, every count is zero."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise
from typing import NamedTuple

from retinue.testing import crash_script as script
from retinue.testing.crash_evidence import CrashEvidence, StoredEnvelope, StoredRequest, StoredRun
from retinue.testing.crash_log import (
    AcknowledgedEntry,
    AnsweredEntry,
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
from retinue.testing.crash_script import CallResult, ScriptAction

OWNER_SENDER = "person:owner"
FINDINGS_SHOWN_MAX = 20


class FindingKind(StrEnum):
    """The kinds of findings of a crash test, in the order in which they are printed."""

    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    RUN_TWICE = "run twice"
    MISDELIVERED = "misdelivered"
    UNEXPLAINED = "unexplained"
    UNREQUESTED = "unrequested"
    CONTRADICTED = "contradicted"
    LEDGER = "ledger"


class CrashFinding(NamedTuple):
    """A contradiction that was found in the evidence of a crash test."""

    kind: FindingKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashVerdict:
    """The result of a crash test: how much was checked, and what was found."""

    figures: dict[str, int]
    findings: Sequence[CrashFinding]

    @property
    def is_ok(self) -> bool:
        return not self.findings

    def count(self, kind: FindingKind) -> int:
        return sum(finding.kind is kind for finding in self.findings)

    def lines(self) -> list[str]:
        """Return the verdict as lines: a table, the first few findings, and the conclusion."""
        table = [f"  {name:<28}{count:>8}" for name, count in self.figures.items()]
        table += [f"  {wrong:<28}{self.count(wrong):>8}" for wrong in FindingKind]
        shown = [f"  {wrong}: {text}" for wrong, text in self.findings[:FINDINGS_SHOWN_MAX]]
        more = (
            [f"  and {len(self.findings) - FINDINGS_SHOWN_MAX} more"] if len(self.findings) > FINDINGS_SHOWN_MAX else []
        )
        sums = ", ".join(f"{self.count(wrong)} {wrong}" for wrong in FindingKind)
        return [*table, *shown, *more, f"crash verdict: {'ok' if self.is_ok else 'FAILED'} ({sums})"]


def judge_evidence(evidence: CrashEvidence, *, has_schedules: bool = True) -> CrashVerdict:
    """Check the evidence of a crash test, and return the verdict.

    `has_schedules` says whether the server had any schedules.
    """
    case = _EvidenceIndex(evidence)
    findings = [
        *_check_complaints(case),
        *_check_stored(case),
        *_check_settled(case),
        *_check_answered(case),
        *_check_order(case),
        *_check_events(case),
        *_check_calls(case),
        *_check_delegations(case),
        *_check_callbacks(case),
        *_check_requests(case),
        *_check_approvals(case),
        *_check_deliveries(case),
        *_check_unrequested(case),
        *_check_retries(case),
        *(_check_occurrences(case) if has_schedules else ()),
        *(CrashFinding(FindingKind.LEDGER, line) for line in evidence.ledger_findings),
    ]
    return CrashVerdict(figures=_count_evidence(case), findings=findings)


@dataclass(slots=True)
class _EvidenceIndex:
    """The evidence of a crash test, indexed for lookups."""

    evidence: CrashEvidence
    sent: dict[str, SentEntry] = field(init=False)  # by key
    acknowledged: list[AcknowledgedEntry] = field(init=False)
    envelopes_by_id: dict[str, StoredEnvelope] = field(init=False)
    questions: list[StoredEnvelope] = field(init=False)  # what the clients sent, in the order of the store
    answers: list[StoredEnvelope] = field(init=False)
    answers_by_token: dict[str, list[StoredEnvelope]] = field(init=False)  # the answers that contain a token
    writes_by_word: Counter[str] = field(init=False)  # how often a call wrote each word
    external_envelopes: list[StoredEnvelope] = field(init=False)  # what the external agent sent

    def __post_init__(self) -> None:
        log, envelopes = self.evidence.log, self.evidence.envelopes
        self.sent = {entry.key: entry for entry in log if isinstance(entry, SentEntry)}
        self.acknowledged = [entry for entry in log if isinstance(entry, AcknowledgedEntry)]
        self.envelopes_by_id = {envelope.id: envelope for envelope in envelopes}
        self.questions = [
            envelope for envelope in envelopes if envelope.source == OWNER_SENDER and envelope.kind == "message"
        ]
        self.answers = [
            envelope for envelope in envelopes if envelope.kind == "answer" and envelope.recipient == OWNER_SENDER
        ]
        self.answers_by_token = defaultdict(list)
        for envelope in self.answers:
            for answer in script.parse_answers(envelope.text):
                self.answers_by_token[answer.token].append(envelope)
        self.writes_by_word = Counter(mark.word for mark in self.evidence.tool_marks)
        self.external_envelopes = [envelope for envelope in envelopes if envelope.source.startswith(_EXTERNAL_SOURCE)]

    @property
    def late_tokens(self) -> Counter[str]:
        """Each token that the external agent sent after its request had ended, with the number of times it was sent."""
        late = (envelope for envelope in self.external_envelopes if envelope.reply_to is None)
        return Counter(answer.token for envelope in late for answer in script.parse_answers(envelope.text))


def _check_complaints(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    for entry in index.evidence.log:
        if isinstance(entry, ComplaintEntry):
            yield CrashFinding(FindingKind.CONTRADICTED, entry.text)


def _check_stored(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that acknowledged envelopes are stored under their id, and that no envelope is stored twice."""
    for entry in index.acknowledged:
        envelope = index.envelopes_by_id.get(entry.envelope)
        if envelope is None:
            yield CrashFinding(
                FindingKind.LOST, f"{entry.token} was acknowledged as {entry.envelope[:8]} and is not stored"
            )
        elif (envelope.token, envelope.key) != (entry.token, entry.key):
            yield CrashFinding(
                FindingKind.CONTRADICTED,
                f"{entry.envelope[:8]} was acknowledged for {entry.token} and belongs to another",
            )
    for what, counted in (
        ("key", Counter(envelope.key for envelope in index.questions)),
        ("token", Counter(envelope.token for envelope in index.questions)),
    ):
        yield from (
            CrashFinding(FindingKind.DOUBLED, f"{what} {of} is stored {n} times") for of, n in counted.items() if n > 1
        )


def _check_settled(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that every envelope ended once, with a reason, and that every sender got an answer or a notice."""
    notified = {envelope.reply_to for envelope in index.evidence.envelopes if envelope.kind == "notice"}
    notified_runs = {index.envelopes_by_id[id_].run for id_ in notified if id_ in index.envelopes_by_id} - {None}
    ahead = {occurrence.envelope for occurrence in index.evidence.occurrences if occurrence.state == "waiting"}
    explained = {
        occurrence.envelope
        for occurrence in index.evidence.occurrences
        if occurrence.state in ("skipped", "failed") and occurrence.because
    }
    for envelope in index.evidence.envelopes:
        if envelope.id in ahead and envelope.outcomes == 0:
            continue  # the next occurrence of a schedule, still in the future
        name = f"{envelope.kind} {envelope.id[:8]} ({envelope.token})"
        if envelope.outcomes > 1:
            yield CrashFinding(FindingKind.DOUBLED, f"{name} has {envelope.outcomes} outcomes")
        if envelope.status != "done" or envelope.outcome is None:
            yield CrashFinding(FindingKind.LOST, f"{name} is {envelope.status}, outcome {envelope.outcome}")
        elif not envelope.because:
            yield CrashFinding(FindingKind.UNEXPLAINED, f"{name} ended {envelope.outcome} without a reason")
        elif (
            envelope.kind == "message"
            and envelope.outcome not in ("answered", "delivered")
            and not _is_noted_agent_message(envelope)
        ):
            if envelope.id not in notified | explained and envelope.run not in notified_runs:
                yield CrashFinding(
                    FindingKind.UNEXPLAINED, f"{name} ended {envelope.outcome}, and its sender was not notified"
                )
    for run in index.evidence.runs:
        if run.status in ("running", "suspended"):
            yield CrashFinding(FindingKind.LOST, f"run {run.id[:8]} is still {run.status}")


def _is_noted_agent_message(envelope: StoredEnvelope) -> bool:
    """Return whether an envelope is an agent message that starts no run.

    The recipient reads such a message in its next turn, and does not answer it.
    """
    return envelope.source != OWNER_SENDER and envelope.outcome == "noted"


def _check_answered(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check the stored answer of each question that was answered.

    The answer must contain the question's token, and no other answer may contain it.
    """
    owed = index.late_tokens
    for envelope in index.evidence.envelopes:
        if envelope.kind != "message" or envelope.outcome != "answered" or envelope.source.startswith(_SCHEDULE_SOURCE):
            continue
        owed[envelope.token] += 1
        answer = index.envelopes_by_id.get(envelope.answer or "")
        if answer is None or answer not in index.answers_by_token[envelope.token]:
            yield CrashFinding(FindingKind.LOST, f"{envelope.token} is answered, but its answer does not contain it")
    for token, answers in index.answers_by_token.items():
        if len(answers) > owed[token]:
            yield CrashFinding(FindingKind.DOUBLED, f"{token} is in {len(answers)} answers, {owed[token]} owed")


def _check_order(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that in each session, questions were stored and answered in the order in which they were acknowledged."""
    stored: dict[int, list[tuple[int, StoredEnvelope]]] = defaultdict(list)
    for envelope in index.questions:
        session, number = script.parse_token(envelope.token)
        stored[session].append((number, envelope))
    for envelopes in stored.values():
        yield from _check_increasing(
            [number for number, _ in envelopes], f"stored in {envelopes[0][1].token}'s session"
        )
        answered = [
            (answer.seq, [a.token for a in script.parse_answers(answer.text)].index(envelope.token), number)
            for number, envelope in envelopes
            if (answer := index.envelopes_by_id.get(envelope.answer or "")) is not None
            and answer in index.answers_by_token[envelope.token]
        ]
        numbers = [number for _, _, number in sorted(answered)]
        yield from _check_increasing(numbers, f"answered in {envelopes[0][1].token}'s session")


def _check_increasing(numbers: Sequence[int], what: str) -> Iterator[CrashFinding]:
    for before, after in pairwise(numbers):
        if after <= before:
            yield CrashFinding(FindingKind.REORDERED, f"{what}: {after} comes after {before}")


def _check_events(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check the events that the client received.

    They must report each answer once, report no answer that is not stored, and give the correct
    outcomes.
    """
    heard: Counter[str] = Counter()
    texts = {envelope.text for envelope in index.evidence.envelopes if envelope.recipient == OWNER_SENDER}
    late = index.late_tokens
    retried = {
        envelope.token for envelope in index.evidence.envelopes if envelope.retry_of
    }  # answered later than their turn
    for entry in index.evidence.log:
        match entry:
            case AnsweredEntry(seq=seq, envelope=envelope, text=text):
                heard[envelope] += 1
                stored = index.envelopes_by_id.get(envelope)
                if stored is None or stored.text != text or index.evidence.envelopes_by_event.get(seq) != envelope:
                    yield CrashFinding(FindingKind.CONTRADICTED, f"event {seq} reports the wrong answer {envelope[:8]}")
            case SettledEntry(envelope=envelope, outcome=outcome):
                stored = index.envelopes_by_id.get(envelope)
                if stored is None or stored.outcome != outcome:
                    became = stored.outcome if stored else "not stored"
                    yield CrashFinding(
                        FindingKind.CONTRADICTED, f"{envelope[:8]} was reported as {outcome} and is {became}"
                    )
            case FinalAnswersEntry(session=session, answers=answers):
                yield from (
                    CrashFinding(
                        FindingKind.CONTRADICTED, f"session {session[:8]} shows an answer that was never given: {text}"
                    )
                    for text in answers
                    if text not in texts
                )
                shown = [answer.token for text in answers for answer in script.parse_answers(text)]
                numbers = [
                    script.parse_token(token)[1] for token in shown if token not in retried and token not in late
                ]
                yield from _check_increasing(numbers, f"shown in session {session[:8]}")
            case _:
                pass
    for envelope in index.answers:
        if heard[envelope.id] > 1:
            yield CrashFinding(
                FindingKind.DOUBLED, f"the answer {envelope.id[:8]} was reported {heard[envelope.id]} times"
            )
        if not heard[envelope.id]:
            yield CrashFinding(FindingKind.LOST, f"no event reports the answer {envelope.id[:8]}: {envelope.text}")


def _check_calls(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each call that must not be repeated was performed at most once.

    The model must also have got the true result of each call.
    """
    for word, times in index.writes_by_word.items():
        if times > 1:
            by = ", ".join(mark.by for mark in index.evidence.tool_marks if mark.word == word)
            yield CrashFinding(FindingKind.RUN_TWICE, f"{word} was written {times} times, by {by}")
    cut = {c.word for c in index.evidence.interrupted_calls}
    do = {q.token: q.action for envelope in index.questions for q in script.parse_questions(envelope.text)}
    for envelope in index.answers:
        for answer in script.parse_answers(envelope.text):
            words = _written_words(answer.token, do.get(answer.token, ScriptAction.PLAIN))
            if len(words) != len(answer.results):
                yield CrashFinding(FindingKind.LOST, f"{answer} does not report {len(words)} calls")
            for word, result in zip(words, answer.results, strict=False):
                if because := _explain_contradiction(
                    result, times=index.writes_by_word[word], is_interrupted=word in cut
                ):
                    yield CrashFinding(FindingKind.CONTRADICTED, f"{answer} of {word}: {because}")
    final = {run.id: run.final_text or "" for run in index.evidence.runs if run.status == "completed"}
    for c in index.evidence.interrupted_calls:
        if c.run in final and CallResult.INTERRUPTED not in final[c.run].lower():
            yield CrashFinding(FindingKind.UNEXPLAINED, f"{c.word} was interrupted, and the answer does not report it")


def _written_words(token: str, action: ScriptAction) -> list[str]:
    match action:
        case ScriptAction.TOOL | ScriptAction.ASK | ScriptAction.VARIABLE:
            return [token]
        case ScriptAction.TWO_TOOLS:
            return [f"{token}/1", f"{token}/2"]
        case (
            ScriptAction.STATUS
            | ScriptAction.DELEGATE
            | ScriptAction.DELEGATE_ASK
            | ScriptAction.DELEGATE_EXTERNAL
            | ScriptAction.SPAWN
            | ScriptAction.SPAWN_ASK
        ):
            return [""]
        case ScriptAction.DELEGATE_TWO:
            return ["", ""]
        case ScriptAction.PLAIN | ScriptAction.FAIL:
            return []


def _check_delegations(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each result of delegated work reached the delegating agent once: as a call's result, or later."""
    do = {q.token: q.action for envelope in index.questions for q in script.parse_questions(envelope.text)}
    reported: Counter[str] = Counter()
    for envelope in index.answers:
        for answer in script.parse_answers(envelope.text):
            for task, result in zip(
                script.list_tasks(answer.token, do.get(answer.token, ScriptAction.PLAIN)), answer.results, strict=False
            ):
                reported[task] += result is CallResult.DELEGATED
                if result is CallResult.MIXED:
                    yield CrashFinding(
                        FindingKind.MISDELIVERED, f"{answer.token} got the result of another task than {task}"
                    )
    for envelope in index.evidence.envelopes:
        if envelope.recipient == OWNER_SENDER and envelope.kind in ("message", "answer"):
            reported.update(script.parse_late_tasks(envelope.text))
    came = {envelope.reply_to: envelope for envelope in index.evidence.envelopes if envelope.kind == "answer"}
    answered = {envelope.token for envelope in index.questions if envelope.outcome == "answered"}
    for envelope in index.evidence.envelopes:
        if envelope.kind != "delegation" or envelope.recipient.startswith("channel:"):
            continue
        back = came.get(envelope.id)
        if reported[envelope.token] > 1:
            yield CrashFinding(
                FindingKind.DOUBLED, f"the result of {envelope.token} was reported {reported[envelope.token]} times"
            )
        if back is None or reported[envelope.token]:
            continue
        taken = (back.because or "").startswith("the run ") and envelope.token.split("/")[0] in answered
        if taken or (back.because or "").startswith("read;"):
            yield CrashFinding(FindingKind.LOST, f"the result of {envelope.token} was never reported ({back.because})")


_EXTERNAL_SOURCE = "external:"
_SCHEDULE_SOURCE = "schedule:"  # whose envelopes get no answer


def _check_callbacks(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each callback is stored once, in the session to which it was sent.

    A callback that is recorded as forwarded must have been forwarded.
    """
    callbacks = {(e.session, e.message): e for e in index.evidence.log if isinstance(e, CallbackEntry)}
    first: dict[tuple[str, str], CallbackResultEntry] = {}
    for entry in index.evidence.log:
        if not isinstance(entry, CallbackResultEntry):
            continue
        before = first.setdefault((entry.session, entry.message), entry)
        envelope = index.envelopes_by_id.get(entry.envelope)
        if (before.envelope, before.answers) != (entry.envelope, entry.answers):
            yield CrashFinding(FindingKind.DOUBLED, f"{entry.message} was accepted twice, with different results")
        if envelope is None or (envelope.key, envelope.reply_to) != (entry.message, entry.answers):
            yield CrashFinding(
                FindingKind.LOST, f"{entry.message} was accepted as {entry.envelope[:8]}, which is missing or differs"
            )
        words = callbacks.get((entry.session, entry.message))
        if words is not None and entry.answers not in (None, words.request):
            yield CrashFinding(
                FindingKind.MISDELIVERED, f"{entry.message} was accepted as the answer to {entry.answers}"
            )
    for place, times in Counter((envelope.source, envelope.key) for envelope in index.external_envelopes).items():
        if times > 1:
            yield CrashFinding(FindingKind.DOUBLED, f"{place[1]} is stored {times} times")
    for envelope in index.external_envelopes:
        session = envelope.source.removeprefix(_EXTERNAL_SOURCE)
        words = callbacks.get((session, envelope.key))
        if words is None or words.text != envelope.text:
            yield CrashFinding(FindingKind.UNREQUESTED, f"{envelope.key} is stored, but no such callback was sent")
        elif envelope.recipient != f"agent:{script.EXTERNAL_AGENT}/{session}":
            yield CrashFinding(
                FindingKind.MISDELIVERED, f"{envelope.key} was sent to {session[:8]} and went to {envelope.recipient}"
            )
        if envelope.outcome == "answered":
            forwarded = index.envelopes_by_id.get(envelope.answer or "")
            if forwarded is not None and envelope.text not in forwarded.text:
                yield CrashFinding(FindingKind.LOST, f"{envelope.key} is recorded as forwarded, and was not")


def _check_requests(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each request reached the external agent and ended once, with its own answer."""
    brought = {entry.envelope for entry in index.evidence.log if isinstance(entry, RequestEntry)}
    answered = Counter(envelope.reply_to for envelope in index.external_envelopes if envelope.reply_to is not None)
    runs = {run.id: run for run in index.evidence.runs}
    for work in index.evidence.requests:
        envelope = index.envelopes_by_id.get(work.id)
        if envelope is None or work.state == "open":
            yield CrashFinding(
                FindingKind.LOST, f"the request {work.id[:8]} is {work.state if envelope else 'not stored'}"
            )
            continue
        if envelope.outcome == "delivered" and work.id not in brought:
            yield CrashFinding(FindingKind.LOST, f"the request {work.id[:8]} is delivered, but it never arrived")
        if answered[work.id] > 1:
            yield CrashFinding(FindingKind.DOUBLED, f"the request {work.id[:8]} was answered {answered[work.id]} times")
        if work.state == "done":
            yield from _check_request_result(
                work, envelope, index.envelopes_by_id.get(work.result or ""), runs.get(work.run)
            )
        elif answered[work.id]:
            yield CrashFinding(FindingKind.LOST, f"the request {work.id[:8]} was answered, and is {work.state}")


def _check_request_result(
    request: StoredRequest, envelope: StoredEnvelope, answer: StoredEnvelope | None, run: StoredRun | None
) -> Iterator[CrashFinding]:
    if answer is None or (answer.reply_to, answer.source) != (request.id, f"{_EXTERNAL_SOURCE}{request.session}"):
        yield CrashFinding(
            FindingKind.MISDELIVERED, f"the request {request.id[:8]} ended with an answer that is not its own"
        )
    elif answer.text != script.external_answer(envelope.text):
        yield CrashFinding(
            FindingKind.MISDELIVERED, f"the request {request.id[:8]} ended with the answer to another: {answer.text}"
        )
    elif run is not None and run.status == "completed" and run.final_text != answer.text:
        yield CrashFinding(
            FindingKind.MISDELIVERED, f"the request {request.id[:8]} was answered, and its run says {run.final_text}"
        )


def _explain_contradiction(result: CallResult, *, times: int, is_interrupted: bool) -> str:
    match result:
        case CallResult.APPENDED if not times:
            return "the model read that it was done, but it was not"
        case CallResult.INTERRUPTED if not is_interrupted:
            return "the model read that it was interrupted, but no step was"
        case CallResult.DENIED if times:
            return "the model read that it was not done, but it was"
        case CallResult.OTHER:
            return "the model read something else"
        case _:
            return ""


def _check_approvals(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each allowed call was performed, or has a reason why not.

    No call that needed an approval may have been performed without one.
    """
    approvals = {approval.id: approval for approval in index.evidence.approvals}
    for entry in index.evidence.log:
        if isinstance(entry, DecidedEntry):
            approval = approvals.get(entry.approval)
            if approval is None or approval.state != ("allowed" if entry.allow else "denied"):
                state = approval.state if approval else "not stored"
                yield CrashFinding(
                    FindingKind.LOST, f"the decision on {entry.token} was acknowledged, but it is {state}"
                )
    ended = {run.id: run.status for run in index.evidence.runs}
    cut = {c.word for c in index.evidence.interrupted_calls}
    allowed = {approval.word for approval in approvals.values() if approval.state == "allowed"}
    for call in index.evidence.approval_calls:
        if (
            index.writes_by_word[call.word]
            and call.word not in allowed
            and call.session not in index.evidence.granted_sessions
        ):
            yield CrashFinding(FindingKind.UNREQUESTED, f"{call.word} was written without an approval")
    for approval in approvals.values():
        if not approval.word:  # a call that writes no line
            continue
        times = index.writes_by_word[approval.word]
        if times and approval.word not in allowed:
            yield CrashFinding(FindingKind.UNREQUESTED, f"{approval.word} was written, but it is {approval.state}")
        if approval.state == "allowed" and not times and approval.word not in cut:
            if ended.get(approval.run) == "completed" and approval.decision in ("answered", "noted"):
                yield CrashFinding(FindingKind.LOST, f"{approval.word} was allowed and never performed")


def _check_deliveries(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that every delivered envelope is in its channel, and that the order is correct.

    A channel that cannot recognize repeated parts must contain each part only once.
    """
    for name, marks in index.evidence.channel_marks.items():
        times = Counter(mark.by for mark in marks)
        came = Counter(mark.envelope for mark in dict.fromkeys(marks))
        parts = {mark.envelope: mark.parts for mark in marks}
        if name == script.UNSAFE_CONNECTOR:
            twice = [mark for mark in dict.fromkeys(marks) if times[mark.by] > 1]
            yield from (
                CrashFinding(FindingKind.DOUBLED, f"{mark.word} arrived {times[mark.by]} times in {name}")
                for mark in twice
            )
        for envelope in index.evidence.envelopes:
            if envelope.recipient.startswith(f"channel:{name}:"):
                if envelope.outcome == "delivered" and came[envelope.id] < parts.get(envelope.id, 1):
                    yield CrashFinding(
                        FindingKind.LOST, f"{envelope.token} is delivered, but parts of it never arrived in {name}"
                    )
        numbers: dict[int, list[int]] = defaultdict(list)
        parts_of: dict[str, list[int]] = defaultdict(list)
        for mark in dict.fromkeys(marks):
            parts_of[mark.envelope].append(mark.index)
            if mark.envelope not in index.envelopes_by_id:
                yield CrashFinding(FindingKind.UNREQUESTED, f"{mark.word} arrived in {name} and is not stored")
            session, number = script.parse_token(mark.text)
            numbers[session].append(number)
        for session, in_turn in numbers.items():
            envelopes = [number for number, _ in groupby(in_turn)]  # all parts of one, before any of the next
            yield from _check_increasing(envelopes, f"delivered to {name} for session {session}")
        for envelope, indices in parts_of.items():
            yield from _check_increasing(indices, f"parts of {envelope[:8]} delivered to {name}")


def _check_unrequested(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that a client sent everything that is stored in the server or written outside it."""
    approvals = {f"{approval.id}/decision" for approval in index.evidence.approvals}
    sent = {entry.token for entry in index.sent.values()}
    for envelope in index.evidence.envelopes:
        if envelope.source == OWNER_SENDER and envelope.key not in index.sent and envelope.key not in approvals:
            yield CrashFinding(
                FindingKind.UNREQUESTED, f"{envelope.kind} {envelope.id[:8]} is stored, but was never sent"
            )
    for word in index.writes_by_word:
        if word.split("/")[0] not in sent:
            yield CrashFinding(FindingKind.UNREQUESTED, f"{word} was written without a request")


def _check_retries(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that each retry that a client requested for a failed envelope is stored.

    A client repeats its request if the server died before it could respond. This may create another
    retry only if the previous retry has failed, too.
    """
    asked = {entry.envelope for entry in index.evidence.log if isinstance(entry, RetriedEntry)}
    retries: dict[str, list[StoredEnvelope]] = {id_: [] for id_ in asked}
    for envelope in index.evidence.envelopes:
        if envelope.retry_of is None:
            continue
        if envelope.retry_of not in asked:
            yield CrashFinding(FindingKind.UNREQUESTED, f"{envelope.token} was retried without a request")
        retries.setdefault(envelope.retry_of, []).append(envelope)
    for id_, envelopes in retries.items():
        if not envelopes:
            yield CrashFinding(FindingKind.LOST, f"the retry of {id_[:8]} is not stored")
        if any(envelope.outcome not in ("dead", "interrupted") for envelope in envelopes[:-1]):
            yield CrashFinding(FindingKind.DOUBLED, f"{id_[:8]} was retried {len(envelopes)} times instead of once")


def _check_occurrences(index: _EvidenceIndex) -> Iterator[CrashFinding]:
    """Check that every occurrence of a schedule exists once, and either ran or has a reason for not running."""
    for name, every_s in script.SCHEDULE_INTERVALS_S.items():
        slots = [slot for slot in index.evidence.occurrences if slot.schedule == name]
        if not slots:
            yield CrashFinding(FindingKind.LOST, f"the schedule {name} never occurred")
        every_ms = every_s * 1000
        for slot, later in pairwise(slots):
            after_ms = slot.until_ms if slot.state == "skipped" and slot.until_ms is not None else slot.at_ms + 1
            due_ms = -(-after_ms // every_ms) * every_ms
            if later.at_ms != due_ms:
                wrong = FindingKind.LOST if later.at_ms > due_ms else FindingKind.DOUBLED
                yield CrashFinding(
                    wrong, f"{name} was due at {due_ms} after {slot.at_ms}, and occurred at {later.at_ms}"
                )
        for slot in slots:
            if slot.state == "ran" and slot.outcome is None:
                yield CrashFinding(FindingKind.LOST, f"{name} ran at {slot.at_ms}, and its envelope has not ended")
            if slot.state in ("skipped", "failed") and not slot.because:
                yield CrashFinding(FindingKind.UNEXPLAINED, f"{name} is {slot.state} at {slot.at_ms}, without a reason")
    times = Counter(slot.envelope for slot in index.evidence.occurrences if slot.envelope is not None)
    yield from (
        CrashFinding(FindingKind.DOUBLED, f"{id_[:8]} stands for {n} occurrences") for id_, n in times.items() if n > 1
    )


def _count_task_approvals(index: _EvidenceIndex) -> dict[str, int]:
    """Count the approvals that delegated tasks requested, by state. Only such tasks write text with a slash."""
    states = Counter(approval.state for approval in index.evidence.approvals if "/" in approval.word)
    return {f"approvals for tasks, {state}": states[state] for state in sorted(states)}


def _count_occurrences(index: _EvidenceIndex) -> dict[str, int]:
    states = Counter(f"occurrences {occurrence.state}" for occurrence in index.evidence.occurrences)
    return dict(sorted(states.items()))


def _count_evidence(index: _EvidenceIndex) -> dict[str, int]:
    """Return how many items of each kind were checked. A verdict on very few items would prove nothing."""
    outcomes = Counter(envelope.outcome or "open" for envelope in index.questions)
    return {
        "sent": len(index.sent),
        "acknowledged": len(index.acknowledged),
        "acknowledged on a retry": sum(entry.duplicate for entry in index.acknowledged),
        **{f"ended {outcome}": outcomes[outcome] for outcome in sorted(outcomes)},
        "answers": len(index.answers),
        "runs": len(index.evidence.runs),
        "calls performed": len(index.evidence.tool_marks),
        "interrupted calls reported": len(index.evidence.interrupted_calls),
        "approvals requested": len(index.evidence.approvals),
        "sessions with a grant": len(index.evidence.granted_sessions),
        "approvals decided": sum(isinstance(entry, DecidedEntry) for entry in index.evidence.log),
        "tasks delegated": sum(envelope.kind == "delegation" for envelope in index.evidence.envelopes),
        **_count_task_approvals(index),
        "requests sent": len(index.evidence.requests),
        "requests answered": sum(work.state == "done" for work in index.evidence.requests),
        "unrequested callbacks": sum(envelope.reply_to is None for envelope in index.external_envelopes),
        "callbacks accepted": sum(isinstance(entry, CallbackResultEntry) for entry in index.evidence.log),
        "deliveries": sum(len(marks) for marks in index.evidence.channel_marks.values()),
        **_count_occurrences(index),
        "dead letters retried": sum(isinstance(entry, RetriedEntry) for entry in index.evidence.log),
        "events read": max((entry.seq for entry in index.evidence.log if isinstance(entry, AnsweredEntry)), default=0),
    }
