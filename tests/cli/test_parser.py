"""The command line parser: valid commands, and errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue import __version__
from retinue.cli.aliases import ALIASES, NOUN_SUMMARIES, split_command
from retinue.cli.errors import UsageError
from retinue.cli.help import EXIT_CODES_TEXT, format_noun, format_overview
from retinue.cli.main import main
from retinue.cli.operation_table import OPERATIONS
from retinue.cli.parser import (
    NULL,
    build_alias_parser,
    build_operation_parser,
    find_operation,
    list_nouns,
    list_verbs,
    parse_arguments,
    to_dest,
)


def test_the_help_overview_of_the_command_line_names_every_command_and_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert shown == format_overview()
    assert all(f"\n  {name} " in shown for name in [*ALIASES, *list_nouns()])
    assert EXIT_CODES_TEXT in shown


@pytest.mark.parametrize("words", [[], ["help"], ["-h"]])
def test_the_help_overview_is_shown_without_arguments_and_by_the_help_options(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == format_overview()


def test_the_version_option_of_the_command_line_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"retinue {__version__}\n"


@pytest.mark.parametrize("command", ALIASES)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])

    shown = capsys.readouterr().out
    _, summary, examples, *_ = ALIASES[command]
    assert left.value.code == 0
    assert summary in shown
    assert all(line in shown for line in examples.split("\n"))


@pytest.mark.parametrize("command", ALIASES)
def test_every_example_in_the_help_of_a_command_can_be_parsed(command: str) -> None:
    import shlex

    _, _, examples, *_ = ALIASES[command]
    for line in examples.split("\n"):
        typed = line.partition(" < ")[0].partition(" > ")[0].rpartition(" | ")[2]
        typed = typed.removeprefix('eval "$(').removesuffix(')"')
        words = [word for word in shlex.split(typed) if not word.startswith("RETINUE_")]
        assert words[0] == "retinue"
        assert parse_arguments(words[1:]).command == command


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["sned", "agent:guide", "hello"],
            [
                "error: no command named 'sned': did you mean 'send'? [usage.unknown_command]",
                "because: this is neither a command nor a noun",
                "try: retinue send",
            ],
        ),
        (
            ["tokn", "list"],
            [
                "error: no command named 'tokn': did you mean 'token'? [usage.unknown_command]",
                "because: this is neither a command nor a noun",
                "try: retinue token",
            ],
        ),
        (
            ["forgett", "maria"],
            [
                "error: no command named 'forgett': did you mean 'person forget'? [usage.unknown_command]",
                "because: this is neither a command nor a noun",
                "try: retinue person forget",
            ],
        ),
        (
            ["token", "crate"],
            [
                "error: no command named 'token crate': did you mean 'token create'? [usage.unknown_command]",
                f"because: the verbs of token are {', '.join(list_verbs('token'))}",
                "try: retinue token create",
            ],
        ),
        (
            ["zzz"],
            [
                "error: no command named 'zzz' [usage.unknown_command]",
                "because: this is neither a command nor a noun",
                "try: retinue --help",
            ],
        ),
        (
            ["completion", "bsh"],
            [
                "error: invalid value for SHELL: 'bsh' [usage.invalid]",
                "because: it must be one of bash, zsh, fish",
                "try: retinue completion bash",
            ],
        ),
        (
            ["status", "--jsno"],
            [
                "error: unrecognized arguments: --jsno [usage.invalid]",
                "because: retinue status has no such option or argument",
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
                "error: invalid value for --mode: 'colect' [usage.invalid]",
                "because: it must be one of collect, followup, steer, steer-backlog, interrupt",
                "try: --mode collect",
            ],
        ),
        (
            ["dead", "--limit", "many"],
            [
                "error: argument --limit: invalid int value: 'many' [usage.invalid]",
                "because: the command line is invalid",
                "try: retinue dead --help",
            ],
        ),
    ],
)
def test_an_invalid_command_is_refused_with_the_reason_and_the_probable_command(
    words: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2

    captured = capsys.readouterr()
    assert captured.err.splitlines() == lines
    assert not captured.out


def test_command_line_options_cannot_be_abbreviated() -> None:
    with pytest.raises(UsageError):
        build_alias_parser("send").parse_args(["agent:guide", "hello", "--deliver", "+1h"])


# --- declared operations ---


@pytest.mark.parametrize("noun", list_nouns())
def test_a_command_with_a_noun_alone_lists_the_verbs_of_the_noun(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = format_noun(noun)

    assert all(f"\n  {verb}" in shown for verb in list_verbs(noun))
    assert noun in NOUN_SUMMARIES, "describe it in shorts.NOUNS"
    if noun not in ALIASES:
        assert main([noun]) == 0
        assert capsys.readouterr().out == shown


@pytest.mark.parametrize("words", [["help", "envelope", "list"], ["envelope", "list", "-h"]])
def test_the_help_of_an_operation_is_shown_by_the_help_command_and_by_the_help_option(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)

    assert left.value.code == 0
    assert "usage: retinue envelope list [-h]" in capsys.readouterr().out


def test_no_command_alias_hides_a_noun_with_verbs() -> None:
    for name, *_ in OPERATIONS:
        assert parse_arguments([*split_command(name), *_required_arguments(name)]).operation == name


def _required_arguments(name: str) -> list[str]:
    words: list[str] = []
    for _, option, kind, marks, _, choices, _ in find_operation(name)[4]:
        if "required" in marks and "nullable" not in marks:
            value = choices[0] if choices else "1"
            words += [value] if "positional" in marks else [option] if kind == "boolean" else [option, value]
    return words


def test_a_command_line_option_that_was_not_typed_is_parsed_as_none() -> None:
    options = parse_arguments(["session", "set-queue", "5e6f7a8b"])

    assert vars(options)[to_dest("session")] == "5e6f7a8b"
    assert vars(options)[to_dest("mode")] is None


def test_a_boolean_command_line_option_has_a_positive_and_a_negative_form() -> None:
    assert vars(parse_arguments(["session", "stop", "5e6f7a8b", "--no-clear"]))[to_dest("clear")] is False
    assert vars(parse_arguments(["session", "stop", "5e6f7a8b", "--clear"]))[to_dest("clear")] is True
    with pytest.raises(UsageError, match="one of the arguments --allow --no-allow is required"):
        parse_arguments(["approval", "answer", "9c8d7e6f"])


def test_command_line_options_of_every_kind_are_parsed_and_null_differs_from_a_missing_value() -> None:
    parameters = (
        ("name", "--name", "text", "required nullable", None, (), "its name"),
        ("tags", "--tags", "text", "repeated", None, (), "words"),
        ("attributes", "--attributes", "json", "", None, (), "values"),
        ("cost", "--cost", "decimal", "", 1.5, (), "100% of it"),
    )
    parser = build_operation_parser(("thing.make", "Make a thing.", True, "boss", parameters))

    taken = vars(
        parser.parse_args(["--no-name", "--tags", "a", "--tags", "b", "--attributes", '{"a": 1}', "--cost", "2"])
    )
    assert taken[to_dest("name")] is NULL
    assert taken[to_dest("tags")] == ["a", "b"]
    assert taken[to_dest("attributes")] == {"a": 1}
    assert taken[to_dest("cost")] == 2.0
    assert vars(parser.parse_args([]))[to_dest("name")] is None
    assert "100% of it (default: 1.5)" in parser.format_help()
    with pytest.raises(UsageError, match="is not valid JSON"):
        parser.parse_args(["--attributes", "{"])


def test_the_json_value_of_a_command_line_option_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "patch.json").write_text('{"colour": "grün"}')
    typed = ["session", "attributes", "5e6f7a8b"]

    assert vars(parse_arguments([*typed, "--patch", f"@{tmp_path}/patch.json"]))[to_dest("patch")] == {"colour": "grün"}
    with pytest.raises(UsageError, match="cannot read"):
        parse_arguments([*typed, "--patch", f"@{tmp_path}/nothing.json"])
