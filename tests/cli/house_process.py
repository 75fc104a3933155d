"""A real house in a process of its own, and the real command beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retinue.cli import client
from retinue.testing.ports import HOST, free_port

OPENS_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 90.0


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETINUE_", "XDG_"))}
    return {**kept, "RETINUE_HOME": str(home), "RETINUE_LISTEN": f"{HOST}:{free_port()}", **more}


class HouseProcess:
    """`python -m retinue.daemon`, which can be killed like any process, and opened again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, *, crash_at: str = "", again_at: str = "") -> None:
        """Until it answers. `crash_at` names a point, such as `accept.after-commit:1`, at which it will die; `again_at`
        the address that a browser came to know before."""
        crash = {"RETINUE_TEST": "1", "RETINUE_TEST_CRASH": crash_at} if crash_at else {}
        if again_at:
            crash["RETINUE_LISTEN"] = again_at.removeprefix("http://")
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "retinue.daemon"],
                env=environment(self.home, **crash),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + OPENS_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, f"the house did not open: see {log.name}"
            assert time.monotonic() < deadline, "the house does not open"
            time.sleep(0.02)

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
        assert self._process.wait(timeout=OPENS_WITHIN_S) == -signal.SIGKILL
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def retinue(
        self, *words: str, stdin: str | bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        done = subprocess.run(
            command(*words),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=environment(self.home, **(env or {})),
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *words: str) -> dict[str, Any]:
        done = self.retinue(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_for_words(self, session: str, words: str) -> None:
        """Until these have been said in an answer that is not yet finished."""
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while not any(words in partial["text"] for partial in self.call("session.state", session=session)["partials"]):
            assert time.monotonic() < deadline, f"waited in vain for {words!r}"
            time.sleep(0.02)

    def wait_for_session(self) -> str:
        """The first session, as soon as there is one."""
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while not (found := self.call("session.list", limit=1)["sessions"]):
            assert time.monotonic() < deadline, "no session begins"
            time.sleep(0.02)
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
