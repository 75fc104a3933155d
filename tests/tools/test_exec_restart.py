"""What happens to running commands when the server is stopped or killed."""

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
from tools.shell_tools import SESSION, is_alive, open_shell_tools

from retinue.domain.envelope import EnvelopeKind
from retinue.domain.ids import RunId
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.store.runs import processes
from retinue.store.runs.processes import CommandProcess, ProcessState
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools.shell.process_identity import kill_leftover, read_identity


@contextmanager
def sleeping_process() -> Iterator[subprocess.Popen[bytes]]:
    """A sleeping process in its own process group."""
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


async def store_process(folder: Path, process: CommandProcess) -> None:
    async with open_shell_tools(folder) as setup:
        await setup.store.write(partial(processes.add, process=process), point="process-begin")


@pytest.mark.spec("C58")
async def test_an_exec_command_that_outlived_its_server_is_ended_and_reported_once(tmp_path: Path) -> None:
    with sleeping_process() as process:
        await store_process(tmp_path, written(process.pid, read_identity(process.pid), trust=Trust.UNTRUSTED))
        async with open_shell_tools(tmp_path) as setup:
            [envelope] = await setup.reported()
        async with open_shell_tools(tmp_path) as setup:
            assert await setup.reported() == [envelope]
        assert process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL

    assert "ended when the server was started again" in envelope.text
    assert (envelope.kind, envelope.silent, envelope.trust) == (EnvelopeKind.SYSTEM, False, Trust.UNTRUSTED)


@pytest.mark.parametrize("boot", ["", "another-boot/1"])
async def test_a_process_with_the_pid_of_an_earlier_exec_command_is_not_killed_after_a_restart(
    tmp_path: Path, boot: str
) -> None:
    with sleeping_process() as process:
        mark = boot and f"{read_identity(process.pid).partition('/')[0]}/1"
        await store_process(tmp_path, written(process.pid, mark or boot))
        async with open_shell_tools(tmp_path) as setup:
            [envelope] = await setup.reported()

        assert is_alive(process.pid)
    assert "it had ended" in envelope.text


async def test_a_foreground_exec_command_left_by_an_earlier_server_is_ended_without_a_report(tmp_path: Path) -> None:
    with sleeping_process() as process:
        left = written(process.pid, read_identity(process.pid), state=ProcessState.WATCHED)
        await store_process(tmp_path, left)
        async with open_shell_tools(tmp_path) as setup:
            assert await setup.reported() == []
            [found] = await setup.written()
        assert process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL
    assert found.state is ProcessState.REPORTED


async def test_the_unreported_end_of_an_exec_command_is_reported_after_a_restart(tmp_path: Path) -> None:
    ended = written(1, "", state=ProcessState.ENDED, exit_code=6, ended_at=datetime(2026, 1, 5, 8, 1, tzinfo=UTC))
    await store_process(tmp_path, ended)
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / f"{ended.id}.log").write_text("last words\n")
    (tmp_path / "logs" / f"{'b2' * 16}.log").write_text("nobody's\n")
    async with open_shell_tools(tmp_path) as setup:
        [envelope] = await setup.reported()

    assert "exit code 6 after 60.0 s" in envelope.text and envelope.text.endswith("last words")
    assert not (tmp_path / "logs" / f"{'b2' * 16}.log").exists()


async def test_an_exec_command_of_a_deleted_session_is_marked_reported_without_an_envelope_after_a_restart(
    tmp_path: Path,
) -> None:
    await store_process(tmp_path, written(1, "", session="77" * 16))
    async with open_shell_tools(tmp_path) as setup:
        assert await setup.reported() == []
        assert [each.state for each in await setup.written()] == [ProcessState.REPORTED]


SERVER = """
import asyncio, os, signal, sys
from pathlib import Path
from tools.shell_tools import ON_HOST, open_shell_tools

async def main():
    async with open_shell_tools(Path(sys.argv[1])) as setup:
        setup.policy = ON_HOST
        id_ = await setup.background("sleep 600")
        [written] = await setup.written()
        print(written.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.spec("C58")
async def test_an_exec_command_of_a_killed_server_is_ended_at_the_next_start(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    child_stdout, _ = await server.communicate()
    assert server.returncode == -signal.SIGKILL
    pid = int(child_stdout)
    assert is_alive(pid)
    async with open_shell_tools(tmp_path) as setup:
        [envelope] = await setup.reported()
        await wait_until(lambda: not is_alive(pid), "the command is gone")

    assert "the server was stopped while it ran" in envelope.text


def test_a_process_identity_belongs_to_one_process_only() -> None:
    with sleeping_process() as one, sleeping_process() as two:
        assert read_identity(one.pid) == read_identity(one.pid) != ""
        assert read_identity(two.pid) != ""
        mark = read_identity(one.pid)
    assert read_identity(one.pid) == ""
    assert "had ended" in kill_leftover(one.pid, mark) and "had ended" in kill_leftover(1, read_identity(1))
