"""With no house open, some questions are answered by the store itself, and nothing of it is changed by that."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cli.server_process import HouseProcess, environment
from cli.test_commands import settled

from retinue.app import offline
from retinue.cli.operation_command import OFFLINE_OPERATIONS
from retinue.operations.catalog import OPERATIONS

SQLITE_FILES = ("house.db", "house.db-wal", "house.db-shm")


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[HouseProcess, str]:
    """A house that was killed after it had answered an envelope: its log of changes still lies beside the store."""
    house = HouseProcess(tmp_path_factory.mktemp("closed") / "home")
    house.open()
    envelope = house.json("send", "agent:guide", "echo hello")["envelope"]
    settled(house, envelope)
    house.kill()
    return house, envelope


def bytes_of(home: Path) -> dict[str, str]:
    """What the store holds on disk; the index of the log is memory that processes share, and holds nothing."""
    found = {name: (home / name).read_bytes() for name in SQLITE_FILES[:2] if (home / name).exists()}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def test_the_ledger_of_a_closed_house_is_proved_and_not_a_byte_is_changed(lived_in: tuple[HouseProcess, str]) -> None:
    house, _ = lived_in
    before = bytes_of(house.home)
    assert "house.db-wal" in before

    told = house.retinue("ledger")

    assert (told.returncode, told.stderr) == (0, "")
    assert "ledger holds" in told.stdout
    assert house.json("ledger")["holds"] is True
    assert bytes_of(house.home) == before


def test_why_is_told_of_a_closed_house_as_of_an_open_one(lived_in: tuple[HouseProcess, str]) -> None:
    house, envelope = lived_in

    told = house.retinue("why", envelope[:8])
    unknown = house.retinue("house", "why", "00000000", "--json")

    assert told.returncode == 0
    assert told.stdout.startswith(f"Envelope {envelope[:8]}") or envelope[:8] in told.stdout
    assert unknown.returncode == 1
    assert unknown.stderr.splitlines()[0].endswith("[id.not_found]")
    assert json.loads(unknown.stdout)["error"]["code"] == "id.not_found"


def test_a_session_is_exported_from_a_closed_house(lived_in: tuple[HouseProcess, str]) -> None:
    house, envelope = lived_in
    with closing(sqlite3.connect(f"file:{house.home / 'house.db'}?mode=ro", uri=True)) as db:
        [session] = db.execute("select session from envelopes where id = ?", (envelope,)).fetchone()

    assert house.json("export", session)["files"]


def test_a_closed_house_is_seen_by_the_doctor_and_copied(lived_in: tuple[HouseProcess, str], tmp_path: Path) -> None:
    house, _ = lived_in
    told = house.retinue("doctor")
    copied = house.json("backup", "--to", str(tmp_path / "copy"), "--verify")

    assert "ledger: the ledger is consistent" in told.stdout
    assert ("[server.unhealthy]" in told.stderr) == (told.returncode == 1)
    assert copied["verified"] is True
    assert (tmp_path / "copy").is_dir()


def test_a_backup_is_put_back_and_the_house_is_as_it_was(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    kept = house.json("send", "agent:guide", "echo kept")["envelope"]
    settled(house, kept)
    house.json("backup", "--to", str(tmp_path / "copy"), "--verify")
    late = house.json("send", "agent:guide", "echo late")["envelope"]
    assert "[server.already_running]" in house.retinue("restore", str(tmp_path / "copy")).stderr
    house.close()

    restored = house.retinue("restore", str(tmp_path / "copy"))

    assert restored.returncode == 0, restored.stderr
    assert house.retinue("why", kept).returncode == 0
    assert house.retinue("why", late).returncode == 1
    assert house.json("ledger")["holds"] is True


def test_what_has_the_house_run_as_a_service_is_printed(tmp_path: Path) -> None:
    told = HouseProcess(tmp_path / "home").retinue("service", "install")

    assert told.returncode == 0
    [started] = [line for line in told.stdout.splitlines() if line.startswith("ExecStart=")]
    assert started.endswith("-m retinue run")
    shown = subprocess.run([sys.executable, "-m", "retinue", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("retinue ")


def test_rights_are_those_of_the_open_house(lived_in: tuple[HouseProcess, str]) -> None:
    house, _ = lived_in

    stranger = house.retinue("ledger", env={"RETINUE_TOKEN": "made-up"})

    assert stranger.returncode == 1
    assert stranger.stderr.startswith("error: not signed in: the token is missing or invalid [auth.not_signed_in]\n")


def test_what_needs_the_house_itself_is_not_to_be_had(lived_in: tuple[HouseProcess, str]) -> None:
    house, envelope = lived_in

    told = house.retinue("show", envelope)

    assert told.returncode == 3
    assert "[server.not_running]" in told.stderr


def test_nobody_opens_the_house_while_it_is_looked_at(lived_in: tuple[HouseProcess, str]) -> None:
    house, _ = lived_in
    script = (
        "import os, sys\nfrom retinue.config import load_settings\nfrom retinue.app.offline import open_offline_store\n"
        "with open_offline_store(load_settings(os.environ)):\n    print('looking', flush=True)\n    sys.stdin.read()\n"
    )
    looking = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(house.home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "looking\n"
    refused = house.retinue("up")
    looking.communicate("")

    assert refused.returncode == 1
    assert refused.stderr.splitlines()[0] == (
        f"error: a server is already running in {house.home} (pid {looking.pid}) [server.already_running]"
    )


def test_a_home_in_which_there_was_never_a_house_is_left_as_it_is(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "nothing")

    told = house.retinue("ledger")

    assert told.returncode == 3
    assert (
        f"error: no server is running in {house.home} [server.not_running]\nbecause: no server was ever started there\n"
        in told.stderr
    )
    assert not house.home.exists()


def test_a_store_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.close()
    with closing(sqlite3.connect(house.home / "house.db")) as db, db:
        db.execute("update alembic_version set version_num = '0001'")

    told = house.retinue("ledger")

    assert told.returncode == 1
    assert "[store.schema_mismatch]" in told.stderr


def test_settings_that_cannot_be_used_keep_nobody_from_looking(lived_in: tuple[HouseProcess, str]) -> None:
    house, _ = lived_in
    (house.home / "retinue.toml").write_text("no = [settings\n")
    try:
        assert house.retinue("ledger").returncode == 0
    finally:
        (house.home / "retinue.toml").unlink()


def test_a_ledger_that_does_not_hold_ends_with_an_error_here_too(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    settled(house, house.json("send", "agent:guide", "echo hello")["envelope"])
    house.close()
    with closing(sqlite3.connect(house.home / "house.db")) as db, db:
        db.execute("delete from outcomes")

    told = house.retinue("ledger")

    assert told.returncode == 1
    assert "BROKEN settled" in told.stdout
    assert "error: the ledger is inconsistent [ledger.broken]" in told.stderr


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> HouseProcess:
    """A house in which something was decided, killed."""
    house = HouseProcess(tmp_path_factory.mktemp("audited") / "home")
    house.open()
    house.json("person", "invite", "maria")
    house.kill()
    return house


def test_the_audit_of_a_closed_house_is_listed_verified_and_given_out(audited: HouseProcess, tmp_path: Path) -> None:
    before = bytes_of(audited.home)

    listed = audited.retinue("audit", "list")
    verified = audited.retinue("audit", "verify", "--log")
    exported = audited.retinue("audit", "export")

    assert [each.returncode for each in (listed, verified, exported)] == [0, 0, 0]
    assert "who: person:owner" in listed.stdout, "as an open house has it listed"
    assert verified.stdout.startswith("the audit log is intact: ")
    (tmp_path / "audit.jsonl").write_text(exported.stdout)
    script = Path(__file__).parents[2] / "examples" / "verify_audit.py"
    subprocess.run([sys.executable, script, tmp_path / "audit.jsonl"], check=True, capture_output=True)
    assert bytes_of(audited.home) == before

    stranger = audited.retinue("audit", "verify", env={"RETINUE_TOKEN": "x" * 43})
    assert "[auth.not_signed_in]" in stranger.stderr


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_an_audit_that_does_not_hold_ends_with_an_error(tmp_path: Path, is_open: bool) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.json("person", "invite", "maria")
    house.close()
    with closing(sqlite3.connect(house.home / "house.db")) as db, db:
        changed = db.execute("update audit set who = 'person:mallory' where who = 'person:owner'").rowcount
        assert changed
    if is_open:
        house.open()
    try:
        told = house.retinue("audit", "verify")
    finally:
        house.close()
    assert told.returncode == 1
    assert "flaw: house entry" in told.stdout
    assert "error: the audit log is inconsistent [audit.broken]" in told.stderr


def test_how_well_a_closed_house_is_closed_is_looked_at_with_its_store_and_without(tmp_path: Path) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open()
    house.retinue("token", "create", "--label", "forever")
    house.close()
    house.home.chmod(0o755)
    told = house.retinue("doctor", "--security", "--quick")
    assert "files.home" in told.stdout and "ok       ledger" not in told.stdout
    assert "tokens.wide" in told.stdout, "the store was read"
    assert "skipped  tools of agents: no server is running" in told.stdout
    for name in ("house.db-wal", "house.db-shm"):
        (house.home / name).unlink(missing_ok=True)
    (house.home / "house.db").write_bytes(b"x" * 4096)

    damaged = house.retinue("doctor", "--security", "--quick")
    assert "files.home" in damaged.stdout and "problem  schema" not in damaged.stdout
    assert "skipped  tokens, people, agents and the audit: " in damaged.stdout and "damaged" in damaged.stdout

    fixed = house.retinue("doctor", "--security", "--fix", "--quick")
    assert "fixed" in fixed.stdout and house.home.stat().st_mode & 0o077 == 0
    assert (house.home / "house.db").read_bytes() == b"x" * 4096
    assert "files.home" not in house.retinue("doctor", "--security", "--quick").stdout


def test_the_command_line_and_the_store_know_the_same_questions() -> None:
    assert OFFLINE_OPERATIONS == offline.OFFLINE_OPERATIONS
    assert {"house.ledger", "house.why"} <= set(OPERATIONS)
