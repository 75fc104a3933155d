"""`retinue chat` with piped input and output prints exactly the answers, also when the server restarts."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import IO

import pytest
from cli.server_process import ServerProcess, command, environment

from retinue.testing.wait_conditions import wait_until_sync

pytestmark = pytest.mark.timeout(900)


def words(start: int, count: int = 60) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


class PipedChat:
    """A chat whose pipes the test reads and writes."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command("chat", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(home),
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._stdin = self.process.stdin
        self.out, self.err = bytearray(), bytearray()
        self._grown = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept))
            for stream, kept in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes], kept: bytearray) -> None:
        while heard := stream.read1(65536):  # type: ignore[attr-defined]
            with self._grown:
                kept += heard
                self._grown.notify_all()
        stream.close()

    def write_line(self, line: str) -> None:
        self._stdin.write(line.encode() + b"\n")
        self._stdin.flush()

    def wait_for(self, kept: bytearray, text: str, *, times: int = 1) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: kept.decode().count(text) >= times, 90), (self.out, self.err)

    def end(self) -> int:
        self._stdin.close()
        code = self.process.wait(timeout=90)
        for reader in self._readers:
            reader.join()
        return code


def test_several_lines_piped_into_chat_are_sent_as_messages_and_answered_in_order(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "lines", stdin="echo one\n\n  echo Grüße aus 日本  \necho three")

    assert completed.stdout == "one\nGrüße aus 日本\nthree\n"
    assert completed.returncode == 0


def test_piped_chat_prints_the_text_between_tool_calls(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "steps", stdin="read SOUL.md\n")

    assert completed.stdout == "I call `read`.\n`read` returned nothing.\n"


def test_piped_chat_once_prints_only_the_answer(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "once", "--once", "read SOUL.md")

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "`read` returned nothing.\n", "")


@pytest.mark.parametrize("words", ["hello, who are you?", "Hi! What can you do?", "How do I get started?"])
def test_a_first_question_in_chat_gets_a_useful_answer_of_the_offline_guide(server: ServerProcess, words: str) -> None:
    completed = server.retinue("chat", "--session", "first", "--once", words)

    assert (completed.returncode, completed.stderr) == (0, "")
    for each in ("not a language model", "`count to 20`", "`status`", "`retinue credential add", "`ANTHROPIC_API_KEY`"):
        assert each in completed.stdout


def test_chat_once_reads_its_text_from_stdin(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "stdin", "--once", "-", stdin="echo one\ntwo\n")

    assert completed.stdout == "one\ntwo\n"


def test_without_an_agent_option_chat_talks_to_the_default_agent(server: ServerProcess) -> None:
    assert server.json("status")["default_agent"] == "main"
    server.retinue("chat", "--session", "whose", "--once", "echo hello")
    server.retinue("send", "echo to nobody in particular", "--conversation", "whose")
    found = [each for each in server.json("sessions")["sessions"] if each["origin"].endswith("/whose")]
    assert [each["agentId"] for each in found] == ["main"]


def test_chat_once_does_not_print_the_answer_to_another_message(server: ServerProcess) -> None:
    server.retinue("send", "agent:guide", f"echo {words(0, 30)}", "--conversation", "shared")
    completed = server.retinue("chat", "--session", "shared", "--once", "echo mine")

    assert completed.stdout == "mine\n"


def test_chat_once_with_json_prints_the_full_result(server: ServerProcess) -> None:
    output = server.json("chat", "--session", "json", "--once", "echo one")

    assert output["text"] == "one" == server.read_answer(output["envelope"])
    assert (output["outcome"], len(output["session"])) == ("answered", 32)


def test_chat_with_json_prints_a_line_for_each_input_line(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "json-lines", "--json", stdin="echo one\nfail\nread SOUL.md\n")

    forms = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [form["outcome"] for form in forms] == ["answered", "dead", "answered"]
    assert completed.returncode == 1


def test_piped_chat_refuses_input_that_is_not_utf8(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "bytes", stdin=b"echo one\n\xff\xfe\n")

    assert (completed.returncode, completed.stdout) == (1, "one\n")
    assert "[text.not_utf8]" in completed.stderr


def test_chat_once_prints_nothing_and_exits_0_after_a_silent_answer(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "silent", "--once", "be silent")

    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_chat_without_an_answer_prints_the_reason_and_exits_1(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--session", "fail", "--once", "fail")

    first, because, try_this = completed.stderr.splitlines()
    assert (completed.returncode, completed.stdout) == (1, "")
    assert first == "error: no answer: the outcome of the envelope is 'dead' [envelope.dead]"
    assert because == "because: model.requested_failure: the guide failed, as you asked"
    assert try_this.startswith("try: retinue why ")


def test_piped_chat_prints_an_approval_request_and_waits_for_the_decision(server: ServerProcess) -> None:
    chat = PipedChat(server.home, "--agent", "clerk", "--session", "asked", "--once", "read SOUL.md")
    chat.wait_for(chat.err, "retinue deny")
    assert 'read {"path": "SOUL.md"}' in chat.err.decode()
    approval = chat.err.decode().split("retinue allow ")[1].split()[0]

    server.retinue("allow", approval)
    assert chat.end() == 0
    assert chat.out.decode() == "`read` returned nothing.\n"


def test_an_approval_in_piped_chat_is_answered_by_the_next_input_line(server: ServerProcess) -> None:
    completed = server.retinue(
        "chat", "--agent", "clerk", "--session", "allow", stdin="read SOUL.md\n/allow\necho after\n"
    )

    assert completed.returncode == 0
    called, decided, *rest = completed.stdout.splitlines()
    assert called == "I call `read`." and decided.endswith(" is allowed.")
    assert rest == ["`read` returned nothing.", "after"]


def test_an_open_approval_does_not_delay_the_next_input_line_of_piped_chat(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--agent", "clerk", "--session", "next", stdin="read SOUL.md\necho after\n")

    first, second, last = completed.stdout.splitlines()
    assert completed.returncode == 0
    assert first == "I call `read`."
    assert second.startswith("`read` is not done yet: it is waiting for approval ")
    assert last == "after"


def test_piped_chat_exits_1_if_an_approval_is_still_open_at_the_end_of_input(server: ServerProcess) -> None:
    completed = server.retinue("chat", "--agent", "clerk", "--session", "open", stdin="read SOUL.md\n")

    assert completed.returncode == 1
    assert (
        "[approval.pending]\nbecause: the input ended before a person answered the approval request\n"
        "try: retinue allow " in completed.stderr
    )


@pytest.mark.parametrize(
    ("line", "code", "try_this"),
    [
        ("/allow", "approval.id_missing", "/allow ID"),
        ("/approve deny", "approval.id_missing", "/approve ID"),
        ("/why nothing", "id.invalid", "copy the id from a list or a response"),
    ],
)
def test_piped_chat_prints_why_a_slash_command_cannot_be_carried_out(
    server: ServerProcess, line: str, code: str, try_this: str
) -> None:
    completed = server.retinue("chat", "--session", "unused", stdin=f"{line}\n")

    assert completed.returncode == 1
    assert f"[{code}]\nbecause: " in completed.stderr
    assert completed.stderr.endswith(f"try: {try_this}\n")


def test_piped_chat_supports_server_commands_its_own_commands_and_escaped_slashes(server: ServerProcess) -> None:
    lines = ["echo one", "/status", "/stop", "/statsu", "/deny 00000000", "/help", "//help me", "/quit", "echo never"]
    completed = server.retinue("chat", "--agent", "guide", "--session", "commands", stdin="\n".join(lines))

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("one\nnow: ")
    assert "\nagent: guide\n" in completed.stdout
    assert "\nNothing was running or waiting here.\n" in completed.stdout
    assert "\nUnknown command /statsu. Did you mean /status?" in completed.stdout
    assert "\nNot done: no approval has the id 00000000." in completed.stdout
    assert "\n/switch AGENT [WORDS] " in completed.stdout and "\n/quit " in completed.stdout
    assert "“/help me”" in completed.stdout
    assert "never" not in completed.stdout


def test_switching_agents_in_piped_chat_continues_with_the_other_agent_and_back(server: ServerProcess) -> None:
    lines = ["echo one", "/switch clerk", "echo two", "/whoami", "/switch back echo three", "/whoami"]
    completed = server.retinue("chat", "--agent", "guide", "--session", "switching", stdin="\n".join(lines))

    assert completed.returncode == 0, completed.stderr
    one, there, two, with_clerk, back, *_, with_guide = completed.stdout.splitlines()
    assert (one, two) == ("one", "two")
    assert there.startswith("You are now talking to clerk, in the session ")
    assert back.startswith("You are now talking to guide, in the session ")
    assert "clerk treats you as the owner" in with_clerk and "guide treats you as the owner" in with_guide


def test_a_run_stopped_elsewhere_ends_the_wait_of_chat(server: ServerProcess) -> None:
    chat = PipedChat(server.home, "--session", "stopped", "--once", "slow 500")

    def find_session() -> str:
        found = server.call("session.list", limit=50)["sessions"]
        return next((s["sessionId"] for s in found if s["origin"].endswith("/stopped")), "")

    server.retinue("stop", wait_until_sync(find_session, "its session is created"), "--reason", "enough")

    assert chat.end() == 1
    assert "because: cancelled by person:owner: enough\n" in chat.err.decode()


# --- server restarts ---


def wait_for_answer_text(server: ServerProcess, session: str, words: str) -> None:
    """Wait until the answer has this text. On a busy machine, it may be complete before it is seen unfinished."""

    def has_text() -> bool:
        partials = [each["text"] for each in server.call("session.state", session=session)["partials"]]
        return any(words in text for text in (*partials, *server.list_answer_texts()))

    wait_until_sync(has_text, f"the answer has {words!r}")


def test_piped_chat_prints_exact_answers_after_the_server_was_killed_during_each(own_server: ServerProcess) -> None:
    chat = PipedChat(own_server.home)
    expected: list[str] = []
    for number in range(5):
        expected.append(words(1000 * (number + 1)))
        chat.write_line(f"echo {expected[-1]}")
        session = own_server.wait_for_session()
        wait_for_answer_text(own_server, session, f"w{1000 * (number + 1) + 5 + 8 * number} ")
        own_server.kill()
        chat.wait_for(chat.err, "the server is not answering, waiting...", times=number + 1)
        own_server.open()
        chat.wait_for(chat.out, "\n", times=number + 1)

    assert chat.end() == 0
    assert chat.out.decode() == "".join(f"{answer}\n" for answer in expected)
    assert own_server.list_answer_texts() == expected


def test_piped_chat_prints_a_count_without_lost_or_repeated_numbers_after_a_kill_of_the_server(
    own_server: ServerProcess,
) -> None:
    chat = PipedChat(own_server.home, "--once", "count to 40")
    wait_for_answer_text(own_server, own_server.wait_for_session(), " 20 ")
    own_server.kill()
    own_server.open()

    assert chat.end() == 0
    assert chat.out.decode() == " ".join(map(str, range(1, 41))) + " Done.\n"
    assert own_server.list_answer_texts() == [chat.out.decode().removesuffix("\n")]


def test_a_line_piped_into_chat_while_the_server_is_down_is_sent_once(own_server: ServerProcess) -> None:
    chat = PipedChat(own_server.home)
    chat.write_line("echo before")
    chat.wait_for(chat.out, "before\n")
    own_server.kill()
    chat.write_line("echo in between")
    chat.wait_for(chat.err, "the server is not answering, waiting...")
    own_server.open()
    chat.wait_for(chat.out, "in between\n")

    assert chat.end() == 0
    assert chat.out.decode() == "before\nin between\n"
    assert len(own_server.list_envelopes_with_text("echo in between")) == 1


@pytest.mark.parametrize("point", ["accept.before-commit:1", "accept.after-commit:1"])
def test_a_chat_message_interrupted_before_its_acknowledgment_is_accepted_once(tmp_path: Path, point: str) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open(crash_at=point)
    chat = PipedChat(server.home, "--once", "echo exactly once")
    server.wait_for_crash()
    server.open()

    assert chat.end() == 0
    assert chat.out.decode() == "exactly once\n"
    assert len(server.list_envelopes_with_text("echo exactly once")) == 1
    server.close()


@pytest.mark.parametrize("point", ["accept.before-commit:1", "accept.after-commit:1"])
def test_an_envelope_of_the_send_command_is_accepted_once_if_the_server_crashes_meanwhile(
    tmp_path: Path, point: str
) -> None:
    server = ServerProcess(tmp_path / "home")
    server.open(crash_at=point)
    sending = subprocess.Popen(
        command("send", "agent:guide", "echo hello", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(server.home),
    )
    server.wait_for_crash()
    server.open()
    out, err = sending.communicate(timeout=90)

    assert sending.returncode == 0
    assert err.decode() == "the server is not answering, waiting...\n"
    assert [json.loads(out)["envelope"]] == server.list_envelopes_with_text("echo hello")
    server.close()


def test_chat_waits_for_a_stopped_server_no_longer_than_the_wait_option(own_server: ServerProcess) -> None:
    chat = PipedChat(own_server.home, "--once", "slow 500", "--wait", "0.5")
    own_server.wait_for_session()
    own_server.kill()

    assert chat.end() == 3
    last = chat.err.decode().splitlines()[-3:]
    assert last[0] == "error: the server stopped answering [server.connection_lost]"
    assert last[1].startswith("because: no answer for 0.5 s; envelope ")


def test_chat_prints_the_reason_after_its_run_was_interrupted_too_often(own_server: ServerProcess) -> None:
    chat = PipedChat(own_server.home, "--once", "slow 500")
    session = own_server.wait_for_session()
    for attempt in range(1, 4):
        wait_until_sync(
            lambda n=attempt: (own_server.call("session.state", session=session)["run"] or {}).get("attempt") == n,
            f"attempt {attempt} has begun",
        )
        own_server.kill()
        own_server.open()

    assert chat.end() == 1
    assert (
        "error: no answer: the outcome of the envelope is 'dead' [envelope.dead]\nbecause: interrupted 3 times\n"
        in chat.err.decode()
    )
    assert chat.out.decode() == ""


def test_chat_requests_the_answer_if_the_server_does_not_know_its_cursor(own_server: ServerProcess) -> None:
    import sqlite3

    chat = PipedChat(own_server.home, "--once", "slow 3")
    own_server.wait_for_session()
    own_server.kill()
    with sqlite3.connect(own_server.home / "retinue.db") as db:  # as after a restore from a backup
        db.execute("delete from events")
        db.execute("update counters set event_seq = 0")
    db.close()
    own_server.open()

    assert chat.end() == 0
    assert chat.out.decode() == "I waited 3 seconds before this answer.\n"
