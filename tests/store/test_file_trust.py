"""Labels of files: what is doubted, since when, and what lifts the doubt."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from stores import POSTGRES, SQLITE, Place, place_of

from retinue.domain.ids import RunId
from retinue.domain.trust import Trust
from retinue.store.agents import file_trust
from retinue.store.agents.file_trust import CTIME_SLACK_MS, LABEL_GRACE_MS, LABELS_PER_BATCH_MAX
from retinue.store.core.connection import Store, TransactionBody

RUN = RunId("6" * 32)
NOW = 1_800_000_000_000
FILE = "/work/notes/a.md"


@pytest.fixture(params=[SQLITE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
async def store(place: Place) -> AsyncGenerator[Store]:
    async with place.open() as opened:
        yield opened


async def write(store: Store, body: TransactionBody[object]) -> object:
    return await store.write(body, point="test")


async def untrusted(store: Store, *paths: str, at: int = NOW) -> None:
    await write(store, partial(file_trust.mark_untrusted, paths=paths, at_ms=at, run=RUN))


async def clean(store: Store, path: str = FILE, *, ctime: int) -> None:
    await write(store, partial(file_trust.mark_clean, path=path, ctime_ms=ctime, run=RUN))


async def tainted(store: Store, folder: str, *, at: int = NOW) -> None:
    await write(store, partial(file_trust.distrust_directory, path=folder, at_ms=at, run=RUN))


async def doubted(store: Store, path: str = FILE, *, ctime: int = NOW, content: str = "") -> bool:
    found = await store.read(partial(file_trust.get_trust, path=path, ctime_ms=ctime, content=content))
    every = await store.scan(partial(file_trust.get_directory_labels, folder=os.path.dirname(path)))
    if not content:  # one file looked at by itself, or among others: the same
        assert every.get_trust(path, ctime_ms=ctime) is found
    return found is Trust.UNTRUSTED


async def test_a_file_without_a_label_is_the_houses_own(store: Store) -> None:
    assert not await doubted(store)
    await untrusted(store, "/work/notes/b.md", "/work/notes/a.md.bak", "/work/notes")
    assert not await doubted(store)


async def test_a_label_outlives_a_restart(place: Place) -> None:
    async with place.open() as store:
        await untrusted(store, FILE)
        await tainted(store, "/other")
    async with place.open() as store:
        assert await doubted(store)
        assert await doubted(store, "/other/x")


async def test_a_file_written_anew_is_believed_until_it_changes_behind_our_back(store: Store) -> None:
    await tainted(store, "/work")
    await untrusted(store, FILE)
    await clean(store, ctime=NOW + 50)
    assert not await doubted(store, ctime=NOW + 50)
    assert await doubted(store, ctime=NOW + 51)
    await untrusted(store, FILE, at=NOW + 60)
    assert await doubted(store, ctime=NOW + 50)


async def test_of_a_folder_that_a_command_ran_in_only_what_has_changed_since_is_doubted(store: Store) -> None:
    await tainted(store, "/work/notes")
    assert await doubted(store, ctime=NOW)
    assert await doubted(store, ctime=NOW + 1_000_000)
    assert await doubted(store, "/work/notes/deep/er/b.md")
    # The clock of the disk is not ours: what may have been changed since is doubted too.
    assert await doubted(store, ctime=NOW - CTIME_SLACK_MS)
    assert not await doubted(store, ctime=NOW - CTIME_SLACK_MS - 1)
    assert not await doubted(store, "/work/notes-of-others/a.md")
    assert not await doubted(store, "/work/b.md")


async def test_a_later_command_does_not_make_an_earlier_one_good(store: Store) -> None:
    await tainted(store, "/work")
    await tainted(store, "/work", at=NOW + 1_000_000)
    assert await doubted(store, ctime=NOW + 10)
    await tainted(store, "/work", at=NOW - 1_000_000)
    assert await doubted(store, ctime=NOW - 900_000)


async def test_a_command_given_a_single_file_to_write_to_taints_that_file(store: Store) -> None:
    await tainted(store, FILE)
    assert await doubted(store)
    assert not await doubted(store, FILE + "x")


async def test_however_deep_a_file_lies_every_folder_above_it_counts(store: Store) -> None:
    deep = "/work" + "/a" * 200 + "/x"
    await tainted(store, "/work")
    assert await doubted(store, deep)
    await clean(store, deep, ctime=NOW + 5)
    assert not await doubted(store, deep, ctime=NOW + 5)
    await tainted(store, "/")
    assert await doubted(store, "/etc/hosts")


async def test_names_with_signs_of_sql_in_them_are_names(store: Store) -> None:
    await tainted(store, "/w_rk/100%")
    assert await doubted(store, "/w_rk/100%/x")
    assert not await doubted(store, "/work/100%/x")
    assert not await doubted(store, "/w_rk/1000/x")
    await untrusted(store, "/W/ä.md")
    found = await store.scan(partial(file_trust.get_directory_labels, folder="/w"))
    assert not found.by_key


async def test_bytes_from_outside_are_doubted_wherever_they_lie(store: Store) -> None:
    hash_ = "ab" * 32
    assert not await doubted(store, content=hash_)
    await write(store, partial(file_trust.mark_content, hashes=[hash_], at_ms=NOW))
    assert await doubted(store, content=hash_)
    assert await doubted(store, "/elsewhere", content=hash_)
    assert not await doubted(store, content="cd" * 32)
    assert await store.read(partial(file_trust.content_trust, hash_=hash_)) is Trust.UNTRUSTED
    assert await store.read(partial(file_trust.content_trust, hash_="cd" * 32)) is Trust.PRIVATE


async def begin(store: Store, *, readable: list[str], writable: list[str], bad: bool = False, at: int = NOW) -> bool:
    body = partial(file_trust.label_command, readable=readable, writable=writable, untrusted=bad, at_ms=at, run=RUN)
    return await store.write(body, point="test") is Trust.UNTRUSTED


async def test_a_command_is_as_good_as_its_words_and_what_it_can_read(store: Store) -> None:
    assert not await begin(store, readable=["/data"], writable=["/work"])
    assert not await doubted(store, "/work/x")
    assert await begin(store, readable=["/data"], writable=["/work"], bad=True)
    assert await doubted(store, "/work/x", ctime=NOW + 1)
    assert not await doubted(store, "/data/x", ctime=NOW + 1)
    assert not await begin(store, readable=["/data"], writable=["/elsewhere"])
    assert await begin(store, readable=["/work/deep"], writable=["/elsewhere"])


async def test_a_clean_command_cannot_launder_what_it_copies_or_moves(store: Store) -> None:
    """`mv folder other` changes the ctime of the folder, and of nothing in it."""
    await untrusted(store, "/work/from-the-web/page.md", at=NOW)
    written = NOW + 3
    assert not await doubted(store, "/work/mine/page.md", ctime=written)
    assert await begin(store, readable=[], writable=["/work"], at=NOW + 9_000_000)
    assert await doubted(store, "/work/mine/page.md", ctime=written)
    assert await doubted(store, "/work/copy.md", ctime=NOW + 9_000_005)
    assert not await doubted(store, "/work/old.md", ctime=NOW - 9_000_000)


async def test_where_nothing_is_untrusted_no_label_is_kept(store: Store) -> None:
    await clean(store, ctime=NOW)
    assert not await store.read(partial(file_trust.is_needed, path=FILE))
    await untrusted(store, "/elsewhere")
    await clean(store, ctime=NOW)
    await tainted(
        store, "/work", at=NOW - 1
    )  # a command of today doubts what was written yesterday, unless it was good
    assert not await doubted(store, ctime=NOW)
    assert await doubted(store, "/work/notes/other.md", ctime=NOW)


async def test_labels_of_files_that_are_gone_go_too(store: Store, tmp_path: Path) -> None:
    here, gone, folder = str(tmp_path / "here"), str(tmp_path / "gone"), tmp_path / "folder"
    Path(here).touch()
    folder.mkdir()
    old = NOW - LABEL_GRACE_MS - 1
    await untrusted(store, here, gone, at=old)
    await untrusted(store, str(tmp_path / "about-to-be-written"), at=NOW - 5)
    await untrusted(store, *(f"{gone}/{number}" for number in range(LABELS_PER_BATCH_MAX + 1)), at=old)
    await tainted(store, str(folder), at=old)
    await tainted(store, gone, at=old)
    await write(store, partial(file_trust.mark_content, hashes=["ab" * 32, "cd" * 32], at_ms=old))
    swept = await file_trust.sweep(store, now_ms=NOW, is_named={"ab" * 32}.__contains__)
    assert swept == LABELS_PER_BATCH_MAX + 1 + 3  # and: `gone`, `gone/`, one hash
    assert await doubted(store, here)
    assert await doubted(store, str(tmp_path / "about-to-be-written"))
    assert await doubted(store, str(folder / "x"))
    assert await doubted(store, content="ab" * 32)
    assert not await doubted(store, gone)
    assert not await doubted(store, content="cd" * 32)
    assert await file_trust.sweep(store, now_ms=NOW, is_named={"ab" * 32}.__contains__) == 0


async def test_a_label_that_was_made_anew_meanwhile_is_not_swept_away(store: Store) -> None:
    await untrusted(store, FILE, at=NOW)
    seen = await store.scan(partial(file_trust.get_file_labels, path=FILE))
    await untrusted(store, FILE, at=NOW + 1)
    assert await write(store, partial(file_trust.delete_labels, labels=seen.by_key.values())) == 0
    assert await doubted(store)
