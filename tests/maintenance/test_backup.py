"""Backups: made while the house works, proved by reading them back, and put in the place of what was there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.app.errors import ServerAlreadyRunning
from retinue.app.instance_files import instance_lock
from retinue.app.restore import restore
from retinue.config import Settings
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, StoreError
from retinue.domain.times import load_zone, to_ms
from retinue.operations.doctor_registry import DoctorContext, run_checks
from retinue.operations.server.errors import MaintenanceInProgress
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.ledger import ledger
from retinue.store.maintenance.backup import MANIFEST, RESTORE_MARKER, STORE, open_read_only, verify
from retinue.testing.local_instance import LocalInstance
from retinue.testing.wait_conditions import wait_until

NOW_MS = 2**41
OWNER = person("owner")


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    (tmp_path / "home").mkdir()
    return LocalInstance(tmp_path / "home")


def settings(household: LocalInstance) -> Settings:
    return Settings(home=household.root, store=household.root / "house.db", zone=load_zone("UTC"))


async def lived_in(desk: DeskHouse) -> None:
    """A house with mail, a file, and a home that someone wrote in."""
    upload = {"name": "note.txt", "data": "aGVsbG8="}
    await desk.converse(OWNER, "see this", attachments=[upload])
    await desk.converse(person("maria"), "hello")
    home = desk.house.instance.root
    (home / "agents" / "ada" / "SOUL.md").write_text("I am ada.")
    (home / "retinue.toml").write_text("config_version = 1\n")
    (home / "owner-token").write_text("secret")


async def made(desk: DeskHouse, **asked: Any) -> Path:
    answer = await desk.ask(OWNER, "house.backup", **asked)
    return Path(answer["folder"])


async def test_a_backup_holds_everything_and_can_be_verified(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        answer = await desk.ask(OWNER, "house.backup", verify=True)
        folder = Path(answer["folder"])
        assert folder.parent == household.root / "backups"
        assert answer["missing"] == []
        assert answer["verified"] is True
        assert verify(folder, now_ms=NOW_MS).is_ok
        paths = {part["path"] for part in json.loads((folder / MANIFEST).read_text())["parts"]}
        assert {STORE, "retinue.toml", "agents/ada/SOUL.md"} < paths
        assert sum(path.startswith("files/") for path in paths) == 1
        assert not (folder / "owner-token").exists()
        for path in (folder, *folder.rglob("*")):
            assert not path.stat().st_mode & 0o077, path
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]


async def test_a_backup_is_one_picture_of_a_house_that_goes_on(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        stop = asyncio.Event()
        sent: list[str] = []

        async def chatter() -> None:
            while not stop.is_set():
                await desk.house.send(f"note {len(sent)}", recipient="person:noor")
                sent.append("note")

        chatting = [asyncio.create_task(chatter()) for _ in range(3)]
        await wait_until(lambda: len(sent) >= 3, "they talk")
        await made(desk, verify=True)
        household.clock.jump(timedelta(seconds=1))
        folder = await made(desk, verify=True)
        stop.set()
        await asyncio.gather(*chatting)
        with open_read_only(folder / STORE) as conn:
            checked = ledger.check_ledger(conn, now_ms=NOW_MS)
            assert checked.is_ok
            assert 0 < checked.sums.accepted <= len(sent)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def lose_a_row(folder: Path) -> None:
    """Damage that only the ledger sees, with a manifest that fits."""
    with closing(sqlite3.connect(folder / STORE, isolation_level=None)) as raw:
        raw.execute("DELETE FROM outcomes WHERE envelope = (SELECT min(envelope) FROM outcomes)")
    manifest = json.loads((folder / MANIFEST).read_text())
    from retinue.store.maintenance.backup import _describe_part  # pyright: ignore[reportPrivateUsage]

    part = _describe_part(folder, folder / STORE)
    for each in manifest["parts"]:
        if each["path"] == STORE:
            each |= {"size_bytes": part.size_bytes, "sha256": part.sha256}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def point_outside(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"][0]["path"] = "../../somewhere"
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: flip_a_byte(folder / STORE), id="a byte of the store"),
        pytest.param(lambda folder: flip_a_byte(folder / "agents/ada/SOUL.md"), id="a byte of a home"),
        pytest.param(lambda folder: shutil.rmtree(folder / "files"), id="files gone"),
        pytest.param(lambda folder: (folder / MANIFEST).unlink(), id="no manifest"),
        pytest.param(lambda folder: (folder / MANIFEST).write_text("{"), id="half a manifest"),
        pytest.param(lose_a_row, id="a row lost"),
        pytest.param(point_outside, id="a path that leads out"),
    ],
)
async def test_a_damaged_backup_is_seen_and_not_restored(
    household: LocalInstance, damage: Callable[[Path], Any]
) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        folder = await made(desk)
    damage(folder)
    assert not verify(folder, now_ms=NOW_MS).is_ok
    before = (household.root / "house.db").read_bytes()
    with pytest.raises(StoreError) as refused:
        restore(settings(household), folder, now=household.clock.now())
    assert refused.value.code == "backup.unsound"
    assert (household.root / "house.db").read_bytes() == before
    assert not list(household.root.glob("before-restore-*"))
    assert not list(household.root.glob(".restore-*"))


async def test_a_restored_house_is_as_it_was_and_what_was_there_lies_beside_it(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        folder = await made(desk)
        later, _ = await desk.converse(OWNER, "after the backup")
        (household.root / "agents" / "ada" / "SOUL.md").write_text("I am someone else.")
    shutil.rmtree(household.root / "files")
    before = restore(settings(household), folder, now=household.clock.now())
    assert (household.root / "agents" / "ada" / "SOUL.md").read_text() == "I am ada."
    assert (before / "agents" / "ada" / "SOUL.md").read_text() == "I am someone else."
    assert (before / "house.db").exists()
    assert (household.root / "owner-token").read_text() == "secret"
    assert not (household.root / RESTORE_MARKER).exists()
    for path in (household.root / "house.db", before):
        assert not path.stat().st_mode & 0o077
    household.model.rule = None
    async with desk_house(household) as desk:
        found = await desk.house.execute_sql("SELECT count(*) FROM envelopes WHERE id = :id", id=later)
        assert found[0][0] == 0
        hashes = json.loads(
            (await desk.house.execute_sql("SELECT attachments FROM envelopes WHERE attachments IS NOT NULL"))[0][0]
        )
        assert AttachmentFiles(household.root / "files").verify(hashes[0]["hash"])
        checked = await desk.house.store.scan(partial(ledger.check_ledger, now_ms=to_ms(household.clock.now())))
        assert checked.is_ok
        await desk.converse(OWNER, "and on we go")


async def test_the_log_of_the_old_store_is_not_taken_for_the_new_ones(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        folder = await made(desk)
        await desk.converse(OWNER, "only in the log")
        leftover = (household.root / "house.db-wal").read_bytes()
    (household.root / "house.db").write_bytes(b"damaged")  # cannot be brought to rest any more
    (household.root / "house.db-wal").write_bytes(leftover)
    before = restore(settings(household), folder, now=household.clock.now())
    assert not (household.root / "house.db-wal").exists()
    assert (before / "house.db-wal").read_bytes() == leftover
    with open_read_only(household.root / "house.db") as conn:
        assert ledger.check_ledger(conn, now_ms=NOW_MS).is_ok


async def test_a_restore_that_broke_off_is_told_of_and_can_be_made_again(
    household: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        folder = await made(desk)
        later, _ = await desk.converse(OWNER, "after the backup")
    rename = os.rename

    def torn(source: Any, target: Any, **kw: Any) -> None:
        if Path(source) == household.root / "agents":
            raise OSError(5, "Input/output error")
        rename(source, target, **kw)

    monkeypatch.setattr(os, "rename", torn)
    with pytest.raises(StoreError) as broke:
        restore(settings(household), folder, now=household.clock.now())
    assert RESTORE_MARKER in broke.value.try_this
    monkeypatch.undo()
    scene = DoctorContext(
        data_dir=household.root, environment={"RETINUE_HOME": str(household.root)}, now=household.clock.now()
    )
    [found] = [check for check in await run_checks(scene) if check.name == "backups"]
    assert found.findings[0].sentence == "a restore was started but not finished"
    kept = Path((household.root / RESTORE_MARKER).read_text())
    with open_read_only(kept / STORE) as conn:  # nothing of what was there is lost
        assert conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE id = :id"), {"id": later}).scalar_one() == 1
    again = restore(settings(household), folder, now=household.clock.now())
    assert again != kept
    assert not (household.root / RESTORE_MARKER).exists()
    with open_read_only(household.root / STORE) as conn:
        assert ledger.check_ledger(conn, now_ms=NOW_MS).is_ok


async def test_an_open_house_is_not_restored(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        folder = await made(desk)
    with instance_lock(household.root), pytest.raises(ServerAlreadyRunning):
        restore(settings(household), folder, now=household.clock.now())


def typed(folder: Path, *, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RETINUE_HOME": str(home)}
    command = [sys.executable, "-m", "retinue.app.restore", str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def test_restoring_into_an_empty_home_makes_a_house(household: LocalInstance, tmp_path: Path) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        folder = await made(desk)
    elsewhere = tmp_path / "elsewhere"
    done = typed(folder, home=elsewhere)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "agents" / "ada" / "SOUL.md").read_text() == "I am ada."
    done = typed(tmp_path, home=elsewhere)
    assert done.returncode == 1
    assert "[backup.unsound]" in done.stderr


async def test_where_a_backup_goes_is_the_owners_to_say(household: LocalInstance, tmp_path: Path) -> None:
    async with desk_house(household) as desk:
        assert await made(desk, to=str(tmp_path / "mine")) == tmp_path / "mine"
        with pytest.raises(Conflict):
            await made(desk, to=str(tmp_path / "mine"))
        for place in ("somewhere", str(tmp_path / "not" / "there"), f"{tmp_path}/a\0b", f"{tmp_path}/{'x' * 300}", "/"):
            with pytest.raises(Invalid) as refused:
                await made(desk, to=place)
            assert refused.value.code == "backup.path_invalid"
        with pytest.raises(NotAllowed):
            await desk.ask(agent("ada", PermissionLevel.BOSS), "house.backup", to=str(tmp_path / "theirs"))
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "house.backup")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mine"]


async def test_a_backup_tells_which_files_are_missing_and_follows_no_links(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await lived_in(desk)
        shutil.rmtree(household.root / "files")
        (household.root / "agents" / "ada" / "link").symlink_to("/etc/passwd")
        answer = await desk.ask(OWNER, "house.backup", verify=True)
        assert len(answer["missing"]) == 2
        assert not any("passwd" in path.read_text(errors="replace") for path in Path(answer["folder"]).rglob("*.md"))


async def test_a_backup_and_a_purge_wait_for_each_other(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        results = await asyncio.gather(
            desk.ask(OWNER, "house.backup"), desk.ask(OWNER, "house.purge", dry_run=False), return_exceptions=True
        )
        assert [type(result) for result in results] == [dict, MaintenanceInProgress]
        assert (await desk.ask(OWNER, "house.purge"))["dry-run"] is True


async def test_a_full_disk_is_told_before_anything_is_written(
    household: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(household.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10))
    async with desk_house(household) as desk:
        await lived_in(desk)
        with pytest.raises(StoreError) as full:
            await made(desk)
        assert full.value.code == "backup.no_space"
        assert list((household.root / "backups").iterdir()) == []


async def test_on_postgres_one_is_told_what_to_type(tmp_path: Path, postgres_url: str) -> None:
    async with desk_house(LocalInstance(tmp_path, url=postgres_url)) as desk:
        with pytest.raises(Invalid) as told:
            await made(desk)
        assert told.value.code == "backup.postgres"
        assert "pg_dump" in told.value.try_this
        assert list((tmp_path / "backups").iterdir()) == []
