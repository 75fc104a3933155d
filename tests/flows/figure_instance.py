"""A real server in its own process and its database, for the flows of the figures.

The fixture `figures` is opened once per module: each test uses its own conversations and texts.
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
class FigureServer:
    home: Path
    script: Path
    process: ForkedProcess | None = None
    _script_lines: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    _sent_count: int = 0

    # --- start and stop ---

    @property
    def log(self) -> Path:
        return self.script.parent / "daemon.log"

    def start(self) -> None:
        self.script.parent.mkdir(parents=True, exist_ok=True)
        self.script.write_text(json.dumps(self._script_lines))
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
        await wait_until(self._is_answering, "the server answers", describe=lambda: self.log.read_text()[-2000:])

    async def _is_answering(self) -> bool:
        try:
            await self.call("server.status")
        except (ConnectionClosed, RequestRefused):
            return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(WAIT_LIMIT_S)

    # --- input ---

    def set_replies(self, **lines: Sequence[Any]) -> None:
        """Set the replies to messages that contain these words."""
        self._script_lines |= {words: list(each) for words, each in lines.items()}
        fresh = self.script.with_suffix(".new")
        fresh.write_text(json.dumps(self._script_lines))
        fresh.rename(self.script)

    async def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        line = ApiConnection(self.home)
        try:
            return await line.call(operation, **parameters)
        finally:
            line.close()

    async def send_as_owner(self, text: str, *, to: str = "agent:general", conversation: str = "") -> str:
        """Send a message as the owner; the id of the envelope."""
        self._sent_count += 1
        sent = await self.call(
            "envelope.send",
            to=to,
            text=text,
            key=f"say-{self._sent_count}",
            **({"conversation": conversation} if conversation else {}),
        )
        return sent["envelope"]

    # --- output ---

    def rows(self, statement: str, *values: Any) -> list[Any]:
        store = sqlite3.connect(f"file:{self.home / 'retinue.db'}?mode=ro", uri=True)
        store.row_factory = sqlite3.Row
        try:
            return store.execute(statement, values).fetchall()
        finally:
            store.close()

    async def wait_for_rows(self, statement: str, *values: Any, count: int = 1) -> list[Any]:
        def found() -> list[Any] | None:
            rows = self.rows(statement, *values)
            return rows if len(rows) >= count else None

        return await wait_until(found, f"{count} rows of {statement} {values}") or []

    async def wait_for_answer(self, envelope: str) -> Any:
        sql = "SELECT a.* FROM outcomes o JOIN envelopes a ON a.id = o.answer WHERE o.envelope = ?"
        return (await self.wait_for_rows(sql, envelope))[0]

    async def rest(self) -> None:
        """Wait until every envelope is done."""
        unfinished = "SELECT id, text FROM envelopes WHERE status <> 'done'"
        await wait_until(
            lambda: not self.rows(unfinished),
            "every envelope is done",
            describe=lambda: [tuple(row) for row in self.rows(unfinished)],
        )

    async def told(self, words: str) -> Any:
        """Wait for an envelope to the owner that contains these words."""
        sql = "SELECT * FROM envelopes WHERE recipient = 'person:owner' AND text LIKE ? ORDER BY seq"
        return (await self.wait_for_rows(sql, f"%{words}%"))[0]

    def find_envelopes(self, words: str) -> list[Any]:
        return self.rows("SELECT * FROM envelopes WHERE text LIKE ? ORDER BY seq", f"%{words}%")

    def session_of(self, envelope: str) -> str:
        return self.rows("SELECT session FROM envelopes WHERE id = ?", envelope)[0]["session"]

    def results(self, session: str) -> list[dict[str, Any]]:
        """The tool results in a session, in order, as the model read them."""
        bodies = self.rows("SELECT body FROM records WHERE session = ? AND kind = 'tool' ORDER BY seq", session)
        return [json.loads(row["body"]) for row in bodies]

    def user_turns(self, session: str) -> list[str]:
        bodies = self.rows("SELECT body FROM records WHERE session = ? AND kind = 'user' ORDER BY seq", session)
        return [json.loads(row["body"])["text"] for row in bodies]


def tool_call_line(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [[tool, arguments]]}


@contextmanager
def start_figures(root: Path) -> Iterator[FigureServer]:
    server = FigureServer(root / "home", root / "outside" / "script.json")
    server.start()
    try:
        with describe_on_failure(ServerSource(database=server.home / "retinue.db", log=server.log)):
            asyncio.run(server.opened())
            yield server
    finally:
        server.stop()
