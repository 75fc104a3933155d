"""What becomes of commands when the house goes away under them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from tools.shell_tools import SESSION, desk_in, is_alive

from retinue.domain.envelope import EnvelopeKind
from retinue.domain.ids import RunId
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.store.runs import processes
from retinue.store.runs.processes import CommandProcess, ProcessState
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools.shell.process_identity import kill_leftover, read_identity


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's child of ours to mind: in a group of its own."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def written(pid: int, boot: str, **changes: object) -> CommandProcess:
    process = CommandProcess(
        id="a1" * 16,
        session=SESSION,
        run=RunId("ab" * 16),
        agent="ada",
        command="sleep 600",
        folder="/w",
        pid=pid,
        boot=boot,
        trust=Trust.PRIVATE,
        started_at=datetime(2026, 1, 5, 8, 0, tzinfo=UTC),
        state=ProcessState.RUNNING,
    )
    return replace(process, **changes)  # pyright: ignore[reportArgumentType]


async def leave_behind(folder: Path, process: CommandProcess) -> None:
    async with desk_in(folder) as desk:
        await desk.store.write(partial(processes.add, process=process), point="process-begin")


@pytest.mark.spec("C58")
async def test_a_command_that_outlived_its_house_is_ended_and_told_of_once(tmp_path: Path) -> None:
    with sleeper() as process:
        await leave_behind(tmp_path, written(process.pid, read_identity(process.pid), trust=Trust.UNTRUSTED))
        async with desk_in(tmp_path) as desk:
            [envelope] = await desk.told()
        async with desk_in(tmp_path) as desk:
            assert await desk.told() == [envelope]
        assert process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL

    assert "ended when the server was started again" in envelope.text
    assert (envelope.kind, envelope.silent, envelope.trust) == (EnvelopeKind.SYSTEM, False, Trust.UNTRUSTED)


@pytest.mark.parametrize("boot", ["", "another-boot/1"])
async def test_a_process_that_only_has_the_number_is_left_alone(tmp_path: Path, boot: str) -> None:
    with sleeper() as process:
        mark = boot and f"{read_identity(process.pid).partition('/')[0]}/1"
        await leave_behind(tmp_path, written(process.pid, mark or boot))
        async with desk_in(tmp_path) as desk:
            [envelope] = await desk.told()

        assert is_alive(process.pid)
    assert "it had ended" in envelope.text


async def test_one_that_a_run_was_waiting_for_is_the_run_s_to_tell(tmp_path: Path) -> None:
    with sleeper() as process:
        left = written(process.pid, read_identity(process.pid), state=ProcessState.WATCHED)
        await leave_behind(tmp_path, left)
        async with desk_in(tmp_path) as desk:
            assert await desk.told() == []
            [found] = await desk.written()
        assert process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL
    assert found.state is ProcessState.REPORTED


async def test_an_end_that_nobody_was_told_of_is_told_after_a_restart(tmp_path: Path) -> None:
    ended = written(1, "", state=ProcessState.ENDED, exit_code=6, ended_at=datetime(2026, 1, 5, 8, 1, tzinfo=UTC))
    await leave_behind(tmp_path, ended)
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / f"{ended.id}.log").write_text("last words\n")
    (tmp_path / "logs" / f"{'b2' * 16}.log").write_text("nobody's\n")
    async with desk_in(tmp_path) as desk:
        [envelope] = await desk.told()

    assert "exit code 6 after 60.0 s" in envelope.text and envelope.text.endswith("last words")
    assert not (tmp_path / "logs" / f"{'b2' * 16}.log").exists()


async def test_a_session_that_is_gone_is_told_nothing_and_not_asked_for_again(tmp_path: Path) -> None:
    await leave_behind(tmp_path, written(1, "", session="77" * 16))
    async with desk_in(tmp_path) as desk:
        assert await desk.told() == []
        assert [each.state for each in await desk.written()] == [ProcessState.REPORTED]


HOUSE = """
import asyncio, os, signal, sys
from pathlib import Path
from tools.shell_tools import ON_HOST, desk_in

async def main():
    async with desk_in(Path(sys.argv[1])) as desk:
        desk.policy = ON_HOST
        id_ = await desk.background("sleep 600")
        [written] = await desk.written()
        print(written.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.spec("C58")
async def test_a_house_that_is_killed_leaves_nothing_running_after_the_next_start(tmp_path: Path) -> None:
    house = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOUSE,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    said, _ = await house.communicate()
    assert house.returncode == -signal.SIGKILL
    pid = int(said)
    assert is_alive(pid)
    async with desk_in(tmp_path) as desk:
        [envelope] = await desk.told()
        await wait_until(lambda: not is_alive(pid), "the command is gone")

    assert "the server was stopped while it ran" in envelope.text


def test_a_mark_is_of_one_process_and_of_no_other() -> None:
    with sleeper() as one, sleeper() as two:
        assert read_identity(one.pid) == read_identity(one.pid) != ""
        assert read_identity(two.pid) != ""
        mark = read_identity(one.pid)
    assert read_identity(one.pid) == ""
    assert "had ended" in kill_leftover(one.pid, mark) and "had ended" in kill_leftover(1, read_identity(1))
