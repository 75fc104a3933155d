"""Each escape attempt must be refused inside of a sandbox. As a control, each must succeed without a sandbox, or in a
sandbox that lacks only the system call filter."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sandbox.escape_attempts import ATTEMPTS
from sandbox.support import (
    PYTHON,
    SandboxDirectories,
    find_sleep_processes,
    make_sandbox_directories,
    run,
    running_escape_targets,
    write_attempts_script,
)

from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.testing.wait_conditions import wait_until_sync

# Without a sandbox, they succeed only for root.
SUCCEEDS_ONLY_FOR_ROOT = frozenset(
    {
        "read-the-passwords-of-the-machine",
        "write-into-the-system",
        "write-into-etc",
        "write-into-the-root",
        "open-a-setting-of-the-kernel-for-writing",
        "open-the-machines-trigger-for-writing",
        "make-a-device",
        "give-a-file-to-root",
        "listen-to-the-wire",
        "enter-the-server-network",
        "become-root",
        "have-capabilities",
        "change-the-root-folder",
        "mount-something",
        "type-into-a-terminal",
        "give-the-kernel-a-program",
        "read-the-server-memory",
        "trace-the-server",
        "leave-a-link-to-a-setuid-program-of-the-system",
        "leave-a-program-with-capabilities",
    }
)

CHECKED_FROM_OUTSIDE = "outlive-the-command"  # it cannot see its own result


@dataclass(frozen=True, slots=True)
class AttemptResults:
    """The result of each attempt: in the sandbox, without one, and in a sandbox without the system call filter."""

    inside: dict[str, str]
    bare: dict[str, str]
    unfiltered: dict[str, str]
    outlived_inside: list[int]
    outlived_bare: list[int]
    privileged_inside: list[str]
    privileged_unfiltered: list[str]


@pytest.fixture(scope="module")
def grounds() -> Iterator[SandboxDirectories]:
    """Not in /tmp: a sandbox has its own /tmp, whose files do not exist outside."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="retinue-escapes-") as root:
        yield make_sandbox_directories(Path(root))


@pytest.fixture(scope="module")
def results(grounds: SandboxDirectories, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttemptResults]:
    secret = tmp_path_factory.mktemp("open") / "secret"
    secret.write_text("inherited")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    os.environ["ESCAPE_SECRET"] = "of the server"
    try:
        with running_escape_targets(grounds) as facts:
            made = _run_all_attempts(grounds, facts)
        yield made
    finally:
        os.close(descriptor)
        del os.environ["ESCAPE_SECRET"]


def _run_all_attempts(grounds: SandboxDirectories, facts: dict[str, object]) -> AttemptResults:
    lasting = {name: f"98.{os.getpid()}{number}" for number, name in enumerate(("inside", "bare", "unfiltered"))}
    commands = {name: write_attempts_script(grounds, {**facts, "outlives": lasting[name]}, name) for name in lasting}
    unfiltered = _UnfilteredSandbox(folder=grounds.state / "sandbox-unfiltered")
    inside = asyncio.run(_run_attempts(grounds.bubblewrap(), commands["inside"], grounds))
    privileged_inside = _remove_left_files(grounds.workspace)
    without = asyncio.run(_run_attempts(unfiltered, commands["unfiltered"], grounds))
    privileged_unfiltered = _remove_left_files(grounds.workspace)
    bare = subprocess.run(commands["bare"], capture_output=True, text=True, close_fds=False, timeout=60, check=True)
    bare_results = json.loads(bare.stdout)
    if bare_results[CHECKED_FROM_OUTSIDE] == "done":
        wait_until_sync(lambda: find_sleep_processes(lasting["bare"]), "the process that was left sleeps")
    left = find_sleep_processes(lasting["bare"])
    for pid in left:
        os.kill(pid, 9)
    _remove_left_files(grounds.workspace)
    outlived = find_sleep_processes(lasting["inside"])
    return AttemptResults(inside, bare_results, without, outlived, left, privileged_inside, privileged_unfiltered)


def _remove_left_files(workspace: Path) -> list[str]:
    """Remove all files that would run with other rights for another user of this machine, and return their names."""
    privileged: list[str] = []
    for path in sorted(workspace.glob("left-*")):
        if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in os.listxattr(path):
            privileged.append(path.name)
        path.rmdir() if path.is_dir() else path.unlink()
    return privileged


class _UnfilteredSandbox(BubblewrapSandbox):
    """The sandbox without its system call filter."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(folder=folder)
        self._seccomp = b"\x06\0\0\0\0\0\xff\x7f"  # a filter that always returns "allow"


async def _run_attempts(sandbox: BubblewrapSandbox, argv: list[str], grounds: SandboxDirectories) -> dict[str, str]:
    output = await run(sandbox, argv, grounds.confinement())
    assert output.exit_status.code == 0, output
    return json.loads(output.text)


@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name != CHECKED_FROM_OUTSIDE])
def test_a_sandboxed_command_is_refused_the_escape_attempt(results: AttemptResults, name: str) -> None:
    assert results.inside[name].startswith("refused: "), results.inside[name]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_the_escape_attempt_succeeds_without_the_protection(results: AttemptResults, name: str) -> None:
    if name in SUCCEEDS_ONLY_FOR_ROOT and os.getuid() != 0:
        pytest.skip("only root could, and we are not")
    assert "done" in (results.bare[name], results.unfiltered[name]), (results.bare[name], results.unfiltered[name])


def test_a_sandboxed_command_leaves_no_process_running(results: AttemptResults) -> None:
    assert results.outlived_bare  # without a sandbox, it does
    assert results.outlived_inside == []


def test_a_sandboxed_command_leaves_no_setuid_or_setgid_file_on_the_host(results: AttemptResults) -> None:
    """Checked from outside, where any user of the machine could run such a file with the rights of the server."""
    assert set(results.privileged_unfiltered) >= {  # without the filter, they are left
        "left-chmod",
        "left-chmod-setgid",
        "left-folder",
        "left-openat",
        "left-openat2",
        "left-unnamed",
        "left-mknod",
        "left-unpacked",
    }
    assert results.privileged_inside == []


def test_a_new_folder_in_the_sandbox_does_not_get_the_requested_setgid_bit(grounds: SandboxDirectories) -> None:
    """The kernel leaves these bits out of a new folder's mode, so the filter need not check mkdir."""
    script = "import os; os.umask(0); os.mkdir('made', 0o6775)"
    output = asyncio.run(run(grounds.bubblewrap(), [PYTHON, "-I", "-c", script], grounds.confinement()))
    assert output.exit_status.code == 0, output
    assert stat.S_IMODE((grounds.workspace / "made").stat().st_mode) == 0o775


ORDINARY_SCRIPT = """
set -e
echo '#!/bin/sh' > tool; chmod +x tool; chmod u=rwx,go=rx tool; ./tool
mkdir -m 1777 -p shared; install -m 755 tool installed; cp -a /usr/bin/env copied; ./copied true
tar -cf all.tar tool shared; mkdir out; tar -xpf all.tar -C out; out/tool
mkdir inherits/deep; cp -r inherits/deep inherits/copy; tar -cf deep.tar inherits; tar -xf deep.tar -C out
"""


def test_ordinary_commands_that_set_file_modes_still_work_in_the_sandbox(grounds: SandboxDirectories) -> None:
    (grounds.workspace / "inherits").mkdir()
    (grounds.workspace / "inherits").chmod(0o2775)  # set by a person, and inherited by new files and folders
    output = asyncio.run(run(grounds.bubblewrap(), ["/bin/sh", "-c", ORDINARY_SCRIPT], grounds.confinement()))
    assert output.exit_status.code == 0, output


def test_there_are_at_least_forty_escape_attempts() -> None:
    assert len(ATTEMPTS) >= 40
