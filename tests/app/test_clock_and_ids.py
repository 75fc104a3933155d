"""The real dice."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from retinue.app.clock_and_ids import IDS_PER_BATCH, RandomIds


def test_no_id_is_given_twice_to_whomever_and_each_is_32_hex_digits() -> None:
    ids = RandomIds()
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda _: [ids.new() for _ in range(IDS_PER_BATCH)], range(16)))
    given = [id_ for each in drawn for id_ in each]

    assert len(set(given)) == len(given) == 16 * IDS_PER_BATCH
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in given)
