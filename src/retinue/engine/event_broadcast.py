"""Broadcasts the activity of runs to subscribers in memory.

Pieces of streamed text (deltas) are sent to subscribers and not stored. For stored events,
subscribers are only notified, and read the events from the store.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from retinue.domain.event import Delta, DeltaKind, NestedActivity, NestedActivityKind
from retinue.domain.ids import RunId, SessionId

DELTAS_QUEUED_MAX = 1000
PARTIAL_CHARS_MAX = 1_000_000
NESTED_CHARS_MAX = 20_000  # shown of a run that a tool call is waiting for
NESTED_CALLS_MAX = 100
NOTIFY_DELAY_S = 0.02


class PartialReply(Struct):
    """The text that has been streamed so far for one attempt at a model reply."""

    session: SessionId
    run: RunId
    turn: int
    attempt: int
    text: str = ""
    thinking: str = ""


class NestedRun(Struct):
    """A run that a tool call is waiting for, and a preview of its output. The preview is limited in size."""

    session: SessionId
    call: str
    agent: str
    run: RunId
    text: str = ""
    calls: list[str] = field(default_factory=list[str])


class EventSubscriber(Struct, eq=False):
    """One subscriber: a flag for new events and a limited list of deltas.

    A subscriber that reads too slowly misses deltas and must reload the state.
    """

    session: SessionId | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    has_new_events: bool = True  # something was committed since the last read
    timer: asyncio.TimerHandle | None = None
    deltas: list[Delta | NestedActivity] = field(default_factory=list[Delta | NestedActivity])
    has_missed_deltas: bool = False
    is_closed: bool = False


class EventBroadcast:
    """Broadcasts the activity of runs. Implements the run observer of `domain/ports` for the server."""

    def __init__(self) -> None:
        self._subscribers: set[EventSubscriber] = set()
        self._partial_replies: dict[RunId, PartialReply] = {}
        self._nested_runs: dict[RunId, NestedRun] = {}

    def on_delta(self, delta: Delta) -> None:
        partial = self._partial_replies.get(delta.run)
        if partial is None or (partial.turn, partial.attempt) != (delta.turn, delta.attempt):
            partial = PartialReply(delta.session, delta.run, delta.turn, delta.attempt)
            self._partial_replies[delta.run] = partial
        if delta.kind is DeltaKind.TEXT:
            if len(partial.text) < PARTIAL_CHARS_MAX:
                partial.text += delta.text
        elif len(partial.thinking) < PARTIAL_CHARS_MAX:
            partial.thinking += delta.text
        self._broadcast(delta)
        if (
            self._nested_runs
            and delta.kind is DeltaKind.TEXT
            and (within := self._nested_runs.get(delta.run)) is not None
        ):
            if delta.offset + len(delta.text) <= NESTED_CHARS_MAX:
                within.text = within.text + delta.text if delta.offset else delta.text
                self._broadcast(_nested_delta(within, NestedActivityKind.TEXT, delta.text, offset=delta.offset))

    def on_tool_call(self, run: RunId, tool: str) -> None:
        within = self._nested_runs.get(run)
        if within is not None and len(within.calls) < NESTED_CALLS_MAX:
            within.calls.append(tool)
            self._broadcast(_nested_delta(within, NestedActivityKind.CALL, tool))

    def _broadcast(self, piece: Delta | NestedActivity) -> None:
        for watcher in self._subscribers:
            if watcher.session is None or watcher.session == piece.session:
                if len(watcher.deltas) >= DELTAS_QUEUED_MAX:
                    watcher.has_missed_deltas = True
                    watcher.deltas.clear()
                else:
                    watcher.deltas.append(piece)
                self._notify_soon(watcher)

    def add_nested_run(self, nested_run: NestedRun) -> None:
        """Also send a run's output to subscribers of the session whose tool call is waiting for the run."""
        self._nested_runs[nested_run.run] = nested_run

    def nested_runs(self) -> list[NestedRun]:
        return list(self._nested_runs.values())

    def run_ended(self, run: RunId) -> None:
        """Forget a run that has ended or was suspended, and announce its commits at once."""
        self._partial_replies.pop(run, None)
        self._nested_runs.pop(run, None)
        for watcher in self._subscribers:
            if watcher.has_new_events:
                watcher.changed.set()

    def partial_replies(self, session: SessionId | None = None) -> list[PartialReply]:
        return [p for p in self._partial_replies.values() if session is None or p.session == session]

    def announce_commit(self) -> None:
        """Announce that new events are stored. Subscribers are notified within `NOTIFY_DELAY_S`."""
        for watcher in self._subscribers:
            watcher.has_new_events = True
            self._notify_soon(watcher)

    def _notify_soon(self, subscriber: EventSubscriber) -> None:
        """Notify subscribers after a short delay, so that the events of a turn share one notification."""
        if subscriber.timer is None and not subscriber.changed.is_set():
            subscriber.timer = asyncio.get_running_loop().call_later(NOTIFY_DELAY_S, self._notify_now, subscriber)

    def _notify_now(self, subscriber: EventSubscriber) -> None:
        subscriber.timer = None
        subscriber.changed.set()

    def subscribe(self, session: SessionId | None) -> EventSubscriber:
        watcher = EventSubscriber(session)
        self._subscribers.add(watcher)
        return watcher

    def close(self) -> None:
        """End all subscriptions when the server stops."""
        for watcher in self._subscribers:
            watcher.is_closed = True
            watcher.changed.set()

    def unsubscribe(self, subscriber: EventSubscriber) -> None:
        if subscriber.timer is not None:
            subscriber.timer.cancel()
        self._subscribers.discard(subscriber)


def _nested_delta(nested_run: NestedRun, kind: NestedActivityKind, text: str, *, offset: int = 0) -> NestedActivity:
    return NestedActivity(
        session=nested_run.session,
        call=nested_run.call,
        agent=nested_run.agent,
        run=nested_run.run,
        kind=kind,
        text=text,
        offset=offset,
    )
