"""Cases of the fault test suite that use a real `kill -9`.

A separate process runs the connector, and is killed between two steps.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from retinue.connectors.base import InboundMessage
from retinue.testing.fault_kit.breaking_proxy import BreakPoint
from retinue.testing.fault_kit.harness import CONNECTOR_NAME, FaultHarness, KitDelivery
from retinue.testing.fault_kit.kit_server import IntakeFault, SendOutcome, build_part

JOURNAL_FILE = "journal.jsonl"
REACHED_FILE = "reached"


async def kill_while_sending(harness: FaultHarness) -> None:
    """Kill the test server after the platform accepted a part.

    The next test server may send the part again only if the platform recognizes repeated parts.
    """
    await harness.stop_server()
    text, number = harness.unique_text("answer"), harness.next_number()
    harness.break_at(text.split()[-1], BreakPoint.AFTER)
    channel = harness.bench.channel
    doomed = await _start_process(harness, "send", channel, text, str(number))
    try:
        await harness.wait_until_delivered(text)
    finally:
        await _kill(doomed)
    await harness.start_server()
    outcome = SendOutcome.UNKNOWN
    if harness.connector.repeats_safely:
        outcome = await harness.server.send(harness.connector, build_part(CONNECTOR_NAME, channel, text, number=number))
    harness.deliveries.append(KitDelivery(channel, text, outcome))
    await harness.deliver()


async def kill_before_commit(harness: FaultHarness) -> None:
    await _kill_while_listening(harness, IntakeFault.DIES_BEFORE)


async def kill_after_commit(harness: FaultHarness) -> None:
    await _kill_while_listening(harness, IntakeFault.DIES_AFTER)


async def _kill_while_listening(harness: FaultHarness, fault: IntakeFault) -> None:
    await harness.stop_server()
    doomed = await _start_process(harness, "listen", fault)
    try:
        await harness.wait_until_ready()
        await harness.send_inbound()
        reached = harness.folder / REACHED_FILE
        await harness.wait_until_true(reached.exists, "the process did not receive the inbound message")
    finally:
        await _kill(doomed)
    for incoming in read_committed(harness.folder):
        harness.server.commit(incoming)
    await harness.start_server()
    await harness.wait_until_all_received()
    await harness.send_inbound()


def read_committed(folder: Path) -> list[InboundMessage]:
    """Return the messages that a process committed before it was killed."""
    journal = folder / JOURNAL_FILE
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [InboundMessage(**json.loads(line)) for line in lines]


async def _start_process(harness: FaultHarness, *task: str) -> asyncio.subprocess.Process:
    module = "retinue.testing.fault_kit.kill_target"
    words = (harness.bench.factory, str(harness.folder), json.dumps(harness.addresses), *task)
    return await asyncio.create_subprocess_exec(sys.executable, "-m", module, *words)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
