"""`retinue chat` between programs: what it prints is the answers, exactly, whatever happens to the house."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import IO

import pytest
from cli.server_process import HouseProcess, command, environment

from retinue.testing.wait_conditions import wait_until_sync

pytestmark = pytest.mark.timeout(900)


def words(start: int, count: int = 60) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


class PipedChat:
    """A chat whose other ends a test holds."""

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

    def say(self, line: str) -> None:
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


def test_several_lines_are_several_messages_answered_in_their_order(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "lines", stdin="echo one\n\n  echo Grüße aus 日本  \necho three")

    assert told.stdout == "one\nGrüße aus 日本\nthree\n"
    assert told.returncode == 0


def test_what_is_said_between_calls_is_printed_when_it_is_certain(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "steps", stdin="read SOUL.md\n")

    assert told.stdout == "I call `read`.\n`read` returned nothing.\n"


def test_once_prints_the_answer_and_nothing_else(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "once", "--once", "read SOUL.md")

    assert (told.returncode, told.stdout, told.stderr) == (0, "`read` returned nothing.\n", "")


@pytest.mark.parametrize("words", ["hello, who are you?", "Hi! What can you do?", "How do I get started?"])
def test_a_first_question_to_a_new_server_gets_a_useful_answer(house: HouseProcess, words: str) -> None:
    told = house.retinue("chat", "--session", "first", "--once", words)

    assert (told.returncode, told.stderr) == (0, "")
    for each in ("not a language model", "`count to 20`", "`status`", "`retinue credential add", "`ANTHROPIC_API_KEY`"):
        assert each in told.stdout


def test_once_takes_its_words_from_stdin(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "stdin", "--once", "-", stdin="echo one\ntwo\n")

    assert told.stdout == "one\ntwo\n"


def test_without_a_name_it_talks_to_whoever_answers_for_the_house(house: HouseProcess) -> None:
    assert house.json("status")["default_agent"] == "main"
    house.retinue("chat", "--session", "whose", "--once", "echo hello")
    house.retinue("send", "echo to nobody in particular", "--conversation", "whose")
    found = [each for each in house.json("sessions")["sessions"] if each["origin"].endswith("/whose")]
    assert [each["agentId"] for each in found] == ["main"]


def test_once_does_not_print_the_answer_to_someone_else(house: HouseProcess) -> None:
    house.retinue("send", "agent:guide", f"echo {words(0, 30)}", "--conversation", "shared")
    told = house.retinue("chat", "--session", "shared", "--once", "echo mine")

    assert told.stdout == "mine\n"


def test_once_gives_programs_the_whole_story(house: HouseProcess) -> None:
    told = house.json("chat", "--session", "json", "--once", "echo one")

    assert told["text"] == "one" == house.answer_to(told["envelope"])
    assert (told["outcome"], len(told["session"])) == ("answered", 32)


def test_every_line_gives_programs_a_line(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "json-lines", "--json", stdin="echo one\nfail\nread SOUL.md\n")

    forms = [json.loads(line) for line in told.stdout.splitlines()]
    assert [form["outcome"] for form in forms] == ["answered", "dead", "answered"]
    assert told.returncode == 1


def test_lines_that_are_no_text_are_refused(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "bytes", stdin=b"echo one\n\xff\xfe\n")

    assert (told.returncode, told.stdout) == (1, "one\n")
    assert "[text.not_utf8]" in told.stderr


def test_a_silent_answer_prints_nothing_and_is_no_failure(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "silent", "--once", "be silent")

    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def test_no_answer_ends_with_the_reason(house: HouseProcess) -> None:
    told = house.retinue("chat", "--session", "fail", "--once", "fail")

    first, because, try_this = told.stderr.splitlines()
    assert (told.returncode, told.stdout) == (1, "")
    assert first == "error: no answer: the envelope is dead [envelope.dead]"
    assert because == "because: model.requested_failure: the guide failed, as you asked"
    assert try_this.startswith("try: retinue why ")


def test_a_question_is_told_and_waited_for(house: HouseProcess) -> None:
    chat = PipedChat(house.home, "--agent", "clerk", "--session", "asked", "--once", "read SOUL.md")
    chat.wait_for(chat.err, "retinue deny")
    assert 'read {"path": "SOUL.md"}' in chat.err.decode()
    approval = chat.err.decode().split("retinue allow ")[1].split()[0]

    house.retinue("allow", approval)
    assert chat.end() == 0
    assert chat.out.decode() == "`read` returned nothing.\n"


def test_a_question_can_be_answered_by_the_next_line(house: HouseProcess) -> None:
    told = house.retinue("chat", "--agent", "clerk", "--session", "allow", stdin="read SOUL.md\n/allow\necho after\n")

    assert told.returncode == 0
    called, decided, *rest = told.stdout.splitlines()
    assert called == "I call `read`." and decided.endswith(" is allowed.")
    assert rest == ["`read` returned nothing.", "after"]


def test_a_question_does_not_hold_up_the_next_line(house: HouseProcess) -> None:
    told = house.retinue("chat", "--agent", "clerk", "--session", "next", stdin="read SOUL.md\necho after\n")

    first, second, last = told.stdout.splitlines()
    assert told.returncode == 0
    assert first == "I call `read`."
    assert second.startswith("`read` is not done yet: it waits for approval ")
    assert last == "after"


def test_a_question_that_nobody_answers_is_no_success(house: HouseProcess) -> None:
    told = house.retinue("chat", "--agent", "clerk", "--session", "open", stdin="read SOUL.md\n")

    assert told.returncode == 1
    assert "[approval.pending]\nbecause: the input has ended\ntry: retinue allow " in told.stderr


@pytest.mark.parametrize(
    ("line", "code", "try_this"),
    [
        ("/allow", "approval.id_missing", "/allow ID"),
        ("/approve deny", "approval.id_missing", "/approve ID"),
        ("/why nothing", "id.invalid", "copy the id from a list or an answer"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(house: HouseProcess, line: str, code: str, try_this: str) -> None:
    told = house.retinue("chat", "--session", "unused", stdin=f"{line}\n")

    assert told.returncode == 1
    assert f"[{code}]\nbecause: " in told.stderr
    assert told.stderr.endswith(f"try: {try_this}\n")


def test_commands_are_the_houses_but_for_those_of_this_door_and_two_slashes_send_words(house: HouseProcess) -> None:
    lines = ["echo one", "/status", "/stop", "/statsu", "/deny 00000000", "/help", "//help me", "/quit", "echo never"]
    told = house.retinue("chat", "--agent", "guide", "--session", "commands", stdin="\n".join(lines))

    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("one\nnow: ")
    assert "\nagent: guide\n" in told.stdout
    assert "\nNothing was running or waiting here.\n" in told.stdout
    assert "\nUnknown command /statsu. Did you mean /status?" in told.stdout
    assert "\nNot done: no approval 00000000." in told.stdout
    assert "\n/switch AGENT [WORDS] " in told.stdout and "\n/quit " in told.stdout
    assert "“/help me”" in told.stdout
    assert "never" not in told.stdout


def test_whoever_switches_goes_on_with_the_other_agent_and_comes_back(house: HouseProcess) -> None:
    lines = ["echo one", "/switch clerk", "echo two", "/whoami", "/switch back echo three", "/whoami"]
    told = house.retinue("chat", "--agent", "guide", "--session", "switching", stdin="\n".join(lines))

    assert told.returncode == 0, told.stderr
    one, there, two, with_clerk, back, *_, with_guide = told.stdout.splitlines()
    assert (one, two) == ("one", "two")
    assert there.startswith("You are now talking to clerk, in the session ")
    assert back.startswith("You are now talking to guide, in the session ")
    assert "clerk treats you as the owner" in with_clerk and "guide treats you as the owner" in with_guide


def test_what_is_stopped_elsewhere_ends_the_wait(house: HouseProcess) -> None:
    chat = PipedChat(house.home, "--session", "stopped", "--once", "slow 500")

    def begun() -> str:
        found = house.call("session.list", limit=50)["sessions"]
        return next((s["sessionId"] for s in found if s["origin"].endswith("/stopped")), "")

    house.retinue("stop", wait_until_sync(begun, "its session begins"), "--why", "enough")

    assert chat.end() == 1
    assert "because: cancelled by person:owner: enough\n" in chat.err.decode()


# The house goes, and comes back


def test_answers_are_exact_through_five_kills_in_the_middle_of_them(own_house: HouseProcess) -> None:
    chat = PipedChat(own_house.home)
    expected: list[str] = []
    for number in range(5):
        expected.append(words(1000 * (number + 1)))
        chat.say(f"echo {expected[-1]}")
        session = own_house.wait_for_session()
        own_house.wait_for_words(session, f"w{1000 * (number + 1) + 5 + 8 * number} ")
        own_house.kill()
        chat.wait_for(chat.err, "the server is not answering, waiting...", times=number + 1)
        own_house.open()
        chat.wait_for(chat.out, "\n", times=number + 1)

    assert chat.end() == 0
    assert chat.out.decode() == "".join(f"{answer}\n" for answer in expected)
    assert own_house.answers() == expected


def test_counting_goes_on_after_a_kill_and_no_number_is_lost_or_doubled(own_house: HouseProcess) -> None:
    chat = PipedChat(own_house.home, "--once", "count to 40")
    own_house.wait_for_words(own_house.wait_for_session(), " 20 ")
    own_house.kill()
    own_house.open()

    assert chat.end() == 0
    assert chat.out.decode() == " ".join(map(str, range(1, 41))) + " Done.\n"
    assert own_house.answers() == [chat.out.decode().removesuffix("\n")]


def test_what_is_said_while_the_house_is_closed_arrives_once(own_house: HouseProcess) -> None:
    chat = PipedChat(own_house.home)
    chat.say("echo before")
    chat.wait_for(chat.out, "before\n")
    own_house.kill()
    chat.say("echo in between")
    chat.wait_for(chat.err, "the server is not answering, waiting...")
    own_house.open()
    chat.wait_for(chat.out, "in between\n")

    assert chat.end() == 0
    assert chat.out.decode() == "before\nin between\n"
    assert len(own_house.envelopes_with("echo in between")) == 1


@pytest.mark.parametrize("point", ["accept.before-commit:1", "accept.after-commit:1"])
def test_what_was_cut_off_before_it_was_acknowledged_arrives_once(tmp_path: Path, point: str) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open(crash_at=point)
    chat = PipedChat(house.home, "--once", "echo exactly once")
    house.wait_for_crash()
    house.open()

    assert chat.end() == 0
    assert chat.out.decode() == "exactly once\n"
    assert len(house.envelopes_with("echo exactly once")) == 1
    house.close()


@pytest.mark.parametrize("point", ["accept.before-commit:1", "accept.after-commit:1"])
def test_an_envelope_sent_while_the_house_falls_is_accepted_once(tmp_path: Path, point: str) -> None:
    house = HouseProcess(tmp_path / "home")
    house.open(crash_at=point)
    sending = subprocess.Popen(
        command("send", "agent:guide", "echo hello", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(house.home),
    )
    house.wait_for_crash()
    house.open()
    out, err = sending.communicate(timeout=90)

    assert sending.returncode == 0
    assert err.decode() == "the server is not answering, waiting...\n"
    assert [json.loads(out)["envelope"]] == house.envelopes_with("echo hello")
    house.close()


def test_a_house_that_stays_closed_is_waited_for_no_longer_than_was_said(own_house: HouseProcess) -> None:
    chat = PipedChat(own_house.home, "--once", "slow 500", "--wait", "0.5")
    own_house.wait_for_session()
    own_house.kill()

    assert chat.end() == 3
    last = chat.err.decode().splitlines()[-3:]
    assert last[0] == "error: the server stopped answering [server.connection_lost]"
    assert last[1].startswith("because: no answer for 0.5 s; envelope ")


def test_a_run_that_is_cut_off_too_often_ends_with_the_reason(own_house: HouseProcess) -> None:
    chat = PipedChat(own_house.home, "--once", "slow 500")
    session = own_house.wait_for_session()
    for attempt in range(1, 4):
        wait_until_sync(
            lambda n=attempt: (own_house.call("session.state", session=session)["run"] or {}).get("attempt") == n,
            f"attempt {attempt} begins",
        )
        own_house.kill()
        own_house.open()

    assert chat.end() == 1
    assert "error: no answer: the envelope is dead [envelope.dead]\nbecause: interrupted 3 times\n" in chat.err.decode()
    assert chat.out.decode() == ""


def test_a_house_that_does_not_know_our_cursor_is_asked_for_the_answer(own_house: HouseProcess) -> None:
    import sqlite3

    chat = PipedChat(own_house.home, "--once", "slow 3")
    own_house.wait_for_session()
    own_house.kill()
    with sqlite3.connect(own_house.home / "house.db") as db:  # as if it had been restored from a backup
        db.execute("delete from news")
        db.execute("update house set news_seq = 0")
    db.close()
    own_house.open()

    assert chat.end() == 0
    assert chat.out.decode() == "I waited 3 seconds before this answer.\n"
