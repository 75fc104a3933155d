"""What the author of a connector brings to the fault kit: its place, or a faithful stand-in, as a test can play it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from retinue.connectors.base import Connector, Surroundings

At = tuple[str, int]
"""A host and a port on this machine."""


class Trouble(StrEnum):
    """What a place can do to us. It begins with `Bench.begin`, and is over with `Bench.end`."""

    REFUSES = "refuses"  # the next thing we send, for a reason of the moment, or fails with it: a 5xx
    FORBIDS = "forbids"  # what we send to `room`, for good: it is gone, or not ours to speak in
    THROTTLES = "throttles"  # the next thing we send, and asks for patience: a 429
    REVOKED = "revoked"  # it knows our key no more
    REPEATS = "repeats"  # it tells us everything twice
    SHUFFLES = "shuffles"  # it tells us the later before the earlier


class Bench(Protocol):
    """One kind of connector and its place. A new one is made for every case, in a folder of its own."""

    @property
    def kind(self) -> str:
        """The name of the `ConnectorKind`."""
        ...

    @property
    def made_by(self) -> str:
        """`MODULE:NAME` of what makes it, handed nothing: a process that is to be killed makes its own."""
        ...

    @property
    def room(self) -> str: ...

    @property
    def other_room(self) -> str: ...

    @property
    def exempt(self) -> Mapping[str, str]:
        """Cases that say nothing about this place, by their names, and why: a whole sentence, printed in the matrix."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """What `Surroundings.secret` answers."""
        ...

    async def open(self, folder: Path) -> Mapping[str, At]:
        """Open the place, and say where it listens: a name for each line that the connector has to it. The kit stands
        between the two. Empty where there is no line; then `begin` and the kit's own house are all there is."""
        ...

    async def close(self) -> None: ...

    async def restart(self) -> None:
        """Close the place and open it again, at the same address, with what it keeps."""
        ...

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        """A connector that finds the place at these addresses. Called without `open` in a process of its own."""
        ...

    @property
    def hears(self) -> bool:
        """Whether anything comes in by this connector. Where not, a case is played outwards alone."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether the place keeps what is said for those who are away."""
        ...

    async def ready(self, connector: Connector | None) -> None:
        """Return once what is said now reaches this connector, or, where it is None, the one that another process has.
        At once where the place keeps it for them."""
        ...

    async def say(self, room: str, text: str) -> None:
        """Say something as a person, not over the kit's line; return once the place has it."""
        ...

    async def standing(self, room: str) -> list[str]:
        """The words of ours that a person reads in a room, oldest first."""
        ...

    async def begin(self, trouble: Trouble) -> None: ...

    async def end(self, trouble: Trouble) -> None: ...


class PlainBench:
    """What most benches have in common. Say `class MyBench(PlainBench)`, and the rest."""

    secrets: Mapping[str, str] = {}
    exempt: Mapping[str, str] = {}

    hears = True
    keeps = True

    async def ready(self, connector: Connector | None) -> None:
        """The place keeps what is said."""

    async def begin(self, trouble: Trouble) -> None:
        raise NotImplementedError(f"this bench cannot play {trouble}: say so in `exempt`, or teach it")

    async def end(self, trouble: Trouble) -> None:
        """Those that pass by themselves need nothing."""
