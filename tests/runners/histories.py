"""Histories to keep in bounds: written by hand, or made up by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import Note, Record, RecordBody, Reply, Summary, Usage, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
SESSION = SessionId("s")


def record(seq: int, body: RecordBody, *, run: str = "r", at: datetime = NOON) -> Record:
    return Record(session=SESSION, seq=seq, kind=body_kind(body), body=body, at_ms=to_ms(at), run=RunId(run))


def told(*bodies: RecordBody) -> list[Record]:
    return [record(seq, body, at=NOON + timedelta(seconds=seq)) for seq, body in enumerate(bodies, start=1)]


def bodies(records: Sequence[Record]) -> list[RecordBody]:
    return [r.body for r in records]


def user(text: str = "hello") -> UserTurn:
    return UserTurn(text=text)


def says(text: str, *, tokens: int = 0, estimated: bool = False) -> Reply:
    """A reply; with `tokens`, its provider has counted so many, its own included."""
    usage = Usage(input_tokens=max(tokens - 10, 0), output_tokens=min(tokens, 10), estimated=estimated)
    return Reply(text=text, usage=usage, model="test/model")


def asks(*ids: str, tool: str = "read", arguments: dict[str, Any] | None = None) -> Reply:
    return Reply(text="", calls=tuple(Call(id=id_, tool=tool, arguments=arguments or {}) for id_ in ids))


def result(id_: str, output: str = "ok", *, tool: str = "read", failed: bool = False) -> ToolResult:
    return ToolResult(call=id_, tool=tool, output=output, failed=failed)


def paired(records: Sequence[Record]) -> bool:
    """Every call with its result right behind it, and no result without its call."""
    expected: list[str] = []
    for item in records:
        if isinstance(item.body, ToolResult):
            if not expected or item.body.call != expected.pop(0):
                return False
            continue
        if expected:
            return False
        expected = [call.id for call in item.body.calls] if isinstance(item.body, Reply) else []
    return not expected


words = st.text(alphabet="ab c\né漢", max_size=30)
sizes = st.sampled_from([0, 10, 300, 3_000, 30_000])


@st.composite
def texts(draw: st.DrawFn) -> str:
    return draw(words) + "word " * (draw(sizes) // 5)


@st.composite
def histories(draw: st.DrawFn, *, ends_with_turn: bool | None = None) -> list[Record]:
    """Runs one after the other, as they are stored: turns, calls and their results in any order, notes in between, and
    some replies whose tokens were counted. Numbers have gaps, as they do where a record was damaged."""
    made: list[RecordBody] = []
    for run in range(draw(st.integers(1, 4))):
        made.append(user(f"question {run} " + draw(texts())))
        for turn in range(draw(st.integers(0, 3))):
            ids = [f"{run}-{turn}-{n}" for n in range(draw(st.integers(1, 3)))]
            made.append(asks(*ids, arguments={"path": draw(words)}))
            results: list[RecordBody] = [result(id_, draw(texts()), failed=draw(st.booleans())) for id_ in ids]
            if draw(st.booleans()):
                results.insert(draw(st.integers(0, len(results))), Note(text="a note " + draw(words)))
            made += draw(st.permutations(results))
        made.append(says("answer " + draw(texts()), tokens=draw(st.sampled_from([0, 0, 50, 20_000]))))
    if draw(st.booleans()) if ends_with_turn is None else ends_with_turn:
        made.append(user("the newest question " + draw(texts())))
    seq = 0
    records: list[Record] = []
    for body in made:
        seq += draw(st.integers(1, 3))
        records.append(record(seq, body))
    return records


def with_summary(records: Sequence[Record], text: str, kept_from: int) -> list[Record]:
    return [*records, record(max(r.seq for r in records) + 1, Summary(text=text, kept_from=kept_from))]
