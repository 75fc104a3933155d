"""Finds hooks on disk: a hook is a folder with a handler program and a HOOK.md that names its events.

A hook can have the same kinds of requirements as a skill. It runs only if the owner has approved
its current files. If several hooks have the same name, a hook in a workspace is preferred to one of
the instance. Bundled hooks come last.
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

from retinue.agents.errors import HookFolderInvalid
from retinue.agents.skill_front_matter import split_front_matter
from retinue.agents.skills import HostFacts, HostRequirements, read_requirements, unmet_requirement
from retinue.config.hooks import HookSettings
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable
from retinue.store.core.untrusted_files import open_untrusted
from retinue.text.glob_match import matches_glob

HOOK_FILE = "HOOK.md"
HOOKS_FOLDER = "hooks"
HANDLER_NAMES = ("handler", "handler.sh", "handler.py")
BUNDLED_FOLDER = "bundled_hooks"
APPROVAL_KIND = "hook"  # the kind of these rows in the table of approved hashes
NAME_LENGTH_MAX = 64
DESCRIPTION_LENGTH_MAX = 1_024
HOOKS_MAX = 100  # hooks read from one folder
FILES_MAX = 50  # per hook
HOOK_BYTES_MAX = 1024 * 1024  # all files of one hook together
EVENTS_MAX = 16
CONTENT_BYTES_MAX = 64 * 1024  # shown per file

HOOK_EVENTS = frozenset(
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
    """Where a hook was found. If two hooks have the same name, the source that is listed first wins."""

    WORKSPACE = "workspace"
    INSTANCE = "instance"
    BUNDLED = "bundled"


class HookState(StrEnum):
    """Whether a hook can run, and if not, why."""

    READY = "ready"
    NEW = "new"  # not approved yet
    CHANGED = "changed"  # changed since its approval
    OFF = "off"
    UNAVAILABLE = "unavailable"  # a requirement is not met


class Hook(Struct, frozen=True, kw_only=True):
    """One hook, with its files as they are on disk now. `hash` covers every file in its folder."""

    name: str
    description: str
    events: tuple[str, ...]
    requirements: HostRequirements
    source: HookSource
    folder: Path
    handler: Path
    hash: str
    content: str  # shown to a person before approval

    @property
    def key(self) -> str:
        """The key under which the hook's approval is stored.

        Hooks of the same name in different places have different keys.
        """
        where = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12] if self.source is HookSource.WORKSPACE else ""
        return "/".join(filter(None, (self.source.value, where, self.name)))

    def handles(self, event: str) -> bool:
        """Whether the hook handles this event. A hook for `command` handles `command:new` and all other commands."""
        return event in self.events or event.partition(":")[0] in self.events


class InvalidHook(Struct, frozen=True):
    """A folder that is not a valid hook, and the reason."""

    folder: Path
    because: str


class FoundHooks(Struct, frozen=True, kw_only=True):
    """The hooks that a search found. `shadowed` are hooks whose name another, preferred hook already has."""

    hooks: tuple[Hook, ...] = ()
    shadowed: tuple[Hook, ...] = ()
    invalid: tuple[InvalidHook, ...] = ()


class EvaluatedHook(Struct, frozen=True):
    """A hook, its state and the reason."""

    hook: Hook
    state: HookState
    because: str = ""


def bundled_hooks_folder() -> Path:
    """Return the folder of the hooks that ship with retinue."""
    return Path(__file__).parent / BUNDLED_FOLDER


def find_hooks(data_dir: Path, workspaces: Sequence[Path] = ()) -> FoundHooks:
    """Search all folders for hooks. Reads files, so call it in a thread."""
    roots = [(HookSource.WORKSPACE, each / HOOKS_FOLDER) for each in workspaces]
    roots += [(HookSource.INSTANCE, data_dir / HOOKS_FOLDER), (HookSource.BUNDLED, bundled_hooks_folder())]
    counted: dict[str, Hook] = {}
    shadowed: list[Hook] = []
    broken: list[InvalidHook] = []
    for source, root in roots:
        for found in _hooks_in_root(source, root):
            if isinstance(found, InvalidHook):
                broken.append(found)
            elif found.name in counted:
                shadowed.append(found)
            else:
                counted[found.name] = found
    hooks = tuple(counted[name] for name in sorted(counted))
    return FoundHooks(hooks=hooks, shadowed=tuple(shadowed), invalid=tuple(broken))


def evaluate_hooks(
    hooks: Sequence[Hook], approved: Mapping[str, str], host_facts: HostFacts, *, settings: HookSettings
) -> tuple[EvaluatedHook, ...]:
    """Return the state of each hook. `approved` maps the key of a hook to its approved hash."""
    return tuple(_evaluate_hook(hook, approved, host_facts, settings) for hook in hooks)


def _evaluate_hook(
    hook: Hook, approved: Mapping[str, str], host_facts: HostFacts, settings: HookSettings
) -> EvaluatedHook:
    if not settings.enabled:
        return EvaluatedHook(hook, HookState.OFF, "`hooks.enabled` is not set")
    if any(matches_glob(glob, hook.name) for glob in settings.deny):
        return EvaluatedHook(hook, HookState.OFF, "`hooks.deny` lists it")
    if why := unmet_requirement(hook.requirements, host_facts):
        return EvaluatedHook(hook, HookState.UNAVAILABLE, why)
    pinned = approved.get(hook.key)
    if pinned == hook.hash:
        return EvaluatedHook(hook, HookState.READY)
    if pinned is None:
        return EvaluatedHook(hook, HookState.NEW, "it is not approved yet")
    return EvaluatedHook(hook, HookState.CHANGED, "it has changed since it was approved")


def parse_hook(text: str, *, folder: str) -> tuple[str, tuple[str, ...], HostRequirements]:
    """Return the description, the events and the requirements that a HOOK.md declares."""
    front_matter, _ = split_front_matter(text)
    name = front_matter.get("name", folder)
    if name != folder or len(folder) > NAME_LENGTH_MAX or not _NAME.fullmatch(folder):
        raise HookFolderInvalid(
            f"its name must be the name of its folder, in lowercase letters, digits and hyphens, and not {name!r:.80}"
        )
    description = front_matter.get("description", "")
    if not isinstance(description, str) or len(description) > DESCRIPTION_LENGTH_MAX or not is_storable(text):
        raise HookFolderInvalid(f"its description must be text of at most {DESCRIPTION_LENGTH_MAX:,} characters")
    gates, own = read_requirements(front_matter)
    events = own.get("events")
    words = [events] if isinstance(events, str) else events
    named = cast("list[Any]", words) if isinstance(words, list) else []
    if not named or len(named) > EVENTS_MAX or any(each not in HOOK_EVENTS for each in named):
        raise HookFolderInvalid(f"`events` must name one or more of: {', '.join(sorted(HOOK_EVENTS))}")
    return " ".join(description.split()), tuple(dict.fromkeys(map(str, named))), gates


def _hooks_in_root(source: HookSource, root: Path) -> Iterator[Hook | InvalidHook]:
    try:
        real = root.resolve(strict=True)
        names = sorted(os.listdir(real))
    except OSError:
        return
    for name in names[:HOOKS_MAX]:
        folder = real / name
        if not (folder / HOOK_FILE).is_file():
            continue
        try:
            yield _read_hook(source, folder)
        except Invalid as error:
            yield InvalidHook(folder, error.because)
        except OSError as error:
            yield InvalidHook(folder, f"it cannot be read ({error.strerror})")


def _read_hook(source: HookSource, folder: Path) -> Hook:
    files = _read_files(folder)
    handler = next((name for name in HANDLER_NAMES if name in files and files[name][0]), None)
    if handler is None:
        raise HookFolderInvalid(f"it has no executable handler: one of {', '.join(HANDLER_NAMES)}")
    try:
        text = files[HOOK_FILE][1].decode()
    except UnicodeDecodeError:
        raise HookFolderInvalid(f"its {HOOK_FILE} is not UTF-8") from None
    description, events, gates = parse_hook(text, folder=folder.name)
    return Hook(
        name=folder.name,
        description=description,
        events=events,
        requirements=gates,
        source=source,
        folder=folder,
        handler=folder / handler,
        hash=_hash_files(files),
        content=_reviewable_content(files),
    )


def _read_files(folder: Path) -> dict[str, tuple[bool, bytes]]:
    """Return the content of each file in a hook's folder, and whether it is executable.

    Subfolders and links are refused, so that an approval covers exactly these files.
    """
    found: dict[str, tuple[bool, bytes]] = {}
    left = HOOK_BYTES_MAX
    for name in sorted(os.listdir(folder)):
        with open_untrusted(folder / name) as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise HookFolderInvalid(f"{name!r:.80} is not a regular file")
            data = opened.read(left + 1)
        left -= len(data)
        found[name] = (bool(mode & 0o111), data)
        if left < 0 or len(found) > FILES_MAX:
            raise HookFolderInvalid(f"it has more than {FILES_MAX} files, or {HOOK_BYTES_MAX:,} bytes")
    return found


def _reviewable_content(files: Mapping[str, tuple[bool, bytes]]) -> str:
    """Return the files as one text for a person to review. A long or binary file appears by name and hash only."""
    shown: list[str] = []
    for name, (can_run, data) in sorted(files.items(), key=lambda each: (each[0] != HOOK_FILE, each[0])):
        head = f"--- {name}{' (executable)' if can_run else ''}"
        try:
            text = data.decode() if len(data) <= CONTENT_BYTES_MAX else "\0"
        except UnicodeDecodeError:
            text = "\0"
        if is_storable(text):
            shown.append(f"{head}\n{text.rstrip()}")
        else:
            shown.append(f"{head}, {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return "\n".join(shown)


def _hash_files(files: Mapping[str, tuple[bool, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, (can_run, data) in sorted(files.items()):
        head = os.fsencode(name)
        whole.update(f"{len(head)} {can_run:d} {len(data)}\n".encode() + head + hashlib.sha256(data).digest())
    return whole.hexdigest()
