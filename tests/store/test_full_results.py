"""Which files the tool results in sessions name, on both kinds of store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from stores import POSTGRES, SQLITE, StoreLocation, create_store_location

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordKind
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.sessions import full_results, records

SESSION, OTHER_SESSION = SessionId("5" * 32), SessionId("7" * 32)


@pytest.fixture(params=[SQLITE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


def record(session: SessionId, seq: int, result: ToolResult) -> Record:
    return Record(
        session=session,
        seq=seq,
        kind=RecordKind.TOOL,
        body=result,
        at_ms=1_800_000_000_000,
        run=None,
        trust=result.trust,
    )


async def test_a_full_result_is_found_in_its_session_by_a_hash_prefix(place: StoreLocation) -> None:
    one, two = "ab" * 32, "cd" * 32
    kept = [
        record(SESSION, 1, ToolResult(call="1", tool="exec", output=f'"whole":"{two}"', whole=one)),
        record(SESSION, 2, ToolResult(call="2", tool="exec", output="short")),
        record(SESSION, 3, ToolResult(call="3", tool="web_fetch", output="", whole=one, trust=Trust.UNTRUSTED)),
        record(SESSION, 4, ToolResult(call="4", tool="exec", output="", whole=one)),
        record(OTHER_SESSION, 1, ToolResult(call="5", tool="exec", output="", whole=two)),
    ]
    async with place.open() as store:
        await store.write(partial(records.add, records=kept), point="test")
        found = await store.scan(partial(full_results.find_by_hash, session=SESSION, prefix=one[:16]))
        assert found is not None and (found.call, found.trust) == ("3", Trust.UNTRUSTED)
        assert await store.scan(partial(full_results.find_by_hash, session=SESSION, prefix=two[:16])) is None
        assert await store.scan(partial(full_results.find_by_hash, session=OTHER_SESSION, prefix=two[:16])) is not None
        assert await store.scan(full_results.list_file_hashes) == {one, two}
