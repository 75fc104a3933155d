"""Limits of a command: each limit ends or refuses what exceeds it, and a higher limit allows the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox.support import (
    PATIENCE_S,
    PYTHON,
    descendants,
    find_sleep_processes,
    run,
    shell,
    unique_sleep_time,
    until,
)

from retinue.domain.structs import replace
from retinue.sandbox.base import MIB, Confinement, ResourceLimits, Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.cgroups import CgroupManager
from retinue.sandbox.host import HostSandbox

SMALL_LIMITS = ResourceLimits(
    seconds=PATIENCE_S,
    memory_bytes=96 * MIB,
    processes=24,
    file_bytes=2 * MIB,
    disk_bytes=4 * MIB,
    output_bytes=100_000,
)
WIDE_LIMITS = ResourceLimits(seconds=PATIENCE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox").resolve()


@pytest.fixture(params=["by-the-kernel", "by-the-watch"])
def sandbox(request: pytest.FixtureRequest, folder: Path) -> BubblewrapSandbox:
    """Once with control groups, if there are any, and once without."""
    if request.param == "by-the-kernel":
        found = CgroupManager.detect()
        if not found.controllers:
            pytest.skip("no control groups can be made here")
        return BubblewrapSandbox(folder=folder, cgroups=found)
    return BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))


def _make_confinement(folder: Path, limits: ResourceLimits) -> Confinement:
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    return Confinement(folder=workspace, writable=(workspace,), limits=limits)


def _hold(code: str, seconds: float = PATIENCE_S) -> list[str]:
    """Return a command that keeps what it got for some time, so that a limit which is checked in intervals ends it."""
    return [PYTHON, "-I", "-S", "-c", code, str(seconds)]


async def _run_python(sandbox: Sandbox, code: str, confinement: Confinement) -> tuple[str, object]:
    output = await run(sandbox, [PYTHON, "-I", "-S", "-c", code], confinement)
    return output.text, output.exit_status


ALLOCATE_IN_ONE_PROCESS = "a = bytearray(200 * 2**20)\nprint('had it')"
ALLOCATE_IN_MANY_PROCESSES = """
import os, sys, time
pipes = []
for _ in range(6):
    reads, writes = os.pipe()
    if os.fork() == 0:
        a = bytearray(os.urandom(2**20) * 30)
        os.write(writes, b'x')
        time.sleep(20)
        os._exit(0)
    os.close(writes)
    pipes.append(reads)
if all([os.read(each, 1) for each in pipes]):  # nothing is read of one that was killed
    print('had it')
    time.sleep(float(sys.argv[1]))
"""


async def test_a_process_in_the_sandbox_cannot_take_more_memory_than_its_limit(
    sandbox: BubblewrapSandbox, folder: Path
) -> None:
    text, _ = await _run_python(sandbox, ALLOCATE_IN_ONE_PROCESS, _make_confinement(folder, SMALL_LIMITS))
    assert "had it" not in text
    text, _ = await _run_python(sandbox, ALLOCATE_IN_ONE_PROCESS, _make_confinement(folder, WIDE_LIMITS))
    assert "had it" in text


async def test_many_processes_in_the_sandbox_together_cannot_take_more_memory_than_their_limit(
    sandbox: BubblewrapSandbox, folder: Path
) -> None:
    output = await run(sandbox, _hold(ALLOCATE_IN_MANY_PROCESSES), _make_confinement(folder, SMALL_LIMITS))
    assert "memory" in output.exit_status.because
    output = await run(sandbox, _hold(ALLOCATE_IN_MANY_PROCESSES, seconds=0), _make_confinement(folder, WIDE_LIMITS))
    assert "had it" in output.text


FORK_BOMB = """
import os, sys, time
made = 0
try:
    while made < 60:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError:
    print('refused', flush=True)
time.sleep(0 if made < 60 else float(sys.argv[1]))
print('made', made)
"""


async def test_a_fork_bomb_is_stopped_at_the_process_limit_of_the_sandbox(
    sandbox: BubblewrapSandbox, folder: Path
) -> None:
    output = await run(sandbox, _hold(FORK_BOMB), _make_confinement(folder, SMALL_LIMITS))
    assert "refused" in output.text or "processes" in output.exit_status.because
    assert "made 60" not in output.text
    output = await run(sandbox, _hold(FORK_BOMB, seconds=0), _make_confinement(folder, WIDE_LIMITS))
    assert "made 60" in output.text


# Stays below the process limit. The watch over a real fork bomb could end it before the test sees it.
FORK_FOREVER = """
import os, time
for _ in range(30):
    if os.fork() == 0:
        time.sleep(300)
for _ in range(4):
    if os.fork() == 0:
        while os.fork() == 0:
            time.sleep(0.001)
        os._exit(0)
time.sleep(300)
"""


async def test_processes_in_the_sandbox_that_fork_forever_end_when_the_command_is_killed(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    command = [PYTHON, "-I", "-S", "-c", FORK_FOREVER]
    # Processes that have ended count until they are reaped: on a busy machine, these are hundreds.
    child = await sandbox.start(command, _make_confinement(folder, replace(WIDE_LIMITS, processes=2_000)))
    await until(lambda: len(descendants(child.pid)) > 20)
    await child.kill()
    assert (await child.wait()).code is None
    assert not Path(f"/proc/{child.pid}").exists()


FILL_DISK_COMMAND = "head -c 8388608 /dev/zero > {path}; wc -c < {path}"


@pytest.mark.parametrize(
    "path", ["/tmp/large", "/dev/shm/large", "large"], ids=["its-own-tmp", "shared-memory", "one-file"]
)
async def test_the_limits_of_the_sandbox_keep_a_command_from_filling_the_disk(folder: Path, path: str) -> None:
    sandbox = BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    narrow = (
        replace(SMALL_LIMITS, file_bytes=2 * MIB) if path == "large" else replace(SMALL_LIMITS, file_bytes=64 * MIB)
    )
    output = await shell(sandbox, FILL_DISK_COMMAND.format(path=path), _make_confinement(folder, narrow))
    assert "8388608" not in output.text
    output = await shell(sandbox, FILL_DISK_COMMAND.format(path=path), _make_confinement(folder, WIDE_LIMITS))
    assert "8388608" in output.text


@pytest.mark.parametrize("path", ["/x", "/dev/x", "/run/x", "/var/x"])
async def test_a_sandboxed_command_cannot_write_outside_the_folders_with_limits(folder: Path, path: str) -> None:
    sandbox = BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    output = await shell(
        sandbox,
        f"echo x > {path} && echo wrote; echo x > /tmp/x && echo wrote-in-tmp",
        _make_confinement(folder, SMALL_LIMITS),
    )
    assert output.text.split()[-1] == "wrote-in-tmp"
    assert "wrote" not in output.text.split()


@pytest.mark.spec("D51")
@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_a_sandboxed_command_is_ended_at_its_output_limit_and_its_output_so_far_is_kept(
    folder: Path, kind: str
) -> None:
    sandbox = HostSandbox() if kind == "host" else BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    output = await shell(sandbox, "yes", _make_confinement(folder, SMALL_LIMITS))
    assert output.exit_status.because == "it wrote more than 100,000 bytes"
    assert len(output.text) == 100_000
    output = await shell(sandbox, "yes | head -c 150000", _make_confinement(folder, WIDE_LIMITS))
    assert output.exit_status.code == 0
    assert len(output.text) == 150_000


@pytest.mark.spec("D51")
@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_a_sandboxed_command_is_ended_at_its_time_limit_with_all_its_processes(folder: Path, kind: str) -> None:
    sandbox = HostSandbox() if kind == "host" else BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    time = unique_sleep_time()
    output = await shell(
        sandbox, f"setsid sleep {time} & sleep {time}", _make_confinement(folder, replace(WIDE_LIMITS, seconds=0.5))
    )
    assert output.exit_status.because == "it took longer than 0.5 s"
    await until(lambda: not find_sleep_processes(time))
    output = await shell(sandbox, "sleep 0.1; echo over", _make_confinement(folder, WIDE_LIMITS))
    assert output.text == "over\n"


async def test_a_command_on_the_host_has_the_limits_that_work_without_a_sandbox(folder: Path) -> None:
    host = HostSandbox()
    text, _ = await _run_python(host, ALLOCATE_IN_ONE_PROCESS, _make_confinement(folder, SMALL_LIMITS))
    assert "had it" not in text
    text, _ = await _run_python(host, ALLOCATE_IN_ONE_PROCESS, _make_confinement(folder, WIDE_LIMITS))
    assert "had it" in text
    output = await run(host, _hold(FORK_BOMB), _make_confinement(folder, SMALL_LIMITS))
    assert "processes" in output.exit_status.because


async def test_control_groups_are_removed_after_the_command(folder: Path) -> None:
    cgroups = CgroupManager.detect()
    if not cgroups.controllers:
        pytest.skip("no control groups can be made here")
    sandbox = BubblewrapSandbox(folder=folder, cgroups=cgroups)
    for _ in range(5):
        await shell(sandbox, "true", _make_confinement(folder, SMALL_LIMITS))
    group = cgroups.create_group(SMALL_LIMITS)
    assert all(folder.is_dir() for folder in group.folders)  # while it is needed
    first = min(int(folder.name.rpartition("-")[2]) for folder in group.folders)
    before = [
        folder.with_name(f"{folder.name.rpartition('-')[0]}-{first - back}")
        for folder in group.folders
        for back in range(1, 5 * len(group.folders) + 1)
    ]
    cgroups.release(group)
    await until(lambda: cgroups.remove_released() or not any(folder.exists() for folder in [*before, *group.folders]))
