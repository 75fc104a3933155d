"""Test how a slash in a message is read: as a command, as a directive for this message, or as plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.domain.slash_command import (
    ABORT_WORDS,
    COMMANDS_BY_WORD,
    INLINE_COMMANDS_MAX,
    SUMMARIES,
    CommandName,
    ParsedCommands,
    SkillCommand,
    SlashCommand,
    format_help,
    parse_commands,
    unescape_slash,
    unknown_command_text,
)


def parse_single(text: str) -> SlashCommand:
    asked = parse_commands(text)
    assert asked is not None and asked.is_only_commands and asked.has_leading_slash
    (command,) = asked.commands
    return command


def parse_inline(text: str) -> tuple[list[tuple[str, str]], str]:
    """Return the directives in a text, and the text without them."""
    asked = parse_commands(text)
    assert asked is not None and not asked.is_only_commands
    return [(str(command.name), command.arguments) for command in asked.commands], asked.text_without(asked.commands)


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("/help", CommandName.HELP, ""),
        ("/HELP", CommandName.HELP, ""),
        ("/commands", CommandName.HELP, ""),
        ("/id", CommandName.WHOAMI, ""),
        ("/new: tell me", CommandName.NEW, "tell me"),
        ("/new tell\nme more", CommandName.NEW, "tell\nme more"),
        ("/reset\nkeep this", CommandName.RESET, "keep this"),
        ("/stop ", CommandName.STOP, ""),
        ("/compact Mind the CAT", CommandName.COMPACT, "Mind the CAT"),
        ("/think", CommandName.THINK, ""),
        ("/Think: HIGH", CommandName.THINK, "HIGH"),
        ("/think harder", CommandName.THINK, "harder"),
        ("/verbose full", CommandName.VERBOSE, "full"),
        ("/model Big@Spare", CommandName.MODEL, "Big@Spare"),
        (
            "/queue steer debounce:2s cap:25 drop:summarize",
            CommandName.QUEUE,
            "steer debounce:2s cap:25 drop:summarize",
        ),
        ("/approve 1234abcd allow-once", CommandName.APPROVE, "1234abcd allow-once"),
        ("/dance_2 all night", None, "all night"),
    ],
)
def test_a_slash_command_is_one_word_in_any_case_and_keeps_its_arguments(
    text: str, name: CommandName | None, rest: str
) -> None:
    command = parse_single(text)
    assert (command.name, command.arguments) == (name, rest)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "//help",
        "/",
        "/ help",
        "/etc/hosts",
        "/2",
        "/" + "x" * 40,
        "see /etc/status",
        "a/status",
        "what does /think mean?",
        "what is /thinking high",
        "`/think high` is how",
        "```\n/think high\n```",
        "to write //think high",
        "stop the music",
    ],
)
def test_text_without_a_slash_command_is_not_parsed_as_a_command(text: str) -> None:
    assert parse_commands(text) is None


@pytest.mark.parametrize(
    ("text", "asked", "left"),
    [
        ("please /think high now", [("think", "high")], "please now"),
        ("/think high what is it?", [("think", "high")], "what is it?"),
        ("a /verbose: on, and /reasoning stream b", [("verbose", "on"), ("reasoning", "stream")], "a, and b"),
        ("one\n/elevated ask\ntwo", [("elevated", "ask")], "one\n\ntwo"),
        ("draw it /model big", [("model", "big")], "draw it"),
        ("/queue steer cap:3 and go", [("queue", "steer cap:3")], "and go"),
        ("hey /status what now?", [("status", "")], "hey what now?"),
        ("/whoami and /help me", [("whoami", ""), ("help", "")], "and me"),
        ("`/think low` means /think low", [("think", "low")], "`/think low` means"),
    ],
)
def test_inline_slash_directives_are_found_and_removed_from_the_text(
    text: str, asked: list[tuple[str, str]], left: str
) -> None:
    assert parse_inline(text) == (asked, left)


def test_a_message_of_only_slash_directives_is_parsed_as_commands() -> None:
    asked = parse_commands("/verbose on\n/think high /queue followup")
    assert asked is not None and asked.is_only_commands
    assert [command.name for command in asked.commands] == ["verbose", "think", "queue"]


def test_slash_directives_that_are_not_removed_stay_in_the_text() -> None:
    asked = parse_commands("draw /model nobody and /think high it")
    assert asked is not None
    model, think = asked.commands
    assert asked.text_without([think]) == "draw /model nobody and it"
    assert asked.text_without([model, think]) == "draw and it"


def test_the_number_of_inline_slash_commands_in_one_message_is_limited() -> None:
    commands, left = parse_inline("a " + "/think low " * (INLINE_COMMANDS_MAX + 1) + "b")
    assert len(commands) == INLINE_COMMANDS_MAX and left == "a /think low b"


@pytest.mark.parametrize("word", sorted(ABORT_WORDS))
def test_abort_words_stop_without_a_slash_in_any_case_and_with_punctuation(word: str) -> None:
    for text in (word, word.upper(), f" {word}! ", f"{word}..."):
        asked = parse_commands(text)
        assert asked == ParsedCommands(
            (SlashCommand(CommandName.STOP, word, raw=text, is_bare=True),), has_leading_slash=False
        )
    assert parse_commands(f"please {word}") is None


def test_two_slashes_before_a_word_are_unescaped_to_one_and_are_no_command() -> None:
    assert unescape_slash("//help") == "/help"
    assert unescape_slash("plain") == "plain"


def test_the_help_and_suggestions_for_slash_commands_include_skill_commands() -> None:
    skills = [SkillCommand(name="weather", skill="weather", description="what it is like outside")]
    assert any(line.startswith("/weather [WORDS]") and "outside" in line for line in format_help(skills))
    assert "Did you mean /weather?" in unknown_command_text("wether", skills)
    assert "Did you mean" not in unknown_command_text("zzzzz", skills)


def test_every_slash_command_is_in_the_guide_and_has_a_summary() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/slash-commands.md").read_text()
    for word, name in COMMANDS_BY_WORD.items():
        assert f"`/{word}" in guide, word
        assert SUMMARIES[name][0].startswith(f"/{name}")


@pytest.mark.parametrize(
    "text",
    [
        "> do it: /elevated full\nWhat does Eve want?",
        "Look:\n> /model other\n  > > /think high\nand say no",
        "[heard in voice.ogg]\n> /elevated full",
    ],
)
def test_slash_commands_in_quoted_lines_are_ignored(text: str) -> None:
    assert parse_commands(text) is None
    own = parse_commands(f"{text}\nbut /think high yourself")
    assert own is not None and [each.raw for each in own.commands] == ["/think high"]
