"""Errors of the operations on schedules, heartbeats, reminders and wake-ups, and of their tools."""

from __future__ import annotations

from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError, TooLarge
from retinue.domain.shared_errors import shorten_name
from retinue.tools.base import ToolFailed

# --- schedules ---


class ScheduleNotFound(NotFound):
    """No schedule that the caller may see has this name or id."""

    code = "schedule.not_found"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"no schedule '{shorten_name(text)}'",
            because="no schedule that you can see has this name, or an id that starts like this",
            try_this="list the schedules: retinue schedule list",
        )


class ScheduleNameTaken(Conflict):
    """Another schedule has this name."""

    code = "schedule.name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a schedule named '{name}' already exists",
            because="names are case-insensitive",
            try_this=f"choose another name, or change that schedule: retinue schedule set {name}",
        )


class TooManySchedules(TooLarge):
    """The server has the maximum number of schedules."""

    code = "schedule.too_many"

    def __init__(self, *, count_max: int) -> None:
        super().__init__(
            "too many schedules",
            because=f"the limit is {count_max:,}",
            try_this="delete one that you no longer use: retinue schedule delete NAME",
        )


class TooManySchedulesOfOwner(TooLarge):
    """One person or agent has the maximum number of schedules."""

    code = "schedule.too_many_of_owner"

    def __init__(self, owner: str, *, count_max: int) -> None:
        super().__init__(
            f"{owner} has too many schedules",
            because=f"the limit is {count_max} for everyone but the owner of this server",
            try_this="delete one that you no longer use: retinue schedule delete NAME",
        )


class ScheduleTooOften(NotAllowed):
    """The schedule would run more often than the caller's permissions allow."""

    code = "schedule.too_often"

    def __init__(self, interval: str) -> None:
        super().__init__(
            f"this schedule would run every {interval}",
            because="only a schedule of the owner may run more often than once a minute",
            try_this="choose a longer interval",
        )


class ScheduleModelNotAllowed(NotAllowed):
    """The caller may not choose the model of a schedule."""

    code = "schedule.model_not_allowed"

    def __init__(self, *, level: str) -> None:
        super().__init__(
            "you cannot choose the model of a schedule",
            because=f"you need the level standard; you have {level}",
            try_this="leave out `model`",
        )


class ScheduleGateNotAllowed(NotAllowed):
    """The caller may not run commands without approval, and a gate is a command."""

    code = "schedule.gate_not_allowed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "you cannot add a schedule with a gate",
            because=because,
            try_this="leave out the gate, or ask the owner to set it",
        )


class ScheduleChangeEmpty(Invalid):
    """A request to change a schedule names no field."""

    code = "schedule.change_empty"

    def __init__(self) -> None:
        super().__init__(
            "nothing to change",
            because="no field was given",
            try_this="give a field, for example: --text 'Good morning'",
        )


class ScheduleMissedInvalid(Invalid):
    """The value of `missed`, which says what happens to missed occurrences, is neither `skip` nor `run`."""

    code = "schedule.missed_invalid"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"invalid value for missed: '{text[:32]}'",
            because="it must be skip or run",
            try_this="use missed=skip to skip missed occurrences, or missed=run to run them later",
        )


class DeclaredScheduleInvalid(Invalid):
    """A schedule in the settings file is invalid. `error` says what is wrong with it."""

    code = "schedule.declaration_invalid"

    def __init__(self, name: str, error: RetinueError) -> None:
        super().__init__(
            f"schedules.{name} cannot be applied: {error.sentence}", because=error.because, try_this=error.try_this
        )


class ScheduleOwnerUnclear(ToolFailed):
    """A run on behalf of several or unknown people cannot create a schedule or a reminder."""

    code = "schedule.owner_unclear"

    def __init__(self, requesters: str) -> None:
        super().__init__(
            f"you cannot create a schedule or reminder on behalf of {requesters[:200]}",
            because="it must belong to one person of this server, and runs with that person's rights",
            try_this="request it as one person, in a direct conversation, or ask the owner to create it",
        )


class ScheduleMemoryUnavailable(ToolFailed):
    """A tool for the memory of a schedule was called outside a run of a schedule."""

    code = "schedule.memory_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "this conversation belongs to no schedule",
            because="only a run of a schedule has this memory, and the schedule may have been deleted",
            try_this="list your schedules with the tool `cron`, action `list`",
        )


# --- heartbeats ---


class HeartbeatNotFound(NotFound):
    """The agent has no heartbeat."""

    code = "heartbeat.not_found"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"{agent} has no heartbeat",
            because="no heartbeat is set for it, and only the default agent can have one without a setting",
            try_this=f"set one: retinue agent set {agent} --heartbeat-every-s 1800",
        )


class HeartbeatNotAllowed(NotAllowed):
    """Only the owner and the agent itself may see and change the heartbeat of an agent."""

    code = "heartbeat.not_allowed"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"you cannot use the heartbeat of {agent}",
            because="an agent can use only its own heartbeat; the owner can use every heartbeat",
            try_this="ask the owner",
        )


class HeartbeatTaskUnusable(Invalid):
    """A heartbeat task is invalid and cannot run."""

    code = "heartbeat.task_unusable"

    def __init__(self, task: str, *, because: str) -> None:
        super().__init__(
            f"the heartbeat task '{task}' cannot run",
            because=because,
            try_this=f"read it and correct it: retinue heartbeat show {task}",
        )


class HeartbeatNotEditable(Invalid):
    """The schedule commands cannot change a heartbeat, because settings define it."""

    code = "heartbeat.not_editable"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"the heartbeat of {agent} cannot be changed with the schedule commands",
            because=f"the settings of {agent}, or [defaults.heartbeat], define it",
            try_this=f"change the settings: retinue agent set {agent} --heartbeat-every-s 3600 (0 for no heartbeat)",
        )


# --- reminders and wake-ups ---


class ReminderNotFound(NotFound):
    """The id belongs to a schedule that is not a reminder."""

    code = "reminder.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no reminder has the id {shorten_name(id_)}",
            because="this id belongs to a schedule that is not a reminder",
            try_this="list the reminders: retinue reminder list",
        )


class WakeUpNotFound(NotFound):
    """The id belongs to a schedule that is not a wake-up."""

    code = "wakeup.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no wake-up has the id {shorten_name(id_)}",
            because="this id belongs to a schedule that is not a wake-up",
            try_this="list the wake-ups: retinue wakeup list",
        )


class TooManyReminders(TooLarge):
    """A person has the maximum number of pending reminders."""

    code = "reminder.too_many"

    def __init__(self, recipient: str, *, count_max: int) -> None:
        super().__init__(
            f"{recipient} has too many pending reminders",
            because=f"the limit is {count_max} for each person",
            try_this="delete one: retinue reminder delete ID",
        )


class TooManyWakeUps(TooLarge):
    """A session has the maximum number of pending wake-ups."""

    code = "wakeup.too_many"

    def __init__(self, recipient: str, *, count_max: int) -> None:
        super().__init__(
            f"{recipient} has too many pending wake-ups",
            because=f"the limit is {count_max} for each conversation",
            try_this="delete one: retinue wakeup delete ID",
        )


class ReminderRecipientInvalid(Invalid):
    """Only people can be reminded."""

    code = "reminder.recipient_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"{recipient} cannot be reminded",
            because="only people can be reminded; for an agent, add a wake-up to one of its conversations",
            try_this="use to=person:NAME",
        )


class ReminderNotAllowed(NotAllowed):
    """A person other than the owner tried to remind someone else."""

    code = "reminder.not_allowed"

    def __init__(self, caller: str) -> None:
        super().__init__(
            "you can only remind yourself",
            because=f"you are {caller}, and only agents and the owner can remind other people",
            try_this="send a message for later: retinue send ADDRESS TEXT --deliver-at TIME",
        )


class ReminderTimeMissing(Invalid):
    """A reminder or wake-up has no time, or has two times."""

    code = "reminder.time_missing"

    def __init__(self) -> None:
        super().__init__(
            "the time is missing or given twice",
            because="exactly one of `at` and `delay_s` must be given",
            try_this="give a time, for example: at=+2h",
        )


class ReminderDelayInvalid(Invalid):
    """The delay of a reminder or wake-up is too short or too long."""

    code = "reminder.delay_invalid"

    def __init__(self, delay_s: int, *, delay_s_max: int) -> None:
        super().__init__(
            f"invalid value for delay_s: {delay_s}",
            because=f"it must be a number of seconds from 1 to {delay_s_max:,}",
            try_this="for a later time, use `at` instead",
        )


class TimeOffsetMissing(Invalid):
    """A time has no UTC offset, so its meaning would depend on a time zone setting."""

    code = "time.no_offset"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"the time '{text[:64]}' has no UTC offset",
            because="without an offset, it is a different time in every time zone",
            try_this="add an offset, as in 2026-01-28T20:30:00+01:00, or use a time relative to now: +2h",
        )
