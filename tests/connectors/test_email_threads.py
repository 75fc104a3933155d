"""What is remembered of correspondents, on the shelf that the house hands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.connectors.email.email_threads import IDS_MAX, THREADS_MAX, Threads
from retinue.connectors.supervisor.connector_state import StoreShelf
from retinue.testing.local_instance import Household

LONG_ADDRESS = f"unverified:{'m' * 60}@{'.'.join(['x' * 60] * 3)}.example"


@pytest.mark.parametrize("who", ["maria@example.org", LONG_ADDRESS])
async def test_however_much_somebody_writes_it_fits_on_the_shelf_and_the_latest_is_known(
    tmp_path: Path, who: str
) -> None:
    household = Household(tmp_path)
    async with household.open() as house:
        shelf = StoreShelf(house.store, household.clock, "mail")
        threads = Threads(shelf)
        await threads.meet(who)
        for number in range(THREADS_MAX):
            ids = tuple(f"{number}.{each}.{'i' * 170}@example.org" for each in range(IDS_MAX))
            threads.add(who, f"thread{number}", "S" * 200, ids)
            await threads.keep(who)

        again = Threads(shelf)
        await again.meet(who)
        last = THREADS_MAX - 1
        assert again.thread_of(who, (f"{last}.0.{'i' * 170}@example.org",)) == f"thread{last}"
        assert len(again.thread(who, f"thread{last}").ids) == IDS_MAX
        assert again.thread(who, "thread0").ids == (), "the one that was quiet longest goes first"
