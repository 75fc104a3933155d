"""`up`, `down` and `logs`: the house as a process that people start, stop and read."""

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
from cli.server_process import HouseProcess, command, environment
from cli.test_commands import settled

from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync


@pytest.fixture
def home(tmp_path: Path) -> Iterator[HouseProcess]:
    """A home whose house is opened and closed by commands alone."""
    house = HouseProcess(tmp_path / "home")
    yield house
    while (lock := house.home / "lock").exists() and house.retinue("down", "--wait", "1").returncode == 0:
        assert lock.exists()


def process_of(house: HouseProcess) -> int:
    return int((house.home / "lock").read_text())


def is_gone(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def test_up_opens_the_house_and_says_where_its_log_is(home: HouseProcess) -> None:
    told = home.json("up")

    assert told == {"house": "open", "home": str(home.home), "process": process_of(home), "log": told["log"]}
    assert Path(told["log"]).exists()
    assert home.json("status")["you"] == "person:owner"
    assert (
        home.retinue("down").stdout == f"house: closed\nhome: {home.home}\nprocess: {told['process']}\nhow: finished\n"
    )
    assert home.retinue("status").returncode == 3


def test_what_is_started_here_outlives_the_terminal_it_was_started_in(home: HouseProcess) -> None:
    process = home.json("up")["process"]

    assert os.getsid(process) == process


@pytest.mark.spec("H69")
def test_a_second_start_is_refused_and_what_a_crash_left_behind_is_cleared_away(home: HouseProcess) -> None:
    first = home.json("up")["process"]
    second = home.retinue("up")

    assert second.returncode == 1
    assert second.stderr.splitlines()[:2] == [
        f"error: a server is already running in {home.home} (pid {first}) [server.already_running]",
        "because: only one process can use a data directory",
    ]
    assert process_of(home) == first

    os.kill(first, signal.SIGKILL)
    wait_until_gone(first)
    assert Path((home.home / "socket").read_text()).exists()  # stale, as a crash leaves it
    assert (home.home / "lock").exists()
    assert home.retinue("status").returncode == 3

    assert home.json("up")["process"] != first
    assert home.retinue("status").returncode == 0


HOLDS = """
import fcntl, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
time.sleep(1)
"""


@pytest.mark.spec("H69")
def test_a_lock_that_outlives_its_house_for_a_moment_is_waited_for(home: HouseProcess) -> None:
    """By a program that a house was about to run when it was killed: until it runs, it has all that the house had."""
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    home.home.mkdir()
    lock = home.home / "lock"
    for start, close in ((lambda: home.json("up"), lambda: home.json("down")), (home.open, home.close)):
        lock.write_text(f"{killed.pid}")
        with subprocess.Popen([sys.executable, "-c", HOLDS, str(lock)], stdout=subprocess.PIPE) as left:
            assert left.stdout is not None and left.stdout.readline()
            start()
        close()


@pytest.mark.spec("D67")
def test_only_one_house_is_open_and_a_forced_start_stops_the_old_one_and_waits(home: HouseProcess) -> None:
    first = home.json("up")["process"]
    envelope = home.json("send", "agent:guide", "echo still here")["envelope"]

    second = home.json("up", "--force")["process"]

    assert second != first
    assert is_gone(first)
    assert process_of(home) == second
    assert home.json("show", envelope)["id"] == envelope


def test_of_two_starts_at_once_one_opens_the_house_and_the_other_says_who_did(home: HouseProcess) -> None:
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
    assert opened["process"] == process_of(home)
    assert "[server.already_running]" in refused


@pytest.mark.spec("H70")
def test_a_start_that_fails_prints_the_reason(home: HouseProcess) -> None:
    home.home.mkdir()
    (home.home / "house.db").write_bytes(b"no database" * 1000)
    damaged = home.retinue("up")
    (home.home / "house.db").unlink()
    (home.home / "retinue.toml").write_text("[house]\nlissten = 1\n")
    misspelt = home.retinue("up", "--json")

    first, *rest = damaged.stderr.splitlines()
    assert damaged.returncode == 1
    assert re.fullmatch(r"error: .* \[store\.[a-z_]+\]", first)
    assert [line.partition(":")[0] for line in rest] == ["because", "try"]
    assert misspelt.returncode == 1
    assert "lissten" in misspelt.stderr or "house" in misspelt.stderr
    assert json.loads(misspelt.stdout)["error"]["code"].startswith("config.")
    assert home.retinue("status").returncode == 3


@pytest.mark.spec("H70")
def test_logs_rotate_at_each_start_and_only_so_many_are_kept(home: HouseProcess) -> None:
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
def test_the_log_of_a_house_is_put_away_when_it_is_opened_again_and_not_when_that_is_refused(
    home: HouseProcess,
) -> None:
    log = Path(home.json("up")["log"])
    assert log == home.home / "logs" / "retinue.log"
    settled(home, home.json("send", "agent:guide", "fail")["envelope"])
    assert '"run failed"' in log.read_text()

    assert "[server.already_running]" in home.retinue("run").stderr
    assert '"run failed"' in log.read_text()
    assert '"run failed"' not in (log.parent / "start.log").read_text(), "one log of each thing is enough"

    home.json("up", "--force")
    assert '"run failed"' not in log.read_text()
    assert '"run failed"' in Path(f"{log}.1").read_text()


@pytest.mark.spec("H70")
def test_a_house_that_does_not_stop_is_killed_after_a_while_and_loses_nothing(home: HouseProcess) -> None:
    process = home.json("up")["process"]
    sent = home.json("send", "agent:guide", "echo kept")["envelope"]
    os.kill(process, signal.SIGSTOP)  # alive, and deaf to every request

    told = home.retinue("down", "--wait", "0.2")

    assert told.returncode == 0
    assert "how: killed\n" in told.stdout
    assert is_gone(process)
    with closing(sqlite3.connect(home.home / "house.db")) as db:
        assert db.execute("select count(*) from envelopes where id = ?", (sent,)).fetchone() == (1,)


def test_with_no_house_open_there_is_nothing_to_close(home: HouseProcess) -> None:
    told = home.retinue("down")

    assert told.returncode == 3
    assert told.stderr.startswith(f"error: no server is running in {home.home} [server.not_running]\n")


def test_the_last_lines_of_the_log_are_shown(home: HouseProcess) -> None:
    logs = home.home / "logs"
    logs.mkdir(parents=True)
    assert "[logs.missing]" in home.retinue("logs").stderr
    (logs / "start.log").write_text("at the start\n")
    assert home.retinue("logs").stdout == "at the start\n"
    (logs / "retinue.log").write_text("".join(f"line {n}\n" for n in range(100)))

    assert home.retinue("logs").stdout == "".join(f"line {n}\n" for n in range(50, 100))
    assert home.retinue("logs", "--lines", "2").stdout == "line 98\nline 99\n"
    assert home.retinue("logs", "--lines", "0").stdout == ""


def test_a_log_is_followed_through_its_rotation(home: HouseProcess) -> None:
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


def wait_until_gone(process: int) -> None:
    wait_until_sync(lambda: is_gone(process), f"process {process} is gone")
