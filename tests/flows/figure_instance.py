"""What the figures are played with: a daemon in a process of its own, asked over its socket, and its store.

`figures` is opened once for a module: each test has conversations and words of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinue.testing.crash_client import ApiConnection, ConnectionClosed, RequestRefused
from retinue.testing.failure_context import describe_on_failure
from retinue.testing.fork_server import ForkedProcess, get_fork_server
from retinue.testing.server_description import ServerSource
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

TESTS = Path(__file__).parents[1]


@dataclass(slots=True)
class Figures:
    home: Path
    script: Path
    process: ForkedProcess | None = None
    _words: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    _numbers: int = 0

    # Lives

    @property
    def log(self) -> Path:
        return self.script.parent / "daemon.log"

    def start(self) -> None:
        self.script.parent.mkdir(parents=True, exist_ok=True)
        self.script.write_text(json.dumps(self._words))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RETINUE_") and k != "XDG_RUNTIME_DIR"}
        environment = inherited | {
            "RETINUE_HOME": str(self.home),
            "RETINUE_LISTEN": "off",
            "RETINUE_TEST_SCRIPT": str(self.script),
            "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
        with self.log.open("ab") as log:
            self.process = get_fork_server().start("flows.figure_server", environment=environment, output=log)

    async def opened(self) -> None:
        await wait_until(self._answers, "the house opens", describe=lambda: self.log.read_text()[-2000:])

    async def _answers(self) -> bool:
        try:
            await self.call("house.status")
        except (ConnectionClosed, RequestRefused):
            return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(WAIT_LIMIT_S)

    # What goes in

    def plays(self, **lines: Sequence[Any]) -> None:
        """What is said when words with this token were read last."""
        self._words |= {words: list(each) for words, each in lines.items()}
        fresh = self.script.with_suffix(".new")
        fresh.write_text(json.dumps(self._words))
        fresh.rename(self.script)

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        line = ApiConnection(self.home)
        try:
            return await line.call(operation, **parameters)
        finally:
            line.close()

    async def say(self, text: str, *, to: str = "agent:general", conversation: str = "") -> str:
        """The owner writes; gives the envelope's id."""
        self._numbers += 1
        sent = await self.call(
            "envelope.send",
            to=to,
            text=text,
            key=f"say-{self._numbers}",
            **({"conversation": conversation} if conversation else {}),
        )
        return sent["envelope"]

    # What comes out

    def rows(self, statement: str, *values: Any) -> list[Any]:
        store = sqlite3.connect(f"file:{self.home / 'house.db'}?mode=ro", uri=True)
        store.row_factory = sqlite3.Row
        try:
            return store.execute(statement, values).fetchall()
        finally:
            store.close()

    async def until(self, statement: str, *values: Any, count: int = 1) -> list[Any]:
        def found() -> list[Any] | None:
            rows = self.rows(statement, *values)
            return rows if len(rows) >= count else None

        return await wait_until(found, f"{count} rows come of {statement} {values}") or []

    async def answer(self, envelope: str) -> Any:
        sql = "SELECT a.* FROM outcomes o JOIN envelopes a ON a.id = o.answer WHERE o.envelope = ?"
        return (await self.until(sql, envelope))[0]

    async def told(self, words: str) -> Any:
        """What the owner was told that has these words in it."""
        sql = "SELECT * FROM envelopes WHERE recipient = 'person:owner' AND text LIKE ? ORDER BY seq"
        return (await self.until(sql, f"%{words}%"))[0]

    def letters(self, words: str) -> list[Any]:
        return self.rows("SELECT * FROM envelopes WHERE text LIKE ? ORDER BY seq", f"%{words}%")

    def session_of(self, envelope: str) -> str:
        return self.rows("SELECT session FROM envelopes WHERE id = ?", envelope)[0]["session"]

    def results(self, session: str) -> list[dict[str, Any]]:
        """What the model read of each call in a session, in order."""
        bodies = self.rows("SELECT body FROM records WHERE session = ? AND kind = 'tool' ORDER BY seq", session)
        return [json.loads(row["body"]) for row in bodies]

    def turns(self, session: str) -> list[str]:
        bodies = self.rows("SELECT body FROM records WHERE session = ? AND kind = 'user' ORDER BY seq", session)
        return [json.loads(row["body"])["text"] for row in bodies]


def asks(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [[tool, arguments]]}


@contextmanager
def figure_house(root: Path) -> Iterator[Figures]:
    figures = Figures(root / "home", root / "outside" / "script.json")
    figures.start()
    try:
        with describe_on_failure(ServerSource(database=figures.home / "house.db", log=figures.log)):
            asyncio.run(figures.opened())
            yield figures
    finally:
        figures.stop()
