"""The verdict of the crash test: a pure function of the evidence. Every count should be zero."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, pairwise
from typing import NamedTuple

from retinue.testing import crash_script as script
from retinue.testing.crash_evidence import Evidence, HandedOut, Letter, Run
from retinue.testing.crash_log import (
    Acknowledged,
    Answered,
    Brought,
    Complaint,
    Decided,
    Heard,
    Retried,
    Sent,
    Settled,
    Shown,
)
from retinue.testing.crash_log import Said as SaidElsewhere
from retinue.testing.crash_script import Do, Said

SENDER = "person:owner"
SHOWN_MAX = 20


class Wrong(StrEnum):
    """The kinds of findings, in the order in which they are printed."""

    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    RUN_TWICE = "run twice"
    MISDELIVERED = "misdelivered"
    UNEXPLAINED = "unexplained"
    UNASKED = "unasked"
    CONTRADICTED = "contradicted"
    LEDGER = "ledger"


class Finding(NamedTuple):
    """One contradiction in the evidence."""

    wrong: Wrong
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures and findings of a crash test."""

    figures: dict[str, int]
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        return not self.findings

    def count(self, wrong: Wrong) -> int:
        return sum(finding.wrong is wrong for finding in self.findings)

    def lines(self) -> list[str]:
        """Returns a table, the first few findings, and the verdict as the last line."""
        table = [f"  {name:<28}{count:>8}" for name, count in self.figures.items()]
        table += [f"  {wrong:<28}{self.count(wrong):>8}" for wrong in Wrong]
        shown = [f"  {wrong}: {text}" for wrong, text in self.findings[:SHOWN_MAX]]
        more = [f"  and {len(self.findings) - SHOWN_MAX} more"] if len(self.findings) > SHOWN_MAX else []
        sums = ", ".join(f"{self.count(wrong)} {wrong}" for wrong in Wrong)
        return [*table, *shown, *more, f"crash verdict: {'ok' if self.ok else 'FAILED'} ({sums})"]


def judge(evidence: Evidence, *, ticks: bool = True) -> Verdict:
    """Check the evidence. `has_schedules`: whether the server had any."""
    case = _Case(evidence)
    findings = [
        *_complaints(case),
        *_stored_once(case),
        *_settled_once(case),
        *_answered_once(case),
        *_in_order(case),
        *_told(case),
        *_performed(case),
        *_handed(case),
        *_heard(case),
        *_handed_out(case),
        *_decided(case),
        *_delivered(case),
        *_unasked(case),
        *_retried(case),
        *(_came(case) if ticks else ()),
        *(Finding(Wrong.LEDGER, line) for line in evidence.ledger),
    ]
    return Verdict(figures=_figures(case), findings=findings)


@dataclass(slots=True)
class _Case:
    """The evidence, indexed for lookups."""

    evidence: Evidence
    sent: dict[str, Sent] = field(init=False)  # by key
    acknowledged: list[Acknowledged] = field(init=False)
    by_id: dict[str, Letter] = field(init=False)
    questions: list[Letter] = field(init=False)  # what the clients sent, in the order of the store
    answers: list[Letter] = field(init=False)
    by_token: dict[str, list[Letter]] = field(init=False)  # the answers that contain a token
    written: Counter[str] = field(init=False)  # how often a call wrote each word
    from_elsewhere: list[Letter] = field(init=False)  # what the external agent sent

    def __post_init__(self) -> None:
        log, letters = self.evidence.log, self.evidence.letters
        self.sent = {entry.key: entry for entry in log if isinstance(entry, Sent)}
        self.acknowledged = [entry for entry in log if isinstance(entry, Acknowledged)]
        self.by_id = {letter.id: letter for letter in letters}
        self.questions = [letter for letter in letters if letter.source == SENDER and letter.kind == "message"]
        self.answers = [letter for letter in letters if letter.kind == "answer" and letter.recipient == SENDER]
        self.by_token = defaultdict(list)
        for letter in self.answers:
            for answer in script.answers(letter.text):
                self.by_token[answer.token].append(letter)
        self.written = Counter(mark.word for mark in self.evidence.witness)
        self.from_elsewhere = [letter for letter in letters if letter.source.startswith(_ELSEWHERE)]

    @property
    def unasked(self) -> Counter[str]:
        """Token -> how often the external agent sent it after its request had ended."""
        late = (letter for letter in self.from_elsewhere if letter.reply_to is None)
        return Counter(answer.token for letter in late for answer in script.answers(letter.text))


def _complaints(case: _Case) -> Iterator[Finding]:
    for entry in case.evidence.log:
        if isinstance(entry, Complaint):
            yield Finding(Wrong.CONTRADICTED, entry.text)


def _stored_once(case: _Case) -> Iterator[Finding]:
    """Acknowledged envelopes are stored under their id; others are stored at most once."""
    for entry in case.acknowledged:
        letter = case.by_id.get(entry.envelope)
        if letter is None:
            yield Finding(Wrong.LOST, f"{entry.token} was acknowledged as {entry.envelope[:8]} and is not stored")
        elif (letter.token, letter.key) != (entry.token, entry.key):
            yield Finding(Wrong.CONTRADICTED, f"{entry.envelope[:8]} was acknowledged for {entry.token}, it is another")
    for what, counted in (
        ("key", Counter(letter.key for letter in case.questions)),
        ("token", Counter(letter.token for letter in case.questions)),
    ):
        yield from (Finding(Wrong.DOUBLED, f"{what} {of} is stored {n} times") for of, n in counted.items() if n > 1)


def _settled_once(case: _Case) -> Iterator[Finding]:
    """Every envelope ended once, with a reason, and a sender without an answer was notified."""
    told = {letter.reply_to for letter in case.evidence.letters if letter.kind == "notice"}
    told_runs = {case.by_id[id_].run for id_ in told if id_ in case.by_id} - {None}
    ahead = {slot.envelope for slot in case.evidence.slots if slot.state == "waiting"}
    explained = {slot.envelope for slot in case.evidence.slots if slot.state in ("skipped", "failed") and slot.because}
    for letter in case.evidence.letters:
        if letter.id in ahead and letter.outcomes == 0:
            continue  # the next occurrence of a schedule, still in the future
        name = f"{letter.kind} {letter.id[:8]} ({letter.token})"
        if letter.outcomes > 1:
            yield Finding(Wrong.DOUBLED, f"{name} has {letter.outcomes} outcomes")
        if letter.status != "done" or letter.outcome is None:
            yield Finding(Wrong.LOST, f"{name} is {letter.status}, outcome {letter.outcome}")
        elif not letter.because:
            yield Finding(Wrong.UNEXPLAINED, f"{name} ended {letter.outcome} without a because")
        elif letter.kind == "message" and letter.outcome not in ("answered", "delivered") and not _is_aside(letter):
            if letter.id not in told | explained and letter.run not in told_runs:
                yield Finding(Wrong.UNEXPLAINED, f"{name} ended {letter.outcome}, and nobody was told")
    for run in case.evidence.runs:
        if run.status in ("running", "parked"):
            yield Finding(Wrong.LOST, f"run {run.id[:8]} is still {run.status}")


def _is_aside(letter: Letter) -> bool:
    """Returns whether this is an agent message that starts no run: it is read in the next turn, without an answer."""
    return letter.source != SENDER and letter.outcome == "noted"


def _answered_once(case: _Case) -> Iterator[Finding]:
    """Each answered question is in exactly the answer it names; any other question is in none."""
    owed = case.unasked
    for letter in case.evidence.letters:
        if letter.kind != "message" or letter.outcome != "answered" or letter.source.startswith(_CLOCK):
            continue
        owed[letter.token] += 1
        answer = case.by_id.get(letter.answer or "")
        if answer is None or answer not in case.by_token[letter.token]:
            yield Finding(Wrong.LOST, f"{letter.token} is answered, but its answer does not speak of it")
    for token, answers in case.by_token.items():
        if len(answers) > owed[token]:
            yield Finding(Wrong.DOUBLED, f"{token} is in {len(answers)} answers, {owed[token]} owed")


def _in_order(case: _Case) -> Iterator[Finding]:
    """In a session, questions were stored and answered in the order in which they were acknowledged."""
    stored: dict[int, list[tuple[int, Letter]]] = defaultdict(list)
    for letter in case.questions:
        session, number = script.place(letter.token)
        stored[session].append((number, letter))
    for letters in stored.values():
        yield from _rising([number for number, _ in letters], f"stored in {letters[0][1].token}'s session")
        answered = [
            (answer.seq, [a.token for a in script.answers(answer.text)].index(letter.token), number)
            for number, letter in letters
            if (answer := case.by_id.get(letter.answer or "")) is not None and answer in case.by_token[letter.token]
        ]
        numbers = [number for _, _, number in sorted(answered)]
        yield from _rising(numbers, f"answered in {letters[0][1].token}'s session")


def _rising(numbers: Sequence[int], what: str) -> Iterator[Finding]:
    for before, after in pairwise(numbers):
        if after <= before:
            yield Finding(Wrong.REORDERED, f"{what}: {after} comes after {before}")


def _told(case: _Case) -> Iterator[Finding]:
    """The events reported every answer once and nothing that was undone. Outcomes are as reported."""
    heard: Counter[str] = Counter()
    texts = {letter.text for letter in case.evidence.letters if letter.recipient == SENDER}
    unasked = case.unasked
    retried = {letter.token for letter in case.evidence.letters if letter.retry_of}  # answered later than their turn
    for entry in case.evidence.log:
        match entry:
            case Answered(seq=seq, envelope=envelope, text=text):
                heard[envelope] += 1
                letter = case.by_id.get(envelope)
                if letter is None or letter.text != text or case.evidence.told.get(seq) != envelope:
                    yield Finding(Wrong.CONTRADICTED, f"news {seq} told of answer {envelope[:8]}, which is not so")
            case Settled(envelope=envelope, outcome=outcome):
                letter = case.by_id.get(envelope)
                if letter is None or letter.outcome != outcome:
                    became = letter.outcome if letter else "not stored"
                    yield Finding(Wrong.CONTRADICTED, f"{envelope[:8]} was told to be {outcome}, it is {became}")
            case Shown(session=session, answers=answers):
                yield from (
                    Finding(Wrong.CONTRADICTED, f"session {session[:8]} shows an answer that was never given: {text}")
                    for text in answers
                    if text not in texts
                )
                shown = [answer.token for text in answers for answer in script.answers(text)]
                numbers = [script.place(token)[1] for token in shown if token not in retried and token not in unasked]
                yield from _rising(numbers, f"shown in session {session[:8]}")
            case _:
                pass
    for letter in case.answers:
        if heard[letter.id] > 1:
            yield Finding(Wrong.DOUBLED, f"the news told {heard[letter.id]} times of answer {letter.id[:8]}")
        if not heard[letter.id]:
            yield Finding(Wrong.LOST, f"the news never told of answer {letter.id[:8]}: {letter.text}")


def _performed(case: _Case) -> Iterator[Finding]:
    """No unrepeatable call was performed twice, and the model read the truth about each."""
    for word, times in case.written.items():
        if times > 1:
            by = ", ".join(mark.by for mark in case.evidence.witness if mark.word == word)
            yield Finding(Wrong.RUN_TWICE, f"{word} was written {times} times, by {by}")
    cut = {c.word for c in case.evidence.cuts}
    do = {q.token: q.do for letter in case.questions for q in script.questions(letter.text)}
    for letter in case.answers:
        for answer in script.answers(letter.text):
            words = _words(answer.token, do.get(answer.token, Do.PLAIN))
            if len(words) != len(answer.said):
                yield Finding(Wrong.LOST, f"{answer} does not speak of {len(words)} calls")
            for word, said in zip(words, answer.said, strict=False):
                if because := _not_so(said, times=case.written[word], cut=word in cut):
                    yield Finding(Wrong.CONTRADICTED, f"{answer} of {word}: {because}")
    final = {run.id: run.final_text or "" for run in case.evidence.runs if run.status == "completed"}
    for c in case.evidence.cuts:
        if c.run in final and Said.INTERRUPTED not in final[c.run].lower():
            yield Finding(Wrong.UNEXPLAINED, f"{c.word} was cut off, and the answer does not say so")


def _words(token: str, do: Do) -> list[str]:
    match do:
        case Do.TOOL | Do.ASK | Do.WHIM:
            return [token]
        case Do.TWO_TOOLS:
            return [f"{token}/1", f"{token}/2"]
        case Do.STATUS | Do.HAND | Do.HAND_ASK | Do.HAND_OUT | Do.SPAWN | Do.SPAWN_ASK:
            return [""]
        case Do.HAND_TWO:
            return ["", ""]
        case Do.PLAIN | Do.FAIL:
            return []


def _handed(case: _Case) -> Iterator[Finding]:
    """Each result of delegated work reached the delegating agent once: with its call, or later."""
    do = {q.token: q.do for letter in case.questions for q in script.questions(letter.text)}
    told: Counter[str] = Counter()
    for letter in case.answers:
        for answer in script.answers(letter.text):
            for errand, said in zip(
                script.errands(answer.token, do.get(answer.token, Do.PLAIN)), answer.said, strict=False
            ):
                told[errand] += said is Said.HANDED
                if said is Said.MIXED:
                    yield Finding(Wrong.MISDELIVERED, f"{answer.token} was told of another errand than {errand}")
    for letter in case.evidence.letters:
        if letter.recipient == SENDER and letter.kind in ("message", "answer"):
            told.update(script.told_later(letter.text))
    came = {letter.reply_to: letter for letter in case.evidence.letters if letter.kind == "answer"}
    answered = {letter.token for letter in case.questions if letter.outcome == "answered"}
    for letter in case.evidence.letters:
        if letter.kind != "delegation" or letter.recipient.startswith("channel:"):
            continue
        back = came.get(letter.id)
        if told[letter.token] > 1:
            yield Finding(Wrong.DOUBLED, f"what came of {letter.token} was told {told[letter.token]} times")
        if back is None or told[letter.token]:
            continue
        taken = (back.because or "").startswith("the run ") and letter.token.split("/")[0] in answered
        if taken or (back.because or "").startswith("read;"):
            yield Finding(Wrong.LOST, f"what came of {letter.token} was told to nobody ({back.because})")


_ELSEWHERE = "external:"
_CLOCK = "schedule:"  # whose envelopes get no answer


def _heard(case: _Case) -> Iterator[Finding]:
    """Each callback is stored once, in the session it was sent to, and forwarded once."""
    said = {(e.session, e.message): e for e in case.evidence.log if isinstance(e, SaidElsewhere)}
    first: dict[tuple[str, str], Heard] = {}
    for entry in case.evidence.log:
        if not isinstance(entry, Heard):
            continue
        before = first.setdefault((entry.session, entry.message), entry)
        letter = case.by_id.get(entry.envelope)
        if (before.envelope, before.answers) != (entry.envelope, entry.answers):
            yield Finding(Wrong.DOUBLED, f"{entry.message} was heard twice, and not as the same")
        if letter is None or (letter.key, letter.reply_to) != (entry.message, entry.answers):
            yield Finding(Wrong.LOST, f"{entry.message} was heard as {entry.envelope[:8]}, which is not stored so")
        words = said.get((entry.session, entry.message))
        if words is not None and entry.answers not in (None, words.request):
            yield Finding(Wrong.MISDELIVERED, f"{entry.message} was taken for the answer to {entry.answers}")
    for place, times in Counter((letter.source, letter.key) for letter in case.from_elsewhere).items():
        if times > 1:
            yield Finding(Wrong.DOUBLED, f"{place[1]} is stored {times} times")
    for letter in case.from_elsewhere:
        session = letter.source.removeprefix(_ELSEWHERE)
        words = said.get((session, letter.key))
        if words is None or words.text != letter.text:
            yield Finding(Wrong.UNASKED, f"{letter.key} is stored, and nobody said so")
        elif letter.recipient != f"agent:{script.ELSEWHERE}/{session}":
            yield Finding(Wrong.MISDELIVERED, f"{letter.key} was said to {session[:8]} and went to {letter.recipient}")
        if letter.outcome == "answered":
            told = case.by_id.get(letter.answer or "")
            if told is not None and letter.text not in told.text:
                yield Finding(Wrong.LOST, f"{letter.key} is down as told on, and was not")


def _handed_out(case: _Case) -> Iterator[Finding]:
    """Each request arrived at the external agent and ended once, with the answer to it, as its run says."""
    brought = {entry.letter for entry in case.evidence.log if isinstance(entry, Brought)}
    answered = Counter(letter.reply_to for letter in case.from_elsewhere if letter.reply_to is not None)
    runs = {run.id: run for run in case.evidence.runs}
    for work in case.evidence.handed_out:
        letter = case.by_id.get(work.id)
        if letter is None or work.state == "open":
            yield Finding(Wrong.LOST, f"the letter {work.id[:8]} is {work.state if letter else 'not stored'}")
            continue
        if letter.outcome == "delivered" and work.id not in brought:
            yield Finding(Wrong.LOST, f"the letter {work.id[:8]} is delivered, but it never came there")
        if answered[work.id] > 1:
            yield Finding(Wrong.DOUBLED, f"the letter {work.id[:8]} was answered {answered[work.id]} times")
        if work.state == "done":
            yield from _ended_with(work, letter, case.by_id.get(work.result or ""), runs.get(work.run))
        elif answered[work.id]:
            yield Finding(Wrong.LOST, f"the letter {work.id[:8]} was answered, and is {work.state}")


def _ended_with(work: HandedOut, letter: Letter, back: Letter | None, run: Run | None) -> Iterator[Finding]:
    if back is None or (back.reply_to, back.source) != (work.id, f"{_ELSEWHERE}{work.session}"):
        yield Finding(Wrong.MISDELIVERED, f"the letter {work.id[:8]} ended with what was not said to it")
    elif back.text != script.answered_elsewhere(letter.text):
        yield Finding(Wrong.MISDELIVERED, f"the letter {work.id[:8]} ended with the answer to another: {back.text}")
    elif run is not None and run.status == "completed" and run.final_text != back.text:
        yield Finding(Wrong.MISDELIVERED, f"the letter {work.id[:8]} was answered, and its run says {run.final_text}")


def _not_so(said: Said, *, times: int, cut: bool) -> str:
    match said:
        case Said.APPENDED if not times:
            return "the model read that it was done, and it was not"
        case Said.INTERRUPTED if not cut:
            return "the model read that it was cut off, and no step was"
        case Said.DENIED if times:
            return "the model read that it was not done, and it was"
        case Said.OTHER:
            return "the model read something else"
        case _:
            return ""


def _decided(case: _Case) -> Iterator[Finding]:
    """An allowed call was performed, or there is a reason why not. No other call that needs approval was."""
    approvals = {approval.id: approval for approval in case.evidence.approvals}
    for entry in case.evidence.log:
        if isinstance(entry, Decided):
            approval = approvals.get(entry.approval)
            if approval is None or approval.state != ("allowed" if entry.allow else "denied"):
                state = approval.state if approval else "not stored"
                yield Finding(Wrong.LOST, f"the decision on {entry.token} was acknowledged, but it is {state}")
    ended = {run.id: run.status for run in case.evidence.runs}
    cut = {c.word for c in case.evidence.cuts}
    allowed = {approval.word for approval in approvals.values() if approval.state == "allowed"}
    for call in case.evidence.asking:
        if case.written[call.word] and call.word not in allowed and call.session not in case.evidence.granted:
            yield Finding(Wrong.UNASKED, f"{call.word} was written, and nobody has allowed it")
    for approval in approvals.values():
        if not approval.word:  # a call that writes no line
            continue
        times = case.written[approval.word]
        if times and approval.word not in allowed:
            yield Finding(Wrong.UNASKED, f"{approval.word} was written, but it is {approval.state}")
        if approval.state == "allowed" and not times and approval.word not in cut:
            if ended.get(approval.run) == "completed" and approval.decision in ("answered", "noted"):
                yield Finding(Wrong.LOST, f"{approval.word} was allowed and never done")


def _delivered(case: _Case) -> Iterator[Finding]:
    """Every delivered envelope is in its channel, in order, and if the channel cannot deduplicate, once."""
    for name, marks in case.evidence.rooms.items():
        times = Counter(mark.by for mark in marks)
        came = Counter(mark.letter for mark in dict.fromkeys(marks))
        parts = {mark.letter: mark.parts for mark in marks}
        if name == script.RISKY:
            twice = [mark for mark in dict.fromkeys(marks) if times[mark.by] > 1]
            yield from (Finding(Wrong.DOUBLED, f"{mark.word} came {times[mark.by]} times to {name}") for mark in twice)
        for letter in case.evidence.letters:
            if letter.recipient.startswith(f"channel:{name}:"):
                if letter.outcome == "delivered" and came[letter.id] < parts.get(letter.id, 1):
                    yield Finding(Wrong.LOST, f"{letter.token} is delivered, but it never came to {name} as a whole")
        numbers: dict[int, list[int]] = defaultdict(list)
        parts_of: dict[str, list[int]] = defaultdict(list)
        for mark in dict.fromkeys(marks):
            parts_of[mark.letter].append(mark.index)
            if mark.letter not in case.by_id:
                yield Finding(Wrong.UNASKED, f"{mark.word} came to {name} and is not stored")
            session, number = script.place(mark.text)
            numbers[session].append(number)
        for session, in_turn in numbers.items():
            letters = [number for number, _ in groupby(in_turn)]  # all parts of one, before any of the next
            yield from _rising(letters, f"delivered to {name} for session {session}")
        for letter, indices in parts_of.items():
            yield from _rising(indices, f"parts of {letter[:8]} delivered to {name}")


def _unasked(case: _Case) -> Iterator[Finding]:
    """Nothing is stored or written that no client sent."""
    approvals = {f"{approval.id}/decision" for approval in case.evidence.approvals}
    sent = {entry.token for entry in case.sent.values()}
    for letter in case.evidence.letters:
        if letter.source == SENDER and letter.key not in case.sent and letter.key not in approvals:
            yield Finding(Wrong.UNASKED, f"{letter.kind} {letter.id[:8]} is stored, and nobody sent it")
    for word in case.written:
        if word.split("/")[0] not in sent:
            yield Finding(Wrong.UNASKED, f"{word} was written, and nobody asked for it")


def _retried(case: _Case) -> Iterator[Finding]:
    """A dead letter is sent again on request.

    A repeated request, after the server died before it could respond, creates another retry only if
    the previous one is dead, too.
    """
    asked = {entry.envelope for entry in case.evidence.log if isinstance(entry, Retried)}
    retries: dict[str, list[Letter]] = {id_: [] for id_ in asked}
    for letter in case.evidence.letters:
        if letter.retry_of is None:
            continue
        if letter.retry_of not in asked:
            yield Finding(Wrong.UNASKED, f"{letter.token} was retried, and nobody asked for it")
        retries.setdefault(letter.retry_of, []).append(letter)
    for id_, letters in retries.items():
        if not letters:
            yield Finding(Wrong.LOST, f"the retry of {id_[:8]} is not stored")
        if any(letter.outcome not in ("dead", "interrupted") for letter in letters[:-1]):
            yield Finding(Wrong.DOUBLED, f"{id_[:8]} was retried {len(letters)} times, and once would have done")


def _came(case: _Case) -> Iterator[Finding]:
    """Every occurrence of a schedule exists once: it ran, or there is a reason why not."""
    for name, every_s in script.EVERY_S.items():
        slots = [slot for slot in case.evidence.slots if slot.schedule == name]
        if not slots:
            yield Finding(Wrong.LOST, f"the schedule {name} never came")
        every_ms = every_s * 1000
        for slot, later in pairwise(slots):
            after_ms = slot.until_ms if slot.state == "skipped" and slot.until_ms is not None else slot.at_ms + 1
            due_ms = -(-after_ms // every_ms) * every_ms
            if later.at_ms != due_ms:
                wrong = Wrong.LOST if later.at_ms > due_ms else Wrong.DOUBLED
                yield Finding(wrong, f"{name} was to come at {due_ms} after {slot.at_ms}, and came at {later.at_ms}")
        for slot in slots:
            if slot.state == "ran" and slot.outcome is None:
                yield Finding(Wrong.LOST, f"{name} ran at {slot.at_ms}, and its envelope has not ended")
            if slot.state in ("skipped", "failed") and not slot.because:
                yield Finding(Wrong.UNEXPLAINED, f"{name} is {slot.state} at {slot.at_ms}, and nobody knows why")
    mail = Counter(slot.envelope for slot in case.evidence.slots if slot.envelope is not None)
    yield from (Finding(Wrong.DOUBLED, f"{id_[:8]} stands for {n} slots") for id_, n in mail.items() if n > 1)


def _approvals_of_errands(case: _Case) -> dict[str, int]:
    """Count the approvals that delegated tasks requested, by state. Only their words contain a slash."""
    states = Counter(approval.state for approval in case.evidence.approvals if "/" in approval.word)
    return {f"asked on errands, {state}": states[state] for state in sorted(states)}


def _slots(case: _Case) -> dict[str, int]:
    states = Counter(f"slots {slot.state}" for slot in case.evidence.slots)
    return dict(sorted(states.items()))


def _figures(case: _Case) -> dict[str, int]:
    """Returns the numbers of what was checked: a verdict over nothing would mean nothing."""
    outcomes = Counter(letter.outcome or "open" for letter in case.questions)
    return {
        "sent": len(case.sent),
        "acknowledged": len(case.acknowledged),
        "acknowledged on a retry": sum(entry.duplicate for entry in case.acknowledged),
        **{f"ended {outcome}": outcomes[outcome] for outcome in sorted(outcomes)},
        "answers": len(case.answers),
        "runs": len(case.evidence.runs),
        "calls performed": len(case.evidence.witness),
        "calls cut off, and said so": len(case.evidence.cuts),
        "approvals asked": len(case.evidence.approvals),
        "sessions that need not ask": len(case.evidence.granted),
        "approvals decided": sum(isinstance(entry, Decided) for entry in case.evidence.log),
        "errands handed on": sum(letter.kind == "delegation" for letter in case.evidence.letters),
        **_approvals_of_errands(case),
        "letters handed out": len(case.evidence.handed_out),
        "letters answered elsewhere": sum(work.state == "done" for work in case.evidence.handed_out),
        "words that answer nothing": sum(letter.reply_to is None for letter in case.from_elsewhere),
        "callbacks heard": sum(isinstance(entry, Heard) for entry in case.evidence.log),
        "deliveries": sum(len(marks) for marks in case.evidence.rooms.values()),
        **_slots(case),
        "dead letters retried": sum(isinstance(entry, Retried) for entry in case.evidence.log),
        "news read": max((entry.seq for entry in case.evidence.log if isinstance(entry, Answered)), default=0),
    }
