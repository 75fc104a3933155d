"""A wrapper that redacts secrets from everything just before a connector sends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from retinue.connectors.base import Abilities, Accept, Button, Connector, Delivery, Parcel, abilities_of, attempts_of

FORWARDED = ("react", "type_in", "take_back", "check")  # no text written by an agent passes through these


@dataclass(frozen=True)
class Masked:
    """Wraps any connector and redacts what it sends. Stored envelopes are not changed.

    It supports what the wrapped connector supports, and no more. Optional methods (`preview`,
    `react` and so on) are added per instance, so that checks for their presence give the right
    answer.
    """

    inside: Connector
    mask: Callable[[str], str]
    took: Callable[[str], None] = lambda _instance: None  # called after each part that the platform accepted

    def __post_init__(self) -> None:
        inside: Any = self.inside
        own = {name: getattr(inside, name) for name in FORWARDED if hasattr(inside, name)}
        if hasattr(inside, "preview"):
            own["preview"] = self._preview
        if hasattr(inside, "answer_press"):
            own["answer_press"] = self._answer_press
        self.__dict__.update(own)

    @property
    def instance(self) -> str:
        return self.inside.instance

    @property
    def repeats_safely(self) -> bool:
        return self.inside.repeats_safely

    @property
    def attempts_max(self) -> int | None:
        return attempts_of(self.inside)

    @property
    def abilities(self) -> Abilities | None:
        return abilities_of(self.inside)

    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(accept)

    async def deliver(self, parcel: Parcel) -> Delivery:
        delivery = await self.inside.deliver(self.wash(parcel))
        self.took(self.instance)
        return delivery

    def wash(self, parcel: Parcel) -> Parcel:
        """Return the delivery part with secrets redacted. Most have none and are returned
        unchanged."""
        text, whole = self.mask(parcel.text), self.mask(parcel.envelope.text)
        if whole != parcel.envelope.text:
            parcel = replace(parcel, envelope=replace(parcel.envelope, text=whole))
        if parcel.buttons:
            rows = tuple(tuple(Button(self.mask(b.label), b.data) for b in row) for row in parcel.buttons)
            parcel = replace(parcel, buttons=rows)
        return parcel if text == parcel.text else replace(parcel, text=text)

    async def _preview(self, room: str, text: str, *, shown: str = "", quote: str = "") -> str:
        inside: Any = self.inside
        return await inside.preview(room, self.mask(text), shown=shown, quote=quote)

    async def _answer_press(self, press_id: str, text: str) -> None:
        inside: Any = self.inside
        await inside.answer_press(press_id, self.mask(text))
