"""Agents call the command all day: it must not load what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.house_process import HouseProcess, environment

from retinue.cli.parser import COMMANDS

# Each costs more than the rest of a command together, or belongs to the other side of the socket.
HEAVY = {
    "asyncio",
    "dataclasses",
    "email",
    "http",
    "inspect",
    "logging",
    "msgspec",
    "selectors",
    "shutil",
    "socket",
    "sqlalchemy",
    "starlette",
    "subprocess",
    "threading",
    "typing",
    "urllib",
    "uvicorn",
}
WORDS = {
    "chat": ["--once", "hello"],
    "send": ["agent:guide", "hello"],
    "reset": ["00000000", "words"],
    "queue": ["00000000", "--mode", "steer"],
    "dead": [],
    "ledger": [],
    "sessions": [],
    "status": [],
}
_RUN = """
import json, sys
from retinue.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


def loaded_by(house: HouseProcess, *words: str) -> tuple[int, set[str]]:
    """What a command had loaded when it ended."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _RUN, *words], env=environment(house.home), capture_output=True, check=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_a_command_loads_nothing_of_the_house_and_nothing_heavy(house: HouseProcess, command: str) -> None:
    code, modules = loaded_by(house, command, *WORDS.get(command, ["00000000"]))

    assert code in (0, 1)
    assert "_socket" in modules, "it spoke to the house"
    assert not modules & HEAVY
    assert {name for name in modules if name.startswith("retinue.")} == {
        name for name in modules if name == "retinue.cli" or name.startswith("retinue.cli.")
    }


def test_a_mistyped_command_does_not_even_open_a_socket(house: HouseProcess) -> None:
    code, modules = loaded_by(house, "sned")

    assert code == 2
    assert not modules & (HEAVY | {"_socket", "retinue.cli.client"})


def test_the_version_needs_neither_a_parser_nor_a_socket() -> None:
    script = "import sys; from retinue.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, check=True, text=True)

    assert not set(done.stdout.split()) & (HEAVY | {"argparse", "_socket", "json", "re"})
