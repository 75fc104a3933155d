"""The peer of `FakeConnector`. There is no network connection, so the connector itself simulates the faults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retinue.connectors.base import Accept, Connector, Delivery, Parcel, Surroundings
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.fault_kit.kit_server import HastyClock
from retinue.testing.fault_kit.peer import At, PlainBench, Trouble

_NO_LINE = "it stands in the memory of the house itself, so there is no line that could break"
_NO_PROCESS = "it stands in the memory of the house itself, and would be killed with it; the crash tours do that"
RETRY_AFTER_S = 3.0


class _Line:
    """The connector of one server. The platform survives it."""

    def __init__(self, place: QuietConnector, instance: str) -> None:
        self.instance = instance
        self._place = place

    @property
    def repeats_safely(self) -> bool:
        return self._place.repeats_safely

    async def listen(self, accept: Accept) -> None:
        await self._place.listen(accept)

    async def deliver(self, parcel: Parcel) -> Delivery:
        return await self._place.deliver(parcel)


class QuietBench(PlainBench):
    """A platform in memory that accepts a repeated part once."""

    kind = "quiet"
    made_by = "quiet"
    room = "42"
    other_room = "43"
    repeats_safely = True
    exempt: Mapping[str, str] = {
        **dict.fromkeys(("line-cut", "said-while-away", "no-line", "slow-line", "half-open"), _NO_LINE),
        **dict.fromkeys(("cut-half-way", "cut-before", "cut-after", "place-restarts", "at-every-step"), _NO_LINE),
        **dict.fromkeys(("killed-sending", "killed-before-commit", "killed-after-commit"), _NO_PROCESS),
        "revoked": "it asks nobody for a key, so none can be taken away",
        "told-out-of-order": "what is said waits in one queue, which has no other order",
    }

    def __init__(self) -> None:
        self.place = QuietConnector(HastyClock(), repeats_safely=self.repeats_safely)
        self._twice = False

    async def open(self, folder: Path) -> Mapping[str, At]:
        return {}

    async def close(self) -> None: ...

    async def restart(self) -> None: ...

    def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
        return _Line(self.place, surroundings.instance)

    async def say(self, room: str, text: str) -> None:
        said = self.place.mention(text, room=room)
        if self._twice:
            self.place.mention(text, room=room, message_id=said.incoming.message_id)

    async def standing(self, room: str) -> list[str]:
        return self.place.texts(room)

    async def begin(self, trouble: Trouble) -> None:
        match trouble:
            case Trouble.REFUSES:
                self.place.will_fail()
            case Trouble.FORBIDS:
                self.place.will_fail(permanent=True)
            case Trouble.THROTTLES:
                self.place.will_throttle(RETRY_AFTER_S)
            case Trouble.REPEATS:
                self._twice = True
            case _:
                await super().begin(trouble)

    async def end(self, trouble: Trouble) -> None:
        self._twice = False


class ForgetfulBench(QuietBench):
    """A platform that does not recognize repeated parts."""

    made_by = "quiet-forgetful"
    repeats_safely = False
