"""Commands that read the database directly when no server is running, without changing it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cli.server_process import ServerProcess, environment
from cli.test_commands import wait_until_settled

from retinue.app import offline
from retinue.cli.operation_command import OFFLINE_OPERATIONS
from retinue.operations.catalog import OPERATIONS

SQLITE_FILES = ("retinue.db", "retinue.db-wal", "retinue.db-shm")


@pytest.fixture(scope="module")
def killed_server(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServerProcess, str]:
    """A server that was killed after it answered an envelope: its write-ahead log is still beside the database."""
    server = ServerProcess(tmp_path_factory.mktemp("closed") / "home")
    server.open()
    envelope = server.json("send", "agent:guide", "echo hello")["envelope"]
    wait_until_settled(server, envelope)
    server.kill()
    return server, envelope


def hash_store_files(home: Path) -> dict[str, str]:
    """Hash the database and its log. The index of the log is shared memory without data of its own."""
    found = {name: (home / name).read_bytes() for name in SQLITE_FILES[:2] if (home / name).exists()}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def test_the_ledger_of_a_stopped_server_is_checked_without_changing_its_files(
    killed_server: tuple[ServerProcess, str],
) -> None:
    server, _ = killed_server
    before = hash_store_files(server.home)
    assert "retinue.db-wal" in before

    completed = server.retinue("ledger")

    assert (completed.returncode, completed.stderr) == (0, "")
    assert "ledger is consistent" in completed.stdout
    assert server.json("ledger")["ok"] is True
    assert hash_store_files(server.home) == before


def test_the_why_command_works_on_a_stopped_server(killed_server: tuple[ServerProcess, str]) -> None:
    server, envelope = killed_server

    completed = server.retinue("why", envelope[:8])
    unknown = server.retinue("server", "why", "00000000", "--json")

    assert completed.returncode == 0
    assert completed.stdout.startswith(f"Envelope {envelope[:8]}") or envelope[:8] in completed.stdout
    assert unknown.returncode == 1
    assert unknown.stderr.splitlines()[0].endswith("[id.not_found]")
    assert json.loads(unknown.stdout)["error"]["code"] == "id.not_found"


def test_a_session_is_exported_from_a_stopped_server(killed_server: tuple[ServerProcess, str]) -> None:
    server, envelope = killed_server
    with closing(sqlite3.connect(f"file:{server.home / 'retinue.db'}?mode=ro", uri=True)) as db:
        [session] = db.execute("select session from envelopes where id = ?", (envelope,)).fetchone()

    assert server.json("export", session)["files"]


def test_the_doctor_and_backup_commands_work_on_a_stopped_server(
    killed_server: tuple[ServerProcess, str], tmp_path: Path
) -> None:
    server, _ = killed_server
    completed = server.retinue("doctor")
    copied = server.json("backup", "--to", str(tmp_path / "copy"), "--verify")

    assert "ledger: the ledger is consistent" in completed.stdout
    assert ("[server.unhealthy]" in completed.stderr) == (completed.returncode == 1)
    assert copied["verified"] is True
    assert (tmp_path / "copy").is_dir()


def test_the_restore_command_restores_the_instance_of_a_stopped_server_from_a_backup(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    kept = server.json("send", "agent:guide", "echo kept")["envelope"]
    wait_until_settled(server, kept)
    server.json("backup", "--to", str(tmp_path / "copy"), "--verify")
    late = server.json("send", "agent:guide", "echo late")["envelope"]
    assert "[server.already_running]" in server.retinue("restore", str(tmp_path / "copy")).stderr
    server.close()

    restored = server.retinue("restore", str(tmp_path / "copy"))

    assert restored.returncode == 0, restored.stderr
    assert server.retinue("why", kept).returncode == 0
    assert server.retinue("why", late).returncode == 1
    assert server.json("ledger")["ok"] is True


def test_the_service_command_prints_a_systemd_unit(tmp_path: Path) -> None:
    completed = ServerProcess(tmp_path / "home").retinue("service", "install")

    assert completed.returncode == 0
    [started] = [line for line in completed.stdout.splitlines() if line.startswith("ExecStart=")]
    assert started.endswith("-m retinue run")
    shown = subprocess.run([sys.executable, "-m", "retinue", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("retinue ")


def test_offline_commands_check_the_token(killed_server: tuple[ServerProcess, str]) -> None:
    server, _ = killed_server

    stranger = server.retinue("ledger", env={"RETINUE_TOKEN": "made-up"})

    assert stranger.returncode == 1
    assert stranger.stderr.startswith("error: not signed in: the token is missing or invalid [auth.not_signed_in]\n")


def test_an_operation_that_needs_the_server_is_refused_offline(killed_server: tuple[ServerProcess, str]) -> None:
    server, envelope = killed_server

    completed = server.retinue("show", envelope)

    assert completed.returncode == 3
    assert "[server.not_running]" in completed.stderr


def test_the_server_cannot_start_while_its_store_is_read_offline(killed_server: tuple[ServerProcess, str]) -> None:
    server, _ = killed_server
    script = (
        "import os, sys\nfrom retinue.config import load_settings\nfrom retinue.app.offline import open_offline_store\n"
        "with open_offline_store(load_settings(os.environ)):\n    print('looking', flush=True)\n    sys.stdin.read()\n"
    )
    looking = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment(server.home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looking.stdout is not None
    assert looking.stdout.readline() == "looking\n"
    refused = server.retinue("up")
    looking.communicate("")

    assert refused.returncode == 1
    assert refused.stderr.splitlines()[0] == (
        f"error: a server is already running in {server.home} (pid {looking.pid}) [server.already_running]"
    )


def test_an_offline_command_creates_no_data_directory(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "nothing")

    completed = server.retinue("ledger")

    assert completed.returncode == 3
    assert (
        f"error: no server is running in {server.home} [server.not_running]\n"
        "because: no server was ever started there\n" in completed.stderr
    )
    assert not server.home.exists()


def test_a_store_with_another_schema_version_is_refused_offline(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.close()
    with closing(sqlite3.connect(server.home / "retinue.db")) as db, db:
        db.execute("update alembic_version set version_num = '9999'")

    completed = server.retinue("ledger")

    assert completed.returncode == 1
    assert "[store.schema_mismatch]" in completed.stderr


def test_invalid_settings_do_not_prevent_offline_commands(killed_server: tuple[ServerProcess, str]) -> None:
    server, _ = killed_server
    (server.home / "retinue.toml").write_text("no = [settings\n")
    try:
        assert server.retinue("ledger").returncode == 0
    finally:
        (server.home / "retinue.toml").unlink()


def test_an_inconsistent_ledger_exits_1_offline(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    wait_until_settled(server, server.json("send", "agent:guide", "echo hello")["envelope"])
    server.close()
    with closing(sqlite3.connect(server.home / "retinue.db")) as db, db:
        db.execute("delete from outcomes")

    completed = server.retinue("ledger")

    assert completed.returncode == 1
    assert "BROKEN settled" in completed.stdout
    assert "error: the ledger is inconsistent [ledger.broken]" in completed.stderr


@pytest.fixture(scope="module")
def server_with_audit_log(tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A killed server with an audit log."""
    server = ServerProcess(tmp_path_factory.mktemp("audited") / "home")
    server.open()
    server.json("person", "invite", "maria")
    server.kill()
    return server


def test_the_audit_log_of_a_stopped_server_is_listed_verified_and_exported(
    server_with_audit_log: ServerProcess, tmp_path: Path
) -> None:
    before = hash_store_files(server_with_audit_log.home)

    listed = server_with_audit_log.retinue("audit", "list")
    verified = server_with_audit_log.retinue("audit", "verify", "--log")
    exported = server_with_audit_log.retinue("audit", "export")

    assert [each.returncode for each in (listed, verified, exported)] == [0, 0, 0]
    assert "principal: person:owner" in listed.stdout, "as a running server lists it"
    assert verified.stdout.startswith("the audit log is intact: ")
    (tmp_path / "audit.jsonl").write_text(exported.stdout)
    script = Path(__file__).parents[2] / "examples" / "verify_audit.py"
    subprocess.run([sys.executable, script, tmp_path / "audit.jsonl"], check=True, capture_output=True)
    assert hash_store_files(server_with_audit_log.home) == before

    stranger = server_with_audit_log.retinue("audit", "verify", env={"RETINUE_TOKEN": "x" * 43})
    assert "[auth.not_signed_in]" in stranger.stderr


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_the_audit_verify_command_exits_1_if_the_audit_log_is_inconsistent(tmp_path: Path, is_open: bool) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.json("person", "invite", "maria")
    server.close()
    with closing(sqlite3.connect(server.home / "retinue.db")) as db, db:
        changed = db.execute("update audit set who = 'person:mallory' where who = 'person:owner'").rowcount
        assert changed
    if is_open:
        server.open()
    try:
        completed = server.retinue("audit", "verify")
    finally:
        server.close()
    assert completed.returncode == 1
    assert "flaw: server entry" in completed.stdout
    assert "error: the audit log is inconsistent [audit.broken]" in completed.stderr


def test_the_security_doctor_works_offline_with_and_without_a_readable_store(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open()
    server.retinue("token", "create", "--label", "forever")
    server.close()
    server.home.chmod(0o755)
    completed = server.retinue("doctor", "--security", "--quick")
    assert "files.data_directory" in completed.stdout and "ok       ledger" not in completed.stdout
    assert "tokens.no_expiry" in completed.stdout, "the command reads the database"
    assert "skipped  tools of agents: no server is running" in completed.stdout
    for name in ("retinue.db-wal", "retinue.db-shm"):
        (server.home / name).unlink(missing_ok=True)
    (server.home / "retinue.db").write_bytes(b"x" * 4096)

    damaged = server.retinue("doctor", "--security", "--quick")
    assert "files.data_directory" in damaged.stdout and "problem  schema" not in damaged.stdout
    assert "skipped  tokens, people, agents and the audit log: " in damaged.stdout and "damaged" in damaged.stdout

    fixed = server.retinue("doctor", "--security", "--fix", "--quick")
    assert "fixed" in fixed.stdout and server.home.stat().st_mode & 0o077 == 0
    assert (server.home / "retinue.db").read_bytes() == b"x" * 4096
    assert "files.data_directory" not in server.retinue("doctor", "--security", "--quick").stdout


def test_the_command_line_and_the_server_agree_on_offline_operations() -> None:
    assert OFFLINE_OPERATIONS == offline.OFFLINE_OPERATIONS
    assert {"server.ledger", "server.why"} <= set(OPERATIONS)
