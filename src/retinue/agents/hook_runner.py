"""Runs hooks when an event happens.

Hooks are started after an event is committed, so a failing hook never affects a run. A hook gets
the event as JSON on its standard input. It may print JSON such as `{"messages": [...]}`. These
messages are sent to the conversation in which the event happened, or to the owner if there is none.
A hook can read its own folder, can write to one other folder, and has no network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from retinue.agents.hooks import APPROVAL_KIND, EvaluatedHook, FoundHooks, Hook, HookState, evaluate_hooks, find_hooks
from retinue.agents.skills import HostFacts
from retinue.config.hooks import HookSettings
from retinue.domain.errors import RetinueError
from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.ids import SessionId
from retinue.domain.slash_command import COMMANDS_BY_WORD, CommandName
from retinue.domain.storable_text import make_storable
from retinue.sandbox.base import Confinement, ResourceLimits, Sandbox
from retinue.sandbox.single_command import run_command
from retinue.store.agents import content_approvals
from retinue.store.core import events as store_events
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

DATA_FOLDER = "hooks-data"  # in the data directory: one writable folder per hook
QUEUED_EVENTS_MAX = 200  # queued events; further ones are dropped, with a warning in the log
EVENTS_PER_READ = 500  # stored events per read
OUTPUT_BYTES_MAX = 64 * 1024
MESSAGES_MAX = 5
MESSAGE_CHARS_MAX = 2_000
MEMORY_BYTES_MAX = 512 * 1024 * 1024
STARTUP_EVENT = "gateway:startup"

_COMMAND_ANSWERED_PREFIX = "the server answered /"
_encode = msgspec.json.Encoder().encode


class HookEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The event that a hook reads from its standard input. An event that is sent twice keeps its `key`."""

    event: str
    key: str
    at: str
    agent: str = ""
    session: str = ""
    origin: str = ""
    sender: str = ""
    text: str = ""
    because: str = ""


class _HookOutput(Struct):
    messages: list[str] = []


SendHookMessage = Callable[[HookEvent, Hook, str], Awaitable[None]]
"""Sends a hook's message to the session in which the event happened, or to the owner."""

GetSandbox = Callable[[], Awaitable[Sandbox]]
"""Returns the sandbox that is currently selected in the settings. Raises an error if no sandbox works."""


def hook_events_of(stored: StoredEvent) -> list[HookEvent]:
    """Return the hook events that a stored event triggers. Most stored events trigger none."""
    body = stored.body
    build_event = partial(
        HookEvent,
        at=stored.at.isoformat(),
        session=stored.session or "",
        agent=str(body.get("agent", "")),
        origin=str(body.get("origin", "")),
        because=str(body.get("because", "")),
    )
    match stored.kind:
        case EventKind.SESSION_STARTED:
            events = ["session:start", "agent:bootstrap"]
        case EventKind.SESSION_RESET:
            events = ["session:reset", "agent:bootstrap"]
        case EventKind.ENVELOPE_SETTLED if str(body.get("because", "")).startswith(_COMMAND_ANSWERED_PREFIX):
            word = str(body["because"]).removeprefix(_COMMAND_ANSWERED_PREFIX)
            name = COMMANDS_BY_WORD.get(word)
            name = CommandName.STOP if name is CommandName.ABORT else name
            event = f"command:{name.value if name is not None else word}"
            sender, text = str(body.get("from", "")), str(body.get("text", ""))
            return [build_event(event=event, key=f"{stored.seq}/{event}", sender=sender, text=text)]
        case _:
            return []
    return [build_event(event=event, key=f"{stored.seq}/{event}") for event in events]


class HookRunner:
    """Finds and runs hooks. Settings and hook files are read again for each event."""

    def __init__(
        self,
        data_dir: Path,
        store: Store,
        *,
        settings: Callable[[], HookSettings],
        host_facts: Callable[[], HostFacts],
        get_sandbox: GetSandbox,
        send_message: SendHookMessage,
    ) -> None:
        self._data_dir = data_dir
        self._store = store
        self._settings = settings
        self._host_facts = host_facts
        self._get_sandbox = get_sandbox
        self._send_message = send_message
        self._cursor = 0
        self._committed = asyncio.Event()
        self._queue: asyncio.Queue[HookEvent] = asyncio.Queue(QUEUED_EVENTS_MAX)
        self._tasks: list[asyncio.Task[None]] = []

    async def find_hooks(self) -> tuple[FoundHooks, tuple[EvaluatedHook, ...]]:
        settings = self._settings()
        workspaces = [self._data_dir / Path(each).expanduser() for each in settings.folders]
        found = await asyncio.to_thread(find_hooks, self._data_dir, workspaces)
        good = await self._store.read(partial(content_approvals.get_hashes, kind=APPROVAL_KIND))
        return found, evaluate_hooks(found.hooks, good, self._host_facts(), settings=settings)

    async def start(self) -> None:
        """Start running hooks for events that are stored from now on. Earlier events trigger no hooks."""
        self._cursor = await self._store.read(store_events.newest_seq)
        self._store.on_commit(self._committed.set)
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._process_queue())]

    def notify_started(self, at: datetime) -> None:
        """Queue the startup event. Called when the server and its connectors have started."""
        self.enqueue(HookEvent(event=STARTUP_EVENT, key=f"{STARTUP_EVENT}/{at.isoformat()}", at=at.isoformat()))

    async def stop(self) -> None:
        """Stop following the stored events. Events that are still queued are dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def enqueue(self, event: HookEvent) -> None:
        """Queue an event. Hooks run for one event at a time, in order."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("hook queue full, event dropped", extra={"event": event.event})

    async def _follow(self) -> None:
        while True:
            await self._committed.wait()
            self._committed.clear()
            try:
                await self._catch_up()
            except RetinueError as error:
                log.warning("hooks could not read events", extra={"code": error.code})

    async def _catch_up(self) -> None:
        if not self._settings().enabled:
            self._cursor = await self._store.read(store_events.newest_seq)
            return
        while found := await self._store.scan(
            partial(store_events.list_after, cursor=self._cursor, limit=EVENTS_PER_READ)
        ):
            self._cursor = found[-1].seq
            for piece in found:
                for event in hook_events_of(piece):
                    self.enqueue(await self._add_session_facts(event))

    async def _add_session_facts(self, event: HookEvent) -> HookEvent:
        """Add the agent and origin of the event's session, if the event has no agent."""
        if event.agent or not event.session:
            return event
        session = await self._store.read(partial(sessions.get, id_=SessionId(event.session)))
        if session is None:
            return event
        origin = f"{session.origin.kind}:{session.origin.key}"
        return msgspec.structs.replace(event, agent=session.agent, origin=origin)

    async def _process_queue(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self.run_hooks(event)
            except Exception as error:  # a hook must never stop the server
                log.warning("hooks failed", exc_info=error, extra={"event": event.event})
            finally:
                self._queue.task_done()

    async def wait_idle(self) -> None:
        """Wait until every queued event has been processed."""
        await self._queue.join()

    async def run_hooks(self, event: HookEvent) -> Sequence[str]:
        """Run each hook that matches the event, one after the other, and return the names of those that succeeded."""
        if not self._settings().enabled:
            return ()
        _, stood = await self.find_hooks()
        done: list[str] = []
        for each in stood:
            if each.state is not HookState.READY or not each.hook.handles(event.event):
                continue
            try:
                await self._run_hook(each.hook, event)
                done.append(each.hook.name)
            except (RetinueError, OSError) as error:
                because = error.because if isinstance(error, RetinueError) else type(error).__name__
                log.warning(
                    "hook failed", extra={"hook": each.hook.name, "event": event.event, "because": because[:300]}
                )
        return done

    async def _run_hook(self, hook: Hook, event: HookEvent) -> None:
        folder = self._data_dir / DATA_FOLDER / hook.name
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        confinement = Confinement(
            folder=folder,
            writable=(folder,),
            readable=(hook.folder,),
            limits=ResourceLimits(memory_bytes=MEMORY_BYTES_MAX),
            environment={"HOOK_NAME": hook.name, "HOOK_EVENT": event.event, "HOOK_DATA": str(folder)},
        )
        output = await run_command(
            await self._get_sandbox(),
            [str(hook.handler)],
            confinement,
            input_data=_encode(event) + b"\n",
            timeout_s=self._settings().timeout_s,
            bytes_max=OUTPUT_BYTES_MAX,
        )
        for text in parse_messages(output):
            await self._send_message(event, hook, text)


def parse_messages(output: bytes) -> list[str]:
    """Return the messages in a hook's output. The list is empty if the output is not the expected JSON."""
    if not output.lstrip().startswith(b"{"):
        return []
    try:
        messages = msgspec.json.decode(output, type=_HookOutput).messages
    except (msgspec.DecodeError, RecursionError):
        return []
    return [make_storable(text.strip())[:MESSAGE_CHARS_MAX] for text in messages[:MESSAGES_MAX] if text.strip()]
