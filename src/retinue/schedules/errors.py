"""Errors of schedules, gates and heartbeat tasks: one class for each code."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.errors import Conflict, Invalid, NotFound, TooLarge
from retinue.tools.base import ToolFailed

# --- schedules ---


class ScheduleRecipientMissing(Invalid):
    """A schedule has no recipient."""

    code = "schedule.recipient_missing"

    def __init__(self) -> None:
        super().__init__(
            "no recipient for this schedule",
            because="`to` is not set",
            try_this="set to = agent:NAME",
        )


class ScheduleDeliveryInvalid(Invalid):
    """The address in a schedule's `deliver_to` cannot receive the schedule's answers."""

    code = "schedule.deliver_invalid"

    def __init__(self, recipient: str) -> None:
        super().__init__(
            f"an answer cannot be delivered to {recipient}",
            because="`deliver_to` must be a person, a channel or none",
            try_this="set deliver_to = person:NAME, or none",
        )


class ScheduleTriggerInvalid(Invalid):
    """A schedule has none or several of `at`, `every` and `cron`. `given` has the names of those that are set."""

    code = "schedule.when_invalid"

    def __init__(self, given: Sequence[str]) -> None:
        super().__init__(
            "a schedule needs exactly one of `at`, `every` and `cron`",
            because=f"{' and '.join(given)} are given" if given else "none of them is given",
            try_this="set one of them, for example: cron = 0 9 * * 1-5",
        )


class DurationInvalid(Invalid):
    """The text is not a duration such as 1h30m."""

    code = "schedule.duration_invalid"

    def __init__(self, text: str) -> None:
        super().__init__(
            f"invalid duration {text!r}",
            because="it must be numbers with the units d h m s, each unit at most once",
            try_this="use for example 30m, 1h30m or 1d",
        )


class ScheduleFileInvalid(Invalid):
    """A schedule file has an invalid field or syntax."""

    code = "schedule.file_invalid"

    def __init__(self, because: str) -> None:
        super().__init__(
            "invalid schedule file",
            because=because,
            try_this="see docs/guides/schedules.md for the fields",
        )


class ScheduleFileIdMismatch(Invalid):
    """A schedule file has the name of one schedule and the id of another."""

    code = "schedule.file_id_mismatch"

    def __init__(self, name: str, *, id_: str) -> None:
        super().__init__(
            "this file is for another schedule",
            because=f"line 2: the schedule '{name}' has the id {id_}, and the file has another id",
            try_this=f"set `id: {id_}`, or rename the file",
        )


class ScheduleFileCopied(Invalid):
    """Two schedule files have the same id."""

    code = "schedule.file_copied"

    def __init__(self, original: str, *, new_id: str) -> None:
        super().__init__(
            "this schedule file is a copy",
            because=f"line 2: {original}.md has the same id",
            try_this=f"give this file a new id, such as: {new_id}",
        )


# --- gates ---


class GateSandboxMissing(ToolFailed):
    """The server has no sandbox, and the gate was not written by the owner, so the gate was not run."""

    code = "gate.sandbox_missing"

    def __init__(self) -> None:
        super().__init__(
            "the gate was not run",
            because="this server has no sandbox, and only gates that the owner wrote run without a sandbox",
            try_this="configure a sandbox, or let the owner write the gate",
        )


class GateFolderMissing(ToolFailed):
    """The working directory of a gate is not a folder."""

    code = "gate.folder_missing"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"'{path[:200]}' is not a folder",
            because="the working directory of a gate must be an existing folder",
            try_this="set `cwd` to an existing folder, or leave it out",
        )


class GateWebDenied(ToolFailed):
    """A gate has `domains`, but no permission to reach the web."""

    code = "gate.web_denied"

    def __init__(self) -> None:
        super().__init__(
            "the gate cannot reach the web",
            because="the permission `web` was not granted to the gate",
            try_this="add `web` to its `permissions`, and grant it to the session",
        )


# --- heartbeat tasks ---


class HeartbeatTaskInvalid(Invalid):
    """The task file of a heartbeat has an invalid field or syntax."""

    code = "heartbeat.task_invalid"

    def __init__(self, because: str) -> None:
        super().__init__(
            "invalid heartbeat task",
            because=because,
            try_this="see docs/guides/heartbeats.md for the fields",
        )


class HeartbeatTaskEmpty(Invalid):
    """The file of a heartbeat task has no text below its front matter."""

    code = "heartbeat.empty"

    def __init__(self) -> None:
        super().__init__(
            "this heartbeat task has no text",
            because="the text below the front matter says what the agent should do",
            try_this="write the task below the front matter",
        )


class HeartbeatTaskTooLarge(TooLarge):
    """The file of a heartbeat task is larger than the limit."""

    code = "heartbeat.too_large"

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(
            "this heartbeat task is too long",
            because=f"the limit for its file is {bytes_max:,} bytes",
            try_this="move the rest into another file, and name that file in the task",
        )


class HeartbeatTaskExists(Conflict):
    """The agent already has a heartbeat task with this id."""

    code = "heartbeat.id_taken"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"a heartbeat task with the id '{id_}' already exists",
            because="a task is overwritten only on request",
            try_this="choose another id, or set overwrite = true and use exactly this id",
        )


class HeartbeatFolderUnusable(Invalid):
    """The folder with an agent's heartbeat tasks cannot be opened."""

    code = "heartbeat.folder_unusable"

    def __init__(self, folder: str, *, because: str) -> None:
        super().__init__(
            f"the folder {folder} cannot be used",
            because=f"it may be a symbolic link, which is not followed ({because})",
            try_this=f"check that {folder} in the agent directory is a folder, not a link or a file",
        )


class HeartbeatTaskNotFound(NotFound):
    """The agent has no heartbeat task with this id."""

    code = "heartbeat.task_not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(f"no heartbeat task '{id_}'", try_this="list the tasks: retinue heartbeat list")
