"""Trust labels of files: which files are untrusted, since when, and what makes them trusted again."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest
from stores import POSTGRES, SQLITE, StoreLocation, create_store_location

from retinue.domain.ids import RunId
from retinue.domain.trust import Trust
from retinue.store.agents import file_trust
from retinue.store.agents.file_trust import CTIME_SLACK_MS, LABEL_GRACE_MS, LABELS_PER_BATCH_MAX
from retinue.store.core.connection import Store, TransactionBody

RUN = RunId("6" * 32)
NOW = 1_800_000_000_000
FILE = "/work/notes/a.md"


@pytest.fixture(params=[SQLITE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


@pytest.fixture
async def store(place: StoreLocation) -> AsyncGenerator[Store]:
    async with place.open() as opened:
        yield opened


async def write(store: Store, body: TransactionBody[object]) -> object:
    return await store.write(body, point="test")


async def untrusted(store: Store, *paths: str, at: int = NOW) -> None:
    await write(store, partial(file_trust.mark_untrusted, paths=paths, at_ms=at, run=RUN))


async def mark_file_clean(store: Store, path: str = FILE, *, ctime: int) -> None:
    await write(store, partial(file_trust.mark_clean, path=path, ctime_ms=ctime, run=RUN))


async def distrust_folder(store: Store, folder: str, *, at: int = NOW) -> None:
    await write(store, partial(file_trust.distrust_directory, path=folder, at_ms=at, run=RUN))


async def is_untrusted(store: Store, path: str = FILE, *, ctime: int = NOW, content: str = "") -> bool:
    found = await store.read(partial(file_trust.get_trust, path=path, ctime_ms=ctime, content=content))
    every = await store.scan(partial(file_trust.get_directory_labels, folder=os.path.dirname(path)))
    if not content:  # the trust of one file is the same as in the labels of its directory
        assert every.get_trust(path, ctime_ms=ctime) is found
    return found is Trust.UNTRUSTED


async def test_a_file_without_a_trust_label_is_trusted(store: Store) -> None:
    assert not await is_untrusted(store)
    await untrusted(store, "/work/notes/b.md", "/work/notes/a.md.bak", "/work/notes")
    assert not await is_untrusted(store)


async def test_file_trust_labels_survive_a_restart(place: StoreLocation) -> None:
    async with place.open() as store:
        await untrusted(store, FILE)
        await distrust_folder(store, "/other")
    async with place.open() as store:
        assert await is_untrusted(store)
        assert await is_untrusted(store, "/other/x")


async def test_a_file_with_a_clean_trust_label_is_trusted_until_its_ctime_changes(store: Store) -> None:
    await distrust_folder(store, "/work")
    await untrusted(store, FILE)
    await mark_file_clean(store, ctime=NOW + 50)
    assert not await is_untrusted(store, ctime=NOW + 50)
    assert await is_untrusted(store, ctime=NOW + 51)
    await untrusted(store, FILE, at=NOW + 60)
    assert await is_untrusted(store, ctime=NOW + 50)


async def test_in_a_directory_labeled_untrusted_only_files_changed_since_are_untrusted(store: Store) -> None:
    await distrust_folder(store, "/work/notes")
    assert await is_untrusted(store, ctime=NOW)
    assert await is_untrusted(store, ctime=NOW + 1_000_000)
    assert await is_untrusted(store, "/work/notes/deep/er/b.md")
    # The disk's clock is not ours: files that may have changed since are untrusted, too.
    assert await is_untrusted(store, ctime=NOW - CTIME_SLACK_MS)
    assert not await is_untrusted(store, ctime=NOW - CTIME_SLACK_MS - 1)
    assert not await is_untrusted(store, "/work/notes-of-others/a.md")
    assert not await is_untrusted(store, "/work/b.md")


async def test_a_later_untrusted_label_of_a_directory_does_not_replace_an_earlier_one(store: Store) -> None:
    await distrust_folder(store, "/work")
    await distrust_folder(store, "/work", at=NOW + 1_000_000)
    assert await is_untrusted(store, ctime=NOW + 10)
    await distrust_folder(store, "/work", at=NOW - 1_000_000)
    assert await is_untrusted(store, ctime=NOW - 900_000)


async def test_a_directory_trust_label_on_the_path_of_a_file_makes_only_that_file_untrusted(store: Store) -> None:
    await distrust_folder(store, FILE)
    assert await is_untrusted(store)
    assert not await is_untrusted(store, FILE + "x")


async def test_the_trust_labels_of_all_parent_directories_apply_to_a_file(store: Store) -> None:
    deep = "/work" + "/a" * 200 + "/x"
    await distrust_folder(store, "/work")
    assert await is_untrusted(store, deep)
    await mark_file_clean(store, deep, ctime=NOW + 5)
    assert not await is_untrusted(store, deep, ctime=NOW + 5)
    await distrust_folder(store, "/")
    assert await is_untrusted(store, "/etc/hosts")


async def test_sql_wildcards_in_the_paths_of_file_trust_labels_are_literal(store: Store) -> None:
    await distrust_folder(store, "/w_rk/100%")
    assert await is_untrusted(store, "/w_rk/100%/x")
    assert not await is_untrusted(store, "/work/100%/x")
    assert not await is_untrusted(store, "/w_rk/1000/x")
    await untrusted(store, "/W/ä.md")
    found = await store.scan(partial(file_trust.get_directory_labels, folder="/w"))
    assert not found.by_key


async def test_file_content_marked_untrusted_is_untrusted_at_every_path(store: Store) -> None:
    hash_ = "ab" * 32
    assert not await is_untrusted(store, content=hash_)
    await write(store, partial(file_trust.mark_content, hashes=[hash_], at_ms=NOW))
    assert await is_untrusted(store, content=hash_)
    assert await is_untrusted(store, "/elsewhere", content=hash_)
    assert not await is_untrusted(store, content="cd" * 32)
    assert await store.read(partial(file_trust.content_trust, hash_=hash_)) is Trust.UNTRUSTED
    assert await store.read(partial(file_trust.content_trust, hash_="cd" * 32)) is Trust.PRIVATE


async def start_command(
    store: Store, *, readable: list[str], writable: list[str], bad: bool = False, at: int = NOW
) -> bool:
    body = partial(file_trust.label_command, readable=readable, writable=writable, untrusted=bad, at_ms=at, run=RUN)
    return await store.write(body, point="test") is Trust.UNTRUSTED


async def test_a_command_is_labeled_untrusted_if_its_input_or_a_file_it_can_read_is(store: Store) -> None:
    assert not await start_command(store, readable=["/data"], writable=["/work"])
    assert not await is_untrusted(store, "/work/x")
    assert await start_command(store, readable=["/data"], writable=["/work"], bad=True)
    assert await is_untrusted(store, "/work/x", ctime=NOW + 1)
    assert not await is_untrusted(store, "/data/x", ctime=NOW + 1)
    assert not await start_command(store, readable=["/data"], writable=["/elsewhere"])
    assert await start_command(store, readable=["/work/deep"], writable=["/elsewhere"])


async def test_a_command_that_copies_or_moves_untrusted_files_gives_its_directory_an_untrusted_label(
    store: Store,
) -> None:
    """`mv folder other` changes the ctime of the folder, but not of the files in it."""
    await untrusted(store, "/work/from-the-web/page.md", at=NOW)
    written = NOW + 3
    assert not await is_untrusted(store, "/work/mine/page.md", ctime=written)
    assert await start_command(store, readable=[], writable=["/work"], at=NOW + 9_000_000)
    assert await is_untrusted(store, "/work/mine/page.md", ctime=written)
    assert await is_untrusted(store, "/work/copy.md", ctime=NOW + 9_000_005)
    assert not await is_untrusted(store, "/work/old.md", ctime=NOW - 9_000_000)


async def test_no_clean_trust_label_of_a_file_is_stored_until_something_is_untrusted(store: Store) -> None:
    await mark_file_clean(store, ctime=NOW)
    assert not await store.read(partial(file_trust.is_needed, path=FILE))
    await untrusted(store, "/elsewhere")
    await mark_file_clean(store, ctime=NOW)
    await distrust_folder(
        store, "/work", at=NOW - 1
    )  # a command of today makes files of yesterday untrusted, unless they were trusted
    assert not await is_untrusted(store, ctime=NOW)
    assert await is_untrusted(store, "/work/notes/other.md", ctime=NOW)


async def test_a_sweep_deletes_the_trust_labels_of_missing_files(store: Store, tmp_path: Path) -> None:
    here, gone, folder = str(tmp_path / "here"), str(tmp_path / "gone"), tmp_path / "folder"
    Path(here).touch()
    folder.mkdir()
    old = NOW - LABEL_GRACE_MS - 1
    await untrusted(store, here, gone, at=old)
    await untrusted(store, str(tmp_path / "about-to-be-written"), at=NOW - 5)
    await untrusted(store, *(f"{gone}/{number}" for number in range(LABELS_PER_BATCH_MAX + 1)), at=old)
    await distrust_folder(store, str(folder), at=old)
    await distrust_folder(store, gone, at=old)
    await write(store, partial(file_trust.mark_content, hashes=["ab" * 32, "cd" * 32], at_ms=old))
    swept = await file_trust.sweep(store, now_ms=NOW, is_named={"ab" * 32}.__contains__)
    assert swept == LABELS_PER_BATCH_MAX + 1 + 3  # and: `gone`, `gone/`, one hash
    assert await is_untrusted(store, here)
    assert await is_untrusted(store, str(tmp_path / "about-to-be-written"))
    assert await is_untrusted(store, str(folder / "x"))
    assert await is_untrusted(store, content="ab" * 32)
    assert not await is_untrusted(store, gone)
    assert not await is_untrusted(store, content="cd" * 32)
    assert await file_trust.sweep(store, now_ms=NOW, is_named={"ab" * 32}.__contains__) == 0


async def test_a_file_trust_label_renewed_during_a_sweep_is_not_deleted(store: Store) -> None:
    await untrusted(store, FILE, at=NOW)
    seen = await store.scan(partial(file_trust.get_file_labels, path=FILE))
    await untrusted(store, FILE, at=NOW + 1)
    assert await write(store, partial(file_trust.delete_labels, labels=seen.by_key.values())) == 0
    assert await is_untrusted(store)
