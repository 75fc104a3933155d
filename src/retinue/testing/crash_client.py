"""The clients of the crash test: fifty senders that use only the HTTP API, over the server's socket.

They trust nothing. Every response is written to the clients' own log, with fsync, before it counts.
The verdict is made from that log, so that a server that loses, repeats or misreports something is
detected.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from retinue.testing import crash_script as script
from retinue.testing.crash_log import Acknowledged, Answered, Complaint, Decided, Log, Retried, Sent, Settled, Shown
from retinue.testing.crash_script import Do, Question

CALL_S_MAX = 120.0
CALL_AGAIN_S = 0.1  # fifty clients that retry without a pause would keep the server from starting
LOOK_S = 2.0
EXPIRES_AFTER_S = 0.15
APPROVAL_WAIT_S = 1.0  # how long the test's agents wait for a person
FOR_LONGER = 0.15  # share of the approvals that apply to the whole session

T = TypeVar("T")
Parameters = dict[str, Any]


# --- HTTP ---


class Closed(Exception):
    """The server did not answer: it may or may not have performed the request."""


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, error: dict[str, str]) -> None:
        super().__init__(f"{status} {error}")
        self.code = error.get("code", "")
        self.because = error.get("because", "")
        self.for_now = status >= 500


class Line:
    """One connection to the server, opened again whenever it breaks."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, operation: str, **parameters: Any) -> Parameters:
        return await self.post("/api/" + operation.replace(".", "/"), json.dumps(parameters).encode())

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Parameters:
        """Send a POST request, with the owner's token unless `headers` are given."""
        whole = False
        try:
            async with asyncio.timeout(CALL_S_MAX):
                reader = await self._ask("POST", path, body, headers)
                status, said = await read_head(reader)
                answer = json.loads(await reader.readexactly(int(said["content-length"])))
                whole = True
        except (OSError, EOFError, ValueError, LookupError, TimeoutError) as error:
            raise Closed(path) from error
        finally:
            if not whole:
                self.hang_up()
        if status >= 400:
            raise Refused(status, answer["error"])
        return answer

    async def news(self, after: int) -> AsyncIterator[tuple[str, Parameters]]:
        """Yield (event, data) pairs until the connection breaks, which always raises `Closed`."""
        try:
            reader = await self._ask("GET", f"/api/news?after={after}", b"")
            status, _ = await read_head(reader)
            if status != 200:
                raise Closed("news")
            waiting = b""
            while size := int(await reader.readline() or b"0", 16):
                chunk: bytes = await reader.readexactly(size + 2)
                *blocks, waiting = (waiting + chunk[:-2]).split(b"\n\n")
                for block in blocks:
                    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
                    if fields:
                        yield fields[b"event"].decode(), json.loads(fields[b"data"])
        except (OSError, EOFError, ValueError, LookupError) as error:
            raise Closed("news") from error
        finally:
            self.hang_up()
        raise Closed("news")

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection((self._home / "socket").read_text())
        reader, writer = self._streams
        if headers is None:
            token = (self._home / "owner-token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        lines = [
            f"{name}: {value}" for name, value in {"Host": "retinue", "Content-Length": len(body), **headers}.items()
        ]
        writer.write("\r\n".join((f"{method} {path} HTTP/1.1", *lines, "", "")).encode() + body)
        await writer.drain()
        return reader


def _asked_about(call: Parameters) -> str:
    """Returns what identifies a call that needs approval: the text it would write, or its id."""
    return call["arguments"].get("text") or call["id"]


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Returns the status of a response and its headers, with names in lower case. The status of a request is 0."""
    first_line = await reader.readline()
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    word = first_line.split()[1]
    return int(word) if word.isdigit() else 0, headers


# --- the senders ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """What a group of senders does, with the weight of each action."""

    to: str
    does: dict[Do, int]
    waiting_max: int = 3
    pause_s: float = 0.15
    thinks_s: float | None = None  # model delay of each question; None: short or none
    expires: bool = False  # every other question expires soon
    retries: bool = False  # retries dead letters
    restless: bool = False  # stops, resets and reconfigures its session


ERRANDS = {Do.HAND: 2, Do.HAND_TWO: 1, Do.HAND_ASK: 1, Do.SPAWN: 1, Do.SPAWN_ASK: 1}
MIXED = {Do.PLAIN: 4, Do.STATUS: 1, Do.TOOL: 3, Do.TWO_TOOLS: 2, Do.ASK: 2, **ERRANDS}
ONLY_PLAIN = {Do.PLAIN: 1}
# The recipients of all fifty senders. The agents are those of `crash_server`.
HABITS: Sequence[tuple[int, Habit]] = (
    (14, Habit(to="agent:ada", does=MIXED)),
    # Alone in their sessions: text of an external agent is untrusted, and most calls of a run that
    # read it need approval.
    (2, Habit(to="agent:ada", does={Do.PLAIN: 1, Do.HAND_OUT: 2}, waiting_max=1)),
    (3, Habit(to=f"agent:{script.ELSEWHERE}", does=ONLY_PLAIN)),
    (8, Habit(to="agent:bob", does=MIXED)),
    (7, Habit(to="agent:cat", does=MIXED)),
    (4, Habit(to="agent:eve", does=MIXED)),
    (2, Habit(to="agent:ivy", does=MIXED, waiting_max=2)),
    (2, Habit(to="agent:bob", does={Do.FAIL: 1, Do.PLAIN: 1}, retries=True)),
    (2, Habit(to="agent:bob", does=ONLY_PLAIN, expires=True)),
    (2, Habit(to="agent:ada", does=MIXED, restless=True)),
    (2, Habit(to=f"channel:{script.STEADY}:room-{{}}", does=ONLY_PLAIN)),
    (2, Habit(to=f"channel:{script.RISKY}:room-{{}}", does=ONLY_PLAIN)),
)


def everyone(habits: Sequence[tuple[int, Habit]] = HABITS) -> list[Habit]:
    return [habit for count, habit in habits for _ in range(count)]


@dataclass(slots=True)
class Correspondent:
    """One sender, with its session and its open envelopes."""

    number: int
    habit: Habit
    session: str | None = None
    sent: int = 0
    waiting: dict[str, str] = field(default_factory=dict[str, str])  # envelope -> token

    @property
    def to(self) -> str:
        return self.habit.to.format(self.number)


class Client:
    """All senders, and one reader of the event stream for them."""

    def __init__(self, home: Path, log: Log, *, seed: int, habits: Sequence[Habit] = (), letters_max: int = 0) -> None:
        self._home = home
        self._log = log
        self._random = random.Random(seed)
        self._letters_max = letters_max
        self._correspondents = [Correspondent(i, habit) for i, habit in enumerate(habits or everyone())]
        self._cursor = 0
        self._tokens: dict[str, str] = {}  # envelope -> token, for everything acknowledged
        self._settled: dict[str, str] = {}  # envelope -> outcome
        self._changed = asyncio.Event()
        self._decisions: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def write_letters(self) -> None:
        """Send until stopped, or until each sender has sent `envelopes_max`. Then wait until all are settled."""
        following = asyncio.create_task(self._follow())
        try:
            await asyncio.gather(*(self._correspond(each) for each in self._correspondents))
            while self._decisions:
                await asyncio.gather(*self._decisions)
            await asyncio.gather(*(self._look_at_the_end(each) for each in self._correspondents))
            await self._catch_up()
        finally:
            following.cancel()
            for task in self._decisions:
                task.cancel()
            await asyncio.gather(following, *self._decisions, return_exceptions=True)

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    @property
    def pending(self) -> dict[str, str]:
        """Envelope -> token of what was acknowledged and, as far as the client knows, is not settled."""
        return {e: token for each in self._correspondents for e, token in each.waiting.items()}

    # --- sending ---

    async def _correspond(self, each: Correspondent) -> None:
        line = Line(self._home)
        try:
            while not self._stopping and not (self._letters_max and each.sent >= self._letters_max):
                await asyncio.sleep(self._random.random() * 2 * each.habit.pause_s)  # sleep: how often a sender writes
                question = self._next_question(each)
                await self._send(line, each, question)
                alone = question.do is Do.ASK and self._random.random() < 0.7
                await self._settle(line, each, waiting_max=1 if alone else each.habit.waiting_max)
                if each.habit.restless and each.session and self._random.random() < 0.3:
                    await self._be_restless(line, each)
            await self._settle(line, each, waiting_max=1)
        finally:
            line.hang_up()

    def _next_question(self, each: Correspondent) -> Question:
        does = each.habit.does
        (do,) = self._random.choices(list(does), weights=list(does.values()))
        after_s = round(self._random.random() * 0.1, 3) if self._random.random() < 0.5 else 0.0
        if each.habit.thinks_s is not None:
            after_s = each.habit.thinks_s
        if each.habit.expires:
            after_s = 2 * EXPIRES_AFTER_S if each.sent % 2 == 0 else 0.0
        each.sent += 1
        return Question(script.token(each.number, each.sent), do, after_s)

    async def _send(self, line: Line, each: Correspondent, question: Question) -> None:
        key = f"{self._random.getrandbits(64):016x}"
        parameters: Parameters = {
            "to": each.to,
            "text": str(question),
            "key": key,
            "conversation": f"c{each.number}",
        }
        if each.habit.expires and each.sent % 2 == 0:
            expires_at = datetime.now(UTC) + timedelta(seconds=EXPIRES_AFTER_S)
            parameters["expires_at"] = expires_at.isoformat()
        await self._log.write(Sent(t=time.monotonic(), token=question.token, key=key, to=each.to))
        try:
            said = await self._insist(lambda: line.call("envelope.send", **parameters))
        except Refused as refused:
            if refused.code != "time.past":  # it expired before it could be sent
                await self._complain(f"{question.token} was refused: {refused}")
            return
        envelope, each.session = said["envelope"], said["session"]
        await self._log.write(
            Acknowledged(
                t=time.monotonic(),
                token=question.token,
                key=key,
                envelope=envelope,
                session=each.session,
                duplicate=said["duplicate"],
            )
        )
        self._tokens[envelope] = question.token
        if envelope not in self._settled:
            each.waiting[envelope] = question.token

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the server answers it."""
        while True:
            try:
                return await call()
            except Closed:
                pass
            except Refused as refused:
                if not refused.for_now:
                    raise
            await asyncio.sleep(CALL_AGAIN_S)  # sleep: before the server is called again

    async def _settle(self, line: Line, each: Correspondent, *, waiting_max: int) -> None:
        """Wait until a sender has fewer than so many open envelopes."""
        looked_at = time.monotonic()
        while len(each.waiting) >= waiting_max:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_S)  # time limit: then it is checked anyway
            # the events should have reported it, but must not be the only source
            if time.monotonic() - looked_at > LOOK_S:
                looked_at = time.monotonic()
                for envelope in list(each.waiting):
                    await self._look_at(line, envelope)

    async def _look_at(self, line: Line, envelope: str) -> None:
        try:
            found = await self._insist(lambda: line.call("envelope.show", id=envelope))
        except Refused as refused:
            await self._complain(f"{self._tokens[envelope]} was acknowledged and is gone: {refused}")
            self._forget(envelope)
            return
        if found["status"] == "done":
            await self._note_settled(envelope, found["outcome"])

    async def _be_restless(self, line: Line, each: Correspondent) -> None:
        operation, parameters = self._random.choice(
            [
                ("session.stop", {"why": "it took too long"}),
                ("session.reset", {"message": "from the start"}),
                ("session.queue", {"mode": "followup"}),
                ("session.queue", {}),
            ]
        )
        await self._insist(lambda: line.call(operation, session=each.session, **parameters))

    # --- events ---

    async def _follow(self) -> None:
        """Read the events by cursor, across every restart. None may be repeated, missing or out of order."""
        while True:
            line = Line(self._home)
            try:
                async for event, data in line.news(self._cursor):
                    if event == "reset":
                        await self._complain(f"the news of {self._cursor} is gone: {data['because']}")
                        self._cursor = data["cursor"]
                    if event == "news":
                        await self._hear(data)
            except Closed:
                await asyncio.sleep(CALL_AGAIN_S)  # sleep: before the server is called again

    async def _hear(self, news: Parameters) -> None:
        seq: int = news["seq"]
        if seq != self._cursor + 1:
            await self._complain(f"news {seq} came after {self._cursor}")
        match news["news"]:
            case "envelope.accepted" if news["kind"] == "answer":
                entry = Answered(t=time.monotonic(), seq=seq, envelope=news["envelope"], text=news["text"])
                await self._log.write(entry)
            case "run.ended":
                for envelope in news["envelopes"]:
                    await self._note_settled(envelope, news["outcome"])
            case "envelope.settled":
                await self._note_settled(news["envelope"], news["outcome"])
            case "approval.asked":
                task = asyncio.create_task(self._decide(news["approval"], _asked_about(news["calls"][0])))
                self._decisions.add(task)
                task.add_done_callback(self._decisions.discard)
            case _:
                pass
        self._cursor = seq

    async def _note_settled(self, envelope: str, outcome: str) -> None:
        if envelope in self._settled:
            return
        self._settled[envelope] = outcome
        await self._log.write(Settled(t=time.monotonic(), envelope=envelope, outcome=outcome))
        owner = self._forget(envelope)
        if owner is not None and owner.habit.retries and outcome == "dead" and self._random.random() < 0.5:
            task = asyncio.create_task(self._retry(envelope))
            self._decisions.add(task)
            task.add_done_callback(self._decisions.discard)

    def _forget(self, envelope: str) -> Correspondent | None:
        self._changed.set()
        for each in self._correspondents:
            if each.waiting.pop(envelope, None) is not None:
                return each
        return None

    async def _decide(self, approval: str, token: str) -> None:
        """Allow, deny, answer late, or never answer, as the token determines."""
        chance = random.Random(token)
        mood = chance.choices(["allow", "deny", "late", "never"], weights=[9, 4, 4, 3])[0]
        if mood == "never":
            return
        delay_s = chance.random() * 0.3 + (APPROVAL_WAIT_S if mood == "late" else 0.0)
        allow = mood == "allow" or (mood == "late" and chance.random() < 0.7)
        scope = "session" if allow and chance.random() < FOR_LONGER else "once"
        await asyncio.sleep(delay_s)  # sleep: a person takes this long to decide
        line = Line(self._home)
        try:
            await self._answer(line, approval, allow=allow, scope=scope)
        except Refused as refused:
            # Only this client decides. If an answer exists, it is ours, and the server went down
            # before it could respond.
            if refused.code != "approval.not-open" or "by owner" not in refused.because:
                if refused.code != "approval.not-open":
                    await self._complain(f"the decision on {token} was refused: {refused}")
                return
        finally:
            line.hang_up()
        await self._log.write(Decided(t=time.monotonic(), approval=approval, token=token, allow=allow))

    async def _answer(self, line: Line, approval: str, *, allow: bool, scope: str) -> None:
        """Answer an approval, for the session if possible: some calls can be allowed only once."""
        try:
            await self._insist(lambda: line.call("approval.answer", id=approval, allow=allow, scope=scope))
        except Refused as refused:
            if refused.code != "approval.only-once":
                raise
            await self._insist(lambda: line.call("approval.answer", id=approval, allow=allow, scope="once"))

    async def _retry(self, envelope: str) -> None:
        line = Line(self._home)
        try:
            await self._insist(lambda: line.call("envelope.retry", id=envelope))
        except Refused as refused:
            if refused.code != "dead.already-retried":
                await self._complain(f"the retry of {envelope} was refused: {refused}")
                return
        finally:
            line.hang_up()
        await self._log.write(Retried(t=time.monotonic(), envelope=envelope))

    # --- the end ---

    async def _look_at_the_end(self, each: Correspondent) -> None:
        """Wait until a session is idle, and log its answers."""
        if each.session is None:
            return
        line = Line(self._home)
        try:
            while True:
                state = await self._insist(lambda: line.call("session.state", session=each.session))
                if state["run"] is None and state["wakefulness"] == "sleeping":
                    break
                await asyncio.sleep(CALL_AGAIN_S)  # sleep: before the server is called again
        finally:
            line.hang_up()
        said = [r["body"]["text"] for r in state["records"] if r["kind"] == "assistant" and not r["body"]["calls"]]
        await self._log.write(Shown(t=time.monotonic(), session=each.session, answers=said))

    async def _catch_up(self) -> None:
        """Read the events to the newest one."""
        line = Line(self._home)
        try:
            newest: int = (await self._insist(lambda: line.call("house.status")))["cursor"]
        finally:
            line.hang_up()
        while self._cursor < newest:  # noqa: ASYNC110 - a test may look again and again
            await asyncio.sleep(CALL_AGAIN_S)  # sleep: before the server is called again

    async def _complain(self, text: str) -> None:
        await self._log.write(Complaint(t=time.monotonic(), text=text))
