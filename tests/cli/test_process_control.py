"""`up`, `down` and `logs`: start, stop and read the server process."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli.server_process import ServerProcess, command, environment
from cli.test_commands import wait_until_settled

from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ServerProcess]:
    """A home directory whose server is started and stopped by commands alone."""
    server = ServerProcess(tmp_path / "home")
    yield server
    while (lock := server.home / "lock").exists() and server.retinue("down", "--wait", "1").returncode == 0:
        assert lock.exists()


def read_pid(server: ServerProcess) -> int:
    return int((server.home / "lock").read_text())


def has_ended(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def test_the_up_command_starts_the_server_and_prints_its_log_path(home: ServerProcess) -> None:
    told = home.json("up")

    assert told == {"server": "running", "data_directory": str(home.home), "pid": read_pid(home), "log": told["log"]}
    assert Path(told["log"]).exists()
    assert home.json("status")["principal"] == "person:owner"
    assert (
        home.retinue("down").stdout
        == f"server: stopped\ndata-directory: {home.home}\npid: {told['pid']}\nhow: finished\n"
    )
    assert home.retinue("status").returncode == 3


def test_a_server_started_by_up_outlives_its_terminal(home: ServerProcess) -> None:
    process = home.json("up")["pid"]

    assert os.getsid(process) == process


@pytest.mark.spec("H69")
def test_a_second_start_of_a_server_is_refused_and_stale_files_of_a_crash_are_replaced(home: ServerProcess) -> None:
    first = home.json("up")["pid"]
    second = home.retinue("up")

    assert second.returncode == 1
    assert second.stderr.splitlines()[:2] == [
        f"error: a server is already running in {home.home} (pid {first}) [server.already_running]",
        "because: only one process can use a data directory",
    ]
    assert read_pid(home) == first

    os.kill(first, signal.SIGKILL)
    wait_until_ended(first)
    assert Path((home.home / "socket").read_text()).exists()  # stale, as after a crash
    assert (home.home / "lock").exists()
    assert home.retinue("status").returncode == 3

    assert home.json("up")["pid"] != first
    assert home.retinue("status").returncode == 0


HOLD_LOCK_PROGRAM = """
import fcntl, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(1)
"""


@pytest.mark.spec("H69")
def test_a_start_of_the_server_waits_for_a_lock_that_is_released_shortly(home: ServerProcess) -> None:
    """A child process of the killed server holds the lock until it executes its own program."""
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    home.home.mkdir()
    lock = home.home / "lock"
    for start, close in ((lambda: home.json("up"), lambda: home.json("down")), (home.open, home.close)):
        lock.write_text(f"{killed.pid}")
        with subprocess.Popen([sys.executable, "-c", HOLD_LOCK_PROGRAM, str(lock)], stdout=subprocess.PIPE) as left:
            assert left.stdout is not None and left.stdout.readline()
            start()
        close()


@pytest.mark.spec("D67")
def test_a_forced_start_stops_the_running_server_first(home: ServerProcess) -> None:
    first = home.json("up")["pid"]
    envelope = home.json("send", "agent:guide", "echo still here")["envelope"]

    second = home.json("up", "--force")["pid"]

    assert second != first
    assert has_ended(first)
    assert read_pid(home) == second
    assert home.json("show", envelope)["id"] == envelope


def test_one_of_two_concurrent_up_commands_succeeds_and_the_other_is_refused(home: ServerProcess) -> None:
    home.home.mkdir()
    starts = [
        subprocess.Popen(
            command("up", "--json"),
            env=environment(home.home),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [(*start.communicate(timeout=WAIT_LIMIT_S), start.returncode) for start in starts]

    assert sorted(code for _, _, code in told) == [0, 1]
    [opened] = [json.loads(out) for out, _, code in told if code == 0]
    [refused] = [error for _, error, code in told if code == 1]
    assert opened["pid"] == read_pid(home)
    assert "[server.already_running]" in refused


@pytest.mark.spec("H70")
def test_the_up_command_prints_the_reason_if_the_start_fails(home: ServerProcess) -> None:
    home.home.mkdir()
    (home.home / "retinue.db").write_bytes(b"no database" * 1000)
    damaged = home.retinue("up")
    (home.home / "retinue.db").unlink()
    (home.home / "retinue.toml").write_text("[server]\nlissten = 1\n")
    misspelt = home.retinue("up", "--json")

    first, *rest = damaged.stderr.splitlines()
    assert damaged.returncode == 1
    assert re.fullmatch(r"error: .* \[store\.[a-z_]+\]", first)
    assert [line.partition(":")[0] for line in rest] == ["because", "try"]
    assert misspelt.returncode == 1
    assert "lissten" in misspelt.stderr
    assert json.loads(misspelt.stdout)["error"]["code"].startswith("config.")
    assert home.retinue("status").returncode == 3


@pytest.mark.spec("H70")
def test_the_up_command_rotates_the_start_logs_and_keeps_only_five_old_logs(home: ServerProcess) -> None:
    logs = home.home / "logs"
    logs.mkdir(parents=True)
    for number in range(5):
        (logs / f"start.log{f'.{number}' if number else ''}").write_text(f"start {number}\n")
    home.retinue("up")

    assert (logs / "start.log.1").read_text() == "start 0\n"
    assert (logs / "start.log.5").read_text() == "start 4\n"
    assert "start 0" not in (logs / "start.log").read_text()
    assert (logs / "start.log").stat().st_mode & 0o077 == 0

    home.retinue("up", "--force")
    assert (logs / "start.log.2").read_text() == "start 0\n"
    assert not (logs / "start.log.6").exists()


@pytest.mark.spec("H70")
def test_the_server_log_rotates_at_a_start_of_the_server_and_not_at_a_refused_start(
    home: ServerProcess,
) -> None:
    log = Path(home.json("up")["log"])
    assert log == home.home / "logs" / "retinue.log"
    wait_until_settled(home, home.json("send", "agent:guide", "fail")["envelope"])
    assert '"run failed"' in log.read_text()

    assert "[server.already_running]" in home.retinue("run").stderr
    assert '"run failed"' in log.read_text()
    assert '"run failed"' not in (log.parent / "start.log").read_text(), "only one log file for each purpose"

    home.json("up", "--force")
    assert '"run failed"' not in log.read_text()
    assert '"run failed"' in Path(f"{log}.1").read_text()


@pytest.mark.spec("H70")
def test_the_down_command_kills_a_server_that_does_not_stop_and_nothing_is_lost(home: ServerProcess) -> None:
    process = home.json("up")["pid"]
    sent = home.json("send", "agent:guide", "echo kept")["envelope"]
    os.kill(process, signal.SIGSTOP)  # alive, but it does not answer

    completed = home.retinue("down", "--wait", "0.2")

    assert completed.returncode == 0
    assert "how: killed\n" in completed.stdout
    assert has_ended(process)
    with closing(sqlite3.connect(home.home / "retinue.db")) as db:
        assert db.execute("select count(*) from envelopes where id = ?", (sent,)).fetchone() == (1,)


def test_the_down_command_without_a_running_server_exits_3(home: ServerProcess) -> None:
    completed = home.retinue("down")

    assert completed.returncode == 3
    assert completed.stderr.startswith(f"error: no server is running in {home.home} [server.not_running]\n")


def test_the_logs_command_shows_the_last_lines(home: ServerProcess) -> None:
    logs = home.home / "logs"
    logs.mkdir(parents=True)
    assert "[logs.missing]" in home.retinue("logs").stderr
    (logs / "start.log").write_text("at the start\n")
    assert home.retinue("logs").stdout == "at the start\n"
    (logs / "retinue.log").write_text("".join(f"line {n}\n" for n in range(100)))

    assert home.retinue("logs").stdout == "".join(f"line {n}\n" for n in range(50, 100))
    assert home.retinue("logs", "--lines", "2").stdout == "line 98\nline 99\n"
    assert home.retinue("logs", "--lines", "0").stdout == ""


def test_the_logs_command_follows_a_log_through_its_rotation(home: ServerProcess) -> None:
    log = home.home / "logs" / "retinue.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    following = subprocess.Popen(
        command("logs", "--follow"),
        env=environment(home.home),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        with log.open("a") as file:
            file.write("two\n")
        assert following.stdout.readline() == "two\n"
        log.rename(log.with_suffix(".log.1"))
        log.write_text("three\n")
        assert following.stdout.readline() == "three\n"
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(WAIT_LIMIT_S) == 130
        following.communicate()


def wait_until_ended(process: int) -> None:
    wait_until_sync(lambda: has_ended(process), f"process {process} has ended")
