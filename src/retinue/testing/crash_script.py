"""The text protocol of the crash test, with which clients, model and verdict match each question to its answer.

A question is a line such as `s12-m7 two-tools 0.05`. It contains a token, the action for the model,
and the delay of the model in seconds. The answer contains `<s12-m7 appended interrupted>`: the
token, and the result of each tool call made for it.

A delegated task is a line such as `s12-m7/1 errand`. The other agent answers `did s12-m7/1`. If
this answer arrives as a separate envelope, the delegating agent says `later: did s12-m7/1`. The
task `s12-m7/1 errand asking` needs an approval first.

A schedule sends `tick`, which needs no answer in this protocol.

The external agent gives answers in the same form. Sometimes it also sends `by the way: REQUEST`,
with the id of a request. This is not an answer to any request.
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
from retinue.models.base import ModelPrompt
from retinue.testing.scripted_model import ScriptedReply

SAFE_CONNECTOR = "steady"  # a connector whose platform recognizes repeated parts
UNSAFE_CONNECTOR = "risky"  # a connector whose platform does not
EXTERNAL_AGENT = "fay"  # the external agent
SCHEDULE_INTERVALS_S = {"tick": 2, "gated": 3}  # intervals of the schedules; one of them has a gate


class ScriptAction(StrEnum):
    """The actions that a question of the crash test can request from the model."""

    PLAIN = "plain"
    STATUS = "status"  # a call that may be repeated
    TOOL = "tool"  # a call that must not be repeated
    TWO_TOOLS = "two-tools"
    ASK = "ask"  # a call that needs approval
    VARIABLE = "whim"  # a call whose arguments differ each time the model is called, as with real models
    DELEGATE = "hand"  # a task for another agent
    DELEGATE_TWO = "hand-two"  # two tasks at once
    DELEGATE_ASK = "hand-ask"  # a task for which the other agent needs approval
    DELEGATE_EXTERNAL = "hand-out"  # a task for the external agent
    SPAWN = "spawn"  # a task for a subagent
    SPAWN_ASK = "spawn-ask"  # a task for a subagent, which needs approval
    FAIL = "fail"  # the model fails


class CallResult(StrEnum):
    """The result of a tool call, as the model read it."""

    APPENDED = "appended"
    INTERRUPTED = "interrupted"
    WAITING = "waiting"
    DENIED = "denied"
    SHOWN = "shown"
    DELEGATED = "handed"  # another agent performed the task
    LATER = "later"  # the result will arrive as an envelope
    FAILED = "failed"  # another agent could not perform the task
    MIXED = "mixed"  # another agent performed a different task
    OTHER = "other"


_QUESTION = re.compile(r"^(s\d+-m\d+) ([a-z-]+)(?: ([0-9.]+))?$", re.MULTILINE)
_ANSWER = re.compile(r"<(s\d+-m\d+)((?: [a-z]+)*)>")
_TASK = re.compile(r"^(s\d+-m\d+/\d) errand( asking)?$", re.MULTILINE)
_TASK_DONE = re.compile(r"^did (s\d+-m\d+/\d)$", re.MULTILINE)
_TASK_DONE_LATER = re.compile(r"^later: did (s\d+-m\d+/\d)$", re.MULTILINE)
_LATE_TASK_RESULT = re.compile(r'"response":\s*"did (s\d+-m\d+/\d)')
_TOKEN = re.compile(r"s(\d+)-m(\d+)")


@dataclass(frozen=True, slots=True)
class ScriptQuestion:
    """One line that a client sends: a token, and the action that it requests from the model."""

    token: str
    action: ScriptAction
    delay_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.token} {self.action}" + (f" {self.delay_s:g}" if self.delay_s else "")


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """The part of a model's reply that answers one question."""

    token: str
    results: tuple[CallResult, ...] = ()

    def __str__(self) -> str:
        return f"<{' '.join((self.token, *self.results))}>"


def build_token(session: int, number: int) -> str:
    return f"s{session}-m{number}"


def parse_token(token: str) -> tuple[int, int]:
    """Return the session to which a token belongs, and the number of the token in that session."""
    found = _TOKEN.match(token)
    if found is None:
        raise ValueError(f"{token!r} begins with no token")
    return int(found[1]), int(found[2])


def parse_questions(text: str) -> list[ScriptQuestion]:
    return [ScriptQuestion(m[1], ScriptAction(m[2]), float(m[3] or 0)) for m in _QUESTION.finditer(text)]


def parse_answers(text: str) -> list[ScriptAnswer]:
    return [ScriptAnswer(m[1], tuple(CallResult(word) for word in m[2].split())) for m in _ANSWER.finditer(text)]


def parse_late_tasks(text: str) -> list[str]:
    """Return the delegated tasks that the text reports as done later.

    The text contains either the phrase `later: did TASK`, or the result of a call that was allowed
    only after its turn had ended.
    """
    return [m[1] for m in (*_TASK_DONE_LATER.finditer(text), *_LATE_TASK_RESULT.finditer(text))]


def list_tasks(token: str, action: ScriptAction) -> list[str]:
    match action:
        case (
            ScriptAction.DELEGATE
            | ScriptAction.DELEGATE_ASK
            | ScriptAction.DELEGATE_EXTERNAL
            | ScriptAction.SPAWN
            | ScriptAction.SPAWN_ASK
        ):
            return [f"{token}/1"]
        case ScriptAction.DELEGATE_TWO:
            return [f"{token}/1", f"{token}/2"]
        case _:
            return []


def external_answer(text: str) -> str:
    """Return the answer that the external agent gives to this text."""
    return "\n".join((*_answer_tasks(text), *(str(ScriptAnswer(question.token)) for question in parse_questions(text))))


def unrequested_message(request: str) -> str:
    return f"by the way: {request}"


def _answer_tasks(text: str) -> list[str]:
    return [f"did {m[1]}" for m in _TASK.finditer(text)]


def choose_reply(prompt: ModelPrompt, whim: str) -> ScriptedReply:
    """Return the next reply of the model in the crash test.

    The model makes one turn of calls for each question that needs calls. Then it answers all
    questions at once. The reply depends only on the records of the run and on `whim`, which differs
    from process to process.
    """
    run = prompt.records[-1].run
    own = [record for record in prompt.records if record.run == run]
    asked = [q for r in own if isinstance(r.body, UserTurn) for q in parse_questions(r.body.text)]
    for question in asked:
        if question.action is ScriptAction.FAIL:
            return ScriptedReply(fails=f"{question.token} was to fail", after_s=question.delay_s)
    mail = [record.body.text for record in own if isinstance(record.body, UserTurn)]
    wanting = [question for question in asked if _build_calls(question, whim)]
    wanting += [ScriptQuestion(m[1], ScriptAction.ASK) for text in mail for m in _TASK.finditer(text) if m[2]]
    replies = [record.body for record in own if isinstance(record.body, Reply)]
    if len(replies) < len(wanting):
        question = wanting[len(replies)]
        return ScriptedReply(calls=_build_calls(question, whim), after_s=question.delay_s)
    results = {record.body.call: record.body for record in own if isinstance(record.body, ToolResult)}
    by_token = {
        question.token: tuple(_classify_result(results.get(call.id), call) for call in reply.calls)
        for question, reply in zip(wanting, replies, strict=False)
    }
    answers = [str(ScriptAnswer(question.token, by_token.get(question.token, ()))) for question in asked]
    thinking_s = sum(question.delay_s for question in asked if question not in wanting)
    did = [line for text in mail for line in _answer_tasks(text)]
    did += [f"({word})" for token, words in by_token.items() if "/" in token for word in words]
    later = [f"later: did {m[1]}" for text in mail for m in _TASK_DONE.finditer(text)]
    return ScriptedReply(text="\n".join([*_late_results(own), *later, *did, *answers]) or "Noted.", after_s=thinking_s)


def _build_calls(question: ScriptQuestion, whim: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    text = question.token
    match question.action:
        case ScriptAction.STATUS:
            return (("session_status", {}),)
        case ScriptAction.TOOL:
            return (("append_line", {"text": text}),)
        case ScriptAction.TWO_TOOLS:
            return (("append_line", {"text": f"{text}/1"}), ("append_line", {"text": f"{text}/2"}))
        case ScriptAction.ASK:
            return (("ask_line", {"text": text}),)
        case ScriptAction.VARIABLE:
            return (("append_line", {"text": f"{text} {whim}"}),)
        case ScriptAction.DELEGATE | ScriptAction.DELEGATE_TWO:
            return tuple(_delegate_call("dee", f"{errand} errand") for errand in list_tasks(text, question.action))
        case ScriptAction.DELEGATE_ASK:
            return (_delegate_call("dee", f"{text}/1 errand asking"),)
        case ScriptAction.DELEGATE_EXTERNAL:
            return (_delegate_call(EXTERNAL_AGENT, f"{text}/1 errand"),)
        case ScriptAction.SPAWN:
            return (("sessions_spawn", {"task": f"{text}/1 errand", "cleanup": "delete"}),)
        case ScriptAction.SPAWN_ASK:
            return (("sessions_spawn", {"task": f"{text}/1 errand asking", "cleanup": "keep"}),)
        case ScriptAction.PLAIN | ScriptAction.FAIL:
            return ()


def _delegate_call(agent: str, content: str) -> tuple[str, dict[str, Any]]:
    return "agents_message", {"agentId": agent, "content": content, "session": "create"}


def _classify_result(result: ToolResult | None, call: Call) -> CallResult:
    output = result.output if result else ""
    if call.tool in ("agents_message", "sessions_spawn") and "{" in output:
        document, _ = json.JSONDecoder().raw_decode(output, output.index("{"))  # text from outside is between markers
        return _classify_delegation(document, call)
    for beginning, call_result in (
        ("appended", CallResult.APPENDED),
        ("Interrupted", CallResult.INTERRUPTED),
        ("Waiting for approval", CallResult.WAITING),
        ("Not done", CallResult.DENIED),
        ("now: ", CallResult.SHOWN),
    ):
        if output.startswith(beginning):
            return call_result
    return CallResult.OTHER


def _classify_delegation(result: dict[str, Any], call: Call) -> CallResult:
    if result["status"] == "complete":
        errand = str(call.arguments["content"]).split(" ", 1)[0]
        return (
            CallResult.DELEGATED if str(result.get("response")).split("\n")[0] == f"did {errand}" else CallResult.MIXED
        )
    return CallResult.FAILED if result["status"] in ("failed", "error", "forbidden") else CallResult.LATER


def _late_results(own: Sequence[Record]) -> list[str]:
    """Return the results of tool calls that were allowed only after their turn had ended."""
    return [f"late: {record.body.text}" for record in own if isinstance(record.body, Note) and record.body.call]
