"""What can be typed, and what is said about what cannot."""

from __future__ import annotations

import pytest

from retinue import __version__
from retinue.cli.errors import UsageError
from retinue.cli.main import main
from retinue.cli.parser import COMMANDS, EXITS, build, overview, parse


def test_the_overview_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert shown == overview()
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert EXITS in shown


@pytest.mark.parametrize("words", [[], ["help"], ["-h"]])
def test_the_overview_is_found_in_several_ways(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == overview()


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"retinue {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])

    shown = capsys.readouterr().out
    summary, examples = COMMANDS[command]
    assert left.value.code == 0
    assert summary in shown
    assert all(line in shown for line in examples.split("\n"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_can_be_parsed(command: str) -> None:
    import shlex

    _, examples = COMMANDS[command]
    for line in examples.split("\n"):
        typed = line.partition(" < ")[0].rpartition(" | ")[2]
        words = [word for word in shlex.split(typed) if not word.startswith("RETINUE_HOME=")]
        assert words[0] == "retinue"
        assert parse(words[1:]).command == command


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["sned", "agent:guide", "hello"],
            [
                "error: there is no command 'sned' [usage.unknown-command]",
                f"because: the commands are {', '.join(COMMANDS)}",
                "try: retinue send",
            ],
        ),
        (
            ["zzz"],
            [
                "error: there is no command 'zzz' [usage.unknown-command]",
                f"because: the commands are {', '.join(COMMANDS)}",
                "try: retinue --help",
            ],
        ),
        (
            ["status", "--jsno"],
            [
                "error: unrecognized arguments: --jsno [usage.invalid]",
                "because: retinue status takes no such words",
                "try: retinue status --json",
            ],
        ),
        (
            ["show"],
            [
                "error: the following arguments are required: ID [usage.invalid]",
                "because: usage: retinue show [-h] [--json] ID",
                "try: retinue show --help",
            ],
        ),
        (
            ["queue", "5e6f7a8b", "--mode", "colect"],
            [
                "error: --mode cannot be 'colect' [usage.invalid]",
                "because: it is one of collect, followup, steer, steer-backlog, interrupt",
                "try: --mode collect",
            ],
        ),
        (
            ["dead", "--limit", "many"],
            [
                "error: argument --limit: invalid int value: 'many' [usage.invalid]",
                "because: the words do not fit",
                "try: retinue dead --help",
            ],
        ),
    ],
)
def test_what_cannot_be_understood_is_said_with_what_was_probably_meant(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2

    said = capsys.readouterr()
    assert said.err.splitlines() == lines
    assert not said.out


def test_options_cannot_be_shortened_so_that_new_ones_break_no_script() -> None:
    with pytest.raises(UsageError):
        build("send").parse_args(["agent:guide", "hello", "--deliver", "+1h"])
