"""Runs one case of the fault kit: a platform, proxies that can break, a server, and the final checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from retinue.app.clock_and_ids import new_chance
from retinue.connectors.base import Connector, Incoming, Surroundings
from retinue.testing.fault_kit.breaking_proxy import Break, Proxy
from retinue.testing.fault_kit.kit_server import FileShelf, HastyClock, House, Outcome, parcel_to
from retinue.testing.fault_kit.peer import At, Bench
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.waiting import POLL_S, WAIT_LIMIT_S, wait_until

INSTANCE = "kit"
SHELF = "shelf.json"
SKIP_S = 61.0  # longer than a peer lets its connector wait for an answer
SILENCE_S_MAX = 24 * 3600.0


class Broken(AssertionError):
    """The connector broke its contract. The text says how."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One delivery and its outcome."""

    room: str
    text: str
    outcome: Outcome


@dataclass(slots=True, eq=False)
class Life:
    """The server from its start until it is stopped, killed or dies."""

    connector: Connector
    listening: asyncio.Task[None]


@dataclass(slots=True, eq=False)
class Stage:
    """Everything a case uses: the peer, the proxies, the server, and the log of what was sent."""

    bench: Bench
    folder: Path
    lines: dict[str, Proxy]
    house: House = field(default_factory=House)
    said: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sent: list[Sent] = field(default_factory=list[Sent])
    order_told: bool = True  # whether the platform delivers messages in the order in which they were sent
    life: Life | None = None
    _words: int = 0
    _numbers: int = 0

    # --- server ---

    @property
    def connector(self) -> Connector:
        assert self.life is not None, "the house is closed"
        return self.life.connector

    @property
    def at(self) -> dict[str, At]:
        return {name: proxy.at for name, proxy in self.lines.items()}

    async def open_house(self) -> None:
        surroundings = replace(surroundings_in(self.folder, self.bench), stands=self.house.stands)
        connector = self.bench.connector(surroundings, self.at)
        self.life = Life(connector, asyncio.create_task(self.house.keep_listening(connector)))
        await self.until_ready()

    async def until_ready(self, *, lost: int = 0) -> None:
        """Wait until a message sent now will be received.

        If the platform keeps no messages, first wait until so many connections were lost: a message
        on a lost connection is gone.
        """
        if not self.bench.keeps:
            await self.until_true(lambda: self.house.lines_lost >= lost, "the connector did not notice the broken line")
        connector = self.life.connector if self.life is not None else None
        await self.until(lambda: self.bench.ready(connector), "the connector did not come in")

    async def close_house(self) -> None:
        """Stop the server regularly, as for new settings."""
        assert self.life is not None
        self.life.listening.cancel()
        done, _ = await asyncio.wait([self.life.listening], timeout=WAIT_LIMIT_S)
        if not done:
            raise Broken("listening did not end when it was cancelled")
        self.life = None

    async def lose_line(self) -> None:
        """Break the connections, and wait until the connector is ready again."""
        before = self.house.lines_lost
        self.cut()
        await self.until_ready(lost=before + 1)

    async def restart_house(self) -> None:
        await self.crash_house()
        await self.open_house()

    async def restart_place(self) -> None:
        before = self.house.lines_lost
        await self.bench.restart()
        await self.until_ready(lost=before + 1)

    async def crash_house(self) -> None:
        """Stop the server abruptly: the platform gets no regular end of the connection."""
        self.cut()
        await self.close_house()
        self.house.died.clear()

    # --- network ---

    def cut(self) -> None:
        for proxy in self.lines.values():
            proxy.cut()

    def freeze(self) -> None:
        for proxy in self.lines.values():
            proxy.freeze()

    async def outlast_silence(self, sending: asyncio.Task[Outcome]) -> None:
        """Let the connector's time limits pass while a connection is frozen.

        Returns once the delivery has ended and no frozen connection is left.
        """
        skipped_s = 0.0
        while (frozen := any(proxy.is_frozen for proxy in self.lines.values())) or not sending.done():
            if skipped_s > SILENCE_S_MAX:
                raise Broken("the connector keeps a line on which nothing passes any more")
            if frozen:
                skip_loop_time(SKIP_S)
                skipped_s += SKIP_S
            await asyncio.sleep(POLL_S)  # sleep: the connector reacts meanwhile; see the loop's condition

    def drip(self) -> None:
        for proxy in self.lines.values():
            proxy.drip()

    def refuse(self) -> None:
        for proxy in self.lines.values():
            proxy.refuse()
            proxy.cut()

    async def admit(self) -> None:
        for proxy in self.lines.values():
            await proxy.open()

    def break_at(self, words: str, where: Break) -> None:
        for proxy in self.lines.values():
            proxy.break_at(words, where)

    # --- messages and deliveries ---

    def words(self, what: str) -> str:
        """Returns a unique text, so that it can be found again, also in a connection's bytes."""
        self._words += 1
        return f"{what} kit{self._words:03d}mark"

    async def say(self, *, room: str | None = None, text: str | None = None) -> str:
        where, words = room or self.bench.room, text or self.words("question")
        if not self.bench.hears:
            return words
        self.said.append((where, words))
        await self.bench.say(where, words)
        return words

    async def send_amid(self, befall: Callable[[], Awaitable[None]]) -> None:
        """Deliver a part while a fault happens.

        If the server died during it, the result is unknown. The next server repeats the delivery
        only if that is safe.
        """
        room, text, dying = self.bench.room, self.words("answer"), self.life
        parcel = parcel_to(INSTANCE, room, text, number=self.number())
        sending = asyncio.create_task(self.house.send(self.connector, parcel))
        await asyncio.sleep(0)  # let the delivery start
        await befall()
        if self.life is dying:
            outcome = await sending
        else:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            again = self.connector.repeats_safely
            outcome = await self.house.send(self.connector, parcel) if again else Outcome.UNKNOWN
        self.sent.append(Sent(room, text, outcome))

    async def send(self, text: str | None = None, *, room: str | None = None) -> Outcome:
        where, words = room or self.bench.room, text or self.words("answer")
        outcome = await self.house.send(self.connector, parcel_to(INSTANCE, where, words, number=self.number()))
        self.sent.append(Sent(where, words, outcome))
        return outcome

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def until(self, done: Callable[[], Awaitable[object]], otherwise: str) -> None:
        """Wait for something that ends by itself. Raises `ContractBroken` after the time limit."""
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                await done()
        except (TimeoutError, AssertionError):
            raise Broken(otherwise) from None

    async def until_true(self, holds: Callable[[], bool | Awaitable[bool]], otherwise: str) -> None:
        await self.until(lambda: wait_until(holds, otherwise), otherwise)

    async def until_stands(self, text: str, *, room: str | None = None) -> None:
        async def stands() -> bool:
            return text in await self.bench.standing(room or self.bench.room)

        await self.until_true(stands, f"what was sent did not arrive: {text}")

    async def until_all_heard(self) -> None:
        wanted = {text for _, text in self.said}
        await self.until_true(
            lambda: wanted <= {each.text for each in self.house.committed},
            f"lost: {sorted(wanted - {each.text for each in self.house.committed})}",
        )

    # --- final checks ---

    async def answer_for_it(self) -> None:
        """Check both directions: nothing lost, nothing doubled, in order, and in the right channel."""
        await self._lost_and_found()
        rooms = (self.bench.room, self.bench.other_room)
        standing = {room: await self.bench.standing(room) for room in rooms}
        for room in rooms:
            self._in_its_room(room, standing[room])
        for room in rooms:
            self._heard_in(room)
            self._stands_in(room, standing[room])

    async def _lost_and_found(self) -> None:
        try:
            await self.until_all_heard()
        except Broken:
            heard = {each.text for each in self.house.committed}
            raise Broken(f"lost on the way in: {[text for _, text in self.said if text not in heard]}") from None

    def _in_its_room(self, room: str, standing: list[str]) -> None:
        said = {text for where, text in self.said if where == room}
        if strange := [each.text for each in self.house.committed if each.room == room and each.text not in said]:
            raise Broken(f"heard in {room}, and not said there: {strange}")
        sent = {each.text for each in self.sent if each.room == room}
        if strange := [text for text in standing if text not in sent]:
            raise Broken(f"stands in {room}, and was not sent there: {strange}")

    def _heard_in(self, room: str) -> None:
        said = [text for where, text in self.said if where == room]
        heard = [each for each in self.house.committed if each.room == room]
        if doubled := [text for text, times in Counter(each.text for each in heard).items() if times > 1]:
            raise Broken(f"taken in twice: {doubled}")
        if self.order_told and [each.text for each in heard] != said:
            raise Broken(f"heard in another order than said in {room}: {[each.text for each in heard]}")
        if nameless := [each.text for each in heard if _is_nameless(each)]:
            raise Broken(f"without a name of its own, or of its speaker: {nameless}")

    def _stands_in(self, room: str, standing: list[str]) -> None:
        sent = [each for each in self.sent if each.room == room]
        ours = {each.text for each in sent}
        for each in sent:
            self._counted(each, standing.count(each.text))
        kept = [text for text in standing if text in ours]
        if kept != [each.text for each in sent if each.text in kept]:
            raise Broken(f"stands in another order than sent in {room}: {kept}")

    def _counted(self, sent: Sent, times: int) -> None:
        if times > 1:
            raise Broken(f"doubled: {sent.text} stands there {times} times")
        if sent.outcome is Outcome.DELIVERED and not times:
            raise Broken(f"said to be delivered, and not there: {sent.text}")
        if sent.outcome is Outcome.REFUSED and times:
            raise Broken(f"said to be refused, and there: {sent.text}")
        if sent.outcome is Outcome.GAVE_UP:
            raise Broken(f"it came to no end: {sent.text}")


def _is_nameless(incoming: Incoming) -> bool:
    return not incoming.message_id or not incoming.room


def surroundings_in(folder: Path, bench: Bench) -> Surroundings:
    def secret(key: str) -> str:
        return bench.secrets[key]

    return Surroundings(
        instance=INSTANCE,
        clock=HastyClock(),
        chance=new_chance(),
        shelf=FileShelf(folder / SHELF),
        path_of=lambda attachment: folder / attachment.hash,
        secret=secret,
    )


@asynccontextmanager
async def staged(bench: Bench, folder: Path) -> AsyncGenerator[Stage]:
    """Start the peer, the proxies and the server, and stop them at the end of the block."""
    lines = {name: Proxy(far) for name, far in (await bench.open(folder)).items()}
    stage = Stage(bench, folder, lines)
    try:
        for proxy in lines.values():
            await proxy.open()
        await stage.open_house()
        yield stage
    finally:
        if stage.life is not None:
            stage.life.listening.cancel()
            await asyncio.gather(stage.life.listening, return_exceptions=True)
        for proxy in lines.values():
            await proxy.close()
        await bench.close()
