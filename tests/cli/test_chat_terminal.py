"""`retinue chat` at a real pseudo-terminal: the final screen and the steps before it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.fake_server import STREAM_HEAD, Request, chunk, event, reply, run_fake_server
from cli.pty_chat import PtyChat
from cli.server_process import ServerProcess

from retinue.testing.wait_conditions import wait_until_sync

pytestmark = pytest.mark.timeout(900)

PROMPT = "to guide:"
Terminal = Callable[..., PtyChat]


def numbered_words(start: int, count: int = 60) -> str:
    return " ".join(f"w{number}" for number in range(start, start + count))


def line_after_header(chat: PtyChat, header: str, *, number: int) -> str:
    """The line below the n-th header, which shows the answer."""
    lines = chat.screen.lines
    at = [index for index, line in enumerate(lines) if line == header][number]
    return lines[at + 1]


# --- server restarts ---


def test_a_chat_answer_is_on_the_terminal_exactly_once_after_five_kills_of_the_server(
    own_server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(own_server.home, "chat", "--agent", "guide", columns=50, rows=20)
    chat.wait_for(PROMPT)
    expected: list[str] = []
    for number in range(5):
        first = 1000 * (number + 1)
        expected.append(numbered_words(first))
        chat.type(f"echo {expected[-1]}\r")
        # Once as input, once in the answer: kill the server when a part of the answer is on the screen.
        chat.wait_for(f"w{first + 3 + 9 * number}", times=2)
        own_server.kill()
        chat.wait_for("the server is not answering, waiting...")
        own_server.open()
        chat.wait_until(lambda text, n=number: text.count(PROMPT) == n + 2, what="the next prompt")

    assert [line_after_header(chat, "guide:", number=number) for number in range(5)] == expected
    assert own_server.list_answer_texts() == expected
    assert "waiting" not in chat.screen.text
    assert "starts again" not in chat.screen.text


def test_a_long_chat_answer_that_scrolled_off_the_terminal_is_shown_once_after_a_kill_of_the_server(
    own_server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(own_server.home, "chat", "--agent", "guide", columns=20, rows=6)
    chat.wait_for(PROMPT)
    chat.type("count to 60\r")
    chat.wait_for("33 34 35 36 37")
    own_server.kill()
    chat.wait_for("the server is not answering")
    own_server.open()
    chat.wait_for(PROMPT, times=2)

    assert line_after_header(chat, "guide:", number=0) == " ".join(map(str, range(1, 61))) + " Done."
    assert own_server.list_answer_texts() == [line_after_header(chat, "guide:", number=0)]


def test_chat_once_at_a_terminal_survives_a_kill_of_the_server(own_server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(
        own_server.home, "chat", "--agent", "guide", "--once", f"echo {numbered_words(0)}", columns=40, rows=8
    )
    chat.wait_for("w30")
    own_server.kill()
    chat.wait_for("the server is not answering, waiting...")
    own_server.open()

    assert chat.wait_for_end() == 0
    assert chat.screen.text == numbered_words(0)


def test_a_line_typed_in_chat_at_a_terminal_while_the_server_is_down_is_sent_once(
    own_server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(own_server.home, "chat", "--agent", "guide")
    chat.wait_for(PROMPT)
    chat.type("echo before\r")
    chat.wait_for(PROMPT, times=2)
    own_server.kill()
    chat.wait_for("the server is not answering, waiting...")
    chat.type("echo in between\r")
    chat.wait_until(lambda text: "waiting" in text.splitlines()[-1], what="the waiting notice")
    own_server.open()
    chat.wait_for(PROMPT, times=3)

    assert chat.screen.lines[-4:] == ["to guide: echo in between", "guide:", "in between", "to guide:"]
    assert len(own_server.list_envelopes_with_text("echo in between")) == 1


def test_a_later_attempt_with_another_text_replaces_the_earlier_text_in_chat_at_a_terminal(
    tmp_path: Path, terminal: Terminal
) -> None:
    final = "Good evening, 皆さん. " + "It is late. " * 12
    tries = iter(
        [
            ["Good morning to you all, 皆さん. " * 6],
            ["Good evening, ", "皆さん. It is early. " * 9],
            [final[:20], final[20:50], final[50:]],
        ]
    )
    attempts = iter(range(1, 10))

    def script(request: Request, link: socket.socket) -> None:
        match request.path.partition("?")[0]:
            case "/api/server/status":
                reply(link, {"principal": "person:owner", "cursor": 0, "agents": [{"name": "guide"}], "approvals": []})
            case "/api/session/list":
                reply(link, {"sessions": []})
            case "/api/envelope/send":
                reply(
                    link,
                    {"envelope": "e", "session": "s", "outcome": None, "duplicate": False, "cursor": 0, "because": ""},
                )
            case _:
                attempt, pieces = next(attempts), next(tries)
                link.sendall(STREAM_HEAD + chunk(event("hello", {"cursor": 0, "partials": []})))
                offset = 0
                for piece in pieces:
                    link.sendall(chunk(event("delta", delta(attempt, offset, piece))))
                    offset += len(piece)
                if attempt in shown_of:
                    wait_until_sync(lambda: shown_of[attempt] in chats[0].raw, f"attempt {attempt} is shown")
                if attempt == 3:
                    for number, news in enumerate(build_end_events(final), start=1):
                        link.sendall(chunk(event("event", {"seq": number, "session": "s", **news})))
                    has_left.wait(60)

    shown_of = {1: "morning", 2: "early"}
    chats: list[PtyChat] = []
    has_left = threading.Event()
    with run_fake_server(tmp_path, script):
        chat = terminal(tmp_path, "chat", "--agent", "guide", columns=30, rows=24)
        chats.append(chat)
        chat.wait_for(PROMPT)
        chat.type("hello\r")
        chat.wait_for(PROMPT, times=2)
        has_left.set()

    assert chat.screen.lines[-4:] == ["to guide: hello", "guide:", final.rstrip(), "to guide:"]
    assert "morning" in chat.raw, "the first attempt was shown before the second began"


def delta(attempt: int, offset: int, text: str) -> dict[str, Any]:
    return {"run": "r", "turn": 0, "attempt": attempt, "kind": "text", "offset": offset, "text": text}


def build_end_events(text: str) -> list[dict[str, Any]]:
    answer = {"envelope": "a", "kind": "answer", "from": "agent:guide/s", "to": "person:owner", "text": text}
    ended = {"run": "r", "status": "completed", "outcome": "answered", "answer": "a", "envelopes": ["e"]}
    return [
        {"event": "run.started", "run": "r", "envelopes": ["e"]},
        {"event": "envelope.accepted", **answer},
        {"event": "run.ended", **ended},
    ]


# --- display ---


def test_chat_at_a_terminal_shows_text_calls_results_and_thinking_in_order(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "order")
    chat.wait_for(PROMPT)
    chat.type("call session_status; read SOUL.md\r")
    chat.wait_for(PROMPT, times=2)
    chat.type("think about tea\r")
    chat.wait_for(PROMPT, times=3)

    lines = chat.screen.lines[1:]
    assert lines[:6] == [
        "to guide: call session_status; read SOUL.md",
        "guide:",
        "I call `session_status` and `read`.",
        "  · session_status {}",
        lines[4],
        '  · read {"path": "SOUL.md"}',
    ]
    assert lines[4].startswith("  = now: ")
    assert lines[6] == "  = (empty)"
    assert lines[-3].startswith("You asked me to think about tea.")
    assert "\x1b[2mI " in chat.raw, "thinking is dim"


def test_an_approval_is_answered_in_chat_at_a_terminal(server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(server.home, "chat", "--agent", "clerk", "--session", "asks")
    chat.wait_for("to clerk:")
    chat.type("read SOUL.md\r")
    text = chat.wait_for("to clerk:", times=2)
    id_ = text.split("/allow ")[1].split()[0]
    assert f'clerk: approval needed ({id_})\n  read {{"path": "SOUL.md"}}\n  because: ' in text
    assert f"\n  /allow {id_}   /deny {id_}\n  for longer (tool:read): /allow {id_} session (or always)\n" in text

    chat.type(f"/allow {id_}\r")
    text = chat.wait_for("to clerk:", times=3)
    assert f"({id_} allowed by owner)" in text
    assert "`read` returned nothing.\nto clerk:" in text

    chat.type("read SOUL.md\r")
    chat.wait_for("to clerk:", times=4)
    chat.type("/deny\r")
    assert "`read` was not done: approval " in chat.wait_for("to clerk:", times=5)


def test_a_message_of_others_and_its_answer_appear_above_the_chat_prompt_at_a_terminal(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "shared")
    chat.wait_for(PROMPT)
    chat.type("echo mine\r")
    chat.wait_for(PROMPT, times=2)
    server.retinue("send", "agent:guide", "echo theirs", "--conversation", "shared")
    chat.wait_until(lambda text: text.endswith("guide:\ntheirs\nto guide:"), what="the answer of the other agent")

    assert chat.screen.lines[-5:] == ["person:owner:", "echo theirs", "guide:", "theirs", "to guide:"]


def test_a_message_that_arrives_while_a_line_is_typed_in_chat_waits_for_the_line(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "typing")
    chat.wait_for(PROMPT)
    chat.type("echo mine\r")
    chat.wait_for(PROMPT, times=2)
    chat.type("echo half a li")
    chat.wait_for("echo half a li")
    server.retinue("send", "agent:guide", "echo theirs", "--conversation", "typing")
    chat.type("ne\r")
    text = chat.wait_until(
        lambda text: "theirs\n" in text and text.endswith("half a line\nto guide:"), what="both answers"
    )

    assert "to guide: echo half a line\n" in text


def test_ctrl_c_stops_the_answer_and_the_chat_continues(server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "ctrl-c")
    chat.wait_for(PROMPT)
    chat.type("count to 900\r")
    chat.wait_for("3 4 5")
    chat.type("\x03")
    text = chat.wait_for(PROMPT, times=2)
    assert "\n(interrupted)\nStopped: stopped from the terminal.\n(cancelled; for details: /why " in text

    chat.type("echo still here\r")
    assert "\nguide:\nstill here\n" in chat.wait_for(PROMPT, times=3)


def test_ctrl_c_twice_leaves_the_chat_and_restores_the_terminal(server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "leave")
    chat.wait_for(PROMPT)
    chat.type("\x03")
    chat.wait_for("Ctrl-C again to leave")
    chat.type("\x03")

    assert chat.wait_for_end() == 130
    assert chat.echoes


def test_ctrl_c_twice_during_an_answer_leaves_the_chat_at_once(own_server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(own_server.home, "chat", "--agent", "guide")
    chat.wait_for(PROMPT)
    chat.type("count to 900\r")
    chat.wait_for("3 4 5")
    own_server.pause()  # the paused server cannot receive the stop request
    chat.type("\x03")
    chat.wait_for("Ctrl-C again to leave")
    chat.type("\x03")

    code = chat.wait_for_end()
    own_server.resume()
    assert code == 130
    assert chat.echoes


def test_sigterm_ends_the_chat_and_restores_the_terminal(server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "term")
    chat.wait_for(PROMPT)
    assert not chat.echoes
    chat.process.terminate()

    assert chat.wait_for_end() == 143
    assert chat.echoes


def test_ctrl_c_in_chat_abandons_a_message_for_a_stopped_server(own_server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(own_server.home, "chat", "--agent", "guide")
    chat.wait_for(PROMPT)
    own_server.kill()
    chat.type("echo never mind\r")
    chat.wait_for("the server is not answering, waiting...")
    chat.type("\x03")
    assert "stopped sending; if the message arrived after all" in chat.wait_for(PROMPT, times=2)

    own_server.open()
    chat.type("echo hello\r")
    assert "\nguide:\nhello\n" in chat.wait_for(PROMPT, times=3)
    assert own_server.list_envelopes_with_text("echo never mind") == []


def test_chat_at_a_dumb_terminal_has_a_prompt(server: ServerProcess, terminal: Terminal) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "printer", term="dumb")
    chat.wait_for(PROMPT)
    chat.type("echo hello\r")
    chat.wait_for(PROMPT, times=2)
    chat.type("\x04")

    assert chat.wait_for_end() == 0
    assert chat.screen.lines == ["to guide: echo hello", "hello", "to guide:"]
    assert "\x1b" not in chat.raw


@pytest.mark.parametrize("leave", ["\x04", "/quit\r"])
def test_leaving_the_chat_at_a_terminal_exits_0(server: ServerProcess, terminal: Terminal, leave: str) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "bye")
    chat.wait_for(PROMPT)
    chat.type("fail\r")
    chat.wait_for(PROMPT, times=2)
    chat.type(leave)

    assert chat.wait_for_end() == 0
    assert chat.echoes


def test_text_typed_in_chat_during_an_answer_is_not_echoed_into_the_answer_and_is_sent_afterwards(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "ahead")
    chat.wait_for(PROMPT)
    chat.type(f"echo {numbered_words(0, 40)}\r")
    chat.wait_for("w10", times=2)
    chat.type("echo next\r")
    chat.wait_for(PROMPT, times=3)

    assert chat.screen.lines[-5:] == [numbered_words(0, 40), "to guide: echo next", "guide:", "next", "to guide:"]


def test_known_and_unknown_slash_commands_are_answered_at_the_chat_prompt_of_a_terminal(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "mistakes")
    chat.wait_for(PROMPT)
    chat.type("/hlep\r")
    assert "Unknown command /hlep. Did you mean /help?" in chat.wait_for(PROMPT, times=2)
    chat.type("/help\r")
    assert "\n//TEXT " in chat.wait_for(PROMPT, times=3)
    chat.type("/status\r")
    assert "\nagent: guide\n" in chat.wait_for(PROMPT, times=4)
    chat.type(" \r")
    chat.type("echo still here\r")
    assert "\nguide:\nstill here\n" in chat.wait_for(PROMPT, times=6)


def test_control_characters_in_messages_of_others_are_escaped_in_chat_at_a_terminal(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "hostile")
    chat.wait_for(PROMPT)
    chat.type("echo mine\r")
    chat.wait_for(PROMPT, times=2)
    server.retinue(
        "send", "agent:guide", "-", "--conversation", "hostile", stdin="echo \x1b]0;owned\x07\x1b[2J\x9b1A end"
    )
    chat.wait_for("end", times=2)

    assert "\x1b]0" not in chat.raw
    assert "\x1b[2J" not in chat.raw
    assert "\x9b" not in chat.raw
    assert "␛]0;owned␇␛[2J" in chat.screen.text


def test_chat_once_at_a_terminal_shows_calls_and_results_beside_the_answer(
    server: ServerProcess, terminal: Terminal
) -> None:
    chat = terminal(server.home, "chat", "--agent", "guide", "--session", "once", "--once", "read SOUL.md")

    assert chat.wait_for_end() == 0
    assert chat.screen.lines == [
        "I call `read`.",
        '  · read {"path": "SOUL.md"}',
        "  = (empty)",
        "`read` returned nothing.",
    ]


def test_no_color_disables_colors_and_a_dumb_terminal_gets_no_control_sequences(
    server: ServerProcess, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumb = terminal(server.home, "chat", "--agent", "guide", "--session", "dumb", "--once", "echo plain", term="dumb")
    assert dumb.wait_for_end() == 0
    assert dumb.raw == "plain\r\n"

    monkeypatch.setenv("NO_COLOR", "1")
    plain = terminal(server.home, "chat", "--agent", "guide", "--session", "plain", "--once", "think about tea")
    assert plain.wait_for_end() == 0
    assert "\x1b[2m" not in plain.raw

    wrong = terminal(server.home, "show", "00000000")
    assert wrong.wait_for_end() == 1
    assert wrong.raw.startswith("error: no envelope")

    monkeypatch.delenv("NO_COLOR")
    wrong = terminal(server.home, "show", "00000000")
    assert wrong.wait_for_end() == 1
    assert wrong.raw.startswith("\x1b[31merror:\x1b[0m no envelope")
