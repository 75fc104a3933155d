"""The external agent of a simulation: it receives requests over HTTP and answers with signed callbacks.

The agent continues to exist when a server is killed. It logs what it received, and what the server
confirmed. It shows the problems of real services: it answers at once, late, twice, never, after the
deadline or after a restart. Its answer may or may not name the request. It sends unrequested
messages, and sometimes signs with a wrong key.
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

from retinue.api import callback_routes
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent, CrashPolicy, ExternalAgentEndpoint
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.ids import short_id
from retinue.domain.session import Overflow, QueueMode, QueuePolicy
from retinue.net.signatures import (
    MESSAGE_ID_HEADER,
    REQUEST_ID_HEADER,
    SIGNATURE_AGE_MAX_S,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignaturePurpose,
    sign_message,
)
from retinue.outbox.external_agent_delivery import build_callback_url
from retinue.testing.virtual_time import VirtualClock
from retinue.tools.web.errors import WebTimeout
from retinue.tools.web.guarded_request import GuardedHttpClient, WebResponse
from retinue.tools.web.url_guard import UrlGuard, WebFailed

if TYPE_CHECKING:
    import sqlite3

    from retinue.testing.simulated_server import SimulatedServer

AGENT_NAME = "rex"
SERVER_URL = "http://server.example"
ENVIRONMENT: Mapping[str, str] = {"FAR_KEY": "a key that the two share"}
_KEY = ENVIRONMENT["FAR_KEY"]
CALLBACK_TRIES_MAX = 40
RESTART_WAIT_S_MAX = 300.0


def draw_external_agent(rng: random.Random) -> Agent:
    """Draw the external agent of a simulation, with its limits."""
    return Agent(
        name=AGENT_NAME,
        runner=EXTERNAL,
        external=ExternalAgentEndpoint(
            url="http://elsewhere.example/in",
            secret="env:FAR_KEY",
            timeout_s=rng.choice((15.0, 60.0, 300.0)),
            retries=rng.choice((0, 2, 5)),
        ),
        crash_policy=CrashPolicy.AT_MOST_ONCE if rng.random() < 0.3 else CrashPolicy.RESUME,
        concurrency=rng.randint(1, 4),
        queue=QueuePolicy(
            mode=rng.choice(list(QueueMode)), cap=rng.choice((3, 8, 20)), overflow=rng.choice(list(Overflow))
        ),
        attempts_max=rng.choice((2, 3, 5)),
        replay_age_s=rng.choice((None, None, None, 60.0)),
    )


class AnswerBehavior(StrEnum):
    """How the external agent of a simulation answers a request."""

    AT_ONCE = "answered at once"  # before the request itself has ended
    SOON = "answered soon"
    LATE = "answered late"
    TWICE = "answered twice"
    TWO_ANSWERS = "answered in two ways"
    OTHER_TEXT = "answered with other words under the same id"
    NEVER = "never answered"
    TOO_LATE = "answered after the deadline"
    RESTARTED = "answered after a restart"
    ADDED_MESSAGE = "answered with another message"  # an additional message that answers no request
    WRONG_REQUEST = "answered after another's"  # the first message names a request of another session


_ANSWER_WEIGHTS = {
    AnswerBehavior.AT_ONCE: 12,
    AnswerBehavior.SOON: 24,
    AnswerBehavior.LATE: 10,
    AnswerBehavior.TWICE: 10,
    AnswerBehavior.TWO_ANSWERS: 8,
    AnswerBehavior.OTHER_TEXT: 4,
    AnswerBehavior.NEVER: 8,
    AnswerBehavior.TOO_LATE: 8,
    AnswerBehavior.RESTARTED: 8,
    AnswerBehavior.ADDED_MESSAGE: 8,
    AnswerBehavior.WRONG_REQUEST: 4,
}


class RequestBehavior(StrEnum):
    """How the HTTP endpoint of the external agent responds to a request."""

    ACCEPTED = "taken"
    BUSY = "busy"
    THROTTLED = "throttled"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"  # it accepts the request, but the response never arrives


_REQUEST_WEIGHTS = {
    RequestBehavior.ACCEPTED: 80,
    RequestBehavior.BUSY: 6,
    RequestBehavior.THROTTLED: 3,
    RequestBehavior.REFUSED: 2,
    RequestBehavior.UNREACHABLE: 5,
    RequestBehavior.SILENT: 4,
}
_STATUSES = {
    RequestBehavior.ACCEPTED: 202,
    RequestBehavior.BUSY: 503,
    RequestBehavior.THROTTLED: 429,
    RequestBehavior.REFUSED: 400,
}


class SimulatedRequest(NamedTuple):
    """A request, as the external agent received it."""

    id: str
    session: str


class SimulatedCallback(NamedTuple):
    """A callback that the external agent sends to a session. `request` is the request that it names, if any."""

    session: str
    message: str
    text: str
    request: str


class SimulatedCallbackResult(NamedTuple):
    """The server's response to a callback of the external agent."""

    envelope: str
    answers: str | None


class SimulatedHttp(GuardedHttpClient):
    """The HTTP client of one simulated server. While the server is alive, every request goes to the external agent."""

    def __init__(self, server: SimulatedServer, agent: SimulatedExternalAgent) -> None:
        super().__init__(UrlGuard())
        self._server = server
        self._agent = agent

    async def post(
        self, url: str, content: bytes, *, headers: Mapping[str, str], timeout_s: float, bytes_max: int
    ) -> WebResponse:
        await self._server.process.checkpoint()
        try:
            status, asks = await self._agent.receive(self._server, headers, content, timeout_s=timeout_s)
        finally:
            await self._server.process.checkpoint()
        return WebResponse(url=url, status=status, headers=asks, body=b"accepted"[:bytes_max])


@dataclass(slots=True, kw_only=True)
class SimulatedExternalAgent:
    """The external agent of a simulation. It keeps its state when a simulated server is killed."""

    seed: int
    raw: sqlite3.Connection
    clock: VirtualClock
    timeout_s: float  # how long the server waits for an answer
    get_server: Callable[[], SimulatedServer | None]  # the running one
    start_task: Callable[[Coroutine[Any, Any, None]], None]
    trace: Callable[..., None]
    report: Callable[[str, str], None]
    event_counts: Counter[str]
    _requests: dict[str, SimulatedRequest] = field(default_factory=dict[str, SimulatedRequest])
    _arrivals: Counter[str] = field(default_factory=Counter[str])
    _callbacks: dict[tuple[str, str], list[SimulatedCallback]] = field(
        default_factory=dict[tuple[str, str], list[SimulatedCallback]]
    )
    _results: dict[SimulatedCallback, SimulatedCallbackResult] = field(
        default_factory=dict[SimulatedCallback, SimulatedCallbackResult]
    )

    # --- requests ---

    async def receive(
        self, server: SimulatedServer, headers: Mapping[str, str], content: bytes, *, timeout_s: float
    ) -> tuple[int, dict[str, str]]:
        """Handle one request. Return the status and headers of the response."""
        request = self._read_request(headers, content)
        self._arrivals[request.id] += 1
        chance = random.Random(f"taking {self.seed} {request.id} {self._arrivals[request.id]}")
        await server.clock.sleep(chance.choice((0.0, 0.0, 0.05, 1.0)))
        how = chance.choices(list(_REQUEST_WEIGHTS), list(_REQUEST_WEIGHTS.values()))[0]
        self.event_counts[f"requests {how}"] += 1
        if how is RequestBehavior.UNREACHABLE:
            raise _timeout_error()
        if how in (RequestBehavior.ACCEPTED, RequestBehavior.SILENT) and request.id not in self._requests:
            self._requests[request.id] = request
            self._start_answer(request, by=server)
            await server.clock.sleep(chance.choice((0.0, 0.3)))
        if how is RequestBehavior.SILENT:
            await server.clock.sleep(timeout_s)
            raise _timeout_error()
        return _STATUSES[how], {"retry-after": "7"} if how is RequestBehavior.THROTTLED else {}

    def _read_request(self, headers: Mapping[str, str], content: bytes) -> SimulatedRequest:
        body = json.loads(content)
        request = SimulatedRequest(body["id"], body["sessionId"])
        at = headers[TIMESTAMP_HEADER]
        expected = sign_message(
            _KEY, SignaturePurpose.MESSAGE, timestamp=at, session=request.session, message_id=request.id, body=content
        )
        if headers[SIGNATURE_HEADER] != expected or headers[MESSAGE_ID_HEADER] != request.id:
            self.report("delegations", f"the request {short_id(request.id)} has a wrong signature")
        if body["callbackUrl"] != build_callback_url(SERVER_URL, request.session):
            self.report(
                "delegations", f"the request {short_id(request.id)} has a wrong callback URL: {body['callbackUrl']}"
            )
        return request

    # --- callbacks ---

    def _start_answer(self, request: SimulatedRequest, *, by: SimulatedServer) -> None:
        chance = random.Random(f"mood {self.seed} {request.id}")
        mood = chance.choices(list(_ANSWER_WEIGHTS), list(_ANSWER_WEIGHTS.values()))[0]
        self.event_counts[f"requests {mood}"] += 1
        self.trace("external agent: {} of {} will be {}", short_id(request.id), short_id(request.session), mood)
        if mood is not AnswerBehavior.NEVER:
            self.start_task(self._answer_request(request, mood, chance, server_number=by.number))

    async def _answer_request(
        self, request: SimulatedRequest, behavior: AnswerBehavior, rng: random.Random, *, server_number: int
    ) -> None:
        first = self._build_callback(request, 1, rng)
        match behavior:
            case AnswerBehavior.AT_ONCE:
                await self._send_callback(first, rng)
            case AnswerBehavior.LATE:
                await asyncio.sleep(rng.uniform(3, 60))  # sleep: virtual time
                await self._send_callback(first, rng)
            case AnswerBehavior.TOO_LATE:
                await asyncio.sleep(self.timeout_s + rng.uniform(0, 20))  # sleep: virtual time
                await self._send_callback(first, rng)
            case AnswerBehavior.RESTARTED:
                await self._wait_for_restart(server_number)
                await self._send_callback(first, rng)
            case AnswerBehavior.TWICE:
                await asyncio.gather(
                    self._send_callback(first, rng), self._send_callback(first, rng, after_s=rng.choice((0, 20)))
                )
            case AnswerBehavior.TWO_ANSWERS:
                second, after_s = self._build_callback(request, 2, rng), rng.choice((0, 1, 30))
                await asyncio.gather(self._send_callback(first, rng), self._send_callback(second, rng, after_s=after_s))
            case AnswerBehavior.OTHER_TEXT:
                await self._send_callback(first, rng)
                await self._send_callback(first._replace(text=f"{first.text} Or not."), rng)
            case AnswerBehavior.ADDED_MESSAGE:
                await self._send_callback(first, rng, after_s=rng.uniform(0, 5))
                await self._send_callback(self._build_callback(request, 2, rng)._replace(request=""), rng, after_s=40)
            case AnswerBehavior.WRONG_REQUEST:
                others = [each.id for each in self._requests.values() if each.session != request.session]
                if others:
                    await self._send_callback(
                        self._build_callback(request, 2, rng)._replace(request=rng.choice(others)), rng
                    )
                await self._send_callback(first, rng)
            case AnswerBehavior.SOON | AnswerBehavior.NEVER:
                await self._send_callback(first, rng, after_s=rng.uniform(0, 3))
        if rng.random() < 0.3:  # an uncertain sender repeats it
            await self._send_callback(first, rng, after_s=rng.choice((0.0, 5.0, 100.0)))

    def _build_callback(self, received: SimulatedRequest, number: int, rng: random.Random) -> SimulatedCallback:
        request = received.id if rng.random() < 0.6 else ""
        return SimulatedCallback(
            received.session, f"{received.id}-{number}", f"Word {number} on {received.id}.", request
        )

    async def _wait_for_restart(self, number: int) -> None:
        until = asyncio.get_running_loop().time() + RESTART_WAIT_S_MAX  # time limit: virtual
        while asyncio.get_running_loop().time() < until:
            server = self.get_server()
            if server is not None and server.number != number:
                return
            await asyncio.sleep(5)  # sleep: virtual time

    async def _send_callback(self, callback: SimulatedCallback, rng: random.Random, *, after_s: float = 0.0) -> None:
        """Send a callback as a client does: retry it with the same id until the server responds."""
        if after_s:
            await asyncio.sleep(after_s)  # sleep: virtual time
        self._callbacks.setdefault((callback.session, callback.message), [])
        if callback not in self._callbacks[callback.session, callback.message]:
            self._callbacks[callback.session, callback.message].append(callback)
        for _ in range(CALLBACK_TRIES_MAX):
            if (server := self.get_server()) is not None and await self._try_callback(server, callback, rng):
                return
            await asyncio.sleep(rng.uniform(0.1, 10))  # sleep: virtual time

    async def _try_callback(self, server: SimulatedServer, callback: SimulatedCallback, rng: random.Random) -> bool:
        """Send a callback once. Returns whether the server responded.

        If the server stops before it responds, it may or may not have stored the callback.
        """
        from retinue.testing.simulated_server import SimulatedServerUnreachable

        body = callback.text.encode()
        key = _KEY if rng.random() < 0.95 else "another key"
        here, at = self._agent_version(), int(self.clock.now().timestamp())
        headers = _headers(key, callback, at=str(at), body=body)
        taking = partial(callback_routes.receive_callback, server.callbacks, callback.session, headers, body)
        try:
            async with asyncio.timeout(60):
                response = json.loads(await server.call(taking))
        except (SimulatedServerUnreachable, TimeoutError, StoreError):
            return False
        except RetinueError as refused:
            self.event_counts[f"callbacks refused with {refused.code}"] += 1
            self.trace("external agent: {} is refused: {}", callback.message, refused.code)
            if refused.code != "external.unsigned":
                return True
            late = abs(self.clock.now().timestamp() - at) >= SIGNATURE_AGE_MAX_S  # the clock jumped meanwhile
            if key == _KEY and not late and here and here == self._agent_version():
                self.report("delegations", f"a callback to {short_id(callback.session)} was refused: {refused}")
            return False
        if key != _KEY:
            self.report("delegations", f"an unsigned callback was accepted in {short_id(callback.session)}")
        self._record_result(callback, SimulatedCallbackResult(response["envelope"], response["answered_envelope"]))
        return True

    def _agent_version(self) -> object:
        """Return the agent's current version in the store, or None if it was removed and so has no key."""
        found = self.raw.execute("SELECT version, removed_ms FROM agents WHERE name = ?", (AGENT_NAME,)).fetchone()
        return found if found is not None and found[1] is None else None

    def _record_result(self, callback: SimulatedCallback, result: SimulatedCallbackResult) -> None:
        self.trace(
            "external agent: {} is accepted and answers {}", callback.message, short_id(result.answers or "nothing")
        )
        if callback.request and self._requests[callback.request].session != callback.session:
            self.report("delegations", f"{callback.message} names a request of another session, and was accepted")
        if callback in self._results:
            self.event_counts["callbacks accepted again"] += 1
        else:
            self.event_counts["callbacks that answer" if result.answers else "callbacks that answer nothing"] += 1
        before = self._results.setdefault(callback, result)
        if before != result:
            self.report("doubled", f"{callback.message} was accepted as {before}, and repeated as {result}")
        if result.answers is not None and callback.request not in ("", result.answers):
            self.report(
                "delegations",
                f"{callback.message} names {short_id(callback.request)} and answers {short_id(result.answers)}",
            )

    # --- at the end ---

    def check_final_state(self) -> None:
        """Check that each callback is stored once in its session, ended one request, and reached the requesting run."""
        stored = self._check_stored()
        answered = Counter(heard.answers for heard in self._results.values() if heard.answers is not None)
        for request, times in answered.items():
            if times > 1:
                self.report("doubled", f"the request {short_id(request)} was answered {times} times")
        for callback, heard in self._results.items():
            if stored.get(heard.envelope) != callback:
                self.report("lost", f"{callback.message} was accepted as {short_id(heard.envelope)}, which is another")
        for row in self.raw.execute(_REQUESTS):
            self._check_request(*row, stored=stored)
        for envelope, words in stored.items():
            self._check_forwarded(envelope, words)
        for question, recipient, times in self.raw.execute(_ANSWERED_TWICE, (AGENT_NAME,)):
            self.report("doubled", f"{recipient} got the result of {short_id(question)} {times} times")

    def _check_stored(self) -> dict[str, SimulatedCallback]:
        stored: dict[str, SimulatedCallback] = {}
        kept: Counter[tuple[str, str]] = Counter()
        for envelope, source, message, text, session, recipient in self.raw.execute(_CALLBACK_ENVELOPES):
            place = (source.partition(":")[2], message)
            kept[place] += 1
            found = next((callback for callback in self._callbacks.get(place, ()) if callback.text == text), None)
            if found is None:
                self.report(
                    "delegations", f"the external agent never sent what is stored as {short_id(envelope)}: {text!r}"
                )
            elif (session, recipient) != (found.session, f"agent:{AGENT_NAME}/{found.session}"):
                self.report(
                    "delegations", f"{message} was sent to {short_id(found.session)} and is in {short_id(session)}"
                )
            else:
                stored[envelope] = found
        for (_, message), times in kept.items():
            if times > 1:
                self.report("doubled", f"{message} is stored {times} times")
        return stored

    def _check_request(
        self,
        id_: str,
        session: str,
        state: str,
        result: str | None,
        status: str,
        final: str | None,
        *,
        stored: Mapping[str, SimulatedCallback],
    ) -> None:
        claims = [heard for heard in self._results.values() if heard.answers == id_]
        if claims and claims[0].envelope != result:
            self.report("lost", f"the answer to {short_id(id_)} was accepted, but it is {state}")
        if state == "open":
            self.report("lost", f"the request {short_id(id_)} is still open")
        if state != "done":
            return
        callback = stored.get(result or "")
        if callback is None or callback.session != session or callback.request not in ("", id_):
            self.report(
                "delegations", f"the request {short_id(id_)} ended with an answer that is not its own: {callback}"
            )
        elif status == "completed" and final != callback.text:
            self.report(
                "delegations", f"the request {short_id(id_)} was answered {callback.text!r}, and the run says {final!r}"
            )

    def _check_forwarded(self, envelope: str, callback: SimulatedCallback) -> None:
        """Check that a callback was forwarded at most once, and from its own session.

        If it is recorded as forwarded, it must have been forwarded exactly once.
        """
        found = [sender for (sender,) in self.raw.execute(_FORWARDED, (f"agent:{AGENT_NAME}/%", f"%{callback.text}%"))]
        if len(found) > 1:
            self.report("doubled", f"{callback.message} was forwarded {len(found)} times")
        if any(sender != f"agent:{AGENT_NAME}/{callback.session}" for sender in found):
            self.report(
                "delegations",
                f"{callback.message} was forwarded from another session than {short_id(callback.session)}",
            )
        (is_forwarded,) = self.raw.execute(_IS_FORWARDED, (envelope, envelope)).fetchone()
        if is_forwarded and not found:
            self.report("lost", f"{callback.message} is recorded as forwarded, but was not")


_CALLBACK_ENVELOPES = """
SELECT id, source, dedupe_key, text, session, recipient FROM envelopes WHERE source LIKE 'external:%' ORDER BY seq
"""
_REQUESTS = """
SELECT d.id, d.session, d.state, d.result, r.status, r.final_text FROM delegations d JOIN runs r ON r.id = d.run
WHERE d.kind = 'external' ORDER BY d.id
"""
_FORWARDED = "SELECT sender FROM envelopes WHERE sender LIKE ? AND kind <> 'delegation' AND text LIKE ? ORDER BY seq"
_ANSWERED_TWICE = """
SELECT q.id, n.recipient, count(*) FROM envelopes q JOIN runs r ON r.id = q.run JOIN envelopes n ON n.reply_to = q.id
WHERE r.agent = ? AND n.kind IN ('answer', 'notice') GROUP BY q.id, n.recipient HAVING count(*) > 1
"""
_IS_FORWARDED = """
SELECT EXISTS (SELECT 1 FROM outcomes WHERE envelope = ? AND outcome = 'answered' AND NOT silent) OR EXISTS (
  SELECT 1 FROM delegations d JOIN envelopes q ON q.run = d.run JOIN outcomes o ON o.envelope = q.id
  WHERE d.result = ? AND d.kind = 'external' AND o.outcome = 'answered' AND NOT o.silent)
"""


def _headers(key: str, callback: SimulatedCallback, *, at: str, body: bytes) -> dict[bytes, bytes]:
    """Return the headers of a callback, as the HTTP server passes them to the route."""
    signature = sign_message(
        key,
        SignaturePurpose.CALLBACK,
        timestamp=at,
        session=callback.session,
        message_id=callback.message,
        request_id=callback.request,
        body=body,
    )
    headers = {
        TIMESTAMP_HEADER: at,
        MESSAGE_ID_HEADER: callback.message,
        SIGNATURE_HEADER: signature,
        **({REQUEST_ID_HEADER: callback.request} if callback.request else {}),
    }
    return {name.lower().encode(): value.encode() for name, value in headers.items()}


def _timeout_error() -> WebFailed:
    return WebTimeout("agent.example", timeout_s=30)
