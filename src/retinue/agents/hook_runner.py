"""Runs hooks when an event happens.

Hooks follow the stored events, after the commit, so a failing hook never affects a run. A hook gets
the event as JSON on its standard input. It may print JSON: `{"messages": [...]}` is shown to the
people in that conversation. It can read its folder, write to one other folder, and has no network.
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

from retinue.agents.hooks import KIND, Found, Hook, HookState, Standing, find, standing
from retinue.agents.skills import Surroundings
from retinue.config.hooks import HookSettings
from retinue.domain.errors import RetinueError
from retinue.domain.event import News, NewsKind
from retinue.domain.ids import SessionId
from retinue.domain.slash_command import BY_WORD, CommandName
from retinue.domain.storable_text import storable
from retinue.sandbox.base import Confinement, Limits, Sandbox
from retinue.sandbox.single_command import run
from retinue.store.agents import approved_hashes
from retinue.store.core import events as store_events
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

DATA = "hooks-data"  # in the data directory: one writable folder per hook
WAITING_MAX = 200  # queued events; further ones are dropped, with a warning in the log
AT_ONCE_MAX = 500  # stored events per read
SAID_BYTES_MAX = 64 * 1024
MESSAGES_MAX = 5
MESSAGE_CHARS_MAX = 2_000
MEMORY_BYTES_MAX = 512 * 1024 * 1024
STARTUP = "gateway:startup"

_ANSWERED = "the house answered /"
_encode = msgspec.json.Encoder().encode


class Happened(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a hook gets on its standard input. `key` is the same if the same event is sent again."""

    event: str
    key: str
    at: str
    agent: str = ""
    session: str = ""
    origin: str = ""
    sender: str = ""
    text: str = ""
    because: str = ""


class _Said(Struct):
    messages: list[str] = []


Say = Callable[[Happened, Hook, str], Awaitable[None]]
"""Brings a hook's words to whoever sits where it happened."""

Choose = Callable[[], Awaitable[Sandbox]]
"""The sandbox as the settings have it now. Raises where there is none that holds."""


def happened(piece: News) -> list[Happened]:
    """Return the hook events of a stored event; most have none. Pure."""
    body = piece.body
    told = partial(
        Happened,
        at=piece.at.isoformat(),
        session=piece.session or "",
        agent=str(body.get("agent", "")),
        origin=str(body.get("origin", "")),
        because=str(body.get("because", "")),
    )
    match piece.kind:
        case NewsKind.SESSION_STARTED:
            events = ["session:start", "agent:bootstrap"]
        case NewsKind.SESSION_RESET:
            events = ["session:reset", "agent:bootstrap"]
        case NewsKind.ENVELOPE_SETTLED if str(body.get("because", "")).startswith(_ANSWERED):
            word = str(body["because"]).removeprefix(_ANSWERED)
            name = BY_WORD.get(word)
            name = CommandName.STOP if name is CommandName.ABORT else name
            event = f"command:{name.value if name is not None else word}"
            sender, text = str(body.get("from", "")), str(body.get("text", ""))
            return [told(event=event, key=f"{piece.seq}/{event}", sender=sender, text=text)]
        case _:
            return []
    return [told(event=event, key=f"{piece.seq}/{event}") for event in events]


class Hooks:
    """Finds and runs hooks. Settings and files are read again for each event."""

    def __init__(
        self,
        home: Path,
        store: Store,
        *,
        settings: Callable[[], HookSettings],
        here: Callable[[], Surroundings],
        sandbox: Choose,
        say: Say,
    ) -> None:
        self._home = home
        self._store = store
        self._settings = settings
        self._here = here
        self._sandbox = sandbox
        self._say = say
        self._cursor = 0
        self._changed = asyncio.Event()
        self._waiting: asyncio.Queue[Happened] = asyncio.Queue(WAITING_MAX)
        self._tasks: list[asyncio.Task[None]] = []

    async def look(self) -> tuple[Found, tuple[Standing, ...]]:
        settings = self._settings()
        workspaces = [self._home / Path(each).expanduser() for each in settings.folders]
        found = await asyncio.to_thread(find, self._home, workspaces)
        good = await self._store.read(partial(approved_hashes.hashes, kind=KIND))
        return found, standing(found.hooks, good, self._here(), settings=settings)

    async def start(self) -> None:
        """Follow the stored events from now on. Hooks do not get events from before the start."""
        self._cursor = await self._store.read(store_events.newest)
        self._store.on_commit(self._changed.set)
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._work())]

    def opened(self, at: datetime) -> None:
        """Queue the startup event. Called when the server has started, connectors included."""
        self.tell(Happened(event=STARTUP, key=f"{STARTUP}/{at.isoformat()}", at=at.isoformat()))

    async def stop(self) -> None:
        """Stop following. Events that are still queued are dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def tell(self, event: Happened) -> None:
        """Queue an event. Hooks run for one event at a time, in order."""
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("hooks fell behind, an event was let go", extra={"event": event.event})

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._catch_up()
            except RetinueError as error:
                log.warning("hooks could not read the news", extra={"code": error.code})

    async def _catch_up(self) -> None:
        if not self._settings().enabled:
            self._cursor = await self._store.read(store_events.newest)
            return
        while found := await self._store.scan(partial(store_events.after, cursor=self._cursor, limit=AT_ONCE_MAX)):
            self._cursor = found[-1].seq
            for piece in found:
                for event in happened(piece):
                    self.tell(await self._whole(event))

    async def _whole(self, event: Happened) -> Happened:
        """Add the agent and the origin of the session, if the stored event did not have them."""
        if event.agent or not event.session:
            return event
        session = await self._store.read(partial(sessions.get, id_=SessionId(event.session)))
        if session is None:
            return event
        origin = f"{session.origin.kind}:{session.origin.key}"
        return msgspec.structs.replace(event, agent=session.agent, origin=origin)

    async def _work(self) -> None:
        while True:
            event = await self._waiting.get()
            try:
                await self.run(event)
            except Exception as error:  # a hook must never stop the server
                log.warning("hooks broke", exc_info=error, extra={"event": event.event})
            finally:
                self._waiting.task_done()

    async def idle(self) -> None:
        """Wait until every queued event has been processed."""
        await self._waiting.join()

    async def run(self, event: Happened) -> Sequence[str]:
        """Run each hook that matches the event, one after the other. Returns the names of those that succeeded."""
        if not self._settings().enabled:
            return ()
        _, stood = await self.look()
        done: list[str] = []
        for each in stood:
            if each.state is not HookState.READY or not each.hook.is_for(event.event):
                continue
            try:
                await self._run(each.hook, event)
                done.append(each.hook.name)
            except (RetinueError, OSError) as error:
                because = error.because if isinstance(error, RetinueError) else type(error).__name__
                log.warning(
                    "hook failed", extra={"hook": each.hook.name, "event": event.event, "because": because[:300]}
                )
        return done

    async def _run(self, hook: Hook, event: Happened) -> None:
        folder = self._home / DATA / hook.name
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        confinement = Confinement(
            folder=folder,
            writable=(folder,),
            readable=(hook.folder,),
            limits=Limits(memory_bytes=MEMORY_BYTES_MAX),
            environment={"HOOK_NAME": hook.name, "HOOK_EVENT": event.event, "HOOK_DATA": str(folder)},
        )
        output = await run(
            await self._sandbox(),
            [str(hook.handler)],
            confinement,
            given=_encode(event) + b"\n",
            timeout_s=self._settings().timeout_s,
            bytes_max=SAID_BYTES_MAX,
        )
        for text in messages(output):
            await self._say(event, hook, text)


def messages(output: bytes) -> list[str]:
    """Return the messages in a hook's output; an empty list if the output is not the expected JSON."""
    if not output.lstrip().startswith(b"{"):
        return []
    try:
        said = msgspec.json.decode(output, type=_Said).messages
    except (msgspec.DecodeError, RecursionError):
        return []
    return [storable(text.strip())[:MESSAGE_CHARS_MAX] for text in said[:MESSAGES_MAX] if text.strip()]
