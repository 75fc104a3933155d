"""Check that accept and claim cost as much in a store of a million envelopes as in an empty store."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from benchmarks.measure import median
from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeDraft
from retinue.domain.ids import EnvelopeId, RunId
from retinue.domain.session import Origin, OriginKind
from retinue.engine.run_claim import ClaimSettings, claim_lane
from retinue.engine.run_context import ClaimedRun
from retinue.intake.accept import accept
from retinue.store.agents import agents
from retinue.store.core.sqlite import SqliteStore
from retinue.store.open_store import open_store

ROWS = 1_000_000
SAMPLES = 400
NOW_MS = 1_800_000_000_000

FILL_STATEMENT = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO envelopes (seq, id, sender, recipient, session, kind, text, trust, source, dedupe_key, rank, silent, due_ms,
                       status, attempts, accepted_ms, settled_ms)
SELECT i, lower(hex(randomblob(16))), 'person:owner', 'agent:ada', lower(hex(randomblob(16))), 'message',
       'a message of ordinary length, as people write them to each other', 'owner', 'person:owner', hex(randomblob(16)),
       1, 0, {now} - i, 'done', 1, {now} - i, {now} - i
FROM n
"""


def fill(path: Path, rows: int) -> None:
    db = sqlite3.connect(path)
    db.execute(FILL_STATEMENT.format(rows=rows, now=NOW_MS))
    db.execute("INSERT INTO outcomes SELECT id, 'delivered', '', NULL, 0, settled_ms FROM envelopes")
    db.execute("UPDATE counters SET envelope_seq = ?, latest_ms = ?", (rows, NOW_MS))
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def _id(prefix: int, i: int) -> str:
    return f"{(prefix * 7919 + i * 2654435761) % 2**32:08x}{prefix:08x}{i:016x}"


async def measure(store: SqliteStore, prefix: int) -> tuple[float, float]:
    """Measure the CPU time of accept and of claim in the writer, in microseconds (median)."""
    await store.write(_add_agent, point="bench")
    accepts: list[float] = []
    claims: list[float] = []
    terms = ClaimSettings(zone=ZoneInfo("UTC"), server_started_ms=0)
    for i in range(SAMPLES):
        draft = EnvelopeDraft(
            id=EnvelopeId(_id(prefix, i)),
            sender=address.person_address("owner"),
            recipient=address.agent_address("ada"),
            text="a message of ordinary length, as people write them to each other",
            source="person:owner",
            idempotency_key=f"{prefix}-{i}",
            origin=Origin(OriginKind.TERMINAL, f"bench-{prefix}-{i}"),
        )
        entered = await store.write(
            partial(_timed, accepts, partial(accept, draft=draft, now_ms=NOW_MS)), point="bench"
        )
        session = entered.receipt.session
        assert session is not None
        body = partial(claim_lane, session_id=session, run_id=RunId(_id(prefix + 1, i)), now_ms=NOW_MS, settings=terms)
        assert isinstance(await store.write(partial(_timed, claims, body), point="bench"), ClaimedRun)
    return median(accepts) * 1e6, median(claims) * 1e6


def _add_agent(conn: sa.Connection) -> None:
    agents.upsert(conn, Agent(name="ada"), source="bench", at_ms=NOW_MS)


def _timed(into: list[float], body, conn: sa.Connection):  # type: ignore[no-untyped-def]
    before = time.thread_time()
    result = body(conn)
    into.append(time.thread_time() - before)
    return result


async def compare(folder: Path, rows: int) -> tuple[float, float]:
    """Return the cost of accept and of claim with `rows` envelopes in the store, as multiples of
    the cost with an empty store.
    """
    empty, full = folder / "empty.db", folder / "full.db"
    first = await open_store(full)
    await first.close()
    fill(full, rows)
    figures: list[tuple[float, float]] = []
    for path, prefix in ((empty, 10), (full, 20), (empty, 30), (full, 40)):
        store = await open_store(path)
        assert isinstance(store, SqliteStore)
        figures.append(await measure(store, prefix))
        await store.close()
    (accept_1, claim_1), (accept_2, claim_2), (accept_3, claim_3), (accept_4, claim_4) = figures
    return min(accept_2, accept_4) / min(accept_1, accept_3), min(claim_2, claim_4) / min(claim_1, claim_3)


def main(folder: Path, rows: int = ROWS) -> tuple[float, float]:
    return asyncio.run(compare(folder, rows))
