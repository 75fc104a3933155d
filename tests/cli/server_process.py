"""A real house in a process of its own, and the real command beside it."""

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


class HouseProcess:
    """`python -m retinue.app.server`, which can be killed like any process, and opened again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kills = 0
        self.log = home.parent / f"{home.name}.log"
        self._process: ForkedProcess | None = None
        self._subject: FailureSubject | None = None

    def open(self, *, crash_at: str = "", again_at: str = "") -> None:
        """Until it answers. `crash_at` names a point, such as `accept.after-commit:1`, at which it will die; `again_at`
        the address that a browser came to know before."""
        crash = {"RETINUE_TEST": "1", "RETINUE_TEST_CRASH": crash_at} if crash_at else {}
        if again_at:
            crash["RETINUE_LISTEN"] = again_at.removeprefix("http://")
        self.home.mkdir(parents=True, exist_ok=True)
        self._subject = self._subject or register_subject(ServerSource(database=self.home / "house.db", log=self.log))
        with self.log.open("ab") as log:
            self._process = get_fork_server().start(
                "retinue.app.server", environment=environment(self.home, **crash), output=log
            )
        wait_until_sync(lambda: self._answers() or self._process_has_ended(), f"the house opens: see {log.name}")
        assert not self._process_has_ended(), f"the house did not open: see {log.name}"

    def _process_has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _answers(self) -> bool:
        try:
            path = (self.home / "socket").read_text()
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(path)
            return True
        except OSError:
            return False

    def kill(self) -> None:
        """`kill -9`."""
        assert self._process is not None
        self.kills += 1
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Alive, but deaf."""
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

    def wait_for_words(self, session: str, words: str) -> None:
        """Until these have been said in an answer that is not yet finished."""

        def are_said() -> bool:
            return any(words in each["text"] for each in self.call("session.state", session=session)["partials"])

        wait_until_sync(are_said, f"{words!r} is said")

    def wait_for_session(self) -> str:
        """The first session, as soon as there is one."""
        found = wait_until_sync(lambda: self.call("session.list", limit=1)["sessions"], "a session begins")
        return found[0]["sessionId"]

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Ask the house from this very process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RETINUE_HOME", str(self.home))
            patch.delenv("RETINUE_TOKEN", raising=False)
            return client.call(operation, parameters)

    def answer_to(self, envelope: str) -> str:
        """The words of the answer as the house keeps them."""
        shown = self.call("envelope.show", id=envelope)
        return self.call("envelope.show", id=shown["answer"])["text"]

    def envelopes_with(self, text: str) -> list[str]:
        """All that were ever accepted with exactly these words, read behind the house's back."""
        with closing(sqlite3.connect(f"file:{self.home / 'house.db'}?mode=ro", uri=True)) as db:
            return [id_ for (id_,) in db.execute("select id from envelopes where text = ? order by seq", (text,))]

    def answers(self) -> list[str]:
        """The words of every answer that the house keeps, in their order."""
        with closing(sqlite3.connect(f"file:{self.home / 'house.db'}?mode=ro", uri=True)) as db:
            return [text for (text,) in db.execute("select text from envelopes where kind = 'answer' order by seq")]


def command(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "retinue.cli.main", *words]
