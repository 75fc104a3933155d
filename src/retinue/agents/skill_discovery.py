"""Finds skills on disk, with their files and a hash of them.

Files are read on each call, at the start of a run, so nothing can be out of date. A skill is data
until a person has approved it (see `skill_selection`). Links must not lead out of the folder that
is searched. Everything has a limit, so a large folder cannot block the server.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.agents.skills import FILE, PRECEDENCE, Skill, Source, parse
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable

FOLDER = "skills"  # in a workspace, an agent directory or the data directory
DEPTH_MAX = 5
FOLDERS_MAX = 2_000  # searched below one root
SKILLS_MAX = 200  # found below one root
FILES_MAX = 200  # per skill
FILE_BYTES_MAX = 256 * 1024  # of a SKILL.md
SKILL_BYTES_MAX = 4 * 1024 * 1024  # all files of a skill together
ROOT_BYTES_MAX = 64 * 1024 * 1024  # all skills below one root together
CONTENT_CHARS_MAX = 200_000  # shown of a skill before its approval
OWNER_DIGITS = 12

DEPENDENCIES = frozenset(
    {"node_modules", "bower_components", "site-packages", "dist-packages", "venv", "vendor", "__pycache__"}
)
"""Folders with what others wrote, of which no part is a skill. Hidden ones are left out too."""


class Root(Struct, frozen=True, kw_only=True):
    """A folder to search, and its owner."""

    source: Source
    path: Path
    owner: str = ""


class Broken(Struct, frozen=True):
    """A folder that is not a valid skill, and why."""

    folder: Path
    source: Source
    because: str


class Found(Struct, frozen=True, kw_only=True):
    """The skill that is used for each name, sorted by name; the ones that it shadows; the invalid folders."""

    skills: tuple[Skill, ...] = ()
    shadowed: tuple[Skill, ...] = ()
    broken: tuple[Broken, ...] = ()


def roots_of(
    home: Path,
    *,
    agent: str = "",
    agent_home: Path | None = None,
    workspace: Path | None = None,
    plugins: Sequence[tuple[str, Path]] = (),
    extra: Iterable[str] = (),
) -> tuple[Root, ...]:
    """Return every folder that may have skills for an agent; without an agent, those of the instance."""
    roots: list[Root] = []
    if workspace is not None and workspace != agent_home:
        roots.append(Root(source=Source.WORKSPACE, path=workspace / FOLDER, owner=_digits(workspace)))
    if agent_home is not None:
        roots.append(Root(source=Source.AGENT, path=agent_home / FOLDER, owner=agent))
    roots.append(Root(source=Source.HOUSE, path=home / FOLDER))
    roots += [Root(source=Source.PLUGIN, path=path, owner=owner) for owner, path in plugins]
    folders = [home / Path(each).expanduser() for each in extra]
    roots += [Root(source=Source.EXTRA, path=path, owner=_digits(path)) for path in folders]
    return tuple(roots)


def _digits(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:OWNER_DIGITS]


def find(roots: Sequence[Root], *, contents: bool = False) -> Found:
    """Search all folders, in order of precedence. Reads files, so call it in a thread.

    `with_contents`: also fill in `Skill.content`, the text that a person reviews.
    """
    counted: dict[str, Skill] = {}
    shadowed: list[Skill] = []
    broken: list[Broken] = []
    seen: set[Path] = set()
    for root in sorted(roots, key=lambda each: PRECEDENCE[each.source]):
        try:
            real = root.path.resolve(strict=True)
        except OSError:
            continue
        if real in seen:  # a workspace may be the agent directory
            continue
        seen.add(real)
        for found in _in_root(root, real, contents=contents):
            if isinstance(found, Broken):
                broken.append(found)
            elif found.name in counted:
                shadowed.append(found)
            else:
                counted[found.name] = found
    return Found(
        skills=tuple(counted[name] for name in sorted(counted)), shadowed=tuple(shadowed), broken=tuple(broken)
    )


class _Search(Struct):
    """The progress of a search below one root."""

    real: Path
    folders: int = 0

    def enter(self, folder: Path, parent: Path | None) -> Path | None:
        """Return the resolved path of a folder if it may be searched.

        It must be inside the root and must not lead back to a parent, and the limit on folders must
        not be reached.
        """
        try:
            real = folder.resolve(strict=True)
        except OSError:
            return None
        leads_back = parent is not None and parent.is_relative_to(real)
        if leads_back or not real.is_relative_to(self.real) or self.folders >= FOLDERS_MAX or not real.is_dir():
            return None
        self.folders += 1
        return real


def _in_root(root: Root, real: Path, *, contents: bool) -> Iterator[Skill | Broken]:
    search = _Search(real)
    read_bytes = 0
    for count, folder in enumerate(_skill_folders(real, None, search, DEPTH_MAX)):
        if count >= SKILLS_MAX or read_bytes > ROOT_BYTES_MAX:
            because = f"it holds more than {SKILLS_MAX} skills, or {ROOT_BYTES_MAX:,} bytes: the rest is left out"
            yield Broken(root.path, root.source, because)
            return
        try:
            files = _files(folder, search)
            read_bytes += sum(len(data) for _, _, data in files)
            yield _skill(root, folder, files, contents=contents)
        except Invalid as error:
            yield Broken(folder, root.source, error.because)
        except OSError as error:
            yield Broken(folder, root.source, f"it cannot be read ({error.strerror})")
    if search.folders >= FOLDERS_MAX:
        yield Broken(root.path, root.source, f"it holds more than {FOLDERS_MAX} folders: the rest is left out")


def _skill_folders(folder: Path, parent: Path | None, search: _Search, depth: int) -> Iterator[Path]:
    """Yield the folders with a SKILL.md, in order of their names. A skill folder is not searched further."""
    real = search.enter(folder, parent)
    if real is None:
        return
    if (folder / FILE).is_file():
        yield folder
        return
    if depth == 0:
        return
    for name in _names_in(folder):
        if not name.startswith(".") and name not in DEPENDENCIES:
            yield from _skill_folders(folder / name, real, search, depth - 1)


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


_File = tuple[str, bool, bytes]  # path in the skill, whether it is executable, content


def _files(folder: Path, search: _Search) -> list[_File]:
    """Return every file of a skill: its scripts are as much a part of it as its text."""
    found: list[_File] = []
    left = SKILL_BYTES_MAX
    for path, real in _paths(folder, folder, search, DEPTH_MAX):
        bound = min(left, FILE_BYTES_MAX) if path == FILE else left
        data, can_run = _read(real, bound)
        left -= len(data)
        found.append((path, can_run, data))
        if len(found) > FILES_MAX:
            raise _too_large(f"it has more than {FILES_MAX} files")
    return found


def _paths(top: Path, folder: Path, search: _Search, depth: int) -> Iterator[tuple[str, Path]]:
    """Yield each file by its path in the skill and its resolved path. A link out of the root is refused."""
    for name in _names_in(folder):
        path = folder / name
        if not is_storable(str(path)):
            raise Invalid(
                "this folder is no skill",
                because="a name in it is no text",
                try_this="rename it",
                code="skill.unreadable",
            )
        try:
            real = path.resolve(strict=True)
        except OSError:
            real = None
        if real is None or not real.is_relative_to(search.real):
            raise Invalid(
                "this folder is no skill",
                because=f"{path.relative_to(top)} leads out of the folder of skills, or nowhere",
                try_this="put a copy of the file there",
                code="skill.link-outside",
            )
        if real.is_dir():
            if depth == 0 or search.enter(path, folder.resolve()) is None:
                raise _too_large(f"folders lie in each other more than {DEPTH_MAX} deep, or lead back into themselves")
            yield from _paths(top, path, search, depth - 1)
        else:
            yield str(path.relative_to(top)), real


def _read(path: Path, bytes_max: int) -> tuple[bytes, bool]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(descriptor)  # of the open file: reading a pipe or a device would block
        if not stat.S_ISREG(found.st_mode):
            raise Invalid(
                "this folder is no skill",
                because=f"{path.name} is no plain file",
                try_this="take it away",
                code="skill.unreadable",
            )
        data = opened.read(bytes_max + 1)
    if len(data) > bytes_max:
        most = f"a {FILE} may have {FILE_BYTES_MAX:,} bytes, a whole skill {SKILL_BYTES_MAX:,}"
        raise _too_large(f"{path.name} is too large: {most}")
    return data, bool(found.st_mode & 0o111)


def _skill(root: Root, folder: Path, files: Sequence[_File], *, contents: bool) -> Skill:
    text = next((data for path, _, data in files if path == FILE), b"")
    try:
        front = parse(text.decode(), folder=folder.name)
    except UnicodeDecodeError:
        raise Invalid(
            "this folder is no skill",
            because="its SKILL.md is not UTF-8",
            try_this="save it as UTF-8",
            code="skill.unreadable",
        ) from None
    if front.bundle and not any(path == cli_name(front.name) and can_run for path, can_run, _ in files):
        raise Invalid(
            "this folder is no skill",
            because=f"it is a bundle, and {cli_name(front.name)} is not beside it, or cannot be run",
            try_this="export it again",
            code="skill.invalid",
        )
    return Skill(
        front=front,
        source=root.source,
        owner=root.owner,
        folder=folder,
        hash=_hash(files),
        content=_content(files) if contents else "",
    )


def cli_name(skill: str) -> str:
    """Return the file name of the command line of a bundle."""
    return f"{skill}-cli"


def _hash(files: Sequence[_File]) -> str:
    """Hash the files with their names. The lengths prevent that one file hashes like two."""
    whole = hashlib.sha256()
    for path, can_run, data in sorted(files):
        name = path.encode()
        whole.update(f"{len(name)} {can_run:d} {len(data)}\n".encode() + name + hashlib.sha256(data).digest())
    return whole.hexdigest()


def _content(files: Sequence[_File]) -> str:
    """Return the text that a person reviews before approval. A file that is not shown is named with its hash."""
    shown: list[str] = []
    left = CONTENT_CHARS_MAX
    for path, can_run, data in sorted(files, key=lambda each: (each[0] != FILE, each)):
        head = f"--- {path}{' (can be run)' if can_run else ''}"
        text = _text(data)
        if text is None or len(text) > left:
            shown.append(f"{head}, {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
        else:
            left -= len(text)
            shown.append(f"{head}\n{text}")
    return "\n".join(shown)


def _text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text.rstrip("\n") if is_storable(text) else None


def _too_large(because: str) -> Invalid:
    return Invalid(
        "this folder is no skill", because=because, try_this="keep large files elsewhere", code="skill.too-large"
    )
