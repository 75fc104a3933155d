"""Backups: made while the server runs, verified by reading them back, and restored."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
def instance(tmp_path: Path) -> LocalInstance:
    (tmp_path / "home").mkdir()
    return LocalInstance(tmp_path / "home")


def settings(instance: LocalInstance) -> Settings:
    return Settings(home=instance.root, store=instance.root / "retinue.db", zone=load_zone("UTC"))


async def make_history(operations: OperationsServer) -> None:
    """Make a store with messages and an attachment, and a changed file in an agent directory."""
    upload = {"name": "note.txt", "data": "aGVsbG8="}
    await operations.converse(OWNER, "see this", attachments=[upload])
    await operations.converse(person("maria"), "hello")
    home = operations.server.instance.root
    (home / "agents" / "ada" / "SOUL.md").write_text("I am ada.")
    (home / "retinue.toml").write_text("config_version = 1\n")
    (home / "owner-token").write_text("secret")


async def make_backup(operations: OperationsServer, **asked: Any) -> Path:
    answer = await operations.ask(OWNER, "server.backup", **asked)
    return Path(answer["folder"])


async def test_a_backup_holds_the_whole_instance_and_can_be_verified(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        answer = await operations.ask(OWNER, "server.backup", verify=True)
        folder = Path(answer["folder"])
        assert folder.parent == instance.root / "backups"
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


async def test_a_backup_made_during_traffic_is_a_consistent_snapshot(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        stop = asyncio.Event()
        sent: list[str] = []

        async def send_notes() -> None:
            while not stop.is_set():
                await operations.server.send(f"note {len(sent)}", recipient="person:noor")
                sent.append("note")

        chatting = [asyncio.create_task(send_notes()) for _ in range(3)]
        await wait_until(lambda: len(sent) >= 3, "messages are sent")
        await make_backup(operations, verify=True)
        instance.clock.jump(timedelta(seconds=1))
        folder = await make_backup(operations, verify=True)
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


def delete_an_outcome(folder: Path) -> None:
    """Cause damage that only the ledger detects: the manifest agrees with the files."""
    with closing(sqlite3.connect(folder / STORE, isolation_level=None)) as raw:
        raw.execute("DELETE FROM outcomes WHERE envelope = (SELECT min(envelope) FROM outcomes)")
    manifest = json.loads((folder / MANIFEST).read_text())
    from retinue.store.maintenance.backup import _describe_part  # pyright: ignore[reportPrivateUsage]

    part = _describe_part(folder, folder / STORE)
    for each in manifest["parts"]:
        if each["path"] == STORE:
            each |= {"size_bytes": part.size_bytes, "sha256": part.sha256}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def set_path_outside_the_backup(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["parts"][0]["path"] = "../../somewhere"
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: flip_a_byte(folder / STORE), id="a byte of the store"),
        pytest.param(lambda folder: flip_a_byte(folder / "agents/ada/SOUL.md"), id="a byte in an agent directory"),
        pytest.param(lambda folder: shutil.rmtree(folder / "files"), id="files missing"),
        pytest.param(lambda folder: (folder / MANIFEST).unlink(), id="no manifest"),
        pytest.param(lambda folder: (folder / MANIFEST).write_text("{"), id="half a manifest"),
        pytest.param(delete_an_outcome, id="a missing row"),
        pytest.param(set_path_outside_the_backup, id="a path that leads out"),
    ],
)
async def test_a_damaged_backup_is_detected_and_not_restored(
    instance: LocalInstance, damage: Callable[[Path], Any]
) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
    damage(folder)
    assert not verify(folder, now_ms=NOW_MS).is_ok
    before = (instance.root / "retinue.db").read_bytes()
    with pytest.raises(StoreError) as refused:
        restore(settings(instance), folder, now=instance.clock.now())
    assert refused.value.code == "backup.unsound"
    assert (instance.root / "retinue.db").read_bytes() == before
    assert not list(instance.root.glob("before-restore-*"))
    assert not list(instance.root.glob(".restore-*"))


async def test_a_restore_brings_back_the_instance_and_keeps_the_replaced_files(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
        later, _ = await operations.converse(OWNER, "after the backup")
        (instance.root / "agents" / "ada" / "SOUL.md").write_text("I am someone else.")
    shutil.rmtree(instance.root / "files")
    before = restore(settings(instance), folder, now=instance.clock.now())
    assert (instance.root / "agents" / "ada" / "SOUL.md").read_text() == "I am ada."
    assert (before / "agents" / "ada" / "SOUL.md").read_text() == "I am someone else."
    assert (before / "retinue.db").exists()
    assert (instance.root / "owner-token").read_text() == "secret"
    assert not (instance.root / RESTORE_MARKER).exists()
    for path in (instance.root / "retinue.db", before):
        assert not path.stat().st_mode & 0o077
    instance.model.rule = None
    async with open_operations_server(instance) as operations:
        found = await operations.server.execute_sql("SELECT count(*) FROM envelopes WHERE id = :id", id=later)
        assert found[0][0] == 0
        hashes = json.loads(
            (await operations.server.execute_sql("SELECT attachments FROM envelopes WHERE attachments IS NOT NULL"))[0][
                0
            ]
        )
        assert AttachmentFiles(instance.root / "files").verify(hashes[0]["hash"])
        checked = await operations.server.store.scan(partial(ledger.check_ledger, now_ms=to_ms(instance.clock.now())))
        assert checked.is_ok
        await operations.converse(OWNER, "and on we go")


@pytest.mark.parametrize("former_present", [False, True])
async def test_a_backup_of_an_earlier_version_is_restored_under_the_new_file_name(
    instance: LocalInstance, former_present: bool
) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
    (folder / "retinue.db").rename(folder / "house.db")
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text().replace('"retinue.db"', '"house.db"'))
    if former_present:  # the data directory has not been opened by this version either
        (instance.root / "retinue.db").rename(instance.root / "house.db")
    assert verify(folder, now_ms=to_ms(instance.clock.now())).is_ok

    before = restore(settings(instance), folder, now=instance.clock.now())

    assert (before / ("house.db" if former_present else "retinue.db")).exists()
    assert not list(instance.root.glob("house.db*"))
    with open_read_only(instance.root / "retinue.db") as conn:
        assert ledger.check_ledger(conn, now_ms=to_ms(instance.clock.now())).is_ok


async def test_a_restore_does_not_apply_the_wal_of_the_old_database(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
        await operations.converse(OWNER, "only in the log")
        leftover = (instance.root / "retinue.db-wal").read_bytes()
    (instance.root / "retinue.db").write_bytes(b"damaged")  # cannot be checkpointed any more
    (instance.root / "retinue.db-wal").write_bytes(leftover)
    before = restore(settings(instance), folder, now=instance.clock.now())
    assert not (instance.root / "retinue.db-wal").exists()
    assert (before / "retinue.db-wal").read_bytes() == leftover
    with open_read_only(instance.root / "retinue.db") as conn:
        assert ledger.check_ledger(conn, now_ms=NOW_MS).is_ok


async def test_an_interrupted_restore_is_reported_and_can_be_repeated(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
        later, _ = await operations.converse(OWNER, "after the backup")
    rename = os.rename

    def failing_rename(source: Any, target: Any, **kw: Any) -> None:
        if Path(source) == instance.root / "agents":
            raise OSError(5, "Input/output error")
        rename(source, target, **kw)

    monkeypatch.setattr(os, "rename", failing_rename)
    with pytest.raises(StoreError) as broke:
        restore(settings(instance), folder, now=instance.clock.now())
    assert RESTORE_MARKER in broke.value.try_this
    monkeypatch.undo()
    scene = DoctorContext(
        data_dir=instance.root, environment={"RETINUE_HOME": str(instance.root)}, now=instance.clock.now()
    )
    [found] = [check for check in await run_checks(scene) if check.name == "backups"]
    assert found.findings[0].sentence == "a restore was started but not finished"
    kept = Path((instance.root / RESTORE_MARKER).read_text())
    with open_read_only(kept / STORE) as conn:  # the replaced data directory is complete
        assert conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE id = :id"), {"id": later}).scalar_one() == 1
    again = restore(settings(instance), folder, now=instance.clock.now())
    assert again != kept
    assert not (instance.root / RESTORE_MARKER).exists()
    with open_read_only(instance.root / STORE) as conn:
        assert ledger.check_ledger(conn, now_ms=NOW_MS).is_ok


async def test_a_restore_is_refused_while_the_server_runs(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        folder = await make_backup(operations)
    with instance_lock(instance.root), pytest.raises(ServerAlreadyRunning):
        restore(settings(instance), folder, now=instance.clock.now())


def run_restore_command(folder: Path, *, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RETINUE_HOME": str(home)}
    command = [sys.executable, "-m", "retinue.app.restore", str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def test_a_backup_can_be_restored_into_an_empty_data_directory(instance: LocalInstance, tmp_path: Path) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        folder = await make_backup(operations)
    elsewhere = tmp_path / "elsewhere"
    done = run_restore_command(folder, home=elsewhere)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "agents" / "ada" / "SOUL.md").read_text() == "I am ada."
    done = run_restore_command(tmp_path, home=elsewhere)
    assert done.returncode == 1
    assert "[backup.unsound]" in done.stderr


OWN_FILES = {
    "schedules/tea.md": "a schedule",
    "skills/weather/SKILL.md": "a skill",
    "hooks/log/HOOK.md": "a hook",
    "hooks-data/log/state": "its data",
    "instructions/base.md": "a template",
    "plugins/diary/diary/notes": "data of a plugin",
}


def write_files(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


async def test_a_backup_holds_the_files_of_schedules_skills_hooks_templates_and_plugins(
    instance: LocalInstance, tmp_path: Path
) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        write_files(instance.root, OWN_FILES)
        folder = await make_backup(operations, verify=True)
    elsewhere = tmp_path / "elsewhere"
    write_files(elsewhere, {"schedules/later.md": "a schedule", "keys/instance": "a key"})
    assert run_restore_command(folder, home=elsewhere).returncode == 0
    assert {name: (elsewhere / name).read_text() for name in OWN_FILES} == OWN_FILES
    assert not (elsewhere / "schedules" / "later.md").exists(), "it is no schedule of the restored database"
    assert (elsewhere / "keys" / "instance").read_text() == "a key"


async def test_only_the_owner_can_choose_the_folder_of_a_backup(instance: LocalInstance, tmp_path: Path) -> None:
    async with open_operations_server(instance) as operations:
        assert await make_backup(operations, to=str(tmp_path / "mine")) == tmp_path / "mine"
        with pytest.raises(Conflict):
            await make_backup(operations, to=str(tmp_path / "mine"))
        for place in ("somewhere", str(tmp_path / "not" / "there"), f"{tmp_path}/a\0b", f"{tmp_path}/{'x' * 300}", "/"):
            with pytest.raises(Invalid) as refused:
                await make_backup(operations, to=place)
            assert refused.value.code == "backup.path_invalid"
        with pytest.raises(NotAllowed):
            await operations.ask(agent("ada", PermissionLevel.BOSS), "server.backup", to=str(tmp_path / "theirs"))
        with pytest.raises(NotAllowed):
            await operations.ask(person("maria"), "server.backup")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "mine"]


async def test_a_backup_reports_missing_files_and_follows_no_links(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        shutil.rmtree(instance.root / "files")
        (instance.root / "agents" / "ada" / "link").symlink_to("/etc/passwd")
        answer = await operations.ask(OWNER, "server.backup", verify=True)
        assert len(answer["missing"]) == 2
        assert not any("passwd" in path.read_text(errors="replace") for path in Path(answer["folder"]).rglob("*.md"))


async def test_a_purge_during_a_backup_is_refused(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        results = await asyncio.gather(
            operations.ask(OWNER, "server.backup"),
            operations.ask(OWNER, "server.purge", dry_run=False),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [dict, MaintenanceInProgress]
        assert (await operations.ask(OWNER, "server.purge"))["dry_run"] is True


async def test_a_backup_without_enough_disk_space_is_refused_before_writing(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(instance.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=10))
    async with open_operations_server(instance) as operations:
        await make_history(operations)
        with pytest.raises(StoreError) as full:
            await make_backup(operations)
        assert full.value.code == "backup.no_space"
        assert list((instance.root / "backups").iterdir()) == []


async def test_a_backup_on_postgresql_is_refused_with_a_pg_dump_command(tmp_path: Path, postgres_url: str) -> None:
    async with open_operations_server(LocalInstance(tmp_path, url=postgres_url)) as operations:
        with pytest.raises(Invalid) as refused:
            await make_backup(operations)
        assert refused.value.code == "backup.postgres"
        assert "pg_dump" in refused.value.try_this
        assert list((tmp_path / "backups").iterdir()) == []
