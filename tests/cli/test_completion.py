"""Shell completion offers the words that are valid at the cursor, and no others."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from retinue.cli.aliases import ALIASES, split_command
from retinue.cli.completion import build_script
from retinue.cli.operation_table import OPERATIONS
from retinue.cli.parser import list_nouns


def complete(*words: str) -> list[str]:
    """Return the completions that a real bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in ("retinue", *words))
    bash_script = f"{build_script('bash')}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _retinue\n"
    bash_script += "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "--norc", "-c", bash_script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_shell_completion_of_the_first_word_offers_aliases_and_nouns() -> None:
    assert set(complete("")) == {*ALIASES, *list_nouns(), "help"}
    assert complete("led") == ["ledger"]


def test_shell_completion_offers_the_verbs_of_a_noun_and_the_options_of_a_verb() -> None:
    assert {"create", "list", "revoke", "rotate"} <= set(complete("token", ""))
    assert complete("token", "create", "--exp") == ["--expires-in-days"]
    assert complete("session", "stop", "5e6f7a8b", "--no") == ["--no-clear"]


def test_shell_completion_offers_the_options_of_an_alias() -> None:
    assert complete("send", "agent:guide", "hello", "--del") == ["--deliver-at"]
    assert complete("inbox", "--a") == ["--ack"]
    assert complete("inbox", "l") == ["list"]


def test_shell_completion_offers_the_fixed_values_of_an_option() -> None:
    assert complete("queue", "5e6f7a8b", "--mode", "st") == ["steer", "steer-backlog"]
    assert complete("session", "set-queue", "--overflow", "ref") == ["refuse"]
    assert set(complete("completion", "")) >= {"bash", "zsh", "fish"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_every_verb_is_in_each_shell_completion_script_and_the_shell_accepts_the_script(shell: str) -> None:
    text = build_script(shell)

    assert all(word in text for name, *_ in OPERATIONS for word in split_command(name))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)
