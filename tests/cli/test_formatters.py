"""Output formats: stable JSON keys for programs, tables for people."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from cli.server_process import ServerProcess, command, environment
from cli.test_start import ALIAS_COMMANDS, OPERATION_COMMANDS

from retinue.cli.formatters import format_for_terminal, format_plain, format_table, to_kebab_case

SENTENCE_COMMANDS = {
    "server.ledger",
    "server.why",
    "server.doctor",
    "ledger",
    "why",
    "doctor",
    "audit.verify",
    "audit.export",
}  # these print sentences
KEY = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*:( |$)")


@pytest.mark.spec("H78")
@pytest.mark.parametrize(
    "words",
    [words for words in (*ALIAS_COMMANDS, *OPERATION_COMMANDS) if words[0] not in ("chat", "join")],
    ids=lambda words: "-".join(words[:2]),
)
def test_every_command_prints_kebab_case_keys_or_exits_1_with_an_error_line(
    server: ServerProcess, words: list[str]
) -> None:
    completed = server.retinue(*words)

    if completed.returncode == 0:
        keys = [line for line in completed.stdout.splitlines() if line and not line.startswith(" ")]
        assert (
            words[0] in SENTENCE_COMMANDS
            or ".".join(words[:2]) in SENTENCE_COMMANDS
            or all(KEY.match(line) for line in keys)
        ), completed.stdout
        assert keys
        assert completed.stderr == ""
    else:
        assert completed.returncode == 1
        assert re.match(r"error: .+ \[[a-z_]+\.[a-z_]+\]\n", completed.stderr)
        assert completed.stdout == "" or "doctor" in words, "a command that finds problems prints both"


@pytest.mark.parametrize(
    ("key", "shown"),
    [("sessionId", "session-id"), ("created_at", "created-at"), ("reply_to", "reply-to"), ("text", "text")],
)
def test_commands_print_keys_in_kebab_case_whatever_the_api_calls_them(key: str, shown: str) -> None:
    assert to_kebab_case(key) == shown


def test_the_plain_formatter_prints_a_response_as_keys_and_values() -> None:
    form = {
        "people": [{"name": "maria", "role": "member"}, {"name": "gus", "role": "guest"}],
        "total": 2,
        "queue": {"mode": "steer", "cap": None},
        "tags": ["a", "b"],
        "none": [],
        "words": "one\ntwo",
    }

    assert format_plain(form) == [
        "name: maria",
        "role: member",
        "",
        "name: gus",
        "role: guest",
        "",
        "total: 2",
        "queue:",
        "  mode: steer",
        "  cap: none",
        "tags: a, b",
        "none: none",
        "words:",
        "  one",
        "  two",
    ]


def test_a_table_printed_at_a_terminal_has_one_line_per_row_and_truncates_long_cells() -> None:
    rows = [
        {"id": "0123456789abcdef0123456789abcdef", "label": "laptop", "kept": True, "note": "", "tags": ["a"]},
        {"id": "ab", "label": "x" * 80, "kept": False, "note": None, "tags": []},
    ]

    assert format_table(rows, 60) == [
        f"id        {'label':<38}  kept  tags",
        f"01234567  {'laptop':<38}  yes   (1)",
        f"ab        {'x' * 37}…  no",
    ]
    assert all(len(line) <= 24 for line in format_table(rows, 24))


def test_envelope_lists_formatted_for_a_terminal_show_sender_and_recipient() -> None:
    letter = {"id": "ab", "short": "ab", "from": "agent:ada", "to": "person:maria", "kind": "mail", "status": "done"}
    form = {"envelopes": [{**letter, "accepted_at": "today", "text": "Lunch\nat one"}], "unread": 1}

    assert format_for_terminal("inbox.list", form, 100) == [
        "id  from       to            status  accepted-at  text",
        "ab  agent:ada  person:maria  done    today        Lunch at one",
        "",
        "unread: 1",
    ]


@pytest.mark.parametrize(("settings", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_commands_print_tables_and_colors_only_at_a_terminal(
    server: ServerProcess, settings: dict[str, str], coloured: bool
) -> None:
    env = {**environment(server.home), "TERM": "xterm", **settings}
    env = {name: value for name, value in env.items() if name != "NO_COLOR" or name in settings}
    seen = run_at_terminal(env, "person", "list")
    refused = run_at_terminal(env, "show", "00000000")

    assert re.search(r"^name +role +level\r?$", seen, re.MULTILINE)
    assert server.retinue("person", "list").stdout.startswith("name: owner\nrole: owner\n")
    assert ("\x1b[" in refused) == coloured
    assert "\x1b[" not in seen


def run_at_terminal(env: dict[str, str], *words: str) -> str:
    """Run a command at a terminal and return its output."""
    watching, there = pty.openpty()
    try:
        subprocess.run(command(*words), stdin=there, stdout=there, stderr=there, env=env, check=False, timeout=60)
        os.close(there)
        seen = b""
        while True:
            try:
                if not (heard := os.read(watching, 65536)):
                    break
            except OSError:  # Linux raises this error when the other end is closed
                break
            seen += heard
        return seen.decode()
    finally:
        os.close(watching)


def test_an_agent_uses_the_command_line_with_its_own_token(server: ServerProcess) -> None:
    token = server.json("agent", "register", "clara", "--model", "guide", "--token")["token"]
    mine = {"RETINUE_TOKEN": token}

    assert "address: agent:clara\n" in server.retinue("person", "whoami", env=mine).stdout
    sent = server.retinue("send", "person:owner", "Good morning", env=mine)
    assert sent.returncode == 0, sent.stderr
    inbox = server.json("inbox")["envelopes"]
    assert ("agent:clara", "Good morning") in {(mail["from"], mail["text"]) for mail in inbox}
    refused = server.retinue("person", "invite", "maria", env=mine)
    assert refused.returncode == 1
    assert "[permission.denied]" in refused.stderr


def test_a_command_repeated_with_one_idempotency_key_takes_effect_once(server: ServerProcess) -> None:
    first = server.json("token", "create", "--label", "laptop", "--key", "k-once")
    again = server.json("token", "create", "--label", "laptop", "--key", "k-once")
    other = server.retinue("token", "create", "--label", "phone", "--key", "k-once")

    secret = first.pop("token")
    assert again == {**first, "shown_once": ["token"]}
    assert secret not in str(again)
    assert "[key.reused]" in other.stderr
    assert "[key.invalid]" in server.retinue("token", "create", "--key", "two\nlines").stderr


def test_the_envelope_list_command_pages_long_lists(server: ServerProcess) -> None:
    for number in range(3):
        server.json("send", "person:owner", f"letter {number}")
    listed = ["envelope", "list", "--to", "person:owner", "--status", "done", "--limit", "2"]
    first = server.json(*listed)["envelopes"]
    second = server.json(*listed, "--before", first[-1]["id"])["envelopes"]

    assert len(first) == 2
    assert second
    assert not {mail["id"] for mail in first} & {mail["id"] for mail in second}


def test_the_envelope_send_command_keeps_the_names_of_attachments(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("words")
    sent = server.json("envelope", "send", "agent:guide", "hello", "--attach", str(tmp_path / "note.txt"))

    [attachment] = server.json("envelope", "show", sent["envelope"])["attachments"]
    assert attachment["name"] == "note.txt"
