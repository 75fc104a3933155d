"""The house as a process: one at a time, no stale locks, closed to others, and graceful."""

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
from cli.server_process import environment as house_environment

from retinue.app.logs import log_file_path
from retinue.cli import client
from retinue.cli.errors import ServerNotAnswering
from retinue.store.core.server_lock import LOCK_CLASS, SERVER
from retinue.testing.failure_context import register_subject
from retinue.testing.fork_server import ForkedProcess, get_fork_server
from retinue.testing.server_description import ServerSource
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync


@dataclass(frozen=True)
class Started:
    """A process of a server, and the file with what it prints."""

    process: ForkedProcess
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send a signal if one is given, wait until the process has ended, and return its status and its output."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_LIMIT_S), self.output.read_text()


class Daemon:
    """A real daemon in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._started: list[Started] = []

    def open(self, **environment: str) -> Started:
        register_subject(ServerSource(database=self.home / "house.db", log=log_file_path(self.home)))
        started = self.spawn(**environment)

        def answers() -> bool:
            try:
                client.call("house.status")
            except ServerNotAnswering:
                assert started.process.poll() is None, started.end()
                return False
            return True

        wait_until_sync(answers, "the daemon answers")
        return started

    def spawn(self, **environment: str) -> Started:
        path = self.home.with_name(f"{self.home.name}-{len(self._started)}.txt")
        with path.open("wb") as output:
            process = get_fork_server().start(
                "retinue.app.server", environment=house_environment(self.home, **environment), output=output
            )
        self._started.append(Started(process, path))
        return self._started[-1]

    def close(self) -> None:
        for started in self._started:
            started.end(signal.SIGKILL)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    running = Daemon(tmp_path / "home")
    yield running
    running.close()


@pytest.mark.spec("C101")
def test_a_second_daemon_is_refused_and_a_killed_one_leaves_no_stale_lock(daemon: Daemon) -> None:
    first = daemon.open()
    status, complaint = daemon.spawn().end()
    assert status == 1
    assert "[server.already_running]" in complaint
    assert str(first.pid) in complaint
    assert "try: " in complaint
    first.end(signal.SIGKILL)
    assert (daemon.home / "lock").exists()
    assert Path((daemon.home / "socket").read_text()).exists()  # left behind, as a crash leaves it
    daemon.open()


@pytest.mark.spec("C101")
def test_a_stop_drains_what_runs_and_what_takes_too_long_is_taken_up_at_the_next_start(daemon: Daemon) -> None:
    process = daemon.open()
    quick = client.call("envelope.send", {"to": "agent:guide", "text": "slow 1", "conversation": "quick"})
    slow = client.call("envelope.send", {"to": "agent:guide", "text": "slow 500", "conversation": "slow"})
    for sent in (quick, slow):
        wait_until_sync(
            lambda id_=sent["envelope"]: client.call("envelope.show", {"id": id_})["status"] != "pending", "it is begun"
        )
    status, _ = process.end(signal.SIGTERM)
    assert status == 0
    daemon.open()
    assert client.call("envelope.show", {"id": quick["envelope"]})["outcome"] == "answered"
    assert client.call("envelope.show", {"id": slow["envelope"]})["status"] == "claimed"
    assert client.call("house.ledger")["holds"] is True


def test_a_second_server_on_one_database_is_refused_and_the_first_keeps_its_owner(
    daemon: Daemon, tmp_path: Path, empty_postgres_url: str
) -> None:
    first = daemon.open(RETINUE_STORE=empty_postgres_url)
    token = (daemon.home / "owner-token").read_text()
    other = Daemon(tmp_path / "other")
    status, complaint = other.spawn(RETINUE_STORE=empty_postgres_url).end()
    assert status == 1
    assert "another server uses this database [store.locked]" in complaint
    assert f"pid {first.pid} on " in complaint
    assert str(daemon.home)[-15:] in complaint
    assert "try: " in complaint
    assert client.call("house.status")["you"] == "person:owner"

    first.end(signal.SIGTERM)
    daemon.open(RETINUE_STORE=empty_postgres_url)
    assert (daemon.home / "owner-token").read_text() == token
    assert client.call("house.status")["you"] == "person:owner"


def test_a_killed_server_leaves_its_database_to_the_next(
    daemon: Daemon, tmp_path: Path, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = daemon.open(RETINUE_STORE=empty_postgres_url)
    first.end(signal.SIGKILL)
    other = Daemon(tmp_path / "other")
    monkeypatch.setenv("RETINUE_HOME", str(other.home))
    try:
        other.open(RETINUE_STORE=empty_postgres_url)
        assert client.call("house.status")["you"] == "person:owner"
    finally:
        other.close()


def test_a_server_whose_database_another_took_over_ends_with_the_reason(
    daemon: Daemon, empty_postgres_url: str
) -> None:
    process = daemon.open(RETINUE_STORE=empty_postgres_url)
    client.call("envelope.send", {"to": "agent:guide", "text": "slow 40", "conversation": "slow"})
    address = sa.make_url(empty_postgres_url).set(drivername="postgresql").render_as_string()
    locks = f"FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCK_CLASS} AND objid = {SERVER}"
    with psycopg.connect(address, autocommit=True) as onlooker, psycopg.connect(address, autocommit=True) as rival:
        taking = threading.Thread(
            target=rival.execute, args=(f"SELECT pg_advisory_lock({LOCK_CLASS}, {SERVER})".encode(),)
        )
        taking.start()
        waits = f"SELECT 1 {locks} AND NOT granted".encode()
        wait_until_sync(lambda: onlooker.execute(waits).fetchone(), "the rival waits")
        onlooker.execute(f"SELECT pg_terminate_backend(pid) {locks} AND granted".encode())
        status, complaint = process.end()
        taking.join()
    assert status == 1
    assert "another server has taken over this database" in complaint
    assert "[store.taken_over]" in complaint


def test_what_is_on_disk_is_ours_alone(daemon: Daemon) -> None:
    daemon.open()
    for name in ("owner-token", "lock", "house.db"):
        assert stat.S_IMODE((daemon.home / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(Path((daemon.home / "socket").read_text()).stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.home.stat().st_mode) == 0o700


def test_nobody_gets_in_without_a_token(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.open()
    monkeypatch.setenv("RETINUE_TOKEN", "guess")
    with pytest.raises(client.ApiError) as refused:
        client.call("house.status")
    assert refused.value.error["code"] == "auth.not_signed_in"


def test_a_token_file_that_was_removed_is_made_anew_and_the_old_token_is_worthless(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = daemon.open()
    old = (daemon.home / "owner-token").read_text().strip()
    process.end(signal.SIGKILL)
    (daemon.home / "owner-token").unlink()
    daemon.open()
    assert client.call("house.status")["you"] == "person:owner"
    monkeypatch.setenv("RETINUE_TOKEN", old)
    with pytest.raises(client.ApiError):
        client.call("house.status")


def test_crash_points_are_refused_outside_tests(daemon: Daemon) -> None:
    status, complaint = daemon.spawn(RETINUE_TEST_CRASH="finish.after-commit:1", RETINUE_TEST="").end()
    assert status == 1
    assert "[config.test_only]" in complaint


def test_a_home_too_deep_for_a_socket_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ("deep-" * 10) / ("er-" * 20)
    home.mkdir(parents=True)
    monkeypatch.setenv("RETINUE_HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    daemon = Daemon(home)
    try:
        daemon.open()
        assert len((home / "socket").read_text()) < 108
    finally:
        daemon.close()


def test_hostile_requests_are_refused_and_others_are_unaffected(daemon: Daemon) -> None:
    daemon.open()
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
        assert bool(refused.value.error["because"]) == (code != "agent.not_found")  # its reason would only repeat it
        assert refused.value.error["try"]
    sent = client.call("envelope.send", {"to": "agent:guide", "text": "hello"})
    assert sent["envelope"]


def test_attachments_with_hostile_names_are_stored_safely(daemon: Daemon) -> None:
    daemon.open()
    uploads = [{"name": name, "data": "aGVsbG8="} for name in ("../../etc/passwd", "/abs", "..", "a\u202egpj.exe", "")]
    sent = client.call("envelope.send", {"to": "agent:guide", "text": "look", "attachments": uploads})
    shown = client.call("envelope.show", {"id": sent["envelope"]})
    names = [attachment["name"] for attachment in shown["attachments"]]
    assert all("/" not in name and ".." not in name and "\u202e" not in name and name for name in names)
    stored = [path for path in (daemon.home / "files").rglob("*") if path.is_file()]
    assert len(stored) == 1  # the same bytes, kept once
    assert not (daemon.home / "etc").exists()


def test_the_first_words_say_where_it_listens_and_how_to_talk_to_it(daemon: Daemon) -> None:
    process = daemon.open()
    _, said = process.end(signal.SIGTERM)
    for words in ("is running", str(daemon.home), "retinue.sock", "owner-token", "retinue chat"):
        assert words in said
    assert json.dumps(said).count((daemon.home / "owner-token").read_text().strip()) == 0


def test_a_key_that_is_added_is_what_the_house_thinks_with_from_then_on(daemon: Daemon, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("not a real one")
    key.chmod(0o600)
    daemon.open()
    assert client.call("model.show", {"agent": "main"})["default"] == "guide"

    client.call("credential.add", {"provider": "anthropic", "name": "mine", "key_file": str(key)})
    assert client.call("model.show", {"agent": "main"})["default"].startswith("anthropic/claude-opus-")

    daemon.close()
    daemon.open()
    shown = client.call("model.show", {"agent": "main"})
    assert shown["default"].startswith("anthropic/claude-opus-")
    assert "with anthropic:mine" in shown["agents"][0]["now"][0]


def subclasses(kind: type[Enum]) -> Iterator[type[Enum]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_members_are_attributes_so_they_are_named_without_a_detour() -> None:
    """The daemon takes away the detour that Python 3.11 has for them: see `name_members_directly`."""
    kinds = [kind for kind in subclasses(Enum) if type(kind) is EnumType]
    assert any(kind.__module__.startswith("retinue.domain") for kind in kinds)
    assert not [f"{kind.__name__}.{name}" for kind in kinds for name in kind.__members__ if name not in vars(kind)]
