"""A forked program behaves like a started one: environment, files, exit status and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from retinue.testing.fork_server import ForkedProcess, ForkServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

PROGRAM = """
import json, os, signal, sys

def main():
    state = {
        "variables": dict(os.environ), "directory": os.getcwd(), "stdin": sys.stdin.read(),
        "files": sorted(os.listdir("/proc/self/fd")), "argv": sys.argv,
        "child_signal": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    }
    print(json.dumps(state), flush=True)
    if os.environ["DO"] == "wait":
        signal.pause()
    return int(os.environ["DO"])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def start(server: ForkServer, folder: Path, do: str) -> ForkedProcess:
    (folder / "program.py").write_text(PROGRAM)
    environment = {"PYTHONPATH": str(folder), "DO": do}
    with (folder / "output").open("wb") as output:
        return server.start("program", environment=environment, output=output)


def read_printed_state(folder: Path) -> Mapping[str, object]:
    wait_until_sync(lambda: (folder / "output").read_text().endswith("\n"), "the program has printed its state")
    return json.loads((folder / "output").read_text())


def test_a_program_of_the_fork_server_has_the_state_of_a_new_process_and_none_of_its_parents(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert start(server, tmp_path, "3").wait(WAIT_LIMIT_S) == 3
    state = read_printed_state(tmp_path)
    assert state["variables"] == {"PYTHONPATH": str(tmp_path), "DO": "3"}
    assert (state["directory"], state["stdin"], state["child_signal"]) == (str(tmp_path), "", True)
    assert state["files"] == ["0", "1", "2", "3"], "three, and the one that listed them"


def test_a_program_of_the_fork_server_is_killed_like_any_process(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, "wait")
    read_printed_state(tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)  # time limit: the program keeps running, and the wait must end
    process.kill()
    assert process.wait(WAIT_LIMIT_S) == process.poll() == process.returncode == -signal.SIGKILL
    process.send_signal(signal.SIGTERM)  # no process is left to signal


def test_a_program_that_the_fork_server_cannot_start_ends_with_a_traceback(server: ForkServer, tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        process = server.start("no_such_module", environment={}, output=output)
    assert process.wait(WAIT_LIMIT_S) == 1
    assert "ModuleNotFoundError" in (tmp_path / "output").read_text()
    assert start(server, tmp_path, "0").wait(WAIT_LIMIT_S) == 0, "the fork server is still there"


def test_the_fork_server_ends_with_the_process_that_uses_it() -> None:
    program = (
        "import os\n"
        "from retinue.testing.fork_server import get_fork_server\n"
        "print(get_fork_server()._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(killed.stdout)
    wait_until_sync(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid), "the fork server has ended")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
