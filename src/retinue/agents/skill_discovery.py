"""Finds skills on disk: which folders hold one, what is in it, and a hash over all of it.

Read from disk each time it is asked, at the start of a run: nothing is remembered that could be out of date. What is
found is data until someone has found it good (see `skills_choosing`). Links lead nowhere outside the folder that was
asked to be looked through, and everything is bounded: who fills a folder cannot hold up the house.
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

FOLDER = "skills"  # below a workspace, a home, the house
DEPTH_MAX = 5
FOLDERS_MAX = 2_000  # looked into, below one root
SKILLS_MAX = 200  # found below one root
FILES_MAX = 200  # of one skill
FILE_BYTES_MAX = 256 * 1024  # of a SKILL.md
SKILL_BYTES_MAX = 4 * 1024 * 1024  # of all files of a skill together
ROOT_BYTES_MAX = 64 * 1024 * 1024  # of all skills below one root
CONTENT_CHARS_MAX = 200_000  # shown of a skill when someone is to find it good
OWNER_DIGITS = 12

DEPENDENCIES = frozenset(
    {"node_modules", "bower_components", "site-packages", "dist-packages", "venv", "vendor", "__pycache__"}
)
"""Folders with what others wrote, of which no part is a skill. Hidden ones are left out too."""


class Root(Struct, frozen=True, kw_only=True):
    """A folder to look through, and whose it is."""

    source: Source
    path: Path
    owner: str = ""


class Broken(Struct, frozen=True):
    """A folder that was meant to be a skill, and why it is none."""

    folder: Path
    source: Source
    because: str


class Found(Struct, frozen=True, kw_only=True):
    """Of each name the skill that counts, in the order of their names; those that stand behind one; what is broken."""

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
    """Every folder that may hold skills for an agent; without one, those of the whole house."""
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
    """Look through them all, those of the highest precedence first. Takes the time of reading: not for the loop.

    `contents`: each skill also has what a person reads of it.
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
        if real in seen:  # a workspace may well be the home
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
    """How much of one root has been looked at."""

    real: Path
    folders: int = 0

    def enter(self, folder: Path, parent: Path | None) -> Path | None:
        """Where a folder really lies, if it may be looked into: in the root, not back up, and not too many of them."""
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
    """Folders with a SKILL.md, in the order of their names. Below one, there are no others."""
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


_File = tuple[str, bool, bytes]  # path in the skill, whether it can be run, what is in it


def _files(folder: Path, search: _Search) -> list[_File]:
    """Every file of a skill: what a script beside the words does is as much part of it as the words."""
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
    """Each file by its path in the skill, and where it really lies. A link that leads out of the root is refused."""
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
        found = os.fstat(descriptor)  # of what was opened: a pipe or a device would keep us waiting
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
    """What the command line beside a bundle's SKILL.md is called."""
    return f"{skill}-cli"


def _hash(files: Sequence[_File]) -> str:
    """The same for the same files under the same names; lengths keep one file from passing for two."""
    whole = hashlib.sha256()
    for path, can_run, data in sorted(files):
        name = path.encode()
        whole.update(f"{len(name)} {can_run:d} {len(data)}\n".encode() + name + hashlib.sha256(data).digest())
    return whole.hexdigest()


def _content(files: Sequence[_File]) -> str:
    """What a person reads before a skill is found good. What is not shown is named with its hash."""
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
