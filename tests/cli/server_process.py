"""A real server in its own process, and the real command."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.cli import client
from retinue.testing.failure_context import FailureSubject, close_subject, register_subject
from retinue.testing.fork_server import ForkedProcess, get_fork_server
from retinue.testing.free_ports import HOST, free_port
from retinue.testing.server_description import ServerSource
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETINUE_", "XDG_"))}
    return {**kept, "RETINUE_HOME": str(home), "RETINUE_LISTEN": f"{HOST}:{free_port()}", **more}


class ServerProcess:
    """`python -m retinue.app.server` as a process that can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kills = 0
        self.log = home.parent / f"{home.name}.log"
        self._process: ForkedProcess | None = None
        self._subject: FailureSubject | None = None

    def open(self, *, crash_at: str = "", again_at: str = "") -> None:
        """Start the server and wait until it answers.

        `crash_at` names a point at which it crashes, such as `accept.after-commit:1`. `again_at` is the address that a
        browser used before.
        """
        crash = {"RETINUE_TEST": "1", "RETINUE_TEST_CRASH": crash_at} if crash_at else {}
        if again_at:
            crash["RETINUE_LISTEN"] = again_at.removeprefix("http://")
        self.home.mkdir(parents=True, exist_ok=True)
        self._subject = self._subject or register_subject(ServerSource(database=self.home / "retinue.db", log=self.log))
        with self.log.open("ab") as log:
            self._process = get_fork_server().start(
                "retinue.app.server", environment=environment(self.home, **crash), output=log
            )
        wait_until_sync(
            lambda: self._is_answering() or self._process_has_ended(), f"the server answers: see {log.name}"
        )
        assert not self._process_has_ended(), f"the server did not start: see {log.name}"

    def _process_has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _is_answering(self) -> bool:
        try:
            path = (self.home / "socket").read_text()
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(path)
            return True
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self.kills += 1
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop the process with SIGSTOP, so that it is alive but does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wait_for_crash(self) -> None:
        assert self._process is not None
        assert self._process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=WAIT_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        if self._subject is not None:
            close_subject(self._subject)
            self._subject = None

    def retinue(
        self, *words: str, stdin: str | bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        done = subprocess.run(
            command(*words),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=environment(self.home, **(env or {})),
            timeout=WAIT_LIMIT_S,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *words: str) -> dict[str, Any]:
        done = self.retinue(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_for_partial_text(self, session: str, words: str) -> None:
        """Wait until an unfinished answer has this text."""

        def is_text_streamed() -> bool:
            return any(words in each["text"] for each in self.call("session.state", session=session)["partials"])

        wait_until_sync(is_text_streamed, f"the answer has {words!r}")

    def wait_for_session(self) -> str:
        """Wait for the first session, and until the server has sent the response to the client that created it."""
        wait_until_sync(lambda: self.call("session.list", limit=1)["sessions"], "there is a session")
        found = self.call("session.list", limit=1)["sessions"]  # that response was sent before this one
        return found[0]["sessionId"]

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call an operation from the test process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RETINUE_HOME", str(self.home))
            patch.delenv("RETINUE_TOKEN", raising=False)
            return client.call(operation, parameters)

    def read_answer(self, envelope: str) -> str:
        """The text of the answer as the server stored it."""
        shown = self.call("envelope.show", id=envelope)
        return self.call("envelope.show", id=shown["answer"])["text"]

    def list_envelopes_with_text(self, text: str) -> list[str]:
        """All accepted envelopes with exactly this text, read from the database."""
        with closing(sqlite3.connect(f"file:{self.home / 'retinue.db'}?mode=ro", uri=True)) as db:
            return [id_ for (id_,) in db.execute("select id from envelopes where text = ? order by seq", (text,))]

    def list_answer_texts(self) -> list[str]:
        """The texts of all stored answers, in order."""
        with closing(sqlite3.connect(f"file:{self.home / 'retinue.db'}?mode=ro", uri=True)) as db:
            return [text for (text,) in db.execute("select text from envelopes where kind = 'answer' order by seq")]


def command(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "retinue.cli.main", *words]
