"""The clients of the crash test: fifty senders that use only the HTTP API, over the server's socket.

The clients trust nothing. Before a client acts on a response, it writes the response to the
clients' log, with fsync. Events are written to it as they are read. The verdict is computed from
that log, so it detects a server that loses, repeats or misreports something.
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
from retinue.testing.crash_log import (
    AcknowledgedEntry,
    AnsweredEntry,
    ComplaintEntry,
    CrashLog,
    DecidedEntry,
    FinalAnswersEntry,
    RetriedEntry,
    SentEntry,
    SettledEntry,
)
from retinue.testing.crash_script import ScriptAction, ScriptQuestion

CALL_S_MAX = 120.0
RETRY_PAUSE_S = 0.1  # fifty clients that retry without a pause would keep the server from starting
POLL_S = 2.0
EXPIRES_AFTER_S = 0.15
EXPIRES_AFTER_S_MAX = 20.0
APPROVAL_WAIT_S = 1.0  # how long the test's agents wait for a person
SESSION_SCOPE_SHARE = 0.15  # share of the approvals that apply to the whole session

T = TypeVar("T")
Parameters = dict[str, Any]


# --- HTTP ---


class ConnectionClosed(Exception):
    """The connection closed before the server answered, so it is unknown whether the request was performed."""


class RequestRefused(Exception):
    """The server under test answered a request with an error."""

    def __init__(self, status: int, error: dict[str, str]) -> None:
        super().__init__(f"{status} {error}")
        self.code = error.get("code", "")
        self.because = error.get("because", "")
        self.is_temporary = status >= 500


class ApiConnection:
    """A connection of a client to the server under test. It is opened again whenever it breaks."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, operation: str, **parameters: Any) -> Parameters:
        return await self.post("/api/" + operation.replace(".", "/"), json.dumps(parameters).encode())

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Parameters:
        """Send a POST request, with the owner's token unless `headers` are given."""
        whole = False
        try:
            async with asyncio.timeout(CALL_S_MAX):
                reader = await self._send_request("POST", path, body, headers)
                status, response_headers = await read_head(reader)
                answer = json.loads(await reader.readexactly(int(response_headers["content-length"])))
                whole = True
        except (OSError, EOFError, ValueError, LookupError, TimeoutError) as error:
            raise ConnectionClosed(path) from error
        finally:
            if not whole:
                self.close()
        if status >= 400:
            raise RequestRefused(status, answer["error"])
        return answer

    async def stream_events(self, after: int) -> AsyncIterator[tuple[str, Parameters]]:
        """Yield each event with its data until the connection breaks, which always raises `ConnectionClosed`."""
        try:
            reader = await self._send_request("GET", f"/api/events?after={after}", b"")
            status, _ = await read_head(reader)
            if status != 200:
                raise ConnectionClosed("events")
            waiting = b""
            while size := int(await reader.readline() or b"0", 16):
                chunk: bytes = await reader.readexactly(size + 2)
                *blocks, waiting = (waiting + chunk[:-2]).split(b"\n\n")
                for block in blocks:
                    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
                    if fields:
                        yield fields[b"event"].decode(), json.loads(fields[b"data"])
        except (OSError, EOFError, ValueError, LookupError) as error:
            raise ConnectionClosed("events") from error
        finally:
            self.close()
        raise ConnectionClosed("events")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _send_request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection((self._data_dir / "socket").read_text())
        reader, writer = self._streams
        if headers is None:
            token = (self._data_dir / "owner-token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        lines = [
            f"{name}: {value}" for name, value in {"Host": "retinue", "Content-Length": len(body), **headers}.items()
        ]
        writer.write("\r\n".join((f"{method} {path} HTTP/1.1", *lines, "", "")).encode() + body)
        await writer.drain()
        return reader


def _approval_subject(call: Parameters) -> str:
    """Return the text that a call would write, or the id of the call. It identifies the call in an approval."""
    return call["arguments"].get("text") or call["id"]


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the head of an HTTP message. Return the status and the headers, with names in lower case.

    For a request, the status is 0.
    """
    first_line = await reader.readline()
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    word = first_line.split()[1]
    return int(word) if word.isdigit() else 0, headers


# --- the senders ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderProfile:
    """The behavior of a group of senders: the actions that they take, and the weight of each action."""

    recipient: str
    action_weights: dict[ScriptAction, int]
    open_max: int = 3
    pause_s: float = 0.15
    delay_s: float | None = None  # model delay of each question; None: short or none
    uses_expiry: bool = False  # every other question expires soon
    retries_dead_letters: bool = False  # retries dead letters
    disturbs_session: bool = False  # stops, resets and reconfigures its session


DELEGATION_ACTIONS = {
    ScriptAction.DELEGATE: 2,
    ScriptAction.DELEGATE_TWO: 1,
    ScriptAction.DELEGATE_ASK: 1,
    ScriptAction.SPAWN: 1,
    ScriptAction.SPAWN_ASK: 1,
}
MIXED_ACTIONS = {
    ScriptAction.PLAIN: 4,
    ScriptAction.STATUS: 1,
    ScriptAction.TOOL: 3,
    ScriptAction.TWO_TOOLS: 2,
    ScriptAction.ASK: 2,
    **DELEGATION_ACTIONS,
}
PLAIN_ACTIONS = {ScriptAction.PLAIN: 1}
# The recipients of all fifty senders. The agents are those of `crash_server`.
SENDER_PROFILES: Sequence[tuple[int, SenderProfile]] = (
    (14, SenderProfile(recipient="agent:ada", action_weights=MIXED_ACTIONS)),
    # Alone in their sessions: text of an external agent is untrusted, and most calls of a run that
    # read it need approval.
    (
        2,
        SenderProfile(
            recipient="agent:ada", action_weights={ScriptAction.PLAIN: 1, ScriptAction.DELEGATE_EXTERNAL: 2}, open_max=1
        ),
    ),
    (3, SenderProfile(recipient=f"agent:{script.EXTERNAL_AGENT}", action_weights=PLAIN_ACTIONS)),
    (8, SenderProfile(recipient="agent:bob", action_weights=MIXED_ACTIONS)),
    (7, SenderProfile(recipient="agent:cat", action_weights=MIXED_ACTIONS)),
    (4, SenderProfile(recipient="agent:eve", action_weights=MIXED_ACTIONS)),
    (2, SenderProfile(recipient="agent:ivy", action_weights=MIXED_ACTIONS, open_max=2)),
    (
        2,
        SenderProfile(
            recipient="agent:bob",
            action_weights={ScriptAction.FAIL: 1, ScriptAction.PLAIN: 1},
            retries_dead_letters=True,
        ),
    ),
    (2, SenderProfile(recipient="agent:bob", action_weights=PLAIN_ACTIONS, uses_expiry=True)),
    (2, SenderProfile(recipient="agent:ada", action_weights=MIXED_ACTIONS, disturbs_session=True)),
    (2, SenderProfile(recipient=f"channel:{script.SAFE_CONNECTOR}:room-{{}}", action_weights=PLAIN_ACTIONS)),
    (2, SenderProfile(recipient=f"channel:{script.UNSAFE_CONNECTOR}:room-{{}}", action_weights=PLAIN_ACTIONS)),
)


def list_profiles(profiles: Sequence[tuple[int, SenderProfile]] = SENDER_PROFILES) -> list[SenderProfile]:
    return [habit for count, habit in profiles for _ in range(count)]


@dataclass(slots=True)
class Sender:
    """One sender of the crash test, with its session and its open envelopes."""

    number: int
    profile: SenderProfile
    session: str | None = None
    sent: int = 0
    expires_after_s: float = EXPIRES_AFTER_S  # longer on a machine where accepting a message takes longer
    open_envelopes: dict[str, str] = field(default_factory=dict[str, str])  # envelope -> token

    @property
    def recipient(self) -> str:
        return self.profile.recipient.format(self.number)


class CrashClient:
    """All senders of the crash test, and one reader of the event stream for them."""

    def __init__(
        self,
        data_dir: Path,
        log: CrashLog,
        *,
        seed: int,
        profiles: Sequence[SenderProfile] = (),
        envelopes_max: int = 0,
    ) -> None:
        self._data_dir = data_dir
        self._log = log
        self._random = random.Random(seed)
        self._envelopes_max = envelopes_max
        self._senders = [Sender(i, habit) for i, habit in enumerate(profiles or list_profiles())]
        self._cursor = 0
        self._tokens: dict[str, str] = {}  # envelope -> token, for everything acknowledged
        self._settled: dict[str, str] = {}  # envelope -> outcome
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def run(self) -> None:
        """Send messages until stopped, or until each sender has sent `envelopes_max`.

        Afterwards, wait until all envelopes are settled.
        """
        following = asyncio.create_task(self._follow_events())
        try:
            await asyncio.gather(*(self._run_sender(each) for each in self._senders))
            while self._tasks:
                await asyncio.gather(*self._tasks)
            await asyncio.gather(*(self._log_final_answers(each) for each in self._senders))
            await self._read_remaining_events()
        finally:
            following.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(following, *self._tasks, return_exceptions=True)

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    @property
    def pending(self) -> dict[str, str]:
        """The acknowledged envelopes for which the client has seen no outcome, each with its token."""
        return {e: token for each in self._senders for e, token in each.open_envelopes.items()}

    # --- sending ---

    async def _run_sender(self, sender: Sender) -> None:
        line = ApiConnection(self._data_dir)
        try:
            while not self._stopping and not (self._envelopes_max and sender.sent >= self._envelopes_max):
                await asyncio.sleep(
                    self._random.random() * 2 * sender.profile.pause_s
                )  # sleep: how often a sender writes
                question = self._next_question(sender)
                await self._send(line, sender, question)
                alone = question.action is ScriptAction.ASK and self._random.random() < 0.7
                await self._wait_until_settled(line, sender, waiting_max=1 if alone else sender.profile.open_max)
                if sender.profile.disturbs_session and sender.session and self._random.random() < 0.3:
                    await self._disturb_session(line, sender)
            await self._wait_until_settled(line, sender, waiting_max=1)
        finally:
            line.close()

    def _next_question(self, sender: Sender) -> ScriptQuestion:
        does = sender.profile.action_weights
        (do,) = self._random.choices(list(does), weights=list(does.values()))
        after_s = round(self._random.random() * 0.1, 3) if self._random.random() < 0.5 else 0.0
        if sender.profile.delay_s is not None:
            after_s = sender.profile.delay_s
        if sender.profile.uses_expiry:
            after_s = 2 * sender.expires_after_s if sender.sent % 2 == 0 else 0.0
        sender.sent += 1
        return ScriptQuestion(script.build_token(sender.number, sender.sent), do, after_s)

    async def _send(self, connection: ApiConnection, sender: Sender, question: ScriptQuestion) -> None:
        key = f"{self._random.getrandbits(64):016x}"
        parameters: Parameters = {
            "to": sender.recipient,
            "text": str(question),
            "key": key,
            "conversation": f"c{sender.number}",
        }
        if sender.profile.uses_expiry and sender.sent % 2 == 0:
            expires_at = datetime.now(UTC) + timedelta(seconds=sender.expires_after_s)
            parameters["expires_at"] = expires_at.isoformat()
        await self._log.write(SentEntry(t=time.monotonic(), token=question.token, key=key, to=sender.recipient))
        try:
            receipt = await self._call_until_answered(lambda: connection.call("envelope.send", **parameters))
        except RequestRefused as refused:
            if refused.code == "time.past":  # it expired before it could be sent
                sender.expires_after_s = min(2 * sender.expires_after_s, EXPIRES_AFTER_S_MAX)
            else:
                await self._log_complaint(f"{question.token} was refused: {refused}")
            return
        envelope, sender.session = receipt["envelope"], receipt["session"]
        await self._log.write(
            AcknowledgedEntry(
                t=time.monotonic(),
                token=question.token,
                key=key,
                envelope=envelope,
                session=sender.session,
                duplicate=receipt["duplicate"],
            )
        )
        self._tokens[envelope] = question.token
        if envelope not in self._settled:
            sender.open_envelopes[envelope] = question.token

    async def _call_until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retry an API call until the server answers it."""
        while True:
            try:
                return await call()
            except ConnectionClosed:
                pass
            except RequestRefused as refused:
                if not refused.is_temporary:
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server is called again

    async def _wait_until_settled(self, connection: ApiConnection, sender: Sender, *, waiting_max: int) -> None:
        """Wait until a sender has fewer than `waiting_max` open envelopes."""
        looked_at = time.monotonic()
        while len(sender.open_envelopes) >= waiting_max:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), POLL_S)  # time limit: then it is checked anyway
            # the events should have reported it, but must not be the only source
            if time.monotonic() - looked_at > POLL_S:
                looked_at = time.monotonic()
                for envelope in list(sender.open_envelopes):
                    await self._poll_envelope(connection, envelope)

    async def _poll_envelope(self, connection: ApiConnection, envelope: str) -> None:
        try:
            found = await self._call_until_answered(lambda: connection.call("envelope.show", id=envelope))
        except RequestRefused as refused:
            await self._log_complaint(f"{self._tokens[envelope]} was acknowledged and is gone: {refused}")
            self._remove_open(envelope)
            return
        if found["status"] == "done":
            self._record_outcome(envelope, found["outcome"])

    async def _disturb_session(self, connection: ApiConnection, sender: Sender) -> None:
        operation, parameters = self._random.choice(
            [
                ("session.stop", {"reason": "it took too long"}),
                ("session.reset", {"message": "from the start"}),
                ("session.set_queue", {"mode": "followup"}),
                ("session.set_queue", {}),
            ]
        )
        await self._call_until_answered(lambda: connection.call(operation, session=sender.session, **parameters))

    # --- events ---

    async def _follow_events(self) -> None:
        """Read the events by cursor, across server restarts. No event may be repeated, missing or out of order."""
        while True:
            line = ApiConnection(self._data_dir)
            try:
                async for event, data in line.stream_events(self._cursor):
                    if event == "reset":
                        await self._log_complaint(f"the events after {self._cursor} are gone: {data['because']}")
                        self._cursor = data["cursor"]
                    if event == "event":
                        await self._handle_event(data)
            except ConnectionClosed:
                await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server is called again

    async def _handle_event(self, event: Parameters) -> None:
        seq: int = event["seq"]
        if seq != self._cursor + 1:
            await self._log_complaint(f"event {seq} came after {self._cursor}")
        match event["event"]:
            case "envelope.accepted" if event["kind"] == "answer":
                entry = AnsweredEntry(t=time.monotonic(), seq=seq, envelope=event["envelope"], text=event["text"])
                self._log.add(entry)
            case "run.ended":
                for envelope in event["envelopes"]:
                    self._record_outcome(envelope, event["outcome"])
            case "envelope.settled":
                self._record_outcome(event["envelope"], event["outcome"])
            case "approval.created":
                task = asyncio.create_task(
                    self._decide_approval(event["approval"], _approval_subject(event["calls"][0]))
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case _:
                pass
        self._cursor = seq

    def _record_outcome(self, envelope: str, outcome: str) -> None:
        if envelope in self._settled:
            return
        self._settled[envelope] = outcome
        self._log.add(SettledEntry(t=time.monotonic(), envelope=envelope, outcome=outcome))
        owner = self._remove_open(envelope)
        if (
            owner is not None
            and owner.profile.retries_dead_letters
            and outcome == "dead"
            and self._random.random() < 0.5
        ):
            task = asyncio.create_task(self._retry_dead_letter(envelope))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _remove_open(self, envelope: str) -> Sender | None:
        self._changed.set()
        for each in self._senders:
            if each.open_envelopes.pop(envelope, None) is not None:
                return each
        return None

    async def _decide_approval(self, approval: str, token: str) -> None:
        """Allow or deny an approval request at once or late, or never answer it. `token` decides which."""
        chance = random.Random(token)
        mood = chance.choices(["allow", "deny", "late", "never"], weights=[9, 4, 4, 3])[0]
        if mood == "never":
            return
        delay_s = chance.random() * 0.3 + (APPROVAL_WAIT_S if mood == "late" else 0.0)
        allow = mood == "allow" or (mood == "late" and chance.random() < 0.7)
        scope = "session" if allow and chance.random() < SESSION_SCOPE_SHARE else "once"
        await asyncio.sleep(delay_s)  # sleep: a person takes this long to decide
        line = ApiConnection(self._data_dir)
        try:
            await self._answer_approval(line, approval, allow=allow, scope=scope)
        except RequestRefused as refused:
            # Only this client decides. If an answer exists, it is ours, and the server went down
            # before it could respond.
            if refused.code != "approval.not_open" or "by owner" not in refused.because:
                if refused.code != "approval.not_open":
                    await self._log_complaint(f"the decision on {token} was refused: {refused}")
                return
        finally:
            line.close()
        await self._log.write(DecidedEntry(t=time.monotonic(), approval=approval, token=token, allow=allow))

    async def _answer_approval(self, connection: ApiConnection, approval: str, *, allow: bool, scope: str) -> None:
        """Answer an approval request with the given scope.

        Some calls can be allowed only once. For these, the scope becomes `once`.
        """
        try:
            await self._call_until_answered(
                lambda: connection.call("approval.answer", id=approval, allow=allow, scope=scope)
            )
        except RequestRefused as refused:
            if refused.code != "approval.only_once":
                raise
            await self._call_until_answered(
                lambda: connection.call("approval.answer", id=approval, allow=allow, scope="once")
            )

    async def _retry_dead_letter(self, envelope: str) -> None:
        line = ApiConnection(self._data_dir)
        try:
            await self._call_until_answered(lambda: line.call("envelope.retry", id=envelope))
        except RequestRefused as refused:
            if refused.code != "dead.already_retried":
                await self._log_complaint(f"the retry of {envelope} was refused: {refused}")
                return
        finally:
            line.close()
        await self._log.write(RetriedEntry(t=time.monotonic(), envelope=envelope))

    # --- the end ---

    async def _log_final_answers(self, sender: Sender) -> None:
        """Wait until a session is idle, and log its answers."""
        if sender.session is None:
            return
        line = ApiConnection(self._data_dir)
        try:
            while True:
                state = await self._call_until_answered(lambda: line.call("session.state", session=sender.session))
                if state["run"] is None and state["wakefulness"] == "sleeping":
                    break
                await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server is called again
        finally:
            line.close()
        answers = [r["body"]["text"] for r in state["records"] if r["kind"] == "assistant" and not r["body"]["calls"]]
        await self._log.write(FinalAnswersEntry(t=time.monotonic(), session=sender.session, answers=answers))

    async def _read_remaining_events(self) -> None:
        """Read all remaining events, up to the newest."""
        line = ApiConnection(self._data_dir)
        try:
            newest: int = (await self._call_until_answered(lambda: line.call("server.status")))["cursor"]
        finally:
            line.close()
        while self._cursor < newest:  # noqa: ASYNC110 - a test may look again and again
            await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server is called again

    async def _log_complaint(self, text: str) -> None:
        await self._log.write(ComplaintEntry(t=time.monotonic(), text=text))
