"""The external agent of a simulation: it receives requests over HTTP and answers with signed callbacks.

It survives every server, and logs what it received and what the server confirmed. It is as
difficult as real services are. It answers at once, late, twice, never, after the deadline or after
a restart. It may or may not name the request that it answers. It sends unrequested messages, and
sometimes signs with a wrong key.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from retinue.api import callback_routes as door
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, Delivery, External
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.ids import short
from retinue.domain.session import Overflow, QueueMode, QueuePolicy
from retinue.net.signatures import ABOUT, LETTER, SIGNATURE, TIMESTAMP, WINDOW_S, Purpose, signed
from retinue.outbox.external_agent_delivery import callback_url
from retinue.testing.virtual_time import VirtualClock
from retinue.tools.web.guarded_request import Answer, Http
from retinue.tools.web.url_guard import Guard, WebFailed

if TYPE_CHECKING:
    import sqlite3

    from retinue.testing.simulated_server import SimulatedHouse

NAME = "rex"
BASE = "http://house.example"
ENVIRONMENT: Mapping[str, str] = {"FAR_KEY": "a key that the two share"}
_KEY = ENVIRONMENT["FAR_KEY"]
TRIES_MAX = 40
RESTART_WAITED_FOR_S = 300.0


def rex(chance: random.Random) -> Agent:
    """Draw the external agent with its limits."""
    return Agent(
        name=NAME,
        runner=EXTERNAL,
        external=External(
            url="http://elsewhere.example/in",
            secret="env:FAR_KEY",
            timeout_s=chance.choice((15.0, 60.0, 300.0)),
            retries=chance.choice((0, 2, 5)),
        ),
        delivery=Delivery.AT_MOST_ONCE if chance.random() < 0.3 else Delivery.RESUME,
        concurrency=chance.randint(1, 4),
        queue=QueuePolicy(
            mode=chance.choice(list(QueueMode)), cap=chance.choice((3, 8, 20)), overflow=chance.choice(list(Overflow))
        ),
        attempts_max=chance.choice((2, 3, 5)),
        replay_age_s=chance.choice((None, None, None, 60.0)),
    )


class Mood(StrEnum):
    """How the agent answers a request."""

    AT_ONCE = "answered at once"  # before the request itself has ended
    SOON = "answered soon"
    LATE = "answered late"
    TWICE = "answered twice"
    TWO_ANSWERS = "answered in two ways"
    OTHER_WORDS = "answered with other words under the same id"
    NEVER = "never answered"
    TOO_LATE = "answered after the deadline"
    RESTARTED = "answered after a restart"
    MUSED = "answered with a word more"  # an additional message that answers no request
    MIXED_UP = "answered after another's"  # the first message names a request of another session


_MOODS = {
    Mood.AT_ONCE: 12,
    Mood.SOON: 24,
    Mood.LATE: 10,
    Mood.TWICE: 10,
    Mood.TWO_ANSWERS: 8,
    Mood.OTHER_WORDS: 4,
    Mood.NEVER: 8,
    Mood.TOO_LATE: 8,
    Mood.RESTARTED: 8,
    Mood.MUSED: 8,
    Mood.MIXED_UP: 4,
}


class Taking(StrEnum):
    """How the agent's HTTP endpoint responds to a request."""

    TAKEN = "taken"
    BUSY = "busy"
    THROTTLED = "throttled"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"  # it accepts the request, but the response never arrives


_TAKINGS = {
    Taking.TAKEN: 80,
    Taking.BUSY: 6,
    Taking.THROTTLED: 3,
    Taking.REFUSED: 2,
    Taking.UNREACHABLE: 5,
    Taking.SILENT: 4,
}
_STATUSES = {Taking.TAKEN: 202, Taking.BUSY: 503, Taking.THROTTLED: 429, Taking.REFUSED: 400}


class Brought(NamedTuple):
    """A request, as the agent received it."""

    id: str
    session: str


class Said(NamedTuple):
    """A callback to a session. `request` is the request that it names, if any."""

    session: str
    message: str
    text: str
    request: str


class Heard(NamedTuple):
    """The server's response to a callback."""

    envelope: str
    answers: str | None


class Wire(Http):
    """The HTTP client of one server: every request goes to the external agent while the server is alive."""

    def __init__(self, house: SimulatedHouse, far: FarEnd) -> None:
        super().__init__(Guard())
        self._house = house
        self._far = far

    async def post(
        self, url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float, bytes_max: int
    ) -> Answer:
        await self._house.power.gate()
        try:
            status, asks = await self._far.take(self._house, headers, content, timeout_s=timeout_s)
        finally:
            await self._house.power.gate()
        return Answer(url=url, status=status, headers=asks, body=b"as I was told"[:bytes_max])


@dataclass(slots=True, kw_only=True)
class FarEnd:
    """The external agent, which survives every server of the simulation."""

    seed: int
    raw: sqlite3.Connection
    clock: VirtualClock
    timeout_s: float  # how long the server waits for an answer
    house: Callable[[], SimulatedHouse | None]  # the running one
    do: Callable[[Coroutine[Any, Any, None]], None]
    note: Callable[..., None]
    blame: Callable[[str, str], None]
    strikes: Counter[str]
    _letters: dict[str, Brought] = field(default_factory=dict[str, Brought])
    _times: Counter[str] = field(default_factory=Counter[str])
    _said: dict[tuple[str, str], list[Said]] = field(default_factory=dict[tuple[str, str], list[Said]])
    _heard: dict[Said, Heard] = field(default_factory=dict[Said, Heard])

    # --- requests ---

    async def take(
        self, house: SimulatedHouse, headers: Mapping[str, str], content: bytes, *, timeout_s: float
    ) -> tuple[int, dict[str, str]]:
        """Handle one request. Returns the status and headers of the response."""
        letter = self._read(headers, content)
        self._times[letter.id] += 1
        chance = random.Random(f"taking {self.seed} {letter.id} {self._times[letter.id]}")
        await house.clock.sleep(chance.choice((0.0, 0.0, 0.05, 1.0)))
        how = chance.choices(list(_TAKINGS), list(_TAKINGS.values()))[0]
        self.strikes[f"letters {how}"] += 1
        if how is Taking.UNREACHABLE:
            raise _lost()
        if how in (Taking.TAKEN, Taking.SILENT) and letter.id not in self._letters:
            self._letters[letter.id] = letter
            self._work_on(letter, by=house)
            await house.clock.sleep(chance.choice((0.0, 0.3)))
        if how is Taking.SILENT:
            await house.clock.sleep(timeout_s)
            raise _lost()
        return _STATUSES[how], {"retry-after": "7"} if how is Taking.THROTTLED else {}

    def _read(self, headers: Mapping[str, str], content: bytes) -> Brought:
        body = json.loads(content)
        letter = Brought(body["id"], body["sessionId"])
        at = headers[TIMESTAMP]
        expected = signed(_KEY, Purpose.MESSAGE, at=at, session=letter.session, letter=letter.id, body=content)
        if headers[SIGNATURE] != expected or headers[LETTER] != letter.id:
            self.blame("handed", f"the letter {short(letter.id)} is not signed as it should be")
        if body["callbackUrl"] != callback_url(BASE, letter.session):
            self.blame("handed", f"the letter {short(letter.id)} is to be answered elsewhere: {body['callbackUrl']}")
        return letter

    # --- callbacks ---

    def _work_on(self, letter: Brought, *, by: SimulatedHouse) -> None:
        chance = random.Random(f"mood {self.seed} {letter.id}")
        mood = chance.choices(list(_MOODS), list(_MOODS.values()))[0]
        self.strikes[f"letters {mood}"] += 1
        self.note("elsewhere: {} of {} will be {}", short(letter.id), short(letter.session), mood)
        if mood is not Mood.NEVER:
            self.do(self._answer(letter, mood, chance, brought_by=by.number))

    async def _answer(self, letter: Brought, mood: Mood, chance: random.Random, *, brought_by: int) -> None:
        first = self._words(letter, 1, chance)
        match mood:
            case Mood.AT_ONCE:
                await self._say(first, chance)
            case Mood.LATE:
                await asyncio.sleep(chance.uniform(3, 60))  # sleep: virtual time
                await self._say(first, chance)
            case Mood.TOO_LATE:
                await asyncio.sleep(self.timeout_s + chance.uniform(0, 20))  # sleep: virtual time
                await self._say(first, chance)
            case Mood.RESTARTED:
                await self._wait_for_another(brought_by)
                await self._say(first, chance)
            case Mood.TWICE:
                await asyncio.gather(self._say(first, chance), self._say(first, chance, after_s=chance.choice((0, 20))))
            case Mood.TWO_ANSWERS:
                second, after_s = self._words(letter, 2, chance), chance.choice((0, 1, 30))
                await asyncio.gather(self._say(first, chance), self._say(second, chance, after_s=after_s))
            case Mood.OTHER_WORDS:
                await self._say(first, chance)
                await self._say(first._replace(text=f"{first.text} Or not."), chance)
            case Mood.MUSED:
                await self._say(first, chance, after_s=chance.uniform(0, 5))
                await self._say(self._words(letter, 2, chance)._replace(request=""), chance, after_s=40)
            case Mood.MIXED_UP:
                others = [each.id for each in self._letters.values() if each.session != letter.session]
                if others:
                    await self._say(self._words(letter, 2, chance)._replace(request=chance.choice(others)), chance)
                await self._say(first, chance)
            case Mood.SOON | Mood.NEVER:
                await self._say(first, chance, after_s=chance.uniform(0, 3))
        if chance.random() < 0.3:  # an uncertain sender repeats it
            await self._say(first, chance, after_s=chance.choice((0.0, 5.0, 100.0)))

    def _words(self, letter: Brought, number: int, chance: random.Random) -> Said:
        request = letter.id if chance.random() < 0.6 else ""
        return Said(letter.session, f"{letter.id}-{number}", f"Word {number} on {letter.id}.", request)

    async def _wait_for_another(self, number: int) -> None:
        until = asyncio.get_running_loop().time() + RESTART_WAITED_FOR_S  # time limit: virtual
        while asyncio.get_running_loop().time() < until:
            house = self.house()
            if house is not None and house.number != number:
                return
            await asyncio.sleep(5)  # sleep: virtual time

    async def _say(self, said: Said, chance: random.Random, *, after_s: float = 0.0) -> None:
        """Send a callback as a client does: repeat it with the same id until the server responds."""
        if after_s:
            await asyncio.sleep(after_s)  # sleep: virtual time
        self._said.setdefault((said.session, said.message), [])
        if said not in self._said[said.session, said.message]:
            self._said[said.session, said.message].append(said)
        for _ in range(TRIES_MAX):
            if (house := self.house()) is not None and await self._try(house, said, chance):
                return
            await asyncio.sleep(chance.uniform(0.1, 10))  # sleep: virtual time

    async def _try(self, house: SimulatedHouse, said: Said, chance: random.Random) -> bool:
        """Send a callback once. Returns whether the server responded.

        A server that goes down before it responds may or may not have stored the callback.
        """
        from retinue.testing.simulated_server import Unreachable

        body = said.text.encode()
        key = _KEY if chance.random() < 0.95 else "another key"
        here, at = self._here(), int(self.clock.now().timestamp())
        headers = _headers(key, said, at=str(at), body=body)
        taking = partial(door.take, house.callbacks, said.session, headers, body)
        try:
            async with asyncio.timeout(60):
                told = json.loads(await house.call(taking))
        except (Unreachable, TimeoutError, StoreError):
            return False
        except RetinueError as refused:
            self.strikes[f"callbacks refused with {refused.code}"] += 1
            self.note("elsewhere: {} is refused: {}", said.message, refused.code)
            if refused.code != "external.unsigned":
                return True
            late = abs(self.clock.now().timestamp() - at) >= WINDOW_S  # the clock jumped meanwhile
            if key == _KEY and not late and here and here == self._here():
                self.blame("handed", f"what was said to {short(said.session)} was refused: {refused}")
            return False
        if key != _KEY:
            self.blame("handed", f"what nobody has signed was heard in {short(said.session)}")
        self._keep(said, Heard(told["envelope"], told["answers"]))
        return True

    def _here(self) -> object:
        """Returns the agent's current version in the store, or None if it was removed and so has no key."""
        found = self.raw.execute("SELECT version, removed_ms FROM agents WHERE name = ?", (NAME,)).fetchone()
        return found if found is not None and found[1] is None else None

    def _keep(self, said: Said, heard: Heard) -> None:
        self.note("elsewhere: {} is heard, and answers {}", said.message, short(heard.answers or "nothing"))
        if said.request and self._letters[said.request].session != said.session:
            self.blame("handed", f"{said.message} names a letter of another session, and was heard")
        if said in self._heard:
            self.strikes["callbacks heard again"] += 1
        else:
            self.strikes["callbacks that answer" if heard.answers else "callbacks that answer nothing"] += 1
        before = self._heard.setdefault(said, heard)
        if before != heard:
            self.blame("doubled", f"{said.message} was heard as {before}, and said again as {heard}")
        if heard.answers is not None and said.request not in ("", heard.answers):
            self.blame("handed", f"{said.message} names {short(said.request)} and answers {short(heard.answers)}")

    # --- at the end ---

    def check_the_end(self) -> None:
        """Check that each callback is stored once in its session, ends one request, and reached the requester."""
        stored = self._check_stored()
        answered = Counter(heard.answers for heard in self._heard.values() if heard.answers is not None)
        for letter, times in answered.items():
            if times > 1:
                self.blame("doubled", f"the letter {short(letter)} was answered {times} times")
        for said, heard in self._heard.items():
            if stored.get(heard.envelope) != said:
                self.blame("lost", f"{said.message} was heard as {short(heard.envelope)}, which is not so")
        for row in self.raw.execute(_HANDED_OUT):
            self._check_letter(*row, stored=stored)
        for envelope, words in stored.items():
            self._check_passed_on(envelope, words)
        for question, recipient, times in self.raw.execute(_TOLD_TWICE, (NAME,)):
            self.blame("doubled", f"{recipient} was told {times} times what came of {short(question)}")

    def _check_stored(self) -> dict[str, Said]:
        stored: dict[str, Said] = {}
        kept: Counter[tuple[str, str]] = Counter()
        for envelope, source, message, text, session, recipient in self.raw.execute(_STORED):
            place = (source.partition(":")[2], message)
            kept[place] += 1
            found = next((said for said in self._said.get(place, ()) if said.text == text), None)
            if found is None:
                self.blame("handed", f"nobody elsewhere said what is stored as {short(envelope)}: {text!r}")
            elif (session, recipient) != (found.session, f"agent:{NAME}/{found.session}"):
                self.blame("handed", f"{message} was said to {short(found.session)} and is in {short(session)}")
            else:
                stored[envelope] = found
        for (_, message), times in kept.items():
            if times > 1:
                self.blame("doubled", f"{message} is stored {times} times")
        return stored

    def _check_letter(
        self,
        id_: str,
        session: str,
        state: str,
        result: str | None,
        status: str,
        final: str | None,
        *,
        stored: Mapping[str, Said],
    ) -> None:
        claims = [heard for heard in self._heard.values() if heard.answers == id_]
        if claims and claims[0].envelope != result:
            self.blame("lost", f"the answer to {short(id_)} was heard, and it is {state}")
        if state == "open":
            self.blame("lost", f"the letter {short(id_)} is still open")
        if state != "done":
            return
        said = stored.get(result or "")
        if said is None or said.session != session or said.request not in ("", id_):
            self.blame("handed", f"the letter {short(id_)} ended with what was not said to it: {said}")
        elif status == "completed" and final != said.text:
            self.blame("handed", f"the letter {short(id_)} was answered {said.text!r}, and the run says {final!r}")

    def _check_passed_on(self, envelope: str, said: Said) -> None:
        """Check that a callback was forwarded at most once, from its own session, and if recorded so, exactly once."""
        found = [sender for (sender,) in self.raw.execute(_PASSED_ON, (f"agent:{NAME}/%", f"%{said.text}%"))]
        if len(found) > 1:
            self.blame("doubled", f"{said.message} was told on {len(found)} times")
        if any(sender != f"agent:{NAME}/{said.session}" for sender in found):
            self.blame("handed", f"{said.message} was told on from another session than {short(said.session)}")
        (told,) = self.raw.execute(_IS_TOLD, (envelope, envelope)).fetchone()
        if told and not found:
            self.blame("lost", f"{said.message} is down as told on, and nobody was told")


_STORED = """
SELECT id, source, dedupe_key, text, session, recipient FROM envelopes WHERE source LIKE 'external:%' ORDER BY seq
"""
_HANDED_OUT = """
SELECT d.id, d.session, d.state, d.result, r.status, r.final_text FROM delegations d JOIN runs r ON r.id = d.run
WHERE d.kind = 'external' ORDER BY d.id
"""
_PASSED_ON = "SELECT sender FROM envelopes WHERE sender LIKE ? AND kind <> 'delegation' AND text LIKE ? ORDER BY seq"
_TOLD_TWICE = """
SELECT q.id, n.recipient, count(*) FROM envelopes q JOIN runs r ON r.id = q.run JOIN envelopes n ON n.reply_to = q.id
WHERE r.agent = ? AND n.kind IN ('answer', 'notice') GROUP BY q.id, n.recipient HAVING count(*) > 1
"""
_IS_TOLD = """
SELECT EXISTS (SELECT 1 FROM outcomes WHERE envelope = ? AND outcome = 'answered' AND NOT silent) OR EXISTS (
  SELECT 1 FROM delegations d JOIN envelopes q ON q.run = d.run JOIN outcomes o ON o.envelope = q.id
  WHERE d.result = ? AND d.kind = 'external' AND o.outcome = 'answered' AND NOT o.silent)
"""


def _headers(key: str, said: Said, *, at: str, body: bytes) -> dict[bytes, bytes]:
    """Returns the headers as the HTTP server passes them to the route."""
    signature = signed(
        key, Purpose.CALLBACK, at=at, session=said.session, letter=said.message, about=said.request, body=body
    )
    headers = {
        TIMESTAMP: at,
        LETTER: said.message,
        SIGNATURE: signature,
        **({ABOUT: said.request} if said.request else {}),
    }
    return {name.lower().encode(): value.encode() for name, value in headers.items()}


def _lost() -> WebFailed:
    return WebFailed("it did not answer", because="the line broke", try_this="try again", code="web.timeout")
