"""Background commands in a real store: a process ends once, and its end is reported once."""

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
SESSION = SessionId("5e" * 16)
PROCESS = CommandProcess(
    id="a1" * 16,
    session=SESSION,
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
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "retinue.db"
    store = await open_store(url)
    yield store
    await store.close()


async def add(store: Store, *new: CommandProcess) -> None:
    for process in new:
        await store.write(partial(processes.add, process=process), point="process-begin")


async def get(store: Store, id_: str = PROCESS.id) -> CommandProcess | None:
    return await store.read(partial(processes.get, id_=id_))


async def end(store: Store, *, told: bool = False, code: int | None = 3) -> ProcessState | None:
    body = partial(processes.end, id_=PROCESS.id, exit_code=code, because="so", at_ms=NOW_MS, is_reported=told)
    return await store.write(body, point="process-end")


async def test_a_stored_background_process_is_read_back_unchanged(store: Store) -> None:
    await add(store, PROCESS)

    assert await get(store) == PROCESS
    assert await get(store, "ff" * 16) is None


async def test_a_background_process_is_reported_once_when_it_ends(store: Store) -> None:
    await add(store, PROCESS)
    assert await store.write(partial(processes.move_to_background, id_=PROCESS.id), point="process-leave")
    assert await end(store) is ProcessState.ENDED
    assert await get(store) == replace(PROCESS, state=ProcessState.ENDED, exit_code=3, because="so", ended_at=NOW)
    assert await end(store, code=4) is None
    assert not await store.write(partial(processes.move_to_background, id_=PROCESS.id), point="process-leave")

    assert await store.write(partial(processes.mark_reported, id_=PROCESS.id), point="process-reported")
    assert not await store.write(partial(processes.mark_reported, id_=PROCESS.id), point="process-reported")
    found = await get(store)
    assert found is not None and (found.state, found.exit_code) == (ProcessState.REPORTED, 3)


@pytest.mark.parametrize(("state", "told"), [(ProcessState.WATCHED, False), (ProcessState.RUNNING, True)])
async def test_a_background_process_whose_end_is_already_known_is_stored_as_reported(
    store: Store, state: ProcessState, told: bool
) -> None:
    await add(store, replace(PROCESS, state=state))

    assert await end(store, told=told) is ProcessState.REPORTED


async def test_a_running_background_process_cannot_be_removed_from_the_store(store: Store) -> None:
    await add(store, PROCESS)
    assert not await store.write(partial(processes.remove, id_=PROCESS.id), point="process-remove")
    await end(store)
    assert await store.write(partial(processes.remove, id_=PROCESS.id), point="process-remove")
    assert await get(store) is None


async def test_background_processes_are_listed_for_a_session_and_unfinished_ones_for_all_sessions(store: Store) -> None:
    left = replace(PROCESS, id="b2" * 16, state=ProcessState.RUNNING)
    others = replace(left, id="c3" * 16, session=SessionId("0f" * 16))
    await add(store, PROCESS, left, others)

    assert await store.read(partial(processes.list_of_session, session=SESSION, limit=9)) == [left]
    assert await store.read(partial(processes.list_unfinished, limit=9)) == [PROCESS, left, others]
    assert await store.read(partial(processes.list_unfinished, limit=1)) == [PROCESS]


async def test_stale_background_processes_are_found_by_their_end_time(store: Store) -> None:
    await add(store, PROCESS, replace(PROCESS, id="b2" * 16))
    await end(store)

    assert await store.read(partial(processes.list_stale, before_ms=NOW_MS - 1, limit=9)) == []
    assert await store.read(partial(processes.list_stale, before_ms=NOW_MS, limit=9)) == [PROCESS.id]
    assert await store.read(partial(processes.list_reported, limit=9)) == [PROCESS.id]


async def test_a_background_process_marked_untrusted_in_the_store_stays_untrusted(store: Store) -> None:
    await add(store, PROCESS)
    await store.write(partial(processes.mark_untrusted, id_=PROCESS.id), point="process-distrust")
    await end(store)
    found = await get(store)

    assert found is not None and found.trust is Trust.UNTRUSTED
