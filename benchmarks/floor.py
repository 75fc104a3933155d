"""The floor: the same request to the same mock model, plus one durable commit, and nothing else."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.measure import median
from benchmarks.mock import ARGUMENTS_JSON, ASKS_FOR, TOOL
from benchmarks.raw_http import WirePool

HEAD = msgspec.json.encode(
    {
        "model": "mock",
        "stream": True,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": TOOL,
                    "description": "Tells the time.",
                    "parameters": {
                        "type": "object",
                        "properties": {"zone": {"type": "string"}},
                        "required": ["zone"],
                        "additionalProperties": False,
                    },
                },
            }
        ],
        "messages": [],
    }
)[:-2]  # the messages follow
DURABLE_PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in DURABLE_PRAGMAS:
        db.execute(pragma)
    db.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, question TEXT, answer TEXT)")
    return db


class Floor:
    """One conversation at the minimum cost. `requests` is the number of model requests per turn:
    each tool call adds one.
    """

    def __init__(self, path: Path, port: int, *, requests: int = 1) -> None:
        self._db = _open(path)
        self._pool = WirePool(port)
        self._requests = requests
        self._parts: list[bytes] = []
        self.cpus_s: list[float] = []
        self.walls_s: list[float] = []

    async def turns(self, count: int) -> None:
        """Run more turns. Their CPU is measured together, because one turn is too short for the clock."""
        started = time.process_time()
        for _ in range(count):
            await self._turn()
        self.cpus_s.append((time.process_time() - started) / count)

    async def _turn(self) -> None:
        before = time.perf_counter()
        asked = f"message number {len(self.walls_s)}"
        self._parts.append(msgspec.json.encode({"role": "user", "content": asked}) + b",")
        answer = {"text": ""}
        for _ in range(self._requests):
            answer = msgspec.json.decode(await self._pool.request([b'{"messages":[', *self._parts, b"null]}"]))
            self._parts.append(msgspec.json.encode({"role": "assistant", "content": answer["text"]}) + b",")
        self._db.execute("INSERT INTO turns (question, answer) VALUES (?, ?)", (asked, answer["text"]))
        self.walls_s.append(time.perf_counter() - before)

    def close(self) -> None:
        self._db.close()


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta


class Event(msgspec.Struct):
    choices: list[Choice]


class ToolFloor(Floor):
    """Turns with a tool call, at the minimum cost: the same two requests as the server's, for a call and for text, to
    the same streams of the mock. The request contains only one tool, and no instructions."""

    def __init__(self, path: Path, port: int) -> None:
        super().__init__(path, port)
        self._decode = msgspec.json.Decoder(Event).decode

    async def _turn(self) -> None:
        asked = f"{len(self.walls_s)}: {ASKS_FOR}{TOOL}"
        before = time.perf_counter()
        self._add_message({"role": "user", "content": asked})
        await self._request_reply()
        call = {"id": "call_000001", "type": "function", "function": {"name": TOOL, "arguments": ARGUMENTS_JSON[TOOL]}}
        self._add_message({"role": "assistant", "content": None, "tool_calls": [call]})
        self._add_message({"role": "tool", "tool_call_id": "call_000001", "content": "It is noon in UTC."})
        text = await self._request_reply()
        self._add_message({"role": "assistant", "content": text})
        self._db.execute("INSERT INTO turns (question, answer) VALUES (?, ?)", (asked, text))
        self.walls_s.append(time.perf_counter() - before)

    def _add_message(self, message: dict[str, Any]) -> None:
        self._parts.append(msgspec.json.encode(message))

    async def _request_reply(self) -> str:
        stream = await self._pool.request([HEAD, b",".join(self._parts), b"]}"], path=b"/v1/chat/completions")
        events = [self._decode(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
        return "".join(event.choices[0].delta.content or "" for event in events if event.choices)


class LongFloor:
    """A long conversation that is read from disk as a whole and answered, at the minimum cost."""

    def __init__(self, folder: Path, port: int, *, messages: int) -> None:
        self._path = folder / "long-floor.db"
        self._port = port
        self.cpus_s: list[float] = []
        db = _open(self._path)
        db.execute("BEGIN")
        rows = ((f"message number {number}", "word " * 40) for number in range(messages // 2))
        db.executemany("INSERT INTO turns (question, answer) VALUES (?, ?)", rows)
        db.execute("COMMIT")
        db.close()

    async def run_first_turn(self) -> None:
        pool = WirePool(self._port)
        await pool.request([b"{}"])  # opens the connection
        started = time.process_time()
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute(DURABLE_PRAGMAS[1])
        parts: list[bytes] = []
        for question, text in db.execute("SELECT question, answer FROM turns ORDER BY id"):
            parts.append(msgspec.json.encode({"role": "user", "content": question}) + b",")
            parts.append(msgspec.json.encode({"role": "assistant", "content": text}) + b",")
        parts.append(msgspec.json.encode({"role": "user", "content": "and now?"}) + b",")
        answer = msgspec.json.decode(await pool.request([b'{"messages":[', *parts, b"null]}"]))
        db.execute("INSERT INTO turns (question, answer) VALUES (?, ?)", ("and now?", answer["text"]))
        self.cpus_s.append(time.process_time() - started)
        db.close()


def measure_commit_ms(path: Path, commits: int) -> float:
    """Measure the time of one durable commit on this disk, in milliseconds."""
    db = _open(path)
    walls: list[float] = []
    for i in range(commits):
        before = time.perf_counter()
        db.execute("INSERT INTO turns (question, answer) VALUES (?, ?)", (str(i), "x" * 200))
        walls.append(time.perf_counter() - before)
    db.close()
    return median(walls) * 1000
