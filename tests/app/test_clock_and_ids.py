"""The random ids and tokens of the real server."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from retinue.app import clock_and_ids
from retinue.app.clock_and_ids import IDS_PER_BATCH, RandomIds, new_token


def test_random_ids_are_unique_across_threads_and_have_32_hex_digits() -> None:
    ids = RandomIds()
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda _: [ids.new() for _ in range(IDS_PER_BATCH)], range(16)))
    given = [id_ for each in drawn for id_ in each]

    assert len(set(given)) == len(given) == 16 * IDS_PER_BATCH
    assert all(re.fullmatch("[0-9a-f]{32}", id_) for id_ in given)


def test_a_new_random_token_never_begins_with_a_hyphen_like_a_command_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = iter(["-" + "a" * 42, "--" + "b" * 41, "c" * 43])
    monkeypatch.setattr(clock_and_ids.secrets, "token_urlsafe", lambda _bytes: next(drawn))
    assert new_token() == "c" * 43
