"""Cases with a real `kill -9`: a separate process runs the connector, and is killed between two steps."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from retinue.connectors.base import Incoming
from retinue.testing.fault_kit.breaking_proxy import Break
from retinue.testing.fault_kit.harness import INSTANCE, Sent, Stage
from retinue.testing.fault_kit.kit_server import Mishap, Outcome, parcel_to

JOURNAL = "journal.jsonl"
REACHED = "reached"


async def sending(stage: Stage) -> None:
    """Kill the server after the platform accepted a part: it may be sent again only if that is safe."""
    await stage.close_house()
    text, number = stage.words("answer"), stage.number()
    stage.break_at(text.split()[-1], Break.AFTER)
    room = stage.bench.room
    doomed = await _process(stage, "send", room, text, str(number))
    try:
        await stage.until_stands(text)
    finally:
        await _kill(doomed)
    await stage.open_house()
    outcome = Outcome.UNKNOWN
    if stage.connector.repeats_safely:
        outcome = await stage.house.send(stage.connector, parcel_to(INSTANCE, room, text, number=number))
    stage.sent.append(Sent(room, text, outcome))
    await stage.send()


async def before_commit(stage: Stage) -> None:
    await _listening(stage, Mishap.DIES_BEFORE)


async def after_commit(stage: Stage) -> None:
    await _listening(stage, Mishap.DIES_AFTER)


async def _listening(stage: Stage, mishap: Mishap) -> None:
    await stage.close_house()
    doomed = await _process(stage, "listen", mishap)
    try:
        await stage.until_ready()
        await stage.say()
        reached = stage.folder / REACHED
        await stage.until_true(reached.exists, "the process was not handed what was said")
    finally:
        await _kill(doomed)
    for incoming in committed_in(stage.folder):
        stage.house.commit(incoming)
    await stage.open_house()
    await stage.until_all_heard()
    await stage.say()


def committed_in(folder: Path) -> list[Incoming]:
    """Returns the messages that a process committed before it was killed."""
    journal = folder / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [Incoming(**json.loads(line)) for line in lines]


async def _process(stage: Stage, *task: str) -> asyncio.subprocess.Process:
    module = "retinue.testing.fault_kit.kill_target"
    words = (stage.bench.made_by, str(stage.folder), json.dumps(stage.at), *task)
    return await asyncio.create_subprocess_exec(sys.executable, "-m", module, *words)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
