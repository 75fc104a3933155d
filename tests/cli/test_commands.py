"""Each command against a real server: output for people, output for programs, and errors."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import ServerProcess, command, environment

from retinue.cli.client import ApiError, call
from retinue.testing.wait_conditions import wait_until_sync


@pytest.fixture
def server_in_process(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """The same server, for calls in the test process."""
    monkeypatch.setenv("RETINUE_HOME", str(server.home))
    monkeypatch.delenv("RETINUE_TOKEN", raising=False)
    return server


def wait_until_settled(server: ServerProcess, envelope: str) -> dict[str, Any]:
    """Wait until the envelope is done; returns it."""
    wait_until_sync(lambda: server.json("show", envelope)["status"] == "done", "the envelope is done")
    return server.json("show", envelope)


def stored_texts(server: ServerProcess, text: str) -> int:
    """The number of stored envelopes with this text."""
    with contextlib.closing(sqlite3.connect(server.home / "retinue.db")) as db:
        [[count]] = db.execute("select count(*) from envelopes where text = ?", (text,))
    return count


def fields(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition(": ") for line in text.splitlines())}


def send_and_wait_for_approval(server: ServerProcess, name: str) -> tuple[str, str]:
    """Send an envelope whose run needs an approval; the envelope and the approval."""
    sent = server.json("send", "agent:clerk", "read SOUL.md", "--conversation", name)
    asked = wait_until_sync(
        lambda: [a for a in server.json("status")["approvals"] if a["calls"]], "an approval is pending"
    )
    return sent["envelope"], asked[-1]["id"]


def test_the_send_and_show_commands_print_short_ids(server: ServerProcess) -> None:
    sent = fields(server.retinue("send", "agent:guide", "echo good day", "--conversation", "show").stdout)
    assert [len(sent[key]) for key in ("envelope", "session")] == [8, 8]

    wait_until_settled(server, sent["envelope"])
    shown = fields(server.retinue("show", sent["envelope"]).stdout)
    assert shown["id"] == sent["envelope"]
    assert shown["from"] == "person:owner"
    assert shown["to"] == f"agent:guide/{sent['session']}"
    assert (shown["status"], shown["outcome"], shown["text"]) == ("done", "answered", "echo good day")


@pytest.mark.spec("H20")
def test_commands_print_ids_as_8_digits_and_accept_a_longer_prefix_or_a_uuid(server: ServerProcess) -> None:
    id_ = server.json("send", "agent:guide", "hello", "--conversation", "ids")["envelope"]
    uuid = "-".join((id_[:8], id_[8:12], id_[12:16], id_[16:20], id_[20:])).upper()

    for typed in (id_[:8], id_[:13], id_, uuid):
        assert fields(server.retinue("show", typed).stdout)["id"] == id_[:8]
    assert server.retinue("show", id_[:7]).returncode == 1


def test_the_json_output_of_a_command_is_the_api_response(server: ServerProcess) -> None:
    sent = server.json("send", "agent:guide", "hello", "--conversation", "json")

    assert len(sent["envelope"]) == 32
    assert sent["duplicate"] is False


def test_the_send_command_sends_text_from_stdin_without_the_final_line_break(server: ServerProcess) -> None:
    words = "echo Grüße\naus 日本 \x1b[2J"
    done = server.retinue("send", "agent:guide", "-", "--conversation", "stdin", "--json", stdin=words + "\n")

    assert server.json("show", json.loads(done.stdout)["envelope"])["text"] == words


def test_the_show_command_prints_a_multiline_text_as_a_block(server: ServerProcess) -> None:
    id_ = server.json("send", "agent:guide", "echo one\ntwo", "--conversation", "block")["envelope"]

    assert server.retinue("show", id_).stdout.endswith("text:\n  echo one\n  two\n")


def test_the_send_command_accepts_a_repeated_key_once_and_refuses_it_with_another_text(server: ServerProcess) -> None:
    first = server.json("send", "agent:guide", "hello", "--key", "k-1", "--conversation", "key")
    again = server.json("send", "agent:guide", "hello", "--key", "k-1", "--conversation", "key")
    other = server.retinue("send", "agent:guide", "other", "--key", "k-1", "--conversation", "key")

    assert (again["envelope"], again["duplicate"]) == (first["envelope"], True)
    assert other.returncode == 1
    assert "[key.reused]" in other.stderr


def test_the_send_command_attaches_files_with_name_and_type(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("words")
    (tmp_path / "raw").write_bytes(bytes(range(256)))
    attach = [word for name in ("note.txt", "raw") for word in ("--attach", str(tmp_path / name))]

    id_ = server.json("send", "agent:guide", "hello", "--conversation", "files", *attach)["envelope"]

    shown = server.json("show", id_)["attachments"]
    assert [(a["name"], a["media_type"], a["size_bytes"]) for a in shown] == [
        ("note.txt", "text/plain", 5),
        ("raw", "application/octet-stream", 256),
    ]
    assert "attachment: note.txt\n  media-type: text/plain\n  size-bytes: 5\n" in server.retinue("show", id_).stdout


def test_an_envelope_of_the_send_command_with_a_delivery_time_stays_pending(server: ServerProcess) -> None:
    id_ = server.json("send", "agent:guide", "hello", "--deliver-at", "+1h", "--conversation", "later")["envelope"]

    shown = server.json("show", id_)
    assert shown["status"] == "pending"
    assert shown["deliver_at"] > shown["accepted_at"]


def test_the_thread_command_lists_every_envelope_of_a_reply_thread(server: ServerProcess) -> None:
    first = server.json("send", "agent:guide", "echo one", "--conversation", "thread")["envelope"]
    answer = wait_until_settled(server, first)["answer"]
    reply = server.json("send", "agent:guide", "echo two", "--conversation", "thread", "--reply-to", answer)["envelope"]

    assert {e["id"] for e in server.json("thread", reply)["envelopes"]} == {first, answer, reply}
    assert server.retinue("thread", reply).stdout.endswith("total: 3\nomitted-count: 0\n")


def test_the_why_command_explains_an_envelope(server: ServerProcess) -> None:
    id_ = server.json("send", "agent:guide", "echo why", "--conversation", "why")["envelope"]
    wait_until_settled(server, id_)

    completed = server.retinue("why", id_)
    assert completed.returncode == 0
    assert id_[:8] in completed.stdout


def test_the_ledger_command_reports_a_consistent_ledger(server: ServerProcess) -> None:
    completed = server.retinue("ledger")

    assert completed.returncode == 0
    assert "ledger is consistent" in completed.stdout
    assert server.json("ledger")["ok"] is True


def test_the_dead_command_lists_a_dead_letter_and_the_retry_command_sends_its_envelope_again(
    server: ServerProcess,
) -> None:
    id_ = server.json("send", "agent:guide", "fail", "--conversation", "dead")["envelope"]
    assert wait_until_settled(server, id_)["outcome"] == "dead"

    assert f"id: {id_[:8]}\n" in server.retinue("dead", "--limit", "50").stdout
    again = fields(server.retinue("retry", id_).stdout)["envelope"]
    assert wait_until_settled(server, again)["outcome"] == "dead"


def test_the_status_command_names_the_principal_and_the_agents(server: ServerProcess) -> None:
    completed = server.retinue("status").stdout

    assert "\nprincipal: person:owner\n" in completed
    assert "\nagent: clerk\n  model: guide\n" in completed


def test_the_status_command_shows_the_call_of_an_approval_and_the_allow_command_allows_the_call(
    server: ServerProcess,
) -> None:
    envelope, approval = send_and_wait_for_approval(server, "allow")
    assert f'approval: {approval[:8]}\n  call: read {{"path": "SOUL.md"}}\n' in server.retinue("status").stdout

    assert server.retinue("allow", approval[:8]).stdout == f"approval: {approval[:8]}\nstate: allowed\n"
    assert wait_until_settled(server, envelope)["outcome"] == "answered"

    again = server.retinue("allow", approval)
    assert again.returncode == 1
    assert "[approval.not_open]" in again.stderr


def test_the_deny_command_denies_an_approval(server: ServerProcess) -> None:
    envelope, approval = send_and_wait_for_approval(server, "deny")

    assert server.retinue("deny", approval[:8]).stdout == f"approval: {approval[:8]}\nstate: denied\n"
    assert "was not done" in server.read_answer(wait_until_settled(server, envelope)["id"])


def test_the_stop_command_stops_the_run_of_a_session(server: ServerProcess) -> None:
    sent = server.json("send", "agent:guide", "slow 500", "--conversation", "stop")
    wait_until_sync(lambda: server.json("show", sent["envelope"])["status"] == "claimed", "a run has claimed it")

    stopped = server.retinue("stop", sent["session"][:8], "--reason", "enough")

    assert len(fields(stopped.stdout)["cancelled-runs"]) == 8
    assert fields(stopped.stdout)["cleared-pending-count"] == "0"
    shown = wait_until_settled(server, sent["envelope"])
    assert (shown["outcome"], shown["because"]) == ("cancelled", "cancelled by person:owner: enough")
    assert fields(server.retinue("stop", sent["session"]).stdout)["cancelled-runs"] == "none"


def test_the_reset_command_resets_a_session(server: ServerProcess) -> None:
    sent = server.json("send", "agent:guide", "echo chapter 3", "--conversation", "reset")
    wait_until_settled(server, sent["envelope"])

    assert fields(server.retinue("reset", sent["session"], "We were at chapter 3.").stdout) == {
        "session": sent["session"][:8],
        "cancelled-runs": "none",
    }


def test_the_queue_command_sets_and_clears_the_rules_of_a_session(server: ServerProcess) -> None:
    session = server.json("send", "agent:guide", "hello", "--conversation", "queue")["session"]

    own = fields(server.retinue("queue", session, "--mode", "steer", "--cap", "0").stdout)
    assert own == {
        "session": session[:8],
        "mode": "steer",
        "cap": "0",
        "overflow": "agent default",
        "debounce-s": "agent default",
    }
    back = server.json("queue", session)
    assert back["queue"] == {"mode": None, "cap": None, "overflow": None, "debounce_s": None}


def test_the_sessions_command_lists_recent_sessions(server: ServerProcess) -> None:
    session = server.json("send", "agent:guide", "hello", "--conversation", "listed")["session"]

    shown = server.retinue("sessions").stdout
    assert f"session-id: {session[:8]}\nagent-id: guide\n" in shown
    assert "\norigin: terminal:person:owner/listed\n" in shown
    assert len(server.json("sessions", "--limit", "1")["sessions"]) == 1


# --- errors ---


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
        (["send", "server", "hello"], "address.cannot_receive"),
        (["send", "agent:guide", "hello", "--deliver-at", "soon"], "time.invalid"),
        (["send", "agent:guide", "hello", "--expires-at", "2020-01-01T00:00"], "time.past"),
        (["send", "agent:guide", "hello", "--reply-to", "00000000"], "envelope.not_found"),
        (["send", "agent:guide", "hello", "--attach", "/nowhere/at/all"], "attachment.unreadable"),
        (["chat", "--agent", "giude", "--once", "hello"], "agent.not_found"),
    ],
)
def test_every_refused_command_prints_a_code_a_reason_and_a_next_step(
    server: ServerProcess, words: list[str], code: str
) -> None:
    completed = server.retinue(*words)

    first, *rest = completed.stderr.splitlines()
    assert completed.returncode == 1
    assert first.startswith("error: ") and first.endswith(f" [{code}]")
    # No reason is given where it would only repeat the sentence.
    expected = ["try"] if words[1] in ("agent:nobody", "person:nobody") else ["because", "try"]
    assert [line.partition(":")[0] for line in rest] == expected, completed.stderr
    assert completed.stdout == ""


def test_a_refused_command_with_the_json_option_prints_the_api_error(server: ServerProcess) -> None:
    completed = server.retinue("show", "00000000", "--json")

    assert completed.returncode == 1
    assert json.loads(completed.stdout)["error"]["code"] == "envelope.not_found"
    assert completed.stderr.startswith("error: ")


@pytest.mark.parametrize("words", [["status"], ["send", "agent:guide", "hello"], ["chat"], ["chat", "--once", "hello"]])
def test_without_a_running_server_a_command_says_how_to_start_one(tmp_path: Path, words: list[str]) -> None:
    completed = ServerProcess(tmp_path / "nothing").retinue(*words, "--json")

    assert completed.returncode == 3
    assert completed.stderr.splitlines() == [
        f"error: no server is running in {tmp_path / 'nothing'} [server.not_running]",
        "because: no server was ever started there",
        "try: retinue up",
    ]
    assert json.loads(completed.stdout)["error"]["code"] == "server.not_running"


def test_a_command_with_an_invalid_token_reports_not_signed_in(server: ServerProcess) -> None:
    completed = server.retinue("status", env={"RETINUE_TOKEN": "made-up"})

    assert completed.returncode == 1
    assert completed.stderr.startswith("error: not signed in: the token is missing or invalid [auth.not_signed_in]\n")


def test_the_send_command_refuses_stdin_that_is_not_utf8_before_anything_is_sent(server: ServerProcess) -> None:
    completed = server.retinue("send", "agent:guide", "-", stdin=b"\xff\xfe")

    assert completed.returncode == 1
    assert completed.stderr.splitlines()[0] == "error: the input on stdin is not text [text.not_utf8]"


def test_the_send_command_refuses_text_that_is_too_long_for_an_envelope(server: ServerProcess) -> None:
    completed = server.retinue("send", "agent:guide", "-", stdin="x" * 300_000)

    assert completed.returncode == 1
    assert "[text.too_large]" in completed.stderr


def test_the_send_command_refuses_stdin_and_attachments_that_are_too_large(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(bytes(13_000_000))

    by_stdin = server.retinue("send", "agent:guide", "-", stdin=bytes(13_000_000))
    attached = server.retinue("send", "agent:guide", "look", "--attach", str(tmp_path / "large"))

    too_large = "error: the request is too large [request.too_large]\nbecause: the limit is 12,582,912 bytes for "
    assert f"{too_large}the text from stdin\n" in by_stdin.stderr
    assert f"{too_large}all attachments together\n" in attached.stderr


def test_a_closed_output_pipe_ends_a_command_without_a_traceback(server: ServerProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("status"), stdout=writer, stderr=subprocess.PIPE, env=environment(server.home), check=False
    )
    os.close(writer)

    assert done.returncode == 141
    assert done.stderr == b""


@pytest.fixture
def ambiguous_ids(tmp_path: Path) -> Iterator[tuple[ServerProcess, str, str]]:
    """A server in which two envelopes and two sessions have ids with the same prefix."""
    server = ServerProcess(tmp_path / "home")
    server.open()
    sent = server.json("send", "agent:guide", "hello", "--deliver-at", "+1h")
    server.close()
    with sqlite3.connect(server.home / "retinue.db") as db:
        db.row_factory = sqlite3.Row
        [seq] = db.execute("update counters set envelope_seq = envelope_seq + 1 returning envelope_seq").fetchone()
        for table, id_, change in (
            ("envelopes", sent["envelope"], {"seq": seq, "dedupe_key": "twin"}),
            ("sessions", sent["session"], {"origin_key": "twin"}),
        ):
            row = dict(db.execute(f"select * from {table} where id = ?", (id_,)).fetchone())
            row |= change | {"id": id_[:12] + "".join("0" if digit == "f" else "f" for digit in id_[12:])}
            marks = ", ".join("?" for _ in row)
            db.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", tuple(row.values()))
    db.close()
    server.open()
    yield server, sent["envelope"], sent["session"]
    server.close()


@pytest.mark.spec("H21")
def test_a_command_with_an_ambiguous_id_exits_4_and_lists_the_candidates(
    ambiguous_ids: tuple[ServerProcess, str, str],
) -> None:
    server, envelope, session = ambiguous_ids
    for words, id_ in ((["show"], envelope), (["thread"], envelope), (["stop"], session), (["queue"], session)):
        completed = server.retinue(*words, id_[:8])

        first, *rest = completed.stderr.splitlines()
        assert completed.returncode == 4
        assert first.startswith("error: ") and first.endswith(" [id.ambiguous]")
        assert rest[2] == "match-count: 2"
        candidates = [line.removeprefix("candidate-id: ") for line in rest[3:]]
        assert len(set(candidates)) == 2
        assert all(len(candidate) == 13 and candidate.startswith(id_[:12]) for candidate in candidates)
    for line in rest[3:]:
        assert server.retinue("queue", line.removeprefix("candidate-id: ")).returncode == 0


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
def test_a_caller_of_envelope_send_cannot_set_the_sender_or_its_trust(
    server_in_process: ServerProcess, claim: dict[str, Any]
) -> None:
    text = f"sent with {json.dumps(claim)}"
    with pytest.raises(ApiError) as refused:
        call("envelope.send", {"to": "agent:guide", "text": text, **claim})

    assert refused.value.code == "request.invalid"
    assert next(iter(claim)) in refused.value.because
    assert stored_texts(server_in_process, text) == 0, "nothing was accepted"


@pytest.mark.spec("H9")
def test_the_sender_of_a_sent_envelope_is_determined_by_the_token_alone(server_in_process: ServerProcess) -> None:
    text = "sent with a token"
    sent = call("envelope.send", {"to": "agent:guide", "text": text, "conversation": "token"})

    assert call("envelope.show", {"id": sent["envelope"]})["from"] == "person:owner"
    assert stored_texts(server_in_process, text) == 1
