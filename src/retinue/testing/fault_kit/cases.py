"""The cases of the fault kit: every way in which a platform, the network or the server may fail.

What must hold at the end is the same for all cases, and checked by the harness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from retinue.testing.fault_kit import kill_cases
from retinue.testing.fault_kit.breaking_proxy import Break
from retinue.testing.fault_kit.harness import Broken, Stage
from retinue.testing.fault_kit.kit_server import Mishap, Outcome
from retinue.testing.fault_kit.peer import Trouble

ROUNDS = 3
MANY = 20

NOT_LOST = (Outcome.DELIVERED, Outcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, and the function that causes it."""

    name: str
    fault: str  # one sentence, for the reader of the matrix
    play: Callable[[Stage], Awaitable[None]]


async def _calm(stage: Stage) -> None:
    await both_ways(stage)
    await both_ways(stage, room=stage.bench.other_room)


async def both_ways(stage: Stage, *, room: str | None = None) -> None:
    """Check that a message and a delivery work, as they must before and after every fault."""
    await stage.say(room=room)
    await stage.until_all_heard()
    if (outcome := await stage.send(room=room)) is not Outcome.DELIVERED:
        raise Broken(f"without any fault, what is sent ends as {outcome}")


async def _busy(stage: Stage) -> None:
    rooms = (stage.bench.room, stage.bench.other_room)

    async def answers(room: str) -> None:
        for _ in range(MANY // 4):
            await stage.send(room=room)

    answering = [asyncio.create_task(answers(room)) for room in rooms]
    for number in range(MANY):
        await stage.say(room=rooms[number % 2])
    await asyncio.gather(*answering)


# --- server ---


async def _mishaps(stage: Stage, *mishaps: Mishap) -> None:
    stage.house.mishaps.extend(mishaps)
    await stage.say()
    await stage.say()
    await stage.until_all_heard()
    await both_ways(stage)


async def _store_fails(stage: Stage) -> None:
    await _mishaps(stage, *([Mishap.FAILS_BEFORE] * ROUNDS))


async def _store_fails_late(stage: Stage) -> None:
    await _mishaps(stage, Mishap.FAILS_AFTER, Mishap.FAILS_AFTER)


async def _crash(stage: Stage, mishap: Mishap) -> None:
    stage.house.mishaps.append(mishap)
    await stage.say()
    await stage.until(stage.house.died.wait, "the house was not handed what was said")
    await stage.crash_house()
    await stage.open_house()
    await stage.until_all_heard()
    await both_ways(stage)


async def _crash_before_commit(stage: Stage) -> None:
    await _crash(stage, Mishap.DIES_BEFORE)


async def _crash_after_commit(stage: Stage) -> None:
    await _crash(stage, Mishap.DIES_AFTER)


async def _opened_anew(stage: Stage) -> None:
    for _ in range(ROUNDS):
        await both_ways(stage)
        await stage.close_house()
        await stage.open_house()
    await both_ways(stage)


# --- network ---


async def _line_cut(stage: Stage) -> None:
    for _ in range(ROUNDS):
        await both_ways(stage)
        await stage.lose_line()
    await both_ways(stage)


async def _said_while_away(stage: Stage) -> None:
    await both_ways(stage)
    stage.refuse()
    for _ in range(ROUNDS):
        await stage.say()
    await stage.admit()
    await stage.until_all_heard()
    await both_ways(stage)


async def _no_line(stage: Stage) -> None:
    await both_ways(stage)
    stage.refuse()
    lost, sending = stage.house.lines_lost, asyncio.create_task(stage.send())
    await stage.until_true(
        lambda: bool(stage.house.refusals) or stage.house.lines_lost > lost + 1 or sending.done(),
        "the connector did not notice that there is no line",
    )
    await stage.admit()
    outcome = await sending
    if outcome is not Outcome.DELIVERED:
        raise Broken(f"there was no line, so surely nothing was taken, and yet it ended as {outcome}")
    await stage.until_ready(lost=1)
    await both_ways(stage)


async def _slow_line(stage: Stage) -> None:
    stage.drip()
    for _ in range(ROUNDS):
        await both_ways(stage)
        await both_ways(stage, room=stage.bench.other_room)


async def _half_open(stage: Stage) -> None:
    await both_ways(stage)
    text = stage.words("answer")
    stage.freeze()
    stage.break_at(text.split()[-1], Break.FROZEN)  # also if each delivery has a separate connection
    sending = asyncio.create_task(stage.send(text))
    await stage.outlast_silence(sending)
    if (outcome := await sending) not in NOT_LOST:
        raise Broken(f"nobody could know what came of it, and yet it ended as {outcome}")
    await stage.until_ready(lost=1)
    await both_ways(stage)


async def _cut_sending(stage: Stage, where: Break) -> Outcome:
    await both_ways(stage)
    text = stage.words("answer")
    stage.break_at(text.split()[-1], where)
    sending = asyncio.create_task(stage.send(text))
    if where is Break.AFTER:
        await stage.until_stands(text)
        stage.cut()
    outcome = await sending
    await stage.until_ready(lost=1)
    await both_ways(stage)
    return outcome


async def _cut_before(stage: Stage) -> None:
    await _cut_sending(stage, Break.BEFORE)


async def _cut_half_way(stage: Stage) -> None:
    await _cut_sending(stage, Break.HALF_WAY)


async def _cut_after(stage: Stage) -> None:
    outcome = await _cut_sending(stage, Break.AFTER)
    if stage.house.refusals:
        raise Broken("it arrived, and was called refused: it would be sent twice")
    if outcome not in NOT_LOST:
        raise Broken(f"nobody could know what came of it, and yet it ended as {outcome}")


async def _at_every_step(stage: Stage) -> None:
    for befall in (stage.lose_line, stage.restart_house, stage.restart_place):
        await befall()
        await stage.say()
        if not stage.bench.keeps:
            await stage.until_all_heard()
        await befall()
        await stage.until_all_heard()
        await stage.send_amid(befall)
        await both_ways(stage)


# --- platform ---


async def _restarts(stage: Stage) -> None:
    await both_ways(stage)
    sending = asyncio.create_task(stage.send())
    await stage.bench.restart()
    if (outcome := await sending) not in NOT_LOST:
        raise Broken(f"what was sent as the place went down ended as {outcome}")
    await stage.until_ready(lost=1)
    await both_ways(stage)


async def _refuses(stage: Stage) -> None:
    await stage.bench.begin(Trouble.REFUSES)
    outcome = await stage.send()
    await stage.bench.end(Trouble.REFUSES)
    # If the platform's temporary error leaves open whether it accepted the part, the result is
    # unknown. If it certainly did not, the delivery is repeated.
    if outcome is not Outcome.DELIVERED and (stage.house.refusals or outcome is not Outcome.UNKNOWN):
        raise Broken(f"it was refused for the moment, and ended as {outcome}")
    await both_ways(stage)


async def _throttles(stage: Stage) -> None:
    await stage.bench.begin(Trouble.THROTTLES)
    outcome = await stage.send()
    await stage.bench.end(Trouble.THROTTLES)
    if not any(each.retry_after_s for each in stage.house.refusals):
        raise Broken("the place asked for patience, and the house was not told for how long")
    if outcome is not Outcome.DELIVERED:
        raise Broken(f"it was to wait, and ended as {outcome}")
    await both_ways(stage)


async def _forbids(stage: Stage) -> None:
    await stage.bench.begin(Trouble.FORBIDS)
    outcome = await stage.send()
    await stage.bench.end(Trouble.FORBIDS)
    if outcome is not Outcome.REFUSED:
        raise Broken(f"it was refused for good, and ended as {outcome}")
    await both_ways(stage)


async def _revoked(stage: Stage) -> None:
    await both_ways(stage)
    await stage.bench.begin(Trouble.REVOKED)
    stage.cut()
    await stage.until_true(
        lambda: bool(stage.house.needed_owner), "nobody told the owner that the place knows us no more"
    )
    if not stage.house.needed_owner[0].sentence:
        raise Broken("the owner was told nothing")
    await stage.bench.end(Trouble.REVOKED)
    await stage.until_ready(lost=1)
    await both_ways(stage)


async def _repeats(stage: Stage) -> None:
    await stage.bench.begin(Trouble.REPEATS)
    for _ in range(ROUNDS):
        await stage.say()
    await stage.until_all_heard()
    await stage.bench.end(Trouble.REPEATS)
    await both_ways(stage)


async def _shuffles(stage: Stage) -> None:
    stage.order_told = False
    await stage.bench.begin(Trouble.SHUFFLES)
    for _ in range(ROUNDS):
        await stage.say()
    await stage.until_all_heard()
    await stage.bench.end(Trouble.SHUFFLES)
    await both_ways(stage)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("calm", "nothing happens", _calm),
        Case("busy", "much is said and sent at once, in two rooms", _busy),
        Case("store-fails", "the house cannot store what it is handed, a few times", _store_fails),
        Case("store-fails-late", "the house stored it, and could not say so", _store_fails_late),
        Case("crash-before-commit", "the house dies with something in its hands", _crash_before_commit),
        Case("crash-after-commit", "the house dies before it can confirm what it stored", _crash_after_commit),
        Case("opened-anew", "the connector is closed and made again, as for new settings", _opened_anew),
        Case("line-cut", "the line breaks, again and again", _line_cut),
        Case("said-while-away", "something is said while there is no line", _said_while_away),
        Case("no-line", "something is to be sent while there is no line", _no_line),
        Case("slow-line", "everything comes in small pieces", _slow_line),
        Case("half-open", "the line stands, and nothing passes any more", _half_open),
        Case("cut-before", "the line breaks before what is sent arrives", _cut_before),
        Case("cut-half-way", "the line breaks in the middle of the words", _cut_half_way),
        Case("cut-after", "what is sent arrives, and the line breaks before we hear so", _cut_after),
        Case(
            "at-every-step", "line, house and place go down: at rest, while one says or sends something", _at_every_step
        ),
        Case("place-restarts", "the place is closed and opened again", _restarts),
        Case("place-refuses", "the place has a bad moment (5xx)", _refuses),
        Case("throttled", "the place asks for patience (429)", _throttles),
        Case("room-gone", "the place will not have it, for good (4xx)", _forbids),
        Case("revoked", "the place knows our key no more (401)", _revoked),
        Case("told-twice", "the place tells us everything twice", _repeats),
        Case("told-out-of-order", "the place tells us the later before the earlier", _shuffles),
        Case("killed-sending", "kill -9 after the place took it, before we hear so", kill_cases.sending),
        Case("killed-before-commit", "kill -9 with something in our hands", kill_cases.before_commit),
        Case("killed-after-commit", "kill -9 before what is stored is confirmed", kill_cases.after_commit),
    )
}
