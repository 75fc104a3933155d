"""In-memory fan-out of run activity to subscribers.

Deltas exist only here. Stored events are announced here and read from the store.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from retinue.domain.event import Delta, DeltaKind, Nested, NestedKind
from retinue.domain.ids import RunId, SessionId

DELTAS_WAITING_MAX = 1000
PARTIAL_CHARS_MAX = 1_000_000
NESTED_CHARS_MAX = 20_000  # shown for the run behind a waiting call
NESTED_CALLS_MAX = 100
SOON_S = 0.02


class Partial(Struct):
    """The text of one attempt at a model reply, as streamed so far."""

    session: SessionId
    run: RunId
    turn: int
    attempt: int
    text: str = ""
    thinking: str = ""


class Within(Struct):
    """A run that a call waits for, and its output so far. Limited in size: it is a preview."""

    session: SessionId
    call: str
    agent: str
    run: RunId
    text: str = ""
    calls: list[str] = field(default_factory=list[str])


class Watcher(Struct, eq=False):
    """One subscriber: a flag for new events and a limited list of deltas.

    A subscriber that falls behind must reload the state.
    """

    session: SessionId | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    news: bool = True  # something was committed since the last read
    soon: asyncio.TimerHandle | None = None
    deltas: list[Delta | Nested] = field(default_factory=list[Delta | Nested])
    missed: bool = False
    closed: bool = False


class Live:
    """Broadcasts run activity. The server's implementation of the run observer port."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._partials: dict[RunId, Partial] = {}
        self._within: dict[RunId, Within] = {}

    def delta(self, delta: Delta) -> None:
        partial = self._partials.get(delta.run)
        if partial is None or (partial.turn, partial.attempt) != (delta.turn, delta.attempt):
            partial = Partial(delta.session, delta.run, delta.turn, delta.attempt)
            self._partials[delta.run] = partial
        if delta.kind is DeltaKind.TEXT:
            if len(partial.text) < PARTIAL_CHARS_MAX:
                partial.text += delta.text
        elif len(partial.thinking) < PARTIAL_CHARS_MAX:
            partial.thinking += delta.text
        self._pass_on(delta)
        if self._within and delta.kind is DeltaKind.TEXT and (within := self._within.get(delta.run)) is not None:
            if delta.offset + len(delta.text) <= NESTED_CHARS_MAX:
                within.text = within.text + delta.text if delta.offset else delta.text
                self._pass_on(_nested(within, NestedKind.TEXT, delta.text, offset=delta.offset))

    def called(self, run: RunId, tool: str) -> None:
        within = self._within.get(run)
        if within is not None and len(within.calls) < NESTED_CALLS_MAX:
            within.calls.append(tool)
            self._pass_on(_nested(within, NestedKind.CALL, tool))

    def _pass_on(self, piece: Delta | Nested) -> None:
        for watcher in self._watchers:
            if watcher.session is None or watcher.session == piece.session:
                if len(watcher.deltas) >= DELTAS_WAITING_MAX:
                    watcher.missed = True
                    watcher.deltas.clear()
                else:
                    watcher.deltas.append(piece)
                self._soon(watcher)

    def nest(self, within: Within) -> None:
        """From now on, also send the run's output to subscribers of the session whose call waits for it."""
        self._within[within.run] = within

    def nested(self) -> list[Within]:
        return list(self._within.values())

    def ended(self, run: RunId) -> None:
        """Forget a run that ended or was suspended, and announce its commits at once."""
        self._partials.pop(run, None)
        self._within.pop(run, None)
        for watcher in self._watchers:
            if watcher.news:
                watcher.changed.set()

    def partials(self, session: SessionId | None = None) -> list[Partial]:
        return [p for p in self._partials.values() if session is None or p.session == session]

    def committed(self) -> None:
        """Announce that new events are stored. Subscribers are notified within `NOTIFY_DELAY_S`."""
        for watcher in self._watchers:
            watcher.news = True
            self._soon(watcher)

    def _soon(self, watcher: Watcher) -> None:
        """Notify later, together with the events that follow: a turn makes several, and the delay is not visible."""
        if watcher.soon is None and not watcher.changed.is_set():
            watcher.soon = asyncio.get_running_loop().call_later(SOON_S, self._tell_now, watcher)

    def _tell_now(self, watcher: Watcher) -> None:
        watcher.soon = None
        watcher.changed.set()

    def watch(self, session: SessionId | None) -> Watcher:
        watcher = Watcher(session)
        self._watchers.add(watcher)
        return watcher

    def close(self) -> None:
        """End all subscriptions, because the server stops."""
        for watcher in self._watchers:
            watcher.closed = True
            watcher.changed.set()

    def unwatch(self, watcher: Watcher) -> None:
        if watcher.soon is not None:
            watcher.soon.cancel()
        self._watchers.discard(watcher)


def _nested(within: Within, kind: NestedKind, text: str, *, offset: int = 0) -> Nested:
    return Nested(
        session=within.session,
        call=within.call,
        agent=within.agent,
        run=within.run,
        kind=kind,
        text=text,
        offset=offset,
    )
