"""What is remembered of correspondents, on the shelf that the house hands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.connectors.email.email_threads import IDS_MAX, THREADS_MAX, ThreadCache
from retinue.connectors.supervisor.connector_state import StoredConnectorState
from retinue.testing.local_instance import LocalInstance

LONG_ADDRESS = f"unverified:{'m' * 60}@{'.'.join(['x' * 60] * 3)}.example"


@pytest.mark.parametrize("who", ["maria@example.org", LONG_ADDRESS])
async def test_however_much_somebody_writes_it_fits_on_the_shelf_and_the_latest_is_known(
    tmp_path: Path, who: str
) -> None:
    household = LocalInstance(tmp_path)
    async with household.run() as house:
        shelf = StoredConnectorState(house.store, household.clock, "mail")
        threads = ThreadCache(shelf)
        await threads.load(who)
        for number in range(THREADS_MAX):
            ids = tuple(f"{number}.{each}.{'i' * 170}@example.org" for each in range(IDS_MAX))
            threads.add(who, f"thread{number}", "S" * 200, ids)
            await threads.save(who)

        again = ThreadCache(shelf)
        await again.load(who)
        last = THREADS_MAX - 1
        assert again.find_thread(who, (f"{last}.0.{'i' * 170}@example.org",)) == f"thread{last}"
        assert len(again.get_thread(who, f"thread{last}").ids) == IDS_MAX
        assert again.get_thread(who, "thread0").ids == (), "the one that was quiet longest goes first"
