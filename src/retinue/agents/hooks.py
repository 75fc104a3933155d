"""Finds hooks on disk: a folder with a HOOK.md, which names the events, and a handler program.

Hooks have the same requirements as skills. A hook runs only if its owner has approved its current
files. If two hooks have the same name, a workspace's wins over the instance's, and the instance's
over a bundled one.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.agents.skill_front_matter import split
from retinue.agents.skills import Gates, Surroundings, gated, gates_of
from retinue.config.hooks import HookSettings
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable
from retinue.text.glob_match import matches_glob

FILE = "HOOK.md"
FOLDER = "hooks"
HANDLERS = ("handler", "handler.sh", "handler.py")
BUNDLED = "bundled_hooks"
KIND = "hook"  # in the table of approved hashes
NAME_LENGTH_MAX = 64
DESCRIPTION_LENGTH_MAX = 1_024
HOOKS_MAX = 100  # read in one folder
FILES_MAX = 50  # per hook
HOOK_BYTES_MAX = 1024 * 1024  # all files of one hook together
EVENTS_MAX = 16
CONTENT_BYTES_MAX = 64 * 1024  # shown per file

EVENTS = frozenset(
    {
        "command",
        "command:new",
        "command:reset",
        "command:stop",
        "session:start",
        "session:reset",
        "agent:bootstrap",
        "gateway:startup",
    }
)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class HookSource(StrEnum):
    """Where a hook was found, in order of precedence."""

    WORKSPACE = "workspace"
    HOUSE = "house"
    BUNDLED = "bundled"


class HookState(StrEnum):
    """Whether a hook can run."""

    READY = "ready"
    NEW = "new"  # not approved yet
    CHANGED = "changed"  # changed since its approval
    OFF = "off"
    UNFIT = "unfit"  # a requirement is not met


class Hook(Struct, frozen=True, kw_only=True):
    """One hook, as it is on disk now. `hash` covers every file in its folder."""

    name: str
    description: str
    events: tuple[str, ...]
    gates: Gates
    source: HookSource
    folder: Path
    handler: Path
    hash: str
    content: str  # shown to a person before approval

    @property
    def key(self) -> str:
        """The key of its approval: a hook of the same name in another place has another key."""
        where = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12] if self.source is HookSource.WORKSPACE else ""
        return "/".join(filter(None, (self.source.value, where, self.name)))

    def is_for(self, event: str) -> bool:
        """Whether the hook wants this event. `command` matches every command."""
        return event in self.events or event.partition(":")[0] in self.events


class Broken(Struct, frozen=True):
    """A folder that is not a valid hook, and why."""

    folder: Path
    because: str


class Found(Struct, frozen=True, kw_only=True):
    """The hook that is used for each name, the ones that it shadows, and the invalid folders."""

    hooks: tuple[Hook, ...] = ()
    shadowed: tuple[Hook, ...] = ()
    broken: tuple[Broken, ...] = ()


class Standing(Struct, frozen=True):
    """A hook, its state and the reason."""

    hook: Hook
    state: HookState
    because: str = ""


def bundled() -> Path:
    """Return the folder of the hooks that ship with retinue."""
    return Path(__file__).parent / BUNDLED


def find(home: Path, workspaces: Sequence[Path] = ()) -> Found:
    """Search all folders for hooks. Reads files, so call it in a thread."""
    roots = [(HookSource.WORKSPACE, each / FOLDER) for each in workspaces]
    roots += [(HookSource.HOUSE, home / FOLDER), (HookSource.BUNDLED, bundled())]
    counted: dict[str, Hook] = {}
    shadowed: list[Hook] = []
    broken: list[Broken] = []
    for source, root in roots:
        for found in _in_root(source, root):
            if isinstance(found, Broken):
                broken.append(found)
            elif found.name in counted:
                shadowed.append(found)
            else:
                counted[found.name] = found
    hooks = tuple(counted[name] for name in sorted(counted))
    return Found(hooks=hooks, shadowed=tuple(shadowed), broken=tuple(broken))


def standing(
    hooks: Sequence[Hook], good: Mapping[str, str], here: Surroundings, *, settings: HookSettings
) -> tuple[Standing, ...]:
    """Return the state of each hook. `approved` has the approved hash by the key of the hook. Pure."""
    return tuple(_standing(hook, good, here, settings) for hook in hooks)


def _standing(hook: Hook, good: Mapping[str, str], here: Surroundings, settings: HookSettings) -> Standing:
    if not settings.enabled:
        return Standing(hook, HookState.OFF, "`hooks.enabled` is not set")
    if any(matches_glob(glob, hook.name) for glob in settings.deny):
        return Standing(hook, HookState.OFF, "`hooks.deny` names it")
    if why := gated(hook.gates, here):
        return Standing(hook, HookState.UNFIT, why)
    pinned = good.get(hook.key)
    if pinned == hook.hash:
        return Standing(hook, HookState.READY)
    if pinned is None:
        return Standing(hook, HookState.NEW, "nobody has found it good yet")
    return Standing(hook, HookState.CHANGED, "it has changed since it was found good")


def parse(text: str, *, folder: str) -> tuple[str, tuple[str, ...], Gates]:
    """Return the description, the events and the requirements that a HOOK.md declares."""
    said, _ = split(text)
    name = said.get("name", folder)
    if name != folder or len(folder) > NAME_LENGTH_MAX or not _NAME.fullmatch(folder):
        raise _invalid(
            f"a hook has the name of its folder, small letters, digits and hyphens, and this one has {name!r:.80}"
        )
    description = said.get("description", "")
    if not isinstance(description, str) or len(description) > DESCRIPTION_LENGTH_MAX or not is_storable(text):
        raise _invalid(f"its description is a text of at most {DESCRIPTION_LENGTH_MAX:,} characters")
    gates, own = gates_of(said)
    events = own.get("events")
    words = [events] if isinstance(events, str) else events
    named = cast("list[Any]", words) if isinstance(words, list) else []
    if not named or len(named) > EVENTS_MAX or any(each not in EVENTS for each in named):
        raise _invalid(f"`events` names some of: {', '.join(sorted(EVENTS))}")
    return " ".join(description.split()), tuple(dict.fromkeys(map(str, named))), gates


def _in_root(source: HookSource, root: Path) -> Iterator[Hook | Broken]:
    try:
        real = root.resolve(strict=True)
        names = sorted(os.listdir(real))
    except OSError:
        return
    for name in names[:HOOKS_MAX]:
        folder = real / name
        if not (folder / FILE).is_file():
            continue
        try:
            yield _hook(source, folder)
        except Invalid as error:
            yield Broken(folder, error.because)
        except OSError as error:
            yield Broken(folder, f"it cannot be read ({error.strerror})")


def _hook(source: HookSource, folder: Path) -> Hook:
    files = _files(folder)
    handler = next((name for name in HANDLERS if name in files and files[name][0]), None)
    if handler is None:
        raise _invalid(f"it has no handler that can be run: one of {', '.join(HANDLERS)}")
    try:
        text = files[FILE][1].decode()
    except UnicodeDecodeError:
        raise _invalid(f"its {FILE} is not UTF-8") from None
    description, events, gates = parse(text, folder=folder.name)
    return Hook(
        name=folder.name,
        description=description,
        events=events,
        gates=gates,
        source=source,
        folder=folder,
        handler=folder / handler,
        hash=_hash(files),
        content=_content(files),
    )


def _files(folder: Path) -> dict[str, tuple[bool, bytes]]:
    """Return each file of the folder: whether it is executable, and its content.

    Subfolders and links are refused, so an approval covers exactly the files that are there.
    """
    found: dict[str, tuple[bool, bytes]] = {}
    left = HOOK_BYTES_MAX
    for name in sorted(os.listdir(folder)):
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as opened:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise _invalid(f"{name!r:.80} is no plain file")
            data = opened.read(left + 1)
        left -= len(data)
        found[name] = (bool(mode & 0o111), data)
        if left < 0 or len(found) > FILES_MAX:
            raise _invalid(f"it has more than {FILES_MAX} files, or {HOOK_BYTES_MAX:,} bytes")
    return found


def _content(files: Mapping[str, tuple[bool, bytes]]) -> str:
    """Return the text of the files. A file that is not text, or too long, is named with its hash."""
    shown: list[str] = []
    for name, (can_run, data) in sorted(files.items(), key=lambda each: (each[0] != FILE, each[0])):
        head = f"--- {name}{' (can be run)' if can_run else ''}"
        try:
            text = data.decode() if len(data) <= CONTENT_BYTES_MAX else "\0"
        except UnicodeDecodeError:
            text = "\0"
        if is_storable(text):
            shown.append(f"{head}\n{text.rstrip()}")
        else:
            shown.append(f"{head}, {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return "\n".join(shown)


def _hash(files: Mapping[str, tuple[bool, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, (can_run, data) in sorted(files.items()):
        head = os.fsencode(name)
        whole.update(f"{len(head)} {can_run:d} {len(data)}\n".encode() + head + hashlib.sha256(data).digest())
    return whole.hexdigest()


def _invalid(because: str) -> Invalid:
    return Invalid(
        "this folder is no hook", because=because, try_this=f"correct its {FILE}", code="hook.folder-invalid"
    )
