"""The text protocol of the crash test, by which clients, model and verdict match each question to its answer.

A question is a line `s12-m7 two-tools 0.05`: its token, what to do, and the model delay in seconds.
The answer contains `<s12-m7 appended interrupted>`: the token, and the result of each tool call
made for it.

A delegated task is a line `s12-m7/1 errand`. The other agent answers `did s12-m7/1`. If that
arrives as a separate envelope, the delegating agent says `later: did s12-m7/1`. The task `s12-m7/1
errand asking` needs an approval first.

A schedule sends `tick`, which is only noted.

The external agent gives the same answers. Sometimes it also sends `by the way: LETTER`, which is
not an answer to any request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from retinue.domain.record import Note, Record, Reply, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import Prompt
from retinue.testing.scripted_model import Line

STEADY = "steady"  # a connector whose platform recognizes repeated parts
RISKY = "risky"  # a connector whose platform does not
ELSEWHERE = "fay"  # the external agent
EVERY_S = {"tick": 2, "gated": 3}  # intervals of the schedules; one of them has a gate


class Do(StrEnum):
    """The actions that a question can request."""

    PLAIN = "plain"
    STATUS = "status"  # a call that may be repeated
    TOOL = "tool"  # a call that must not be repeated
    TWO_TOOLS = "two-tools"
    ASK = "ask"  # a call that needs approval
    WHIM = "whim"  # a call with other arguments each time the model is asked, as real models make
    HAND = "hand"  # a task for another agent
    HAND_TWO = "hand-two"  # two tasks at once
    HAND_ASK = "hand-ask"  # a task for which the other agent needs approval
    HAND_OUT = "hand-out"  # a task for the external agent
    SPAWN = "spawn"  # a task for a subagent
    SPAWN_ASK = "spawn-ask"  # a task for a subagent, which needs approval
    FAIL = "fail"  # the model fails


class Said(StrEnum):
    """The result of a tool call, as the model read it."""

    APPENDED = "appended"
    INTERRUPTED = "interrupted"
    WAITING = "waiting"
    DENIED = "denied"
    SHOWN = "shown"
    HANDED = "handed"  # another agent did it
    LATER = "later"  # the result will arrive as an envelope
    FAILED = "failed"  # another agent could not do it
    MIXED = "mixed"  # another agent did something else
    OTHER = "other"


_QUESTION = re.compile(r"^(s\d+-m\d+) ([a-z-]+)(?: ([0-9.]+))?$", re.MULTILINE)
_ANSWER = re.compile(r"<(s\d+-m\d+)((?: [a-z]+)*)>")
_ERRAND = re.compile(r"^(s\d+-m\d+/\d) errand( asking)?$", re.MULTILINE)
_DONE = re.compile(r"^did (s\d+-m\d+/\d)$", re.MULTILINE)
_LATER = re.compile(r"^later: did (s\d+-m\d+/\d)$", re.MULTILINE)
_LATE_RESPONSE = re.compile(r'"response":\s*"did (s\d+-m\d+/\d)')
_TOKEN = re.compile(r"s(\d+)-m(\d+)")


@dataclass(frozen=True, slots=True)
class Question:
    """One line that a client sends."""

    token: str
    do: Do
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.token} {self.do}" + (f" {self.after_s:g}" if self.after_s else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of a model's reply that answers one question."""

    token: str
    said: tuple[Said, ...] = ()

    def __str__(self) -> str:
        return f"<{' '.join((self.token, *self.said))}>"


def token(session: int, number: int) -> str:
    return f"s{session}-m{number}"


def place(token: str) -> tuple[int, int]:
    """Returns the session of a token, and its number in it."""
    found = _TOKEN.match(token)
    if found is None:
        raise ValueError(f"{token!r} begins with no token")
    return int(found[1]), int(found[2])


def questions(text: str) -> list[Question]:
    return [Question(m[1], Do(m[2]), float(m[3] or 0)) for m in _QUESTION.finditer(text)]


def answers(text: str) -> list[Answer]:
    return [Answer(m[1], tuple(Said(word) for word in m[2].split())) for m in _ANSWER.finditer(text)]


def told_later(text: str) -> list[str]:
    """Returns the tasks that a text reports as done later.

    The text says so, or contains the result of a call that was allowed after its turn.
    """
    return [m[1] for m in (*_LATER.finditer(text), *_LATE_RESPONSE.finditer(text))]


def errands(token: str, do: Do) -> list[str]:
    match do:
        case Do.HAND | Do.HAND_ASK | Do.HAND_OUT | Do.SPAWN | Do.SPAWN_ASK:
            return [f"{token}/1"]
        case Do.HAND_TWO:
            return [f"{token}/1", f"{token}/2"]
        case _:
            return []


def answered_elsewhere(text: str) -> str:
    """Returns the external agent's answer to a text."""
    return "\n".join((*_did(text), *(str(Answer(question.token)) for question in questions(text))))


def by_the_way(letter: str) -> str:
    return f"by the way: {letter}"


def _did(text: str) -> list[str]:
    return [f"did {m[1]}" for m in _ERRAND.finditer(text)]


def rule(prompt: Prompt, whim: str) -> Line:
    """Returns the model's next reply: one turn of calls per question that needs calls, then one answer to all.

    It depends only on the records of the run and on `whim`, which differs from process to process.
    """
    run = prompt.records[-1].run
    own = [record for record in prompt.records if record.run == run]
    asked = [q for r in own if isinstance(r.body, UserTurn) for q in questions(r.body.text)]
    for question in asked:
        if question.do is Do.FAIL:
            return Line(fails=f"{question.token} was to fail", after_s=question.after_s)
    mail = [record.body.text for record in own if isinstance(record.body, UserTurn)]
    wanting = [question for question in asked if _calls(question, whim)]
    wanting += [Question(m[1], Do.ASK) for text in mail for m in _ERRAND.finditer(text) if m[2]]
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if len(replies) < len(wanting):
        question = wanting[len(replies)]
        return Line(calls=_calls(question, whim), after_s=question.after_s)
    results = {record.body.call: record.body for record in own if isinstance(record.body, ToolResult)}
    by_token = {
        question.token: tuple(_read(results.get(call.id), call) for call in reply.calls)
        for question, reply in zip(wanting, replies, strict=False)
    }
    said = [str(Answer(question.token, by_token.get(question.token, ()))) for question in asked]
    thinking_s = sum(question.after_s for question in asked if question not in wanting)
    did = [line for text in mail for line in _did(text)]
    did += [f"({word})" for token, words in by_token.items() if "/" in token for word in words]
    later = [f"later: did {m[1]}" for text in mail for m in _DONE.finditer(text)]
    return Line(text="\n".join([*_late(own), *later, *did, *said]) or "Noted.", after_s=thinking_s)


def _calls(question: Question, whim: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    text = question.token
    match question.do:
        case Do.STATUS:
            return (("session_status", {}),)
        case Do.TOOL:
            return (("append_line", {"text": text}),)
        case Do.TWO_TOOLS:
            return (("append_line", {"text": f"{text}/1"}), ("append_line", {"text": f"{text}/2"}))
        case Do.ASK:
            return (("ask_line", {"text": text}),)
        case Do.WHIM:
            return (("append_line", {"text": f"{text} {whim}"}),)
        case Do.HAND | Do.HAND_TWO:
            return tuple(_hand("dee", f"{errand} errand") for errand in errands(text, question.do))
        case Do.HAND_ASK:
            return (_hand("dee", f"{text}/1 errand asking"),)
        case Do.HAND_OUT:
            return (_hand(ELSEWHERE, f"{text}/1 errand"),)
        case Do.SPAWN:
            return (("sessions_spawn", {"task": f"{text}/1 errand", "cleanup": "delete"}),)
        case Do.SPAWN_ASK:
            return (("sessions_spawn", {"task": f"{text}/1 errand asking", "cleanup": "keep"}),)
        case Do.PLAIN | Do.FAIL:
            return ()


def _hand(to: str, content: str) -> tuple[str, dict[str, Any]]:
    return "agents_message", {"agentId": to, "content": content, "session": "create"}


def _read(result: ToolResult | None, call: Call) -> Said:
    output = result.output if result else ""
    if call.tool in ("agents_message", "sessions_spawn") and "{" in output:
        told, _ = json.JSONDecoder().raw_decode(output, output.index("{"))  # text from outside is between markers
        return _came_of(told, call)
    for beginning, said in (
        ("appended", Said.APPENDED),
        ("Interrupted", Said.INTERRUPTED),
        ("Waiting for approval", Said.WAITING),
        ("Not done", Said.DENIED),
        ("now: ", Said.SHOWN),
    ):
        if output.startswith(beginning):
            return said
    return Said.OTHER


def _came_of(told: dict[str, Any], call: Call) -> Said:
    if told["status"] == "complete":
        errand = str(call.arguments["content"]).split(" ", 1)[0]
        return Said.HANDED if str(told.get("response")).split("\n")[0] == f"did {errand}" else Said.MIXED
    return Said.FAILED if told["status"] in ("failed", "error", "forbidden") else Said.LATER


def _late(own: Sequence[Record]) -> list[str]:
    """Returns the results of calls that were allowed after their turn."""
    return [f"late: {record.body.text}" for record in own if isinstance(record.body, Note) and record.body.call]
