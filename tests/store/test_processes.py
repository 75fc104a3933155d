"""Commands in a real store: a process ends once, and is told of once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from retinue.domain.ids import RunId, SessionId
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.core.connection import Store
from retinue.store.open_store import open_store
from retinue.store.runs import processes
from retinue.store.runs.processes import CommandProcess, ProcessState

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = to_ms(NOW)
MINE = SessionId("5e" * 16)
ONE = CommandProcess(
    id="a1" * 16,
    session=MINE,
    run=RunId("ab" * 16),
    agent="ada",
    command="make all",
    folder="/w",
    pid=4711,
    boot="boot/1",
    trust=Trust.PRIVATE,
    started_at=NOW,
)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "house.db"
    store = await open_store(url)
    yield store
    await store.close()


async def add(store: Store, *new: CommandProcess) -> None:
    for process in new:
        await store.write(partial(processes.add, process=process), point="process-begin")


async def get(store: Store, id_: str = ONE.id) -> CommandProcess | None:
    return await store.read(partial(processes.get, id_=id_))


async def end(store: Store, *, told: bool = False, code: int | None = 3) -> ProcessState | None:
    body = partial(processes.end, id_=ONE.id, exit_code=code, because="so", at_ms=NOW_MS, is_reported=told)
    return await store.write(body, point="process-end")


async def test_what_is_written_is_read_back(store: Store) -> None:
    await add(store, ONE)

    assert await get(store) == ONE
    assert await get(store, "ff" * 16) is None


async def test_one_that_was_left_to_run_is_told_of_when_it_ends(store: Store) -> None:
    await add(store, ONE)
    assert await store.write(partial(processes.move_to_background, id_=ONE.id), point="process-leave")
    assert await end(store) is ProcessState.ENDED
    assert await get(store) == replace(ONE, state=ProcessState.ENDED, exit_code=3, because="so", ended_at=NOW)
    assert await end(store, code=4) is None
    assert not await store.write(partial(processes.move_to_background, id_=ONE.id), point="process-leave")

    assert await store.write(partial(processes.mark_reported, id_=ONE.id), point="process-told")
    assert not await store.write(partial(processes.mark_reported, id_=ONE.id), point="process-told")
    found = await get(store)
    assert found is not None and (found.state, found.exit_code) == (ProcessState.REPORTED, 3)


@pytest.mark.parametrize(("state", "told"), [(ProcessState.WATCHED, False), (ProcessState.RUNNING, True)])
async def test_one_whose_end_is_known_anyway_is_not_told_of(store: Store, state: ProcessState, told: bool) -> None:
    await add(store, replace(ONE, state=state))

    assert await end(store, told=told) is ProcessState.REPORTED


async def test_one_that_runs_is_not_removed(store: Store) -> None:
    await add(store, ONE)
    assert not await store.write(partial(processes.remove, id_=ONE.id), point="process-remove")
    await end(store)
    assert await store.write(partial(processes.remove, id_=ONE.id), point="process-remove")
    assert await get(store) is None


async def test_a_session_has_its_own_that_were_left(store: Store) -> None:
    left = replace(ONE, id="b2" * 16, state=ProcessState.RUNNING)
    others = replace(left, id="c3" * 16, session=SessionId("0f" * 16))
    await add(store, ONE, left, others)

    assert await store.read(partial(processes.list_of_session, session=MINE, limit=9)) == [left]
    assert await store.read(partial(processes.list_unfinished, limit=9)) == [ONE, left, others]
    assert await store.read(partial(processes.list_unfinished, limit=1)) == [ONE]


async def test_what_ended_long_ago_is_found(store: Store) -> None:
    await add(store, ONE, replace(ONE, id="b2" * 16))
    await end(store)

    assert await store.read(partial(processes.list_stale, before_ms=NOW_MS - 1, limit=9)) == []
    assert await store.read(partial(processes.list_stale, before_ms=NOW_MS, limit=9)) == [ONE.id]
    assert await store.read(partial(processes.list_reported, limit=9)) == [ONE.id]


async def test_trust_that_is_lost_stays_so(store: Store) -> None:
    await add(store, ONE)
    await store.write(partial(processes.mark_untrusted, id_=ONE.id), point="process-distrust")
    await end(store)
    found = await get(store)

    assert found is not None and found.trust is Trust.UNTRUSTED
