"""Redacts secrets from everything that a connector sends, just before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from retinue.connectors.base import (
    Accept,
    Button,
    Connector,
    ConnectorCapabilities,
    Delivery,
    DeliveryPart,
    get_attempts_max,
    get_capabilities,
)

# These methods send no text that an agent wrote, so they are not wrapped.
FORWARDED_METHODS = ("react", "show_typing", "delete_preview", "check")


@dataclass(frozen=True)
class RedactedConnector:
    """Wraps any connector and redacts what it sends. Stored envelopes are not changed.

    It supports exactly what the wrapped connector supports. Optional methods (`preview`, `react` and
    so on) are added to each instance only if the wrapped connector has them.
    """

    inner: Connector
    redact: Callable[[str], str]
    on_delivered: Callable[[str], None] = lambda _instance: None  # called after each part that the platform accepted

    def __post_init__(self) -> None:
        inside: Any = self.inner
        own = {name: getattr(inside, name) for name in FORWARDED_METHODS if hasattr(inside, name)}
        if hasattr(inside, "preview"):
            own["preview"] = self._preview
        if hasattr(inside, "answer_press"):
            own["answer_press"] = self._answer_press
        self.__dict__.update(own)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def repeats_safely(self) -> bool:
        return self.inner.repeats_safely

    @property
    def attempts_max(self) -> int | None:
        return get_attempts_max(self.inner)

    @property
    def capabilities(self) -> ConnectorCapabilities | None:
        return get_capabilities(self.inner)

    async def listen(self, accept: Accept) -> None:
        await self.inner.listen(accept)

    async def deliver(self, part: DeliveryPart) -> Delivery:
        """Redact secrets in a part, and let the connector send it."""
        delivery = await self.inner.deliver(self.redact_part(part))
        self.on_delivered(self.name)
        return delivery

    def redact_part(self, part: DeliveryPart) -> DeliveryPart:
        """Return the delivery part with secrets redacted. A part without secrets is returned unchanged."""
        text, whole = self.redact(part.text), self.redact(part.envelope.text)
        if whole != part.envelope.text:
            part = replace(part, envelope=replace(part.envelope, text=whole))
        if part.buttons:
            rows = tuple(tuple(Button(self.redact(b.label), b.data) for b in row) for row in part.buttons)
            part = replace(part, buttons=rows)
        return part if text == part.text else replace(part, text=text)

    async def _preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        inside: Any = self.inner
        return await inside.preview(
            channel, self.redact(text), preview_id=preview_id, quoted_message_id=quoted_message_id
        )

    async def _answer_press(self, press_id: str, text: str) -> None:
        inside: Any = self.inner
        await inside.answer_press(press_id, self.redact(text))
