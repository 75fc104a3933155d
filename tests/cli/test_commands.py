"""Each command, asked of a real house: what it says to people, what it gives to programs, and how it fails."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import HouseProcess, command, environment

from retinue.cli.client import ApiError, call
from retinue.testing.wait_conditions import wait_until_sync


@pytest.fixture
def at_home(house: HouseProcess, monkeypatch: pytest.MonkeyPatch) -> HouseProcess:
    """The same house, for calls from this very process."""
    monkeypatch.setenv("RETINUE_HOME", str(house.home))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    return house


def settled(house: HouseProcess, envelope: str) -> dict[str, Any]:
    """The envelope once it is done."""
    wait_until_sync(lambda: house.json("show", envelope)["status"] == "done", "the envelope is done")
    return house.json("show", envelope)


def fields(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition(": ") for line in text.splitlines())}


def parked(house: HouseProcess, name: str) -> tuple[str, str]:
    """An envelope of the clerk's whose run waits for a person, and the approval it waits for."""
    sent = house.json("send", "agent:clerk", "read SOUL.md", "--conversation", name)
    asked = wait_until_sync(lambda: [a for a in house.json("status")["approvals"] if a["calls"]], "somebody asks")
    return sent["envelope"], asked[-1]["id"]


def test_an_envelope_is_sent_and_shown_to_people_in_short_ids(house: HouseProcess) -> None:
    sent = fields(house.retinue("send", "agent:guide", "echo good day", "--conversation", "show").stdout)
    assert [len(sent[key]) for key in ("envelope", "session")] == [8, 8]

    settled(house, sent["envelope"])
    shown = fields(house.retinue("show", sent["envelope"]).stdout)
    assert shown["id"] == sent["envelope"]
    assert shown["from"] == "person:owner"
    assert shown["to"] == f"agent:guide/{sent['session']}"
    assert (shown["status"], shown["outcome"], shown["text"]) == ("done", "answered", "echo good day")


@pytest.mark.spec("H20")
def test_ids_are_shown_as_eight_digits_and_taken_as_any_longer_prefix_or_a_uuid(house: HouseProcess) -> None:
    id_ = house.json("send", "agent:guide", "hello", "--conversation", "ids")["envelope"]
    uuid = "-".join((id_[:8], id_[8:12], id_[12:16], id_[16:20], id_[20:])).upper()

    for typed in (id_[:8], id_[:13], id_, uuid):
        assert fields(house.retinue("show", typed).stdout)["id"] == id_[:8]
    assert house.retinue("show", id_[:7]).returncode == 1


def test_programs_are_given_the_answer_of_the_api(house: HouseProcess) -> None:
    sent = house.json("send", "agent:guide", "hello", "--conversation", "json")

    assert len(sent["envelope"]) == 32
    assert sent["duplicate"] is False


def test_words_come_by_stdin_without_the_line_end_behind_them(house: HouseProcess) -> None:
    words = "echo Grüße\naus 日本 \x1b[2J"
    done = house.retinue("send", "agent:guide", "-", "--conversation", "stdin", "--json", stdin=words + "\n")

    assert house.json("show", json.loads(done.stdout)["envelope"])["text"] == words


def test_several_lines_are_shown_as_a_block(house: HouseProcess) -> None:
    id_ = house.json("send", "agent:guide", "echo one\ntwo", "--conversation", "block")["envelope"]

    assert house.retinue("show", id_).stdout.endswith("text:\n  echo one\n  two\n")


def test_the_same_key_is_accepted_once_and_other_words_under_it_are_refused(house: HouseProcess) -> None:
    first = house.json("send", "agent:guide", "hello", "--key", "k-1", "--conversation", "key")
    again = house.json("send", "agent:guide", "hello", "--key", "k-1", "--conversation", "key")
    other = house.retinue("send", "agent:guide", "other", "--key", "k-1", "--conversation", "key")

    assert (again["envelope"], again["duplicate"]) == (first["envelope"], True)
    assert other.returncode == 1
    assert "[key.reused]" in other.stderr


def test_files_are_attached_with_name_and_type(house: HouseProcess, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("words")
    (tmp_path / "raw").write_bytes(bytes(range(256)))
    attach = [word for name in ("note.txt", "raw") for word in ("--attach", str(tmp_path / name))]

    id_ = house.json("send", "agent:guide", "hello", "--conversation", "files", *attach)["envelope"]

    shown = house.json("show", id_)["attachments"]
    assert [(a["name"], a["media-type"], a["size-bytes"]) for a in shown] == [
        ("note.txt", "text/plain", 5),
        ("raw", "application/octet-stream", 256),
    ]
    assert "attachment: note.txt\n  media-type: text/plain\n  size-bytes: 5\n" in house.retinue("show", id_).stdout


def test_an_envelope_for_later_waits_for_its_time(house: HouseProcess) -> None:
    id_ = house.json("send", "agent:guide", "hello", "--deliver-at", "+1h", "--conversation", "later")["envelope"]

    shown = house.json("show", id_)
    assert shown["status"] == "pending"
    assert shown["deliver-at"] > shown["accepted-at"]


def test_a_thread_leads_back_to_its_first_envelope(house: HouseProcess) -> None:
    first = house.json("send", "agent:guide", "echo one", "--conversation", "thread")["envelope"]
    answer = settled(house, first)["answer"]
    reply = house.json("send", "agent:guide", "echo two", "--conversation", "thread", "--reply-to", answer)["envelope"]

    assert {e["id"] for e in house.json("thread", reply)["envelopes"]} == {first, answer, reply}
    assert house.retinue("thread", reply).stdout.endswith("total: 3\nleft-out: 0\n")


def test_why_tells_the_story_of_an_envelope(house: HouseProcess) -> None:
    id_ = house.json("send", "agent:guide", "echo why", "--conversation", "why")["envelope"]
    settled(house, id_)

    told = house.retinue("why", id_)
    assert told.returncode == 0
    assert id_[:8] in told.stdout


def test_the_ledger_holds(house: HouseProcess) -> None:
    told = house.retinue("ledger")

    assert told.returncode == 0
    assert "ledger holds" in told.stdout
    assert house.json("ledger")["holds"] is True


def test_a_dead_envelope_is_listed_and_can_be_sent_once_more(house: HouseProcess) -> None:
    id_ = house.json("send", "agent:guide", "fail", "--conversation", "dead")["envelope"]
    assert settled(house, id_)["outcome"] == "dead"

    assert f"id: {id_[:8]}\n" in house.retinue("dead", "--limit", "50").stdout
    again = fields(house.retinue("retry", id_).stdout)["envelope"]
    assert settled(house, again)["outcome"] == "dead"


def test_status_names_the_staff_and_who_asks(house: HouseProcess) -> None:
    told = house.retinue("status").stdout

    assert "\nyou: person:owner\n" in told
    assert "\nagent: clerk\n  model: guide\n" in told


def test_a_question_is_shown_with_the_exact_call_and_allowed(house: HouseProcess) -> None:
    envelope, approval = parked(house, "allow")
    assert f'approval: {approval[:8]}\n  call: read {{"path": "SOUL.md"}}\n' in house.retinue("status").stdout

    assert house.retinue("allow", approval[:8]).stdout == f"approval: {approval[:8]}\nstate: allowed\n"
    assert settled(house, envelope)["outcome"] == "answered"

    again = house.retinue("allow", approval)
    assert again.returncode == 1
    assert "[approval.not_open]" in again.stderr


def test_a_question_is_denied(house: HouseProcess) -> None:
    envelope, approval = parked(house, "deny")

    assert house.retinue("deny", approval[:8]).stdout == f"approval: {approval[:8]}\nstate: denied\n"
    assert "was not done" in house.answer_to(settled(house, envelope)["id"])


def test_what_runs_in_a_session_is_stopped(house: HouseProcess) -> None:
    sent = house.json("send", "agent:guide", "slow 500", "--conversation", "stop")
    wait_until_sync(lambda: house.json("show", sent["envelope"])["status"] == "claimed", "a run works on it")

    stopped = house.retinue("stop", sent["session"][:8], "--why", "enough")

    assert len(fields(stopped.stdout)["cancelled-runs"]) == 8
    assert fields(stopped.stdout)["cleared-pending-count"] == "0"
    shown = settled(house, sent["envelope"])
    assert (shown["outcome"], shown["because"]) == ("cancelled", "cancelled by person:owner: enough")
    assert fields(house.retinue("stop", sent["session"]).stdout)["cancelled-runs"] == "none"


def test_a_session_begins_a_fresh_context(house: HouseProcess) -> None:
    sent = house.json("send", "agent:guide", "echo chapter 3", "--conversation", "reset")
    settled(house, sent["envelope"])

    assert fields(house.retinue("reset", sent["session"], "We were at chapter 3.").stdout) == {
        "session": sent["session"][:8],
        "cancelled-runs": "none",
    }


def test_a_session_has_queue_rules_of_its_own_until_they_are_taken_back(house: HouseProcess) -> None:
    session = house.json("send", "agent:guide", "hello", "--conversation", "queue")["session"]

    own = fields(house.retinue("queue", session, "--mode", "steer", "--cap", "0").stdout)
    assert own == {
        "session": session[:8],
        "mode": "steer",
        "cap": "0",
        "overflow": "agent default",
        "debounce_s": "agent default",
    }
    back = house.json("queue", session)
    assert back["queue"] == {"mode": None, "cap": None, "overflow": None, "debounce_s": None}


def test_recent_sessions_are_listed(house: HouseProcess) -> None:
    session = house.json("send", "agent:guide", "hello", "--conversation", "listed")["session"]

    shown = house.retinue("sessions").stdout
    assert f"session-id: {session[:8]}\nagent-id: guide\n" in shown
    assert "\norigin: terminal:person:owner/listed\n" in shown
    assert len(house.json("sessions", "--limit", "1")["sessions"]) == 1


# How it fails


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "00000000"], "envelope.not_found"),
        (["show", "xyz"], "id.invalid"),
        (["thread", "00000000"], "envelope.not_found"),
        (["retry", "00000000"], "envelope.not_found"),
        (["why", "not-an-id"], "id.invalid"),
        (["allow", "00000000"], "approval.not_found"),
        (["stop", "00000000"], "session.not_found"),
        (["reset", "00000000"], "session.not_found"),
        (["queue", "00000000"], "session.not_found"),
        (["send", "agent:nobody", "hello"], "agent.not_found"),
        (["send", "nobody", "hello"], "address.invalid"),
        (["send", "person:nobody", "hello"], "person.not_found"),
        (["send", "house", "hello"], "address.cannot_receive"),
        (["send", "agent:guide", "hello", "--deliver-at", "soon"], "time.invalid"),
        (["send", "agent:guide", "hello", "--expires-at", "2020-01-01T00:00"], "time.past"),
        (["send", "agent:guide", "hello", "--reply-to", "00000000"], "envelope.not_found"),
        (["send", "agent:guide", "hello", "--attach", "/nowhere/at/all"], "attachment.unreadable"),
        (["chat", "--agent", "giude", "--once", "hello"], "agent.not_found"),
    ],
)
def test_every_refusal_has_a_code_a_reason_and_a_next_move(house: HouseProcess, words: list[str], code: str) -> None:
    told = house.retinue(*words)

    first, *rest = told.stderr.splitlines()
    assert told.returncode == 1
    assert first.startswith("error: ") and first.endswith(f" [{code}]")
    # Where the reason would only repeat the sentence, there is none.
    expected = ["try"] if words[1] in ("agent:nobody", "person:nobody") else ["because", "try"]
    assert [line.partition(":")[0] for line in rest] == expected, told.stderr
    assert told.stdout == ""


def test_a_refusal_is_given_to_programs_as_the_api_says_it(house: HouseProcess) -> None:
    told = house.retinue("show", "00000000", "--json")

    assert told.returncode == 1
    assert json.loads(told.stdout)["error"]["code"] == "envelope.not_found"
    assert told.stderr.startswith("error: ")


@pytest.mark.parametrize("words", [["status"], ["send", "agent:guide", "hello"], ["chat"], ["chat", "--once", "hello"]])
def test_with_no_house_open_it_says_how_to_open_one(tmp_path: Path, words: list[str]) -> None:
    told = HouseProcess(tmp_path / "nothing").retinue(*words, "--json")

    assert told.returncode == 3
    assert told.stderr.splitlines() == [
        f"error: no server is running in {tmp_path / 'nothing'} [server.not_running]",
        "because: no server was ever started there",
        "try: retinue up",
    ]
    assert json.loads(told.stdout)["error"]["code"] == "server.not_running"


def test_a_stranger_is_asked_who_they_are(house: HouseProcess) -> None:
    told = house.retinue("status", env={"RETINUE_TOKEN": "made-up"})

    assert told.returncode == 1
    assert told.stderr.startswith("error: not signed in: the token is missing or invalid [auth.not_signed_in]\n")


def test_bytes_that_are_no_text_are_refused_before_anything_is_sent(house: HouseProcess) -> None:
    told = house.retinue("send", "agent:guide", "-", stdin=b"\xff\xfe")

    assert told.returncode == 1
    assert told.stderr.splitlines()[0] == "error: the input on stdin is not text [text.not_utf8]"


def test_text_that_is_too_long_for_an_envelope_is_refused(house: HouseProcess) -> None:
    told = house.retinue("send", "agent:guide", "-", stdin="x" * 300_000)

    assert told.returncode == 1
    assert "[text.too_large]" in told.stderr


def test_more_than_fits_into_a_request_is_refused(house: HouseProcess, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(13_000_000))

    by_stdin = house.retinue("send", "agent:guide", "-", stdin=bytes(13_000_000))
    attached = house.retinue("send", "agent:guide", "look", "--attach", str(tmp_path / "large"))

    too_large = "error: the request is too large [request.too_large]\nbecause: the limit is 12,582,912 bytes for "
    assert f"{too_large}the text from stdin\n" in by_stdin.stderr
    assert f"{too_large}all attachments together\n" in attached.stderr


def test_a_reader_who_goes_away_is_no_traceback(house: HouseProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("status"), stdout=writer, stderr=subprocess.PIPE, env=environment(house.home), check=False
    )
    os.close(writer)

    assert done.returncode == 141
    assert done.stderr == b""


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[tuple[HouseProcess, str, str]]:
    """A house in which two envelopes, and two sessions, share their first digits."""
    house = HouseProcess(tmp_path / "home")
    house.open()
    sent = house.json("send", "agent:guide", "hello", "--deliver-at", "+1h")
    house.close()
    with sqlite3.connect(house.home / "house.db") as db:
        db.row_factory = sqlite3.Row
        [seq] = db.execute("update house set envelope_seq = envelope_seq + 1 returning envelope_seq").fetchone()
        for table, id_, change in (
            ("envelopes", sent["envelope"], {"seq": seq, "dedupe_key": "twin"}),
            ("sessions", sent["session"], {"origin_key": "twin"}),
        ):
            row = dict(db.execute(f"select * from {table} where id = ?", (id_,)).fetchone())
            row |= change | {"id": id_[:12] + "".join("0" if digit == "f" else "f" for digit in id_[12:])}
            marks = ", ".join("?" for _ in row)
            db.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", tuple(row.values()))
    db.close()
    house.open()
    yield house, sent["envelope"], sent["session"]
    house.close()


@pytest.mark.spec("H21")
def test_an_ambiguous_id_ends_with_code_4_and_lists_what_it_may_mean(twins: tuple[HouseProcess, str, str]) -> None:
    house, envelope, session = twins
    for words, id_ in ((["show"], envelope), (["thread"], envelope), (["stop"], session), (["queue"], session)):
        told = house.retinue(*words, id_[:8])

        first, *rest = told.stderr.splitlines()
        assert told.returncode == 4
        assert first.startswith("error: ") and first.endswith(" [id.ambiguous]")
        assert rest[2] == "match-count: 2"
        candidates = [line.removeprefix("candidate-id: ") for line in rest[3:]]
        assert len(set(candidates)) == 2
        assert all(len(candidate) == 13 and candidate.startswith(id_[:12]) for candidate in candidates)
    for line in rest[3:]:
        assert house.retinue("queue", line.removeprefix("candidate-id: ")).returncode == 0


@pytest.mark.spec("H9")
@pytest.mark.parametrize(
    "claim",
    [
        {"from": "person:maria"},
        {"sender": "agent:clerk"},
        {"from_boss": True},
        {"fromBoss": True},
        {"sender_name": "The Boss"},
        {"fromName": "The Boss"},
        {"context": {"from_boss": True, "sender_name": "The Boss"}},
        {"trust": "owner"},
        {"source": "telegram"},
    ],
)
def test_a_caller_cannot_say_who_sends_nor_that_it_is_the_boss(at_home: HouseProcess, claim: dict[str, Any]) -> None:
    before = call("house.status")["cursor"]
    with pytest.raises(ApiError) as refused:
        call("envelope.send", {"to": "agent:guide", "text": "hello", **claim})

    assert refused.value.code == "request.invalid"
    assert next(iter(claim)) in refused.value.because
    assert call("house.status")["cursor"] == before, "nothing was accepted"


@pytest.mark.spec("H9")
def test_who_sends_follows_from_the_token_alone(at_home: HouseProcess) -> None:
    sent = call("envelope.send", {"to": "agent:guide", "text": "hello", "conversation": "token"})

    assert call("envelope.show", {"id": sent["envelope"]})["from"] == "person:owner"
