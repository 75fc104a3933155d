"""The cases of the fault test suite: the ways in which a platform, the network or the server may fail.

The same conditions must hold at the end of every case. The harness checks these conditions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from retinue.testing.fault_kit import kill_cases
from retinue.testing.fault_kit.breaking_proxy import BreakPoint
from retinue.testing.fault_kit.harness import ContractBroken, FaultHarness
from retinue.testing.fault_kit.kit_server import IntakeFault, SendOutcome
from retinue.testing.fault_kit.peer import PeerFault

ROUNDS = 3
BUSY_MESSAGES = 20

NOT_LOST_OUTCOMES = (SendOutcome.DELIVERED, SendOutcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault, and the function that causes it."""

    name: str
    fault: str  # one sentence, for the reader of the matrix
    run: Callable[[FaultHarness], Awaitable[None]]


async def _no_fault(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    await check_both_ways(harness, channel=harness.bench.other_channel)


async def check_both_ways(harness: FaultHarness, *, channel: str | None = None) -> None:
    """Check that the connector receives a message and delivers one. Cases call this when no fault is active."""
    await harness.send_inbound(channel=channel)
    await harness.wait_until_all_received()
    if (outcome := await harness.deliver(channel=channel)) is not SendOutcome.DELIVERED:
        raise ContractBroken(f"without any fault, a sent message ends as {outcome}")


async def _busy(harness: FaultHarness) -> None:
    channels = (harness.bench.channel, harness.bench.other_channel)

    async def answers(channel: str) -> None:
        for _ in range(BUSY_MESSAGES // 4):
            await harness.deliver(channel=channel)

    answering = [asyncio.create_task(answers(channel)) for channel in channels]
    for number in range(BUSY_MESSAGES):
        await harness.send_inbound(channel=channels[number % 2])
    await asyncio.gather(*answering)


# --- server ---


async def _run_intake_faults(harness: FaultHarness, *faults: IntakeFault) -> None:
    harness.server.intake_faults.extend(faults)
    await harness.send_inbound()
    await harness.send_inbound()
    await harness.wait_until_all_received()
    await check_both_ways(harness)


async def _store_fails(harness: FaultHarness) -> None:
    await _run_intake_faults(harness, *([IntakeFault.FAILS_BEFORE] * ROUNDS))


async def _store_fails_late(harness: FaultHarness) -> None:
    await _run_intake_faults(harness, IntakeFault.FAILS_AFTER, IntakeFault.FAILS_AFTER)


async def _crash(harness: FaultHarness, fault: IntakeFault) -> None:
    harness.server.intake_faults.append(fault)
    await harness.send_inbound()
    await harness.wait_for(harness.server.killed.wait, "the server did not receive the inbound message")
    await harness.crash_server()
    await harness.start_server()
    await harness.wait_until_all_received()
    await check_both_ways(harness)


async def _crash_before_commit(harness: FaultHarness) -> None:
    await _crash(harness, IntakeFault.DIES_BEFORE)


async def _crash_after_commit(harness: FaultHarness) -> None:
    await _crash(harness, IntakeFault.DIES_AFTER)


async def _restart_connector(harness: FaultHarness) -> None:
    for _ in range(ROUNDS):
        await check_both_ways(harness)
        await harness.stop_server()
        await harness.start_server()
    await check_both_ways(harness)


# --- network ---


async def _connection_broken(harness: FaultHarness) -> None:
    for _ in range(ROUNDS):
        await check_both_ways(harness)
        await harness.break_connection()
    await check_both_ways(harness)


async def _message_while_offline(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    harness.refuse_connections()
    for _ in range(ROUNDS):
        await harness.send_inbound()
    await harness.accept_connections()
    await harness.wait_until_all_received()
    await check_both_ways(harness)


async def _no_connection(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    harness.refuse_connections()
    lost, sending = harness.server.connections_lost, asyncio.create_task(harness.deliver())
    await harness.wait_until_true(
        lambda: bool(harness.server.refusals) or harness.server.connections_lost > lost + 1 or sending.done(),
        "the connector did not notice that there is no connection",
    )
    await harness.accept_connections()
    outcome = await sending
    if outcome is not SendOutcome.DELIVERED:
        raise ContractBroken(f"there was no connection, so nothing was sent, and yet it ended as {outcome}")
    await harness.wait_until_ready(connections_lost=1)
    await check_both_ways(harness)


async def _slow_connection(harness: FaultHarness) -> None:
    harness.slow_down()
    for _ in range(ROUNDS):
        await check_both_ways(harness)
        await check_both_ways(harness, channel=harness.bench.other_channel)


async def _half_open_connection(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    text = harness.unique_text("answer")
    harness.freeze_connections()
    harness.break_at(text.split()[-1], BreakPoint.FROZEN)  # also if each delivery has a separate connection
    sending = asyncio.create_task(harness.deliver(text))
    await harness.skip_time_limits(sending)
    if (outcome := await sending) not in NOT_LOST_OUTCOMES:
        raise ContractBroken(f"its outcome could not be known, and yet it ended as {outcome}")
    await harness.wait_until_ready(connections_lost=1)
    await check_both_ways(harness)


async def _break_delivery(harness: FaultHarness, where: BreakPoint) -> SendOutcome:
    await check_both_ways(harness)
    text = harness.unique_text("answer")
    harness.break_at(text.split()[-1], where)
    sending = asyncio.create_task(harness.deliver(text))
    if where is BreakPoint.AFTER:
        await harness.wait_until_delivered(text)
        harness.break_connections()
    outcome = await sending
    await harness.wait_until_ready(connections_lost=1)
    await check_both_ways(harness)
    return outcome


async def _break_before(harness: FaultHarness) -> None:
    await _break_delivery(harness, BreakPoint.BEFORE)


async def _break_half_way(harness: FaultHarness) -> None:
    await _break_delivery(harness, BreakPoint.HALF_WAY)


async def _break_after(harness: FaultHarness) -> None:
    outcome = await _break_delivery(harness, BreakPoint.AFTER)
    if harness.server.refusals:
        raise ContractBroken("it arrived, but was reported as refused: it would be sent twice")
    if outcome not in NOT_LOST_OUTCOMES:
        raise ContractBroken(f"its outcome could not be known, and yet it ended as {outcome}")


async def _at_every_step(harness: FaultHarness) -> None:
    for befall in (harness.break_connection, harness.restart_server, harness.restart_platform):
        await befall()
        await harness.send_inbound()
        if not harness.bench.keeps_messages:
            await harness.wait_until_all_received()
        await befall()
        await harness.wait_until_all_received()
        await harness.deliver_during(befall)
        await check_both_ways(harness)


# --- platform ---


async def _platform_restarts(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    sending = asyncio.create_task(harness.deliver())
    await harness.bench.restart()
    if (outcome := await sending) not in NOT_LOST_OUTCOMES:
        raise ContractBroken(f"a message sent while the platform went down ended as {outcome}")
    await harness.wait_until_ready(connections_lost=1)
    await check_both_ways(harness)


async def _platform_refuses(harness: FaultHarness) -> None:
    await harness.bench.start_fault(PeerFault.REFUSES)
    outcome = await harness.deliver()
    await harness.bench.stop_fault(PeerFault.REFUSES)
    # If the platform's temporary error leaves open whether it accepted the part, the result is
    # unknown. If it certainly did not, the delivery is repeated.
    if outcome is not SendOutcome.DELIVERED and (harness.server.refusals or outcome is not SendOutcome.UNKNOWN):
        raise ContractBroken(f"it was refused temporarily, and ended as {outcome}")
    await check_both_ways(harness)


async def _platform_throttles(harness: FaultHarness) -> None:
    await harness.bench.start_fault(PeerFault.THROTTLES)
    outcome = await harness.deliver()
    await harness.bench.stop_fault(PeerFault.THROTTLES)
    if not any(each.retry_after_s for each in harness.server.refusals):
        raise ContractBroken("the platform throttled the connector, and the server was not told for how long")
    if outcome is not SendOutcome.DELIVERED:
        raise ContractBroken(f"it had to wait, and ended as {outcome}")
    await check_both_ways(harness)


async def _channel_gone(harness: FaultHarness) -> None:
    await harness.bench.start_fault(PeerFault.FORBIDS)
    outcome = await harness.deliver()
    await harness.bench.stop_fault(PeerFault.FORBIDS)
    if outcome is not SendOutcome.REFUSED:
        raise ContractBroken(f"it was refused permanently, and ended as {outcome}")
    await check_both_ways(harness)


async def _credential_revoked(harness: FaultHarness) -> None:
    await check_both_ways(harness)
    await harness.bench.start_fault(PeerFault.REVOKED)
    harness.break_connections()
    await harness.wait_until_true(
        lambda: bool(harness.server.owner_alerts),
        "the owner was not told that the platform no longer accepts the credential",
    )
    if not harness.server.owner_alerts[0].sentence:
        raise ContractBroken("the owner got no notification")
    await harness.bench.stop_fault(PeerFault.REVOKED)
    await harness.wait_until_ready(connections_lost=1)
    await check_both_ways(harness)


async def _messages_repeated(harness: FaultHarness) -> None:
    await harness.bench.start_fault(PeerFault.REPEATS)
    for _ in range(ROUNDS):
        await harness.send_inbound()
    await harness.wait_until_all_received()
    await harness.bench.stop_fault(PeerFault.REPEATS)
    await check_both_ways(harness)


async def _messages_reordered(harness: FaultHarness) -> None:
    harness.is_ordered = False
    await harness.bench.start_fault(PeerFault.SHUFFLES)
    for _ in range(ROUNDS):
        await harness.send_inbound()
    await harness.wait_until_all_received()
    await harness.bench.stop_fault(PeerFault.SHUFFLES)
    await check_both_ways(harness)


CASES: dict[str, FaultCase] = {
    case.name: case
    for case in (
        FaultCase("no-fault", "no fault", _no_fault),
        FaultCase("busy", "many messages in both directions at once, in two channels", _busy),
        FaultCase("store-fails", "the server fails to store inbound messages a few times", _store_fails),
        FaultCase("store-fails-late", "the server stores a message, and fails to confirm it", _store_fails_late),
        FaultCase(
            "crash-before-commit", "the server is killed before it stores an inbound message", _crash_before_commit
        ),
        FaultCase(
            "crash-after-commit", "the server is killed before it confirms a stored message", _crash_after_commit
        ),
        FaultCase(
            "connector-restarted",
            "the connector is closed and created again, as after a change of settings",
            _restart_connector,
        ),
        FaultCase("connection-cut", "the connection breaks, repeatedly", _connection_broken),
        FaultCase(
            "message-while-offline",
            "a message arrives at the platform while there is no connection",
            _message_while_offline,
        ),
        FaultCase("no-connection", "a delivery is due while there is no connection", _no_connection),
        FaultCase("slow-connection", "all data arrives in small pieces", _slow_connection),
        FaultCase("half-open", "the connection stays open, and no data arrives", _half_open_connection),
        FaultCase("cut-before", "the connection breaks before a sent message arrives", _break_before),
        FaultCase("cut-half-way", "the connection breaks in the middle of a sent message", _break_half_way),
        FaultCase(
            "cut-after", "a sent message arrives, and the connection breaks before it is confirmed", _break_after
        ),
        FaultCase(
            "faults-combined",
            "connection, server and platform go down: when idle, while receiving, and while sending",
            _at_every_step,
        ),
        FaultCase("platform-restarts", "the platform restarts", _platform_restarts),
        FaultCase("platform-refuses", "the platform fails temporarily (5xx)", _platform_refuses),
        FaultCase("throttled", "the platform throttles (429)", _platform_throttles),
        FaultCase("channel-gone", "the platform refuses a message permanently (4xx)", _channel_gone),
        FaultCase("revoked", "the platform no longer accepts the credential (401)", _credential_revoked),
        FaultCase("message-repeated", "the platform delivers every message twice", _messages_repeated),
        FaultCase("messages-reordered", "the platform delivers messages out of order", _messages_reordered),
        FaultCase(
            "killed-sending",
            "kill -9 after the platform accepted a message, before it is confirmed",
            kill_cases.kill_while_sending,
        ),
        FaultCase("killed-before-commit", "kill -9 before an inbound message is stored", kill_cases.kill_before_commit),
        FaultCase("killed-after-commit", "kill -9 before a stored message is confirmed", kill_cases.kill_after_commit),
    )
}
