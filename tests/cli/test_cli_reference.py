"""The reference page and the commands agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.cli import errors
from retinue.cli.aliases import ALIASES
from retinue.cli.chat import LOCAL_COMMANDS as CHAT_COMMANDS
from retinue.cli.parser import build_alias_parser

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
SECTIONS = {
    name: section
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)
    for name in re.findall(r"`retinue ([\w-]+)", section.partition("\n")[0])
}


@pytest.mark.parametrize("command", ALIASES)
def test_every_command_is_documented_in_the_cli_reference_with_every_option(command: str) -> None:
    options = {name for action in build_alias_parser(command)._actions for name in action.option_strings} - {
        "-h",
        "--help",
    }
    hidden = {name for name in options if name.startswith("--no-") and name.replace("--no-", "--", 1) in options}

    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", SECTIONS[command].partition("\n    retinue")[0]))
    assert told <= options
    if "operations.md" not in SECTIONS[command]:
        assert options - hidden == told


def test_the_cli_reference_documents_no_unknown_command() -> None:
    later = {"config", "apply", "doctor", "backup", "export"}  # listed before their operations exist
    assert set(ALIASES) <= set(SECTIONS) <= set(ALIASES) | later


def test_every_exit_code_is_documented_in_the_cli_reference() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}

    explained = set(map(int, re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)))
    assert codes <= explained


@pytest.mark.parametrize("line", CHAT_COMMANDS)
def test_every_chat_command_is_documented_in_the_cli_reference(line: str) -> None:
    assert f"`{line}`" in SECTIONS["chat"]
