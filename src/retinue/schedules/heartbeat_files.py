"""The tasks of an agent's heartbeat: one file each, `heartbeat/ID.md` in the agent directory.

    ---
    title: Look after the inbox
    gate: {"command": "test -s inbox.txt"}
    ---
    Read what is new in inbox.txt. Tell me only what cannot wait.

Front matter is optional: then the title is the first heading, or the id. Agents also write these
files with their own tools, so every file is validated before use.
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

from retinue.agents.instruction_files import Look
from retinue.agents.skill_front_matter import FENCE, split
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, TooLarge
from retinue.domain.heartbeat import FOLDER, TASKS_MAX, TITLE_CHARS_MAX, Task, task_id
from retinue.domain.schedule import Gate, check_gate
from retinue.domain.storable_text import is_storable, storable, unstorable
from retinue.domain.trust import Trust
from retinue.schedules.schedule_front_matter import plain_gate
from retinue.schedules.schedule_parser import GateForm, gate_of

TASK_BYTES_MAX = 32_768
ENTRIES_LOOKED_AT_MAX = 1_000


class Filed(Struct, frozen=True):
    """A task as read from its file. `because` is set if it cannot be performed, and says why."""

    task: Task
    gate: Gate | None = None
    because: str = ""


def folder_of(home: Path) -> Path:
    return home / FOLDER


def parse(id_: str, text: str) -> Filed:
    """Parse a task file. Raises with the reason if it is invalid."""
    said: dict[str, Any] = {}
    words = text
    if text.removeprefix("\ufeff").startswith(FENCE):
        said, words = split(text)
    unknown = sorted(set(said) - {"title", "name", "gate"})
    if unknown:
        raise _unreadable(f"`{unknown[0]}` says nothing here; there are `title` and `gate`")
    words = words.strip("\n")
    title = " ".join(str(said.get("title") or said.get("name") or _heading(words) or id_).split())
    try:
        form = msgspec.convert(plain_gate(said.get("gate")), GateForm | None)
    except msgspec.ValidationError as error:
        raise _unreadable(f"its gate: {error}") from None
    gate = gate_of(form)
    if gate is not None:
        check_gate(gate)
    if not words.strip():
        raise Invalid(
            "it has no words",
            because="what is to be done stands below the front matter",
            try_this="say what is to be done",
            code="heartbeat.empty",
        )
    return Filed(Task(id=id_, title=title[:TITLE_CHARS_MAX], text=words), gate)


def _unreadable(because: str) -> Invalid:
    return Invalid(
        "this task cannot be read",
        because=because,
        try_this="look at docs/guides/heartbeats.md for what may stand there",
        code="heartbeat.task-unreadable",
    )


def _heading(words: str) -> str:
    lines = (line.strip() for line in words.splitlines())
    return next((line.lstrip("#").strip() for line in lines if line.startswith("#")), "")


def render(task: Task, gate: GateForm | None) -> str:
    """Return the file text of a task. Parsing it again gives the same task."""
    front: dict[str, Any] = {"title": task.title}
    if gate is not None:
        front["gate"] = msgspec.to_builtins(gate)
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()]
    return "\n".join((FENCE, *lines, FENCE, "", task.text.strip("\n"), ""))


# --- files ---


@contextmanager
def _opened(home: Path) -> Generator[int]:
    """Open the directory itself, never a link in its place.

    An agent that may write there could put a link at any moment.
    """
    folder = os.open(folder_of(home), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def listed(home: Path) -> list[str]:
    """Return the task ids in order. Links and names that are not valid ids are ignored."""
    try:
        with _opened(home) as folder:
            return _listed(folder)
    except OSError:  # it does not exist, or is not a directory
        return []


def _listed(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        names = [
            entry.name.removesuffix(".md")
            for entry in islice(entries, ENTRIES_LOOKED_AT_MAX)
            if entry.name.endswith(".md") and entry.is_file(follow_symlinks=False)
        ]
    return sorted(name for name in names if _is_id(name))[:TASKS_MAX]


def _is_id(name: str) -> bool:
    try:
        return task_id(name) == name
    except Invalid:
        return False


async def read_all(home: Path, look: Look) -> list[Filed]:
    """Read every task, including those that cannot be performed, with the reason."""
    folder = os.path.realpath(folder_of(home))
    if folder != os.path.join(os.path.realpath(home), FOLDER):
        return []  # a link in its place would expose its target
    found = [await _read(folder, id_, look) for id_ in await asyncio.to_thread(listed, home)]
    return [each for each in found if each is not None]


async def _read(folder: str, id_: str, look: Look) -> Filed | None:
    nothing = Task(id=id_, title=id_, text="")
    try:
        looked = await look(os.path.join(folder, f"{id_}.md"))
        if looked is None:
            return None
        if len(looked.data) > TASK_BYTES_MAX:
            return Filed(nothing, because=f"it has more than {TASK_BYTES_MAX:,} bytes")
        if looked.trust is Trust.UNTRUSTED:
            return Filed(nothing, because="it holds words from outside, which are nobody's orders")
        return parse(id_, storable(looked.data.decode(errors="replace")))
    except RetinueError as error:
        return Filed(nothing, because=f"{error.sentence}: {error.because}" if error.because else error.sentence)


def put(home: Path, task: Task, gate: GateForm | None, *, overwrite: bool) -> Path:
    """Write a task file atomically. An existing task is replaced only with `overwrite`."""
    text = render(task, gate)
    if not is_storable(text):
        raise unstorable("this task")
    if len(text.encode()) > TASK_BYTES_MAX:
        raise TooLarge(
            "this task is too long",
            because=f"its file may have {TASK_BYTES_MAX:,} bytes",
            try_this="keep the rest in a file, and name it there",
            code="heartbeat.too-large",
        )
    parse(task.id, text)
    try:
        folder_of(home).mkdir(mode=0o700, exist_ok=True)
        with _opened(home) as folder:
            _check_free(_listed(folder), task.id, overwrite=overwrite)
            _write(folder, f"{task.id}.md", text)
    except OSError as error:
        raise _unusable(error) from error
    return folder_of(home) / f"{task.id}.md"


def _check_free(there: list[str], id_: str, *, overwrite: bool) -> None:
    taken = next((name for name in there if name.casefold() == id_.casefold()), None)
    if taken is not None and not (overwrite and taken == id_):
        raise _taken(taken)
    if taken is None and len(there) >= TASKS_MAX:
        raise TooLarge(
            "there are too many tasks",
            because=f"a heartbeat has at most {TASKS_MAX}",
            try_this="remove some, or put several into one",
            code="heartbeat.too-many",
        )


def _write(folder: int, name: str, text: str) -> None:
    beside = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(beside, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _unusable(error: OSError) -> Invalid:
    return Invalid(
        f"{FOLDER} cannot be used",
        because=f"a link may lie in its place, which leads elsewhere ({error.strerror or type(error).__name__})",
        try_this=f"look at what {FOLDER} is in the agent's home",
        code="heartbeat.folder-unusable",
    )


def _taken(id_: str) -> Conflict:
    return Conflict(
        f"there is a task '{id_}' already",
        because="nothing is overwritten unless you say so",
        try_this="choose another id, or overwrite = true for the very same one",
        code="heartbeat.id-taken",
    )


def remove(home: Path, id_: str) -> None:
    if task_id(id_) not in listed(home):
        raise no_task(id_)
    try:
        with _opened(home) as folder:
            os.unlink(f"{id_}.md", dir_fd=folder)
    except FileNotFoundError:
        raise no_task(id_) from None
    except OSError as error:
        raise _unusable(error) from error


def no_task(id_: str) -> NotFound:
    return NotFound(
        f"there is no task '{id_}'",
        because="no file of that name is in the folder",
        try_this="look at `retinue heartbeat list`",
        code="heartbeat.task-not-found",
    )
