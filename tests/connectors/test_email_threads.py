"""Test the thread cache of the email connector, which is kept in the connector state."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.connectors.email.email_threads import IDS_MAX, THREADS_MAX, ThreadCache
from retinue.connectors.supervisor.connector_state import StoredConnectorState
from retinue.testing.local_instance import LocalInstance

LONG_ADDRESS = f"unverified:{'m' * 60}@{'.'.join(['x' * 60] * 3)}.example"


@pytest.mark.parametrize("correspondent", ["maria@example.org", LONG_ADDRESS])
async def test_the_email_thread_cache_keeps_the_newest_threads_within_the_state_size_limit(
    tmp_path: Path, correspondent: str
) -> None:
    instance = LocalInstance(tmp_path)
    async with instance.run() as server:
        state = StoredConnectorState(server.store, instance.clock, "mail")
        threads = ThreadCache(state)
        await threads.load(correspondent)
        for number in range(THREADS_MAX):
            ids = tuple(f"{number}.{each}.{'i' * 170}@example.org" for each in range(IDS_MAX))
            threads.add(correspondent, f"thread{number}", "S" * 200, ids)
            await threads.save(correspondent)

        again = ThreadCache(state)
        await again.load(correspondent)
        last = THREADS_MAX - 1
        assert again.find_thread(correspondent, (f"{last}.0.{'i' * 170}@example.org",)) == f"thread{last}"
        assert len(again.get_thread(correspondent, f"thread{last}").ids) == IDS_MAX
        assert again.get_thread(correspondent, "thread0").ids == (), "the least recently used thread is removed first"
