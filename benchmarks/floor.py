"""The floor: the same request to the same mock model, plus one durable commit, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.measure import median
from benchmarks.wire import WirePool

SYNCED = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")


@dataclass(frozen=True, slots=True)
class Floor:
    cpu_ms: float
    wall_ms: float
    commit_ms: float


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in SYNCED:
        db.execute(pragma)
    db.execute("CREATE TABLE turns (id INTEGER PRIMARY KEY, asked TEXT, said TEXT)")
    return db


async def _turns(db: sqlite3.Connection, port: int, turns: int) -> tuple[float, float]:
    pool = WirePool(port)
    parts: list[bytes] = []
    walls: list[float] = []
    started = time.process_time()
    for i in range(turns):
        before = time.perf_counter()
        asked = f"message number {i}"
        parts.append(msgspec.json.encode({"role": "user", "content": asked}) + b",")
        answer = msgspec.json.decode(await pool.request([b'{"messages":[', *parts, b"null]}"]))
        parts.append(msgspec.json.encode({"role": "assistant", "content": answer["text"]}) + b",")
        db.execute("INSERT INTO turns (asked, said) VALUES (?, ?)", (asked, answer["text"]))
        walls.append(time.perf_counter() - before)
    return (time.process_time() - started) * 1000 / turns, median(walls) * 1000


def measure_commit_ms(path: Path, commits: int) -> float:
    """What one durable commit costs on this disk, now."""
    db = _open(path)
    walls: list[float] = []
    for i in range(commits):
        before = time.perf_counter()
        db.execute("INSERT INTO turns (asked, said) VALUES (?, ?)", (str(i), "x" * 200))
        walls.append(time.perf_counter() - before)
    db.close()
    return median(walls) * 1000


def measure(folder: Path, port: int, turns: int) -> Floor:
    db = _open(folder / "floor.db")
    cpu_ms, wall_ms = asyncio.run(_turns(db, port, turns))
    db.close()
    return Floor(cpu_ms, wall_ms, measure_commit_ms(folder / "commits.db", turns))
