"""How answers read: stable keys for whoever looks for them, tables for whoever sits at a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from cli.server_process import HouseProcess, command, environment
from cli.test_start import SPOKEN, TYPED

from retinue.cli.formatters import format_for_terminal, format_plain, format_table, to_kebab_case

TELLS = {
    "house.ledger",
    "house.why",
    "house.doctor",
    "ledger",
    "why",
    "doctor",
    "audit.verify",
    "audit.export",
}  # these answer in sentences
KEY = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*:( |$)")


@pytest.mark.spec("H78")
@pytest.mark.parametrize(
    "words",
    [words for words in (*TYPED, *SPOKEN) if words[0] not in ("chat", "join")],
    ids=lambda words: "-".join(words[:2]),
)
def test_every_command_prints_kebab_case_keys_or_exits_1_with_an_error_line(
    house: HouseProcess, words: list[str]
) -> None:
    told = house.retinue(*words)

    if told.returncode == 0:
        keys = [line for line in told.stdout.splitlines() if line and not line.startswith(" ")]
        assert words[0] in TELLS or ".".join(words[:2]) in TELLS or all(KEY.match(line) for line in keys), told.stdout
        assert keys
        assert told.stderr == ""
    else:
        assert told.returncode == 1
        assert re.match(r"error: .+ \[[a-z_]+\.[a-z_]+\]\n", told.stderr)
        assert told.stdout == "" or "doctor" in words, "who finds problems says both"


@pytest.mark.parametrize(
    ("key", "shown"),
    [("sessionId", "session-id"), ("created_at", "created-at"), ("reply-to", "reply-to"), ("text", "text")],
)
def test_keys_are_shown_in_kebab_case_whatever_the_answer_calls_them(key: str, shown: str) -> None:
    assert to_kebab_case(key) == shown


def test_any_answer_reads_as_keys_and_values() -> None:
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


def test_a_table_has_a_line_a_row_and_cuts_what_does_not_fit() -> None:
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


def test_lists_of_mail_show_who_wrote_to_whom() -> None:
    letter = {"id": "ab", "short": "ab", "from": "agent:ada", "to": "person:maria", "kind": "mail", "status": "done"}
    form = {"envelopes": [{**letter, "accepted-at": "today", "text": "Lunch\nat one"}], "unread": 1}

    assert format_for_terminal("inbox.list", form, 100) == [
        "id  from       to            status  accepted-at  text",
        "ab  agent:ada  person:maria  done    today        Lunch at one",
        "",
        "unread: 1",
    ]


@pytest.mark.parametrize(("settings", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_tables_and_colours_are_for_terminals(house: HouseProcess, settings: dict[str, str], coloured: bool) -> None:
    env = {**environment(house.home), "TERM": "xterm", **settings}
    env = {name: value for name, value in env.items() if name != "NO_COLOR" or name in settings}
    seen = at_terminal(env, "person", "list")
    refused = at_terminal(env, "show", "00000000")

    assert re.search(r"^name +role +level\r?$", seen, re.MULTILINE)
    assert house.retinue("person", "list").stdout.startswith("name: owner\nrole: owner\n")
    assert ("\x1b[" in refused) == coloured
    assert "\x1b[" not in seen


def at_terminal(env: dict[str, str], *words: str) -> str:
    """What a command prints where someone watches."""
    watching, there = pty.openpty()
    try:
        subprocess.run(command(*words), stdin=there, stdout=there, stderr=there, env=env, check=False, timeout=60)
        os.close(there)
        seen = b""
        while True:
            try:
                if not (heard := os.read(watching, 65536)):
                    break
            except OSError:  # Linux says so when nobody has the other end any more
                break
            seen += heard
        return seen.decode()
    finally:
        os.close(watching)


def test_an_agent_asks_with_a_token_of_its_own(house: HouseProcess) -> None:
    token = house.json("agent", "register", "clara", "--model", "guide", "--token")["token"]
    mine = {"RETINUE_TOKEN": token}

    assert "address: agent:clara\n" in house.retinue("person", "whoami", env=mine).stdout
    sent = house.retinue("send", "person:owner", "Good morning", env=mine)
    assert sent.returncode == 0, sent.stderr
    inbox = house.json("inbox")["envelopes"]
    assert ("agent:clara", "Good morning") in {(mail["from"], mail["text"]) for mail in inbox}
    refused = house.retinue("person", "invite", "maria", env=mine)
    assert refused.returncode == 1
    assert "[permission.denied]" in refused.stderr


def test_an_effect_that_is_asked_for_twice_with_one_key_happens_once(house: HouseProcess) -> None:
    first = house.json("token", "create", "--label", "laptop", "--key", "k-once")
    again = house.json("token", "create", "--label", "laptop", "--key", "k-once")
    other = house.retinue("token", "create", "--label", "phone", "--key", "k-once")

    secret = first.pop("token")
    assert again == {**first, "shown-once": ["token"]}
    assert secret not in str(again)
    assert "[key.reused]" in other.stderr
    assert "[key.invalid]" in house.retinue("token", "create", "--key", "two\nlines").stderr


def test_long_lists_come_in_pages(house: HouseProcess) -> None:
    for number in range(3):
        house.json("send", "person:owner", f"letter {number}")
    listed = ["envelope", "list", "--to", "person:owner", "--status", "done", "--limit", "2"]
    first = house.json(*listed)["envelopes"]
    second = house.json(*listed, "--before", first[-1]["id"])["envelopes"]

    assert len(first) == 2
    assert second
    assert not {mail["id"] for mail in first} & {mail["id"] for mail in second}


def test_files_attached_keep_their_names_also_by_the_long_command(house: HouseProcess, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("words")
    sent = house.json("envelope", "send", "agent:guide", "hello", "--attach", str(tmp_path / "note.txt"))

    [attachment] = house.json("envelope", "show", sent["envelope"])["attachments"]
    assert attachment["name"] == "note.txt"
