"""Errors for values that people and programs write: ids, names, addresses, times, schedules and permissions."""

from __future__ import annotations

from retinue.domain.errors import Invalid, TooLarge

TEXT_SHOWN_CHARS = 80


def shorten_value(text: str, *, chars_max: int = TEXT_SHOWN_CHARS) -> str:
    """Format an invalid value for an error: quoted, on one line and shortened."""
    return repr(text[:chars_max])


# --- ids, names, addresses ---


class IdInvalid(Invalid):
    """The text is not an id."""

    code = "id.invalid"

    def __init__(self, text: str, *, digits_min: int, digits_max: int) -> None:
        super().__init__(
            f"invalid id: {shorten_value(text)}",
            because=f"an id has {digits_min} to {digits_max} hex digits",
            try_this="copy the id from a list or a response",
        )


class NameInvalid(Invalid):
    """The text is not a valid name. `kind` is what the name is for, with an article, such as `an agent`."""

    code = "name.invalid"

    def __init__(self, name: str, *, kind: str, chars_max: int) -> None:
        super().__init__(
            f"invalid name for {kind}: {shorten_value(name, chars_max=chars_max)}",
            because=f"a name has 1 to {chars_max} letters and digits, with single hyphens between them",
            try_this="choose a name such as ada, night-clerk or Ops2",
        )


class AddressInvalid(Invalid):
    """The text is not an address."""

    code = "address.invalid"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"invalid address: {shorten_value(text)}",
            because="an address is agent:NAME, agent:NAME/SESSION, person:NAME, schedule:ID "
            "or channel:CONNECTOR:CHANNEL",
            try_this="write an address such as agent:guide",
        )


# --- session keys ---


class SessionKeyInvalid(Invalid):
    """The text is not a session key."""

    code = "session_key.invalid"

    def __init__(self, text: str, *, because: str) -> None:
        super().__init__(
            f"invalid session key: {shorten_value(text, chars_max=100)}",
            because=because,
            try_this="write a key such as agent:ada:telegram:group:-100",
        )


class SessionKeyPlatformReserved(Invalid):
    """A connector cannot have the name of a kind of session, because session keys would be ambiguous."""

    code = "session_key.reserved"

    def __init__(self, platform: str) -> None:
        super().__init__(
            f"a connector cannot be named '{platform}'",
            because="in session keys, which contain the connector's name, this name already means a kind of session",
            try_this="give the connector another name",
        )


class SessionKeyIdMissing(Invalid):
    """A session key cannot be built without the id of its sender, group, job, subagent or hook."""

    code = "session_key.no_id"

    def __init__(self) -> None:
        super().__init__(
            "the id in the session key is missing",
            because="without it, unrelated senders would share a session",
            try_this="correct the connector: it must set the id of the sender or the chat",
        )


# --- times ---


class TimeInvalid(Invalid):
    """The text is not a time, or the time is out of range."""

    code = "time.invalid"

    def __init__(self, text: str, *, because: str) -> None:
        super().__init__(
            f"invalid time: {shorten_value(text)}",
            because=because,
            try_this="write a time such as +2h30m, +1D, 2026-01-28T20:30 or 2026-01-28T20:30:00+08:00",
        )


class ZoneUnknown(Invalid):
    """The system has no time zone of this name. `nearest` is a similar name, or empty."""

    code = "zone.unknown"

    def __init__(self, name: str, *, nearest: str) -> None:
        super().__init__(
            f"no time zone named {shorten_value(name, chars_max=64)}",
            because="it is not in this system's list of IANA time zones",
            try_this=f"use {nearest}" if nearest else "use a name such as Europe/Berlin, Asia/Shanghai or UTC",
        )


class CronInvalid(Invalid):
    """The text is not a cron expression."""

    code = "cron.invalid"

    def __init__(self, expression: str, *, because: str) -> None:
        super().__init__(
            f"invalid cron expression: {shorten_value(expression)}",
            because=because,
            try_this="write an expression such as 0 9 * * 1-5 (at nine on weekdays), */15 * * * * or @daily",
        )


# --- schedules and heartbeats ---


class ScheduleIntervalInvalid(Invalid):
    """The interval of a schedule is out of range."""

    code = "schedule.every_invalid"

    def __init__(self, every_s: float, *, every_s_min: float, every_s_max: float) -> None:
        super().__init__(
            f"invalid interval for a schedule: {every_s} seconds",
            because=f"it must be from {every_s_min} to {every_s_max} seconds",
            try_this="set an interval such as every_s = 3600",
        )


class ScheduleNeverOccurs(Invalid):
    """A schedule has no occurrence: its only time has passed, or no date matches."""

    code = "schedule.never_occurs"

    def __init__(self, *, has_passed: bool) -> None:
        super().__init__(
            "this schedule would never run",
            because="its time has passed" if has_passed else "no date in the next fifty years matches",
            try_this="choose a later time" if has_passed else "check its days and months",
        )


class ScheduleTextMissing(Invalid):
    """A schedule has neither text nor a gate."""

    code = "schedule.empty"

    def __init__(self) -> None:
        super().__init__(
            "this schedule has no text",
            because="a schedule needs text, or a gate whose output becomes the text",
            try_this="set the text or a gate",
        )


class ScheduleRecipientInvalid(Invalid):
    """A schedule cannot send to this address."""

    code = "schedule.recipient_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"a schedule cannot send to {recipient}",
            because="the recipient must be an agent, a person or a channel",
            try_this="set a recipient such as to = agent:NAME",
        )


class ScheduleSessionInvalid(Invalid):
    """A schedule names two sessions: `main`, and the session in its recipient."""

    code = "schedule.session_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            "this schedule names two sessions",
            because=f"`main` is one session, and the recipient {recipient} contains another",
            try_this="leave out `main`, or the session in the recipient",
        )


class ScheduleTextTooLarge(TooLarge):
    """The text, description or title of a schedule exceeds its limit."""

    code = "schedule.too_large"

    def __init__(self, field: str, *, kind: str, bytes_max: int) -> None:
        super().__init__(
            f"the {field} of this {kind} is too long",
            because=f"the limit is {bytes_max:,} bytes",
            try_this="move the rest to a file, and write the path of the file here",
        )


class ScheduleGateInvalid(Invalid):
    """The gate of a schedule is invalid."""

    code = "schedule.gate_invalid"

    def __init__(self, *, because: str, try_this: str) -> None:
        super().__init__("invalid gate", because=because, try_this=try_this)


class HeartbeatTaskIdInvalid(Invalid):
    """The text is not a valid id of a heartbeat task."""

    code = "heartbeat.id_invalid"

    def __init__(self, text: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid id for a heartbeat task: {shorten_value(text, chars_max=chars_max)}",
            because=f"the id is used as a file name, so it has at most {chars_max} letters, digits, `.`, `_` and `-`",
            try_this="choose an id such as check-inbox",
        )


# --- sessions ---


class SessionNameInvalid(Invalid):
    """The text is not a valid name of a session."""

    code = "session.name_invalid"

    def __init__(self, name: str, *, chars_max: int) -> None:
        super().__init__(
            f"invalid name for a session: {shorten_value(name, chars_max=chars_max)}",
            because=f"a name is one line of 1 to {chars_max} visible characters",
            try_this="choose another name, or set the name to null to remove it",
        )


class SessionFolderNotAbsolute(Invalid):
    """The working directory in a session's attributes is not an absolute path."""

    code = "session.folder_not_absolute"

    def __init__(self) -> None:
        super().__init__(
            "core.workingDir is not an absolute path",
            because="a session has no folder to which a relative path could refer",
            try_this="write a path such as /home/maria/garden",
        )


class SessionAttributesTooDeep(TooLarge):
    """The attributes of a session are nested too deeply."""

    code = "session.attributes_too_deep"

    def __init__(self, *, depth_max: int) -> None:
        super().__init__(
            "these attributes are nested too deeply",
            because=f"the limit is {depth_max} levels",
            try_this="keep large values in files, and set attributes to the paths of the files",
        )


# --- permissions ---


class PermissionInvalid(Invalid):
    """The text is not a permission."""

    code = "permission.invalid"

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"invalid permission: {shorten_value(tag, chars_max=200)}",
            because="a permission is `web`, `read:PATH`, `write:PATH` or `tool:NAME`",
            try_this="write a permission such as read:/home/maria/notes",
        )


class PermissionPathInvalid(Invalid):
    """The path of a permission is invalid."""

    code = "permission.path_invalid"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"invalid path in a permission: {shorten_value(path, chars_max=200)}",
            because=because,
            try_this="write the absolute path of a folder",
        )
