"""The server process: one per instance, stale locks, file permissions and a graceful end."""

from __future__ import annotations

import json
import signal
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, EnumType
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from cli.server_process import environment as server_environment

from retinue.app.logs import log_file_path
from retinue.cli import client
from retinue.cli.errors import ServerNotAnswering
from retinue.store.core.server_lock import LOCK_CLASS, SERVER
from retinue.testing.failure_context import register_subject
from retinue.testing.fork_server import ForkedProcess, get_fork_server
from retinue.testing.server_description import ServerSource
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync


@dataclass(frozen=True)
class StartedServer:
    """A server process and the file with its output."""

    process: ForkedProcess
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for_end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send a signal if one is given, wait for the end of the process, and return its status and output."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_LIMIT_S), self.output.read_text()


class ServerInstance:
    """A real server in its own home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._processes: list[StartedServer] = []

    def open(self, **environment: str) -> StartedServer:
        register_subject(ServerSource(database=self.home / "retinue.db", log=log_file_path(self.home)))
        started = self.spawn(**environment)

        def answers() -> bool:
            try:
                client.call("server.status")
            except ServerNotAnswering:
                assert started.process.poll() is None, started.wait_for_end()
                return False
            return True

        wait_until_sync(answers, "the server answers")
        return started

    def spawn(self, **environment: str) -> StartedServer:
        path = self.home.with_name(f"{self.home.name}-{len(self._processes)}.txt")
        with path.open("wb") as output:
            process = get_fork_server().start(
                "retinue.app.server", environment=server_environment(self.home, **environment), output=output
            )
        self._processes.append(StartedServer(process, path))
        return self._processes[-1]

    def close(self) -> None:
        for started in self._processes:
            started.wait_for_end(signal.SIGKILL)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerInstance]:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    running = ServerInstance(tmp_path / "home")
    yield running
    running.close()


@pytest.mark.spec("C101")
def test_a_second_server_in_one_data_directory_is_refused_and_a_killed_one_leaves_no_stale_lock(
    server: ServerInstance,
) -> None:
    first = server.open()
    status, complaint = server.spawn().wait_for_end()
    assert status == 1
    assert "[server.already_running]" in complaint
    assert str(first.pid) in complaint
    assert "try: " in complaint
    first.wait_for_end(signal.SIGKILL)
    assert (server.home / "lock").exists()
    assert Path((server.home / "socket").read_text()).exists()  # left behind by a crash
    server.open()


@pytest.mark.spec("C101")
def test_a_server_stop_drains_short_runs_and_leaves_long_runs_for_the_next_start(server: ServerInstance) -> None:
    process = server.open()
    quick = client.call("envelope.send", {"to": "agent:guide", "text": "slow 1", "conversation": "quick"})
    slow = client.call("envelope.send", {"to": "agent:guide", "text": "slow 500", "conversation": "slow"})
    for sent in (quick, slow):
        wait_until_sync(
            lambda id_=sent["envelope"]: client.call("envelope.show", {"id": id_})["status"] != "pending",
            "the run has begun",
        )
    status, _ = process.wait_for_end(signal.SIGTERM)
    assert status == 0
    server.open()
    assert client.call("envelope.show", {"id": quick["envelope"]})["outcome"] == "answered"
    assert client.call("envelope.show", {"id": slow["envelope"]})["status"] == "claimed"
    assert client.call("server.ledger")["ok"] is True


def test_a_second_server_on_one_database_is_refused_and_the_first_keeps_its_owner(
    server: ServerInstance, tmp_path: Path, empty_postgres_url: str
) -> None:
    first = server.open(RETINUE_STORE=empty_postgres_url)
    token = (server.home / "owner-token").read_text()
    other = ServerInstance(tmp_path / "other")
    status, complaint = other.spawn(RETINUE_STORE=empty_postgres_url).wait_for_end()
    assert status == 1
    assert "another server uses this database [store.locked]" in complaint
    assert f"pid {first.pid} on " in complaint
    assert str(server.home)[-15:] in complaint
    assert "try: " in complaint
    assert client.call("server.status")["principal"] == "person:owner"

    first.wait_for_end(signal.SIGTERM)
    server.open(RETINUE_STORE=empty_postgres_url)
    assert (server.home / "owner-token").read_text() == token
    assert client.call("server.status")["principal"] == "person:owner"


def test_another_server_can_use_the_database_of_a_killed_server(
    server: ServerInstance, tmp_path: Path, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server.open(RETINUE_STORE=empty_postgres_url)
    first.wait_for_end(signal.SIGKILL)
    other = ServerInstance(tmp_path / "other")
    monkeypatch.setenv("RETINUE_HOME", str(other.home))
    try:
        other.open(RETINUE_STORE=empty_postgres_url)
        assert client.call("server.status")["principal"] == "person:owner"
    finally:
        other.close()


def test_a_server_that_lost_its_database_lock_to_another_exits_with_the_reason(
    server: ServerInstance, empty_postgres_url: str
) -> None:
    process = server.open(RETINUE_STORE=empty_postgres_url)
    client.call("envelope.send", {"to": "agent:guide", "text": "slow 40", "conversation": "slow"})
    address = sa.make_url(empty_postgres_url).set(drivername="postgresql").render_as_string()
    locks = f"FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCK_CLASS} AND objid = {SERVER}"
    with psycopg.connect(address, autocommit=True) as onlooker, psycopg.connect(address, autocommit=True) as rival:
        taking = threading.Thread(
            target=rival.execute, args=(f"SELECT pg_advisory_lock({LOCK_CLASS}, {SERVER})".encode(),)
        )
        taking.start()
        waits = f"SELECT 1 {locks} AND NOT granted".encode()
        wait_until_sync(lambda: onlooker.execute(waits).fetchone(), "the other server waits for the lock")
        onlooker.execute(f"SELECT pg_terminate_backend(pid) {locks} AND granted".encode())
        status, complaint = process.wait_for_end()
        taking.join()
    assert status == 1
    assert "another server has taken over this database" in complaint
    assert "[store.taken_over]" in complaint


def test_a_started_server_has_private_files_in_its_data_directory(server: ServerInstance) -> None:
    server.open()
    for name in ("owner-token", "lock", "retinue.db"):
        assert stat.S_IMODE((server.home / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(Path((server.home / "socket").read_text()).stat().st_mode) == 0o600
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700


def test_a_running_server_refuses_a_request_with_a_wrong_token(
    server: ServerInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.open()
    monkeypatch.setenv("RETINUE_TOKEN", "guess")
    with pytest.raises(client.ApiError) as refused:
        client.call("server.status")
    assert refused.value.error["code"] == "auth.not_signed_in"


def test_a_restarted_server_recreates_a_removed_owner_token_file_and_refuses_the_old_token(
    server: ServerInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = server.open()
    old = (server.home / "owner-token").read_text().strip()
    process.wait_for_end(signal.SIGKILL)
    (server.home / "owner-token").unlink()
    server.open()
    assert client.call("server.status")["principal"] == "person:owner"
    monkeypatch.setenv("RETINUE_TOKEN", old)
    with pytest.raises(client.ApiError):
        client.call("server.status")


def test_a_server_refuses_to_start_with_crash_points_outside_tests(server: ServerInstance) -> None:
    status, complaint = server.spawn(RETINUE_TEST_CRASH="finish.after-commit:1", RETINUE_TEST="").wait_for_end()
    assert status == 1
    assert "[config.test_only]" in complaint


def test_a_server_starts_in_a_data_directory_with_a_path_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("deep-" * 10) / ("er-" * 20)
    home.mkdir(parents=True)
    monkeypatch.setenv("RETINUE_HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    server = ServerInstance(home)
    try:
        server.open()
        assert len((home / "socket").read_text()) < 108
    finally:
        server.close()


def test_a_server_refuses_hostile_envelopes_with_the_reason_and_continues(server: ServerInstance) -> None:
    server.open()
    cases = {
        "text.too_large": {"to": "agent:guide", "text": "x" * 10_000_000},
        "text.unstorable": {"to": "agent:guide", "text": "a\x00b"},
        "address.invalid": {"to": "nobody", "text": "x"},
        "name.invalid": {"to": "agent:../../etc", "text": "x"},
        "agent.not_found": {"to": "agent:nobody", "text": "x"},
        "request.invalid": {"to": "agent:guide", "text": "x", "from": "agent:boss"},
        "time.invalid": {"to": "agent:guide", "text": "x", "deliver_at": "tomorrowish"},
        "request.too_large": {"to": "agent:guide", "text": "x" * 17_000_000},
    }
    for code, parameters in cases.items():
        with pytest.raises(client.ApiError) as refused:
            client.call("envelope.send", parameters)
        assert refused.value.error["code"] == code
        assert bool(refused.value.error["because"]) == (code != "agent.not_found")  # it would only repeat the sentence
        assert refused.value.error["try"]
    sent = client.call("envelope.send", {"to": "agent:guide", "text": "hello"})
    assert sent["envelope"]


def test_a_server_stores_attachments_with_hostile_names_safely(server: ServerInstance) -> None:
    server.open()
    uploads = [{"name": name, "data": "aGVsbG8="} for name in ("../../etc/passwd", "/abs", "..", "a\u202egpj.exe", "")]
    sent = client.call("envelope.send", {"to": "agent:guide", "text": "look", "attachments": uploads})
    shown = client.call("envelope.show", {"id": sent["envelope"]})
    names = [attachment["name"] for attachment in shown["attachments"]]
    assert all("/" not in name and ".." not in name and "\u202e" not in name and name for name in names)
    stored = [path for path in (server.home / "files").rglob("*") if path.is_file()]
    assert len(stored) == 1  # the same content is stored once
    assert not (server.home / "etc").exists()


def test_the_startup_message_of_the_server_names_its_data_directory_socket_and_commands(server: ServerInstance) -> None:
    process = server.open()
    _, said = process.wait_for_end(signal.SIGTERM)
    for words in ("is running", str(server.home), "retinue.sock", "owner-token", "retinue chat"):
        assert words in said
    assert json.dumps(said).count((server.home / "owner-token").read_text().strip()) == 0


def test_a_credential_added_to_a_server_changes_its_default_model_at_once_and_after_a_restart(
    server: ServerInstance, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("not a real one")
    key.chmod(0o600)
    server.open()
    assert client.call("model.show", {"agent": "main"})["default"] == "guide"

    client.call("credential.add", {"provider": "anthropic", "name": "mine", "key_file": str(key)})
    assert client.call("model.show", {"agent": "main"})["default"].startswith("anthropic/claude-opus-")

    server.close()
    server.open()
    shown = client.call("model.show", {"agent": "main"})
    assert shown["default"].startswith("anthropic/claude-opus-")
    assert "with anthropic:mine" in shown["agents"][0]["current"][0]


def subclasses(kind: type[Enum]) -> Iterator[type[Enum]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_enum_members_of_the_server_are_plain_class_attributes() -> None:
    """The server works around slow enum attribute access in Python 3.11: see `name_members_directly`."""
    kinds = [kind for kind in subclasses(Enum) if type(kind) is EnumType]
    assert any(kind.__module__.startswith("retinue.domain") for kind in kinds)
    assert not [f"{kind.__name__}.{name}" for kind in kinds for name in kind.__members__ if name not in vars(kind)]
