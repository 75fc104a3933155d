"""A door through which no secret goes: whatever an envelope says is masked just before the connector has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from retinue.connectors.base import Accept, Connector, Delivery, attempts_of
from retinue.domain.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Masked:
    """Any connector, told nothing that `mask` takes out. What is kept in the house stays as it was written."""

    inside: Connector
    mask: Callable[[str], str]

    @property
    def instance(self) -> str:
        return self.inside.instance

    @property
    def repeats_safely(self) -> bool:
        return self.inside.repeats_safely

    @property
    def attempts_max(self) -> int | None:
        return attempts_of(self.inside)

    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(accept)

    async def deliver(self, envelope: Envelope) -> Delivery:
        text = self.mask(envelope.text)
        return await self.inside.deliver(envelope if text == envelope.text else replace(envelope, text=text))
