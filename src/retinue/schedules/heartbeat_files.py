"""The tasks of an agent's heartbeat: one file each, `heartbeat/ID.md` in the agent directory.

    ---
    title: Look after the inbox
    gate: {"command": "test -s inbox.txt"}
    ---
    Read what is new in inbox.txt. Tell me only what cannot wait.

Front matter is optional. Without a `title`, the title is the first heading, or the id if there is no
heading. Agents also write these files with their file tools, so every file is validated before use.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from retinue.agents.instruction_files import ReadWithTrust
from retinue.agents.skill_front_matter import FENCE, split_front_matter
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.heartbeat import TASK_TITLE_CHARS_MAX, TASKS_FOLDER, TASKS_MAX, HeartbeatTask, validate_task_id
from retinue.domain.schedule import ScheduleGate, check_gate
from retinue.domain.shared_errors import TooManyHeartbeatTasks
from retinue.domain.storable_text import is_storable, make_storable, unstorable_error
from retinue.domain.trust import Trust
from retinue.schedules.errors import (
    HeartbeatFolderUnusable,
    HeartbeatTaskEmpty,
    HeartbeatTaskExists,
    HeartbeatTaskInvalid,
    HeartbeatTaskNotFound,
    HeartbeatTaskTooLarge,
)
from retinue.schedules.schedule_front_matter import normalize_gate_keys
from retinue.schedules.schedule_parser import GateForm, parse_gate_form

TASK_FILE_BYTES_MAX = 32_768
ENTRIES_READ_MAX = 1_000


class HeartbeatTaskFile(Struct, frozen=True):
    """A heartbeat task as read from its file. `because` says why the task cannot be used, or is empty if it can."""

    task: HeartbeatTask
    gate: ScheduleGate | None = None
    because: str = ""


def tasks_directory(agent_directory: Path) -> Path:
    return agent_directory / TASKS_FOLDER


def parse_task(id_: str, text: str) -> HeartbeatTaskFile:
    """Parse the file of a heartbeat task. If the file is invalid, the error has the reason."""
    fields: dict[str, Any] = {}
    body = text
    if text.removeprefix("\ufeff").startswith(FENCE):
        fields, body = split_front_matter(text)
    unknown = sorted(set(fields) - {"title", "name", "gate"})
    if unknown:
        raise HeartbeatTaskInvalid(f"the key `{unknown[0]}` is unknown; the keys are `title` and `gate`")
    body = body.strip("\n")
    title = " ".join(str(fields.get("title") or fields.get("name") or _first_heading(body) or id_).split())
    try:
        form = msgspec.convert(normalize_gate_keys(fields.get("gate")), GateForm | None)
    except msgspec.ValidationError as error:
        raise HeartbeatTaskInvalid(f"invalid gate: {error}") from None
    gate = parse_gate_form(form)
    if gate is not None:
        check_gate(gate)
    if not body.strip():
        raise HeartbeatTaskEmpty
    return HeartbeatTaskFile(HeartbeatTask(id=id_, title=title[:TASK_TITLE_CHARS_MAX], text=body), gate)


def _first_heading(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return next((line.lstrip("#").strip() for line in lines if line.startswith("#")), "")


def render_task(task: HeartbeatTask, gate: GateForm | None) -> str:
    """Return the file text of a task. Parsing it again gives the same task."""
    front: dict[str, Any] = {"title": task.title}
    if gate is not None:
        front["gate"] = msgspec.to_builtins(gate)
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()]
    return "\n".join((FENCE, *lines, FENCE, "", task.text.strip("\n"), ""))


# --- files ---


@contextmanager
def _open_directory(agent_directory: Path) -> Generator[int]:
    """Open the directory of heartbeat tasks. Raises if the directory is a link.

    An agent that may write to the agent directory could replace the task directory with a link.
    """
    folder = os.open(tasks_directory(agent_directory), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def list_task_ids(agent_directory: Path) -> list[str]:
    """Return the ids of an agent's heartbeat tasks, in order. Links and files with an invalid name are ignored."""
    try:
        with _open_directory(agent_directory) as folder:
            return _list_task_ids(folder)
    except OSError:  # it does not exist, or is not a directory
        return []


def _list_task_ids(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        names = [
            entry.name.removesuffix(".md")
            for entry in islice(entries, ENTRIES_READ_MAX)
            if entry.name.endswith(".md") and entry.is_file(follow_symlinks=False)
        ]
    return sorted(name for name in names if _is_id(name))[:TASKS_MAX]


def _is_id(name: str) -> bool:
    try:
        return validate_task_id(name) == name
    except Invalid:
        return False


async def read_tasks(agent_directory: Path, read_file: ReadWithTrust) -> list[HeartbeatTaskFile]:
    """Read all heartbeat tasks of an agent. A task that cannot be used is included, with the reason."""
    folder = os.path.realpath(tasks_directory(agent_directory))
    if folder != os.path.join(os.path.realpath(agent_directory), TASKS_FOLDER):
        return []  # a link in its place would expose its target
    found = [
        await _read_task(folder, id_, read_file) for id_ in await asyncio.to_thread(list_task_ids, agent_directory)
    ]
    return [each for each in found if each is not None]


async def _read_task(folder: str, id_: str, read_file: ReadWithTrust) -> HeartbeatTaskFile | None:
    nothing = HeartbeatTask(id=id_, title=id_, text="")
    try:
        looked = await read_file(os.path.join(folder, f"{id_}.md"))
        if looked is None:
            return None
        if len(looked.data) > TASK_FILE_BYTES_MAX:
            return HeartbeatTaskFile(nothing, because=f"it is too large: the limit is {TASK_FILE_BYTES_MAX:,} bytes")
        if looked.trust is Trust.UNTRUSTED:
            return HeartbeatTaskFile(nothing, because="it has untrusted content, which cannot give instructions")
        return parse_task(id_, make_storable(looked.data.decode(errors="replace")))
    except RetinueError as error:
        return HeartbeatTaskFile(
            nothing, because=f"{error.sentence}: {error.because}" if error.because else error.sentence
        )


def write_task(agent_directory: Path, task: HeartbeatTask, gate: GateForm | None, *, overwrite: bool) -> Path:
    """Write a task file atomically. An existing task is replaced only with `overwrite`."""
    text = render_task(task, gate)
    if not is_storable(text):
        raise unstorable_error("this task")
    if len(text.encode()) > TASK_FILE_BYTES_MAX:
        raise HeartbeatTaskTooLarge(bytes_max=TASK_FILE_BYTES_MAX)
    parse_task(task.id, text)
    try:
        tasks_directory(agent_directory).mkdir(mode=0o700, exist_ok=True)
        with _open_directory(agent_directory) as folder:
            _check_id_free(_list_task_ids(folder), task.id, overwrite=overwrite)
            _write_atomically(folder, f"{task.id}.md", text)
    except OSError as error:
        raise _directory_unusable(error) from error
    return tasks_directory(agent_directory) / f"{task.id}.md"


def _check_id_free(existing: list[str], id_: str, *, overwrite: bool) -> None:
    taken = next((name for name in existing if name.casefold() == id_.casefold()), None)
    if taken is not None and not (overwrite and taken == id_):
        raise HeartbeatTaskExists(taken)
    if taken is None and len(existing) >= TASKS_MAX:
        raise TooManyHeartbeatTasks(tasks_max=TASKS_MAX)


def _write_atomically(folder: int, name: str, text: str) -> None:
    beside = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(beside, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _directory_unusable(error: OSError) -> HeartbeatFolderUnusable:
    return HeartbeatFolderUnusable(TASKS_FOLDER, because=error.strerror or type(error).__name__)


def remove_task(agent_directory: Path, id_: str) -> None:
    if validate_task_id(id_) not in list_task_ids(agent_directory):
        raise HeartbeatTaskNotFound(id_)
    try:
        with _open_directory(agent_directory) as folder:
            os.unlink(f"{id_}.md", dir_fd=folder)
    except FileNotFoundError:
        raise HeartbeatTaskNotFound(id_) from None
    except OSError as error:
        raise _directory_unusable(error) from error


def task_not_found(id_: str) -> HeartbeatTaskNotFound:
    return HeartbeatTaskNotFound(id_)
