"""The command starts fast: it does not load modules that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.server_process import ServerProcess, environment

from retinue.cli.aliases import ALIASES, split_command
from retinue.cli.operation_table import OPERATIONS

# Each costs more than the rest of a command together, or belongs to the server.
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
LOCAL_ALIASES = {
    "up",
    "down",
    "run",
    "logs",
    "dry-run",
    "restore",
    "service",
    "completion",
    "version",
}  # these do not call the server, or do more than that
ALIAS_ARGUMENTS = {
    "chat": ["--once", "hello"],
    "send": ["agent:guide", "hello"],
    "reset": ["00000000", "words"],
    "queue": ["00000000", "--mode", "steer"],
    "allow": ["00000000"],
    "deny": ["00000000"],
}
_PRINT_MODULES_PROGRAM = """
import json, sys
from retinue.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


def list_loaded_modules(server: ServerProcess, *words: str) -> tuple[int, set[str]]:
    """The modules that a command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PRINT_MODULES_PROGRAM, *words],
        env=environment(server.home),
        capture_output=True,
        check=True,
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


def build_minimal_command(name: str) -> list[str]:
    """The shortest valid command for an operation."""
    words = [*split_command(name)]
    [parameters] = [each[4] for each in OPERATIONS if each[0] == name]
    for _, option, kind, marks, _, choices, _ in parameters:
        if "required" in marks and "positional" in marks:
            words.append("00000000")
        elif "required" in marks and "nullable" not in marks:
            value = choices[0] if choices else "{}" if kind == "json" else "1"
            words += [option] if kind == "boolean" else [option, value]
    return words


ALIAS_COMMANDS = [
    [name, *ALIAS_ARGUMENTS.get(name, build_minimal_command(short[0])[2:])]
    for name, short in ALIASES.items()
    if short[0]
]
ALIAS_COMMANDS += [["chat", *ALIAS_ARGUMENTS["chat"]], ["join", "made-up"]]
OPERATION_COMMANDS = [build_minimal_command(name) for name, *_ in OPERATIONS]


@pytest.mark.parametrize("words", ALIAS_COMMANDS + OPERATION_COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_the_start_of_a_command_loads_no_server_code_and_no_heavy_module(
    server: ServerProcess, words: list[str]
) -> None:
    code, modules = list_loaded_modules(server, *words)

    assert code in (0, 1)
    assert "_socket" in modules, "it called the server"
    assert not modules & HEAVY
    assert {name for name in modules if name.startswith("retinue.")} == {
        name for name in modules if name == "retinue.cli" or name.startswith("retinue.cli.")
    }


def test_the_start_of_every_command_alias_is_tested_or_the_alias_is_listed_as_local() -> None:
    assert {words[0] for words in ALIAS_COMMANDS} | LOCAL_ALIASES == set(ALIASES)


def test_a_mistyped_command_opens_no_socket(server: ServerProcess) -> None:
    code, modules = list_loaded_modules(server, "sned")

    assert code == 2
    assert not modules & (HEAVY | {"_socket", "retinue.cli.client"})


def test_the_version_option_of_the_command_line_loads_no_parser_and_no_socket() -> None:
    script = "import sys; from retinue.cli.main import main; main(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, check=True, text=True)

    assert not set(done.stdout.split()) & (HEAVY | {"argparse", "_socket", "json", "re"})
