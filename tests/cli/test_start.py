"""Agents call the command all day: it must not load what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.server_process import HouseProcess, environment

from retinue.cli.aliases import ALIASES
from retinue.cli.operation_table import OPERATIONS

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
LOCAL = {
    "up",
    "down",
    "run",
    "logs",
    "rehearse",
    "restore",
    "service",
    "completion",
    "version",
}  # these do not speak to the house, or do more than that
WORDS = {
    "chat": ["--once", "hello"],
    "send": ["agent:guide", "hello"],
    "reset": ["00000000", "words"],
    "queue": ["00000000", "--mode", "steer"],
    "allow": ["00000000"],
    "deny": ["00000000"],
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


def words_for(noun: str, verb: str) -> list[str]:
    """The least that can be typed for an operation."""
    words = [noun, verb]
    [parameters] = [each[5] for each in OPERATIONS if each[:2] == (noun, verb)]
    for _, option, kind, marks, _, choices, _ in parameters:
        if "required" in marks and "place" in marks:
            words.append("00000000")
        elif "required" in marks and "nullable" not in marks:
            value = choices[0] if choices else "{}" if kind == "json" else "1"
            words += [option] if kind == "flag" else [option, value]
    return words


TYPED = [[name, *WORDS.get(name, words_for(*short[0].split("."))[2:])] for name, short in ALIASES.items() if short[0]]
TYPED += [["chat", *WORDS["chat"]], ["join", "made-up"]]
SPOKEN = [words_for(noun, verb) for noun, verb, *_ in OPERATIONS]


@pytest.mark.parametrize("words", TYPED + SPOKEN, ids=lambda words: "-".join(words[:2]))
def test_a_command_loads_nothing_of_the_house_and_nothing_heavy(house: HouseProcess, words: list[str]) -> None:
    code, modules = loaded_by(house, *words)

    assert code in (0, 1)
    assert "_socket" in modules, "it spoke to the house"
    assert not modules & HEAVY
    assert {name for name in modules if name.startswith("retinue.")} == {
        name for name in modules if name == "retinue.cli" or name.startswith("retinue.cli.")
    }


def test_every_short_name_is_looked_at() -> None:
    assert {words[0] for words in TYPED} | LOCAL == set(ALIASES)


def test_a_mistyped_command_does_not_even_open_a_socket(house: HouseProcess) -> None:
    code, modules = loaded_by(house, "sned")

    assert code == 2
    assert not modules & (HEAVY | {"_socket", "retinue.cli.client"})


def test_the_version_needs_neither_a_parser_nor_a_socket() -> None:
    script = "import sys; from retinue.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, check=True, text=True)

    assert not set(done.stdout.split()) & (HEAVY | {"argparse", "_socket", "json", "re"})
