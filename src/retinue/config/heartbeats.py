"""Heartbeat settings: how often agents check in, and which heartbeat messages are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import Rule, setting
from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import HeartbeatRules
from retinue.domain.errors import Invalid
from retinue.domain.heartbeat import ACK_CHARS_MOST, EVERY_S_MIN, Shown, minute_of
from retinue.domain.heartbeat import BUILT_IN as SHOWN
from retinue.domain.schedule import EVERY_S_MAX, TEXT_BYTES_MAX, Place
from retinue.domain.times import zone

LAST, NOWHERE = "last", "none"


def hour(text: str) -> str | None:
    return None if minute_of(text) is not None else "must be a time of day, HH:MM, up to 24:00"


def zone_name(text: str) -> str | None:
    try:
        zone(text)
    except Invalid as error:
        return f"is no time zone: {error.because}"
    return None


def target(text: str) -> str | None:
    if text in (LAST, NOWHERE):
        return None
    try:
        to = address.parse(text)
    except Invalid as error:
        return f"must be `last`, `none` or an address: {error.because}"
    fits = to.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
    return None if fits else "must be where people are: person:NAME, or channel:CONNECTOR:ROOM"


def prompt(text: str) -> str | None:
    return None if len(text.encode()) <= TEXT_BYTES_MAX // 2 else f"may have {TEXT_BYTES_MAX // 2:,} bytes"


RULES: Mapping[str, Rule] = {
    "every_s": Rule(
        says="How often an agent looks by itself whether something needs attention; 0 is never, and no more often than "
        f"every {EVERY_S_MIN:g} seconds.",
        least=0,
        most=EVERY_S_MAX,
    ),
    "active_start": Rule(says="From when on each day; not set, from midnight.", check=hour, example="08:00"),
    "active_end": Rule(
        says="Until when; earlier than the start, across midnight. Not set, until midnight.",
        check=hour,
        example="22:00",
    ),
    "active_zone": Rule(
        says="By which zone these hours go; not set, the owner's.", check=zone_name, example="Europe/Berlin"
    ),
    "prompt": Rule(says="What is said before the checklist.", check=prompt, example="Look at the checklist."),
    "model": Rule(
        says="The model for it; not set, the agent's.",
        check=validators.model_reference,
        example="anthropic/claude-haiku-5-5",
    ),
    "place": Rule(
        says="In which conversation: `own`, which remembers; `fresh`, which begins anew each time; `main`, the one "
        "that the owner last had with the agent. Not set: `own`."
    ),
    "target": Rule(
        says="Where what needs attention is said: `last`, where the owner last spoke with the agent; `none`; or an "
        "address. Not set: `last`.",
        check=target,
        example="channel:telegram:42",
    ),
    "ack_chars_max": Rule(
        says="How many characters may stand beside HEARTBEAT_OK in an answer that still says no more than that. Not "
        "set: 300.",
        least=0,
        most=ACK_CHARS_MOST,
    ),
}


def _ruled(name: str) -> None:
    rule = RULES[name]
    return setting(None, rule.says, least=rule.least, most=rule.most, check=rule.check, example=rule.example)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSettings:
    """Which heartbeat messages are shown on one platform or connector.

    Unset values come from the general ones.
    """

    show_ok: bool | None = setting(None, "Whether it is said that nothing needs attention.")
    show_alerts: bool | None = setting(None, "Whether it is said what does.")
    use_indicator: bool | None = setting(None, "Whether pages are given a sign of life.")

    @property
    def shown(self) -> Shown:
        return Shown(ok=self.show_ok, alerts=self.show_alerts, indicator=self.use_indicator)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatDefaults(HeartbeatRules):
    """Defaults for heartbeats.

    They apply to the default agent, unless some agent has its own heartbeat. In that case they
    apply to the agents that have one, for values they do not set.
    """

    every_s: float | None = _ruled("every_s")
    active_start: str | None = _ruled("active_start")
    active_end: str | None = _ruled("active_end")
    active_zone: str | None = _ruled("active_zone")
    prompt: str | None = _ruled("prompt")
    model: str | None = _ruled("model")
    place: Place | None = _ruled("place")
    target: str | None = _ruled("target")
    ack_chars_max: int | None = _ruled("ack_chars_max")
    show_ok: bool = setting(bool(SHOWN.ok), "Whether it is said that nothing needs attention.")
    show_alerts: bool = setting(bool(SHOWN.alerts), "Whether it is said what does.")
    use_indicator: bool = setting(bool(SHOWN.indicator), "Whether pages are given a sign of life.")
    channels: Mapping[str, ShownSettings] = setting(
        cast("Mapping[str, ShownSettings]", {}),
        "The same for one channel, such as `telegram`, or for `person`: what goes to somebody's own inbox.",
        check=validators.name,
        example="telegram",
    )
    accounts: Mapping[str, ShownSettings] = setting(
        cast("Mapping[str, ShownSettings]", {}),
        "The same for one account of a channel, such as `telegram-2`. It goes before the channel's.",
        check=validators.name,
        example="telegram-2",
    )

    @property
    def rules(self) -> HeartbeatRules:
        """The rules without the visibility settings."""
        return self.over(HeartbeatRules())
