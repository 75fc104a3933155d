"""What a command may take: each bound ends or refuses what goes beyond it; with a wider one the same goes through."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox.support import PATIENCE_S, PYTHON, descendants, run, shell, sleepers, until

from retinue.domain.structs import replace
from retinue.sandbox.base import MIB, Confinement, ResourceLimits, Sandbox
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.cgroups import CgroupManager
from retinue.sandbox.host import HostSandbox

SMALL = ResourceLimits(
    seconds=PATIENCE_S,
    memory_bytes=96 * MIB,
    processes=24,
    file_bytes=2 * MIB,
    disk_bytes=4 * MIB,
    output_bytes=100_000,
)
WIDE = ResourceLimits(seconds=PATIENCE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox").resolve()


@pytest.fixture(params=["by-the-kernel", "by-the-watch"])
def sandbox(request: pytest.FixtureRequest, folder: Path) -> BubblewrapSandbox:
    """With groups of the kernel's where there are some, and without any."""
    if request.param == "by-the-kernel":
        found = CgroupManager.detect()
        if not found.controllers:
            pytest.skip("no control groups can be made here")
        return BubblewrapSandbox(folder=folder, cgroups=found)
    return BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))


def _confined(folder: Path, limits: ResourceLimits) -> Confinement:
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    return Confinement(folder=workspace, writable=(workspace,), limits=limits)


async def _python(sandbox: Sandbox, code: str, confinement: Confinement) -> tuple[str, object]:
    said = await run(sandbox, [PYTHON, "-I", "-S", "-c", code], confinement)
    return said.text, said.ended


ONE_LARGE = "a = bytearray(200 * 2**20)\nprint('had it')"
MANY_SMALL = """
import os, time
told = []
for _ in range(6):
    reads, writes = os.pipe()
    if os.fork() == 0:
        a = bytearray(os.urandom(2**20) * 30)
        os.write(writes, b'x')
        time.sleep(20)
        os._exit(0)
    os.close(writes)
    told.append(reads)
if all([os.read(each, 1) for each in told]):  # nothing is read of one that was killed
    print('had it')
"""


async def test_one_process_cannot_take_more_memory_than_allowed(sandbox: BubblewrapSandbox, folder: Path) -> None:
    text, _ = await _python(sandbox, ONE_LARGE, _confined(folder, SMALL))
    assert "had it" not in text
    text, _ = await _python(sandbox, ONE_LARGE, _confined(folder, WIDE))
    assert "had it" in text


async def test_many_processes_together_cannot_take_more_memory_than_allowed(
    sandbox: BubblewrapSandbox, folder: Path
) -> None:
    said = await run(sandbox, [PYTHON, "-I", "-S", "-c", MANY_SMALL], _confined(folder, SMALL))
    assert "memory" in said.ended.because
    said = await run(sandbox, [PYTHON, "-I", "-S", "-c", MANY_SMALL], _confined(folder, WIDE))
    assert "had it" in said.text


BOMB = """
import os, time
made = 0
try:
    while made < 60:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError:
    print('refused', flush=True)
time.sleep(1)
print('made', made)
"""


async def test_a_fork_bomb_ends_where_it_was_allowed_to(sandbox: BubblewrapSandbox, folder: Path) -> None:
    said = await run(sandbox, [PYTHON, "-I", "-S", "-c", BOMB], _confined(folder, SMALL))
    assert "refused" in said.text or "processes" in said.ended.because
    assert "made 60" not in said.text
    said = await run(sandbox, [PYTHON, "-I", "-S", "-c", BOMB], _confined(folder, WIDE))
    assert "made 60" in said.text


async def test_a_bomb_that_never_stops_is_over_when_it_is_killed(folder: Path) -> None:
    sandbox = BubblewrapSandbox(folder=folder)
    child = await sandbox.start(
        ["/bin/sh", "-c", "b() { b | b & }; b; exec sleep 30"], _confined(folder, replace(SMALL, processes=64))
    )
    await until(lambda: len(descendants(child.pid)) > 20)
    await child.kill()
    assert (await child.wait()).code is None
    assert not Path(f"/proc/{child.pid}").exists()


FILL = "head -c 8388608 /dev/zero > {path}; wc -c < {path}"


@pytest.mark.parametrize(
    "path", ["/tmp/large", "/dev/shm/large", "large"], ids=["its-own-tmp", "shared-memory", "one-file"]
)
async def test_a_command_cannot_fill_the_disk(folder: Path, path: str) -> None:
    sandbox = BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    narrow = replace(SMALL, file_bytes=2 * MIB) if path == "large" else replace(SMALL, file_bytes=64 * MIB)
    said = await shell(sandbox, FILL.format(path=path), _confined(folder, narrow))
    assert "8388608" not in said.text
    said = await shell(sandbox, FILL.format(path=path), _confined(folder, WIDE))
    assert "8388608" in said.text


@pytest.mark.parametrize("path", ["/x", "/dev/x", "/run/x", "/var/x"])
async def test_nothing_beside_the_limited_folders_can_be_filled(folder: Path, path: str) -> None:
    sandbox = BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    said = await shell(
        sandbox, f"echo x > {path} && echo wrote; echo x > /tmp/x && echo wrote-in-tmp", _confined(folder, SMALL)
    )
    assert said.text.split()[-1] == "wrote-in-tmp"
    assert "wrote" not in said.text.split()


@pytest.mark.spec("D51")
@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_a_command_that_says_too_much_is_ended_and_what_it_said_is_kept(folder: Path, kind: str) -> None:
    sandbox = HostSandbox() if kind == "host" else BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    said = await shell(sandbox, "yes", _confined(folder, SMALL))
    assert said.ended.because == "it wrote more than 100,000 bytes"
    assert len(said.text) == 100_000
    said = await shell(sandbox, "yes | head -c 150000", _confined(folder, WIDE))
    assert said.ended.code == 0
    assert len(said.text) == 150_000


@pytest.mark.spec("D51")
@pytest.mark.parametrize("kind", ["bubblewrap", "host"])
async def test_a_command_that_takes_too_long_is_ended_with_all_it_began(folder: Path, kind: str) -> None:
    sandbox = HostSandbox() if kind == "host" else BubblewrapSandbox(folder=folder, cgroups=CgroupManager([]))
    said = await shell(sandbox, "setsid sleep 97.531 & sleep 97.531", _confined(folder, replace(WIDE, seconds=0.5)))
    assert said.ended.because == "it took longer than 0.5 s"
    await until(lambda: not sleepers("97.531"))
    said = await shell(sandbox, "sleep 0.1; echo over", _confined(folder, WIDE))
    assert said.text == "over\n"


async def test_a_bare_command_has_the_limits_that_can_be_had(folder: Path) -> None:
    host = HostSandbox()
    text, _ = await _python(host, ONE_LARGE, _confined(folder, SMALL))
    assert "had it" not in text
    text, _ = await _python(host, ONE_LARGE, _confined(folder, WIDE))
    assert "had it" in text
    said = await run(host, [PYTHON, "-I", "-S", "-c", BOMB], _confined(folder, SMALL))
    assert "processes" in said.ended.because


async def test_groups_of_the_kernel_are_gone_after_the_command(folder: Path) -> None:
    cgroups = CgroupManager.detect()
    if not cgroups.controllers:
        pytest.skip("no control groups can be made here")
    sandbox = BubblewrapSandbox(folder=folder, cgroups=cgroups)
    for _ in range(5):
        await shell(sandbox, "true", _confined(folder, SMALL))
    group = cgroups.create_group(SMALL)
    assert all(folder.is_dir() for folder in group.folders)  # as long as it is needed
    first = min(int(folder.name.rpartition("-")[2]) for folder in group.folders)
    before = [
        folder.with_name(f"{folder.name.rpartition('-')[0]}-{first - back}")
        for folder in group.folders
        for back in range(1, 5 * len(group.folders) + 1)
    ]
    cgroups.release(group)
    await until(lambda: cgroups.remove_released() or not any(folder.exists() for folder in [*before, *group.folders]))
