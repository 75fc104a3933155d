"""Who watches as it happens. Deltas live here and nowhere else; news is announced here and read from the store."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from retinue.domain.event import Delta, DeltaKind, Nested, NestedKind
from retinue.domain.ids import RunId, SessionId

DELTAS_WAITING_MAX = 1000
PARTIAL_CHARS_MAX = 1_000_000
NESTED_CHARS_MAX = 20_000  # of what is shown in a call's card of whoever it asked
NESTED_CALLS_MAX = 100
SOON_S = 0.02


class Partial(Struct):
    """What a model has said so far in one attempt at a reply."""

    session: SessionId
    run: RunId
    turn: int
    attempt: int
    text: str = ""
    thinking: str = ""


class Within(Struct):
    """The call that waits for a run, and what that run has said and done so far. Bounded: it is for a glance."""

    session: SessionId
    call: str
    agent: str
    run: RunId
    text: str = ""
    calls: list[str] = field(default_factory=list[str])


class Watcher(Struct, eq=False):
    """One who watches: told of news by a flag, of deltas by a bounded list. Who falls behind asks for the state."""

    session: SessionId | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    news: bool = True  # something was committed since it last looked
    soon: asyncio.TimerHandle | None = None
    deltas: list[Delta | Nested] = field(default_factory=list[Delta | Nested])
    missed: bool = False
    closed: bool = False


class Live:
    """The house's own `Tell`."""

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
        """From now on, whoever watches a call that waits for a run is told of what that run does."""
        self._within[within.run] = within

    def nested(self) -> list[Within]:
        return list(self._within.values())

    def ended(self, run: RunId) -> None:
        """A run came to an end, or to a rest: what was committed about it is told now."""
        self._partials.pop(run, None)
        self._within.pop(run, None)
        for watcher in self._watchers:
            if watcher.news:
                watcher.changed.set()

    def partials(self, session: SessionId | None = None) -> list[Partial]:
        return [p for p in self._partials.values() if session is None or p.session == session]

    def committed(self) -> None:
        """Something was committed: whoever watches will find news, soon."""
        for watcher in self._watchers:
            watcher.news = True
            self._soon(watcher)

    def _soon(self, watcher: Watcher) -> None:
        """Tell it together with what follows at once: the eye cannot tell, and a turn makes a handful of events."""
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
        """The house closes: whoever watches may go home."""
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
