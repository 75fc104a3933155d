"""A hostile command tries everything, once inside a sandbox and once with the protection off.

Each attempt is a test: refused inside, and, so that we know it could have succeeded, done by the same words bare, or in
a sandbox that lacks just the one protection.
"""

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
from sandbox.support import PYTHON, Grounds, make_grounds, place_attempts, run, sleepers, surroundings

from retinue.sandbox.bubblewrap import BubblewrapSandbox

# Bare, they succeed only for root.
FOR_ROOT = frozenset(
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
        "enter-the-houses-network",
        "become-root",
        "have-capabilities",
        "change-the-root-folder",
        "mount-something",
        "type-into-a-terminal",
        "give-the-kernel-a-program",
        "read-the-houses-memory",
        "trace-the-house",
        "leave-a-link-to-a-setuid-program-of-the-system",
        "leave-a-program-with-capabilities",
    }
)

SEEN_FROM_OUTSIDE = "outlive-the-command"  # it cannot know itself what came of it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of every attempt: in the sandbox, bare, and in a sandbox without the filter of calls."""

    inside: dict[str, str]
    bare: dict[str, str]
    unfiltered: dict[str, str]
    outlived_inside: list[int]
    outlived_bare: list[int]
    privileged_inside: list[str]
    privileged_unfiltered: list[str]


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    """Not in /tmp: a sandbox has one of its own, where a command may write what nobody else will ever see."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="retinue-escapes-") as root:
        yield make_grounds(Path(root))


@pytest.fixture(scope="module")
def outcome(grounds: Grounds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    secret = tmp_path_factory.mktemp("open") / "secret"
    secret.write_text("inherited")
    descriptor = os.open(secret, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    os.environ["ESCAPE_SECRET"] = "of the house"
    try:
        with surroundings(grounds) as facts:
            made = _try_everything(grounds, facts)
        yield made
    finally:
        os.close(descriptor)
        del os.environ["ESCAPE_SECRET"]


def _try_everything(grounds: Grounds, facts: dict[str, object]) -> Outcome:
    lasting = {name: f"98.{os.getpid()}{number}" for number, name in enumerate(("inside", "bare", "unfiltered"))}
    commands = {name: place_attempts(grounds, {**facts, "outlives": lasting[name]}, name) for name in lasting}
    unfiltered = _Unfiltered(folder=grounds.state / "sandbox-unfiltered")
    inside = asyncio.run(_run(grounds.bubblewrap(), commands["inside"], grounds))
    privileged_inside = _take_away_what_was_left(grounds.workspace)
    without = asyncio.run(_run(unfiltered, commands["unfiltered"], grounds))
    privileged_unfiltered = _take_away_what_was_left(grounds.workspace)
    bare = subprocess.run(commands["bare"], capture_output=True, text=True, close_fds=False, timeout=60, check=True)
    left = sleepers(lasting["bare"])
    for pid in left:
        os.kill(pid, 9)
    _take_away_what_was_left(grounds.workspace)
    outlived = sleepers(lasting["inside"])
    return Outcome(inside, json.loads(bare.stdout), without, outlived, left, privileged_inside, privileged_unfiltered)


def _take_away_what_was_left(workspace: Path) -> list[str]:
    """What another user of this machine could run with more rights than they have, by name; all of it is removed."""
    privileged: list[str] = []
    for path in sorted(workspace.glob("left-*")):
        if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) or "security.capability" in os.listxattr(path):
            privileged.append(path.name)
        path.rmdir() if path.is_dir() else path.unlink()
    return privileged


class _Unfiltered(BubblewrapSandbox):
    """All walls, and one protection less."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(folder=folder)
        self._seccomp = b"\x06\0\0\0\0\0\xff\x7f"  # a filter that returns: allow


async def _run(sandbox: BubblewrapSandbox, argv: list[str], grounds: Grounds) -> dict[str, str]:
    said = await run(sandbox, argv, grounds.confinement())
    assert said.ended.code == 0, said
    return json.loads(said.text)


@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name != SEEN_FROM_OUTSIDE])
def test_a_command_may_not(outcome: Outcome, name: str) -> None:
    assert outcome.inside[name].startswith("refused: "), outcome.inside[name]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_without_the_protection_it_would(outcome: Outcome, name: str) -> None:
    if name in FOR_ROOT and os.getuid() != 0:
        pytest.skip("only root could, and we are not")
    assert "done" in (outcome.bare[name], outcome.unfiltered[name]), (outcome.bare[name], outcome.unfiltered[name])


def test_a_command_may_not_leave_anything_running(outcome: Outcome) -> None:
    assert outcome.outlived_bare  # bare, it would
    assert outcome.outlived_inside == []


def test_a_command_leaves_no_setuid_or_setgid_file_on_the_host(outcome: Outcome) -> None:
    """Seen from outside, where such a file would run with the rights of the server for any user of the machine."""
    assert set(outcome.privileged_unfiltered) >= {  # without the filter, it would
        "left-chmod",
        "left-chmod-setgid",
        "left-folder",
        "left-openat",
        "left-openat2",
        "left-unnamed",
        "left-mknod",
        "left-unpacked",
    }
    assert outcome.privileged_inside == []


def test_a_folder_is_made_without_the_setgid_bit_that_was_asked_for(grounds: Grounds) -> None:
    """The kernel leaves these bits out of a new folder's mode by itself, so the filter need not look at mkdir."""
    script = "import os; os.umask(0); os.mkdir('made', 0o6775)"
    said = asyncio.run(run(grounds.bubblewrap(), [PYTHON, "-I", "-c", script], grounds.confinement()))
    assert said.ended.code == 0, said
    assert stat.S_IMODE((grounds.workspace / "made").stat().st_mode) == 0o775


ORDINARY = """
set -e
echo '#!/bin/sh' > tool; chmod +x tool; chmod u=rwx,go=rx tool; ./tool
mkdir -m 1777 -p shared; install -m 755 tool installed; cp -a /usr/bin/env copied; ./copied true
tar -cf all.tar tool shared; mkdir out; tar -xpf all.tar -C out; out/tool
mkdir inherits/deep; cp -r inherits/deep inherits/copy; tar -cf deep.tar inherits; tar -xf deep.tar -C out
"""


def test_ordinary_work_with_modes_goes_on(grounds: Grounds) -> None:
    (grounds.workspace / "inherits").mkdir()
    (grounds.workspace / "inherits").chmod(0o2775)  # made by a person, and inherited by what is made in it
    said = asyncio.run(run(grounds.bubblewrap(), ["/bin/sh", "-c", ORDINARY], grounds.confinement()))
    assert said.ended.code == 0, said


def test_there_are_at_least_forty_attempts() -> None:
    assert len(ATTEMPTS) >= 40
