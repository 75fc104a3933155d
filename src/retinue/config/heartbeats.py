"""Heartbeat settings: how often agents check in, and which heartbeat notifications are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from retinue.config import validators
from retinue.config.setting_metadata import SettingRule, setting
from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import HeartbeatRules
from retinue.domain.errors import Invalid
from retinue.domain.heartbeat import ACK_CHARS_LIMIT, HEARTBEAT_EVERY_S_MIN, HeartbeatVisibility, parse_minute_of_day
from retinue.domain.heartbeat import DEFAULT_VISIBILITY as SHOWN
from retinue.domain.schedule import EVERY_S_MAX, SCHEDULE_TEXT_BYTES_MAX, ScheduleSession
from retinue.domain.times import load_zone

TARGET_LAST, TARGET_NONE = "last", "none"


def check_hour(text: str) -> str | None:
    return None if parse_minute_of_day(text) is not None else "must be a time of day, HH:MM, up to 24:00"


def check_zone_name(text: str) -> str | None:
    try:
        load_zone(text)
    except Invalid as error:
        return f"is not a time zone: {error.because}"
    return None


def check_target(text: str) -> str | None:
    if text in (TARGET_LAST, TARGET_NONE):
        return None
    try:
        to = address.parse_address(text)
    except Invalid as error:
        return f"must be `last`, `none` or an address: {error.because}"
    fits = to.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
    return None if fits else "must be the address of a person or channel: person:NAME or channel:CONNECTOR:CHANNEL"


def check_prompt(text: str) -> str | None:
    return (
        None
        if len(text.encode()) <= SCHEDULE_TEXT_BYTES_MAX // 2
        else f"must have at most {SCHEDULE_TEXT_BYTES_MAX // 2:,} bytes"
    )


HEARTBEAT_SETTING_RULES: Mapping[str, SettingRule] = {
    "every_s": SettingRule(
        description="Time between heartbeats, in seconds. 0: no heartbeats. Any other value below "
        f"{HEARTBEAT_EVERY_S_MIN:g} counts as {HEARTBEAT_EVERY_S_MIN:g}. Default: for an agent, the time in "
        "[defaults.heartbeat], otherwise 1800.",
        least=0,
        most=EVERY_S_MAX,
    ),
    "active_start": SettingRule(
        description="Time of day from which heartbeats run. Default: midnight.", check=check_hour, example="08:00"
    ),
    "active_end": SettingRule(
        description="Time of day until which heartbeats run. A time before `active_start` is on the next day. Default: "
        "midnight.",
        check=check_hour,
        example="22:00",
    ),
    "active_zone": SettingRule(
        description="Time zone of `active_start` and `active_end`. Default: the owner's.",
        check=check_zone_name,
        example="Europe/Berlin",
    ),
    "prompt": SettingRule(
        description="Text at the beginning of the message that the agent gets at each heartbeat. Default: a built-in "
        "text.",
        check=check_prompt,
        example="Look at the checklist.",
    ),
    "model": SettingRule(
        description="Model for heartbeats. Default: the agent's model.",
        check=validators.check_model_reference,
        example="anthropic/claude-haiku-5-5",
    ),
    "session": SettingRule(
        description="Session of the heartbeat: `own` (keeps its context), `fresh` (a new context each time) or `main` "
        "(the owner's last session with the agent). Default: `own`."
    ),
    "target": SettingRule(
        description="Recipient of alerts: `last` (where the owner last wrote to the agent), `none`, or an address. "
        "Default: `last`.",
        check=check_target,
        example="channel:telegram:42",
    ),
    "ack_chars_max": SettingRule(
        description="Maximum number of characters besides HEARTBEAT_OK in a reply that reports nothing. A longer reply "
        "is an alert. Default: 300.",
        least=0,
        most=ACK_CHARS_LIMIT,
    ),
}


def _heartbeat_setting(name: str) -> None:
    rule = HEARTBEAT_SETTING_RULES[name]
    return setting(None, rule.description, least=rule.least, most=rule.most, check=rule.check, example=rule.example)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatVisibilitySettings:
    """Which heartbeat notifications are sent to one platform or through one connector.

    For a connector, an unset value comes from the settings of its platform. Other unset values come from
    `[defaults.heartbeat]`.
    """

    show_ok: bool | None = setting(
        None,
        "Whether the recipient is notified when a heartbeat finds nothing to report. Default: for a connector, the "
        "value of its platform, otherwise the value in [defaults.heartbeat].",
    )
    show_alerts: bool | None = setting(
        None,
        "Whether the recipient gets heartbeat alerts. Default: for a connector, the value of its platform, otherwise "
        "the value in [defaults.heartbeat].",
    )
    use_indicator: bool | None = setting(
        None,
        "Whether the web app shows that a heartbeat has run. Default: for a connector, the value of its platform, "
        "otherwise the value in [defaults.heartbeat].",
    )

    @property
    def visibility(self) -> HeartbeatVisibility:
        return HeartbeatVisibility(ok=self.show_ok, alerts=self.show_alerts, indicator=self.use_indicator)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatDefaults(HeartbeatRules):
    """Defaults for heartbeats.

    If no agent has its own heartbeat settings, these settings give the default agent a heartbeat. Otherwise only
    agents with their own settings have heartbeats. Values that such an agent does not set come from these defaults.
    """

    every_s: float | None = _heartbeat_setting("every_s")
    active_start: str | None = _heartbeat_setting("active_start")
    active_end: str | None = _heartbeat_setting("active_end")
    active_zone: str | None = _heartbeat_setting("active_zone")
    prompt: str | None = _heartbeat_setting("prompt")
    model: str | None = _heartbeat_setting("model")
    session: ScheduleSession | None = _heartbeat_setting("session")
    target: str | None = _heartbeat_setting("target")
    ack_chars_max: int | None = _heartbeat_setting("ack_chars_max")
    show_ok: bool = setting(
        bool(SHOWN.ok), "Whether the recipient is notified when a heartbeat finds nothing to report."
    )
    show_alerts: bool = setting(bool(SHOWN.alerts), "Whether the recipient gets heartbeat alerts.")
    use_indicator: bool = setting(bool(SHOWN.indicator), "Whether the web app shows that a heartbeat has run.")
    platforms: Mapping[str, HeartbeatVisibilitySettings] = setting(
        cast("Mapping[str, HeartbeatVisibilitySettings]", {}),
        "Which heartbeat notifications are sent to one platform, such as `telegram`. The name `person` stands for "
        "people's inboxes.",
        check=validators.check_name,
        example="telegram",
    )
    connectors: Mapping[str, HeartbeatVisibilitySettings] = setting(
        cast("Mapping[str, HeartbeatVisibilitySettings]", {}),
        "Which heartbeat notifications are sent through one connector, such as `telegram-2`. These settings "
        "override those of its platform.",
        check=validators.check_name,
        example="telegram-2",
    )

    @property
    def rules(self) -> HeartbeatRules:
        """The heartbeat rules, without `show_ok`, `show_alerts` and `use_indicator`."""
        return self.with_defaults(HeartbeatRules())
