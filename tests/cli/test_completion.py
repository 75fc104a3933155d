"""Shells complete what can be typed, and nothing else."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from retinue.cli.aliases import ALIASES
from retinue.cli.completion import build_script
from retinue.cli.operation_table import OPERATIONS
from retinue.cli.parser import list_nouns


def completed(*words: str) -> list[str]:
    """What a real bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in ("retinue", *words))
    asking = f"{build_script('bash')}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _retinue\n"
    asking += "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "--norc", "-c", asking], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_first_word_is_a_short_name_or_a_noun() -> None:
    assert set(completed("")) == {*ALIASES, *list_nouns(), "help"}
    assert completed("led") == ["ledger"]


def test_behind_a_noun_come_its_verbs_and_behind_them_its_options() -> None:
    assert {"create", "list", "revoke", "rotate"} <= set(completed("token", ""))
    assert completed("token", "create", "--exp") == ["--expires-in-days"]
    assert completed("session", "stop", "5e6f7a8b", "--no") == ["--no-clear"]


def test_behind_a_short_name_come_its_options() -> None:
    assert completed("send", "agent:guide", "hello", "--del") == ["--deliver-at"]
    assert completed("inbox", "--a") == ["--ack"]
    assert completed("inbox", "l") == ["list"]


def test_an_option_of_a_few_words_offers_them() -> None:
    assert completed("queue", "5e6f7a8b", "--mode", "st") == ["steer", "steer-backlog"]
    assert completed("session", "queue", "--overflow", "ref") == ["refuse"]
    assert set(completed("completion", "")) >= {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_every_verb_is_in_the_script_of_each_shell_and_the_shell_can_read_it(shell: str) -> None:
    text = build_script(shell)

    assert all(noun in text and verb in text for noun, verb, *_ in OPERATIONS)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)
