"""Finds skills on disk, reads their files and hashes them.

Files are read at the start of each run, so changes apply from the next run. A skill is not used
until a person has approved it (see `skill_selection`). Links that lead out of the searched folder
are refused. The number and size of files are limited, so that a large folder cannot block the
server.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.agents.errors import SkillBundleIncomplete, SkillFolderInvalid, SkillLinkOutside, SkillTooLarge
from retinue.agents.skills import SKILL_FILE, SOURCE_PRECEDENCE, Skill, SkillSource, parse_skill
from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable
from retinue.store.core.untrusted_files import open_untrusted

SKILLS_FOLDER = "skills"  # in a workspace, an agent directory or the data directory
DEPTH_MAX = 5
FOLDERS_MAX = 2_000  # folders searched below one root
SKILLS_MAX = 200  # skills found below one root
FILES_MAX = 200  # per skill
FILE_BYTES_MAX = 256 * 1024  # size of a SKILL.md
SKILL_BYTES_MAX = 4 * 1024 * 1024  # all files of a skill together
ROOT_BYTES_MAX = 64 * 1024 * 1024  # all skills below one root together
CONTENT_CHARS_MAX = 200_000  # length of the text shown before a skill is approved
OWNER_HASH_CHARS = 12

DEPENDENCY_FOLDERS = frozenset(
    {"node_modules", "bower_components", "site-packages", "dist-packages", "venv", "vendor", "__pycache__"}
)
"""Folders with third-party code, which are not searched for skills. Hidden folders are skipped too."""


class SkillRoot(Struct, frozen=True, kw_only=True):
    """A folder to search for skills, and the agent, plugin or folder that its skills belong to."""

    source: SkillSource
    path: Path
    owner: str = ""


class InvalidSkill(Struct, frozen=True):
    """A folder that is not a valid skill, and the reason."""

    folder: Path
    source: SkillSource
    because: str


class FoundSkills(Struct, frozen=True, kw_only=True):
    """The skills that a search found, sorted by name.

    `shadowed` are skills whose name another, preferred skill already has.
    """

    skills: tuple[Skill, ...] = ()
    shadowed: tuple[Skill, ...] = ()
    invalid: tuple[InvalidSkill, ...] = ()


def skill_roots_of(
    data_dir: Path,
    *,
    agent: str = "",
    agent_directory: Path | None = None,
    workspace: Path | None = None,
    plugins: Sequence[tuple[str, Path]] = (),
    extra: Iterable[str] = (),
) -> tuple[SkillRoot, ...]:
    """Return every folder that may contain skills for an agent.

    Without an agent, return the folders of the instance.
    """
    roots: list[SkillRoot] = []
    if workspace is not None and workspace != agent_directory:
        roots.append(
            SkillRoot(source=SkillSource.WORKSPACE, path=workspace / SKILLS_FOLDER, owner=_path_hash(workspace))
        )
    if agent_directory is not None:
        roots.append(SkillRoot(source=SkillSource.AGENT, path=agent_directory / SKILLS_FOLDER, owner=agent))
    roots.append(SkillRoot(source=SkillSource.INSTANCE, path=data_dir / SKILLS_FOLDER))
    roots += [SkillRoot(source=SkillSource.PLUGIN, path=path, owner=owner) for owner, path in plugins]
    folders = [data_dir / Path(each).expanduser() for each in extra]
    roots += [SkillRoot(source=SkillSource.EXTRA, path=path, owner=_path_hash(path)) for path in folders]
    return tuple(roots)


def _path_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:OWNER_HASH_CHARS]


def find_skills(roots: Sequence[SkillRoot], *, with_contents: bool = False) -> FoundSkills:
    """Search all folders, in order of precedence. Reads files, so call it in a thread.

    With `with_contents`, `Skill.content` is set to the text that a person reviews.
    """
    counted: dict[str, Skill] = {}
    shadowed: list[Skill] = []
    broken: list[InvalidSkill] = []
    seen: set[Path] = set()
    for root in sorted(roots, key=lambda each: SOURCE_PRECEDENCE[each.source]):
        try:
            real = root.path.resolve(strict=True)
        except OSError:
            continue
        if real in seen:  # a workspace may be the agent directory
            continue
        seen.add(real)
        for found in _skills_in_root(root, real, with_contents=with_contents):
            if isinstance(found, InvalidSkill):
                broken.append(found)
            elif found.name in counted:
                shadowed.append(found)
            else:
                counted[found.name] = found
    return FoundSkills(
        skills=tuple(counted[name] for name in sorted(counted)), shadowed=tuple(shadowed), invalid=tuple(broken)
    )


class _Search(Struct):
    """The state of a search below one root: the number of folders searched so far, which is limited."""

    root: Path
    folders: int = 0

    def enter(self, folder: Path, parent: Path | None) -> Path | None:
        """Return the resolved path of a folder, or None if it must not be searched.

        The folder must be inside the root and must not lead back to a parent. The number of folders
        is limited.
        """
        try:
            real = folder.resolve(strict=True)
        except OSError:
            return None
        leads_back = parent is not None and parent.is_relative_to(real)
        if leads_back or not real.is_relative_to(self.root) or self.folders >= FOLDERS_MAX or not real.is_dir():
            return None
        self.folders += 1
        return real


def _skills_in_root(root: SkillRoot, real: Path, *, with_contents: bool) -> Iterator[Skill | InvalidSkill]:
    search = _Search(real)
    read_bytes = 0
    for count, folder in enumerate(_skill_folders(real, None, search, DEPTH_MAX)):
        if count >= SKILLS_MAX or read_bytes > ROOT_BYTES_MAX:
            because = f"it has more than {SKILLS_MAX} skills, or {ROOT_BYTES_MAX:,} bytes: the other skills are ignored"
            yield InvalidSkill(root.path, root.source, because)
            return
        try:
            files = _read_files(folder, search)
            read_bytes += sum(len(data) for _, _, data in files)
            yield _build_skill(root, folder, files, with_contents=with_contents)
        except Invalid as error:
            yield InvalidSkill(folder, root.source, error.because)
        except OSError as error:
            yield InvalidSkill(folder, root.source, f"it cannot be read ({error.strerror})")
    if search.folders >= FOLDERS_MAX:
        yield InvalidSkill(
            root.path, root.source, f"it holds more than {FOLDERS_MAX} folders: the other folders are ignored"
        )


def _skill_folders(folder: Path, parent: Path | None, search: _Search, depth: int) -> Iterator[Path]:
    """Yield the folders with a SKILL.md, sorted by name. Folders inside a skill are not searched."""
    real = search.enter(folder, parent)
    if real is None:
        return
    if (folder / SKILL_FILE).is_file():
        yield folder
        return
    if depth == 0:
        return
    for name in _list_names(folder):
        if not name.startswith(".") and name not in DEPENDENCY_FOLDERS:
            yield from _skill_folders(folder / name, real, search, depth - 1)


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


_File = tuple[str, bool, bytes]  # path in the skill, whether it is executable, content


def _read_files(folder: Path, search: _Search) -> list[_File]:
    """Return every file of a skill, because an approval covers scripts as well as text."""
    found: list[_File] = []
    left = SKILL_BYTES_MAX
    for path, real in _list_files(folder, folder, search, DEPTH_MAX):
        bound = min(left, FILE_BYTES_MAX) if path == SKILL_FILE else left
        data, can_run = _read_file(real, bound)
        left -= len(data)
        found.append((path, can_run, data))
        if len(found) > FILES_MAX:
            raise SkillTooLarge(f"the limit is {FILES_MAX} files")
    return found


def _list_files(top: Path, folder: Path, search: _Search, depth: int) -> Iterator[tuple[str, Path]]:
    """Yield each file of a skill: its path within the skill and its resolved path.

    A link out of the root is refused.
    """
    for name in _list_names(folder):
        path = folder / name
        if not is_storable(str(path)):
            raise SkillFolderInvalid(because="a file name in it is not valid text", try_this="rename the file")
        try:
            real = path.resolve(strict=True)
        except OSError:
            real = None
        if real is None or not real.is_relative_to(search.root):
            raise SkillLinkOutside(path.relative_to(top))
        if real.is_dir():
            if depth == 0 or search.enter(path, folder.resolve()) is None:
                raise SkillTooLarge(f"folders are nested more than {DEPTH_MAX} deep, or a link forms a cycle")
            yield from _list_files(top, path, search, depth - 1)
        else:
            yield str(path.relative_to(top)), real


def _read_file(path: Path, bytes_max: int) -> tuple[bytes, bool]:
    with open_untrusted(path) as opened:
        found = os.fstat(opened.fileno())  # of the open file: reading a pipe or a device would block
        if not stat.S_ISREG(found.st_mode):
            raise SkillFolderInvalid(because=f"{path.name} is not a regular file", try_this="remove it")
        data = opened.read(bytes_max + 1)
    if len(data) > bytes_max:
        limits = f"the limit is {FILE_BYTES_MAX:,} bytes for {SKILL_FILE}, and {SKILL_BYTES_MAX:,} for a whole skill"
        raise SkillTooLarge(f"{path.name} is too large: {limits}")
    return data, bool(found.st_mode & 0o111)


def _build_skill(root: SkillRoot, folder: Path, files: Sequence[_File], *, with_contents: bool) -> Skill:
    text = next((data for path, _, data in files if path == SKILL_FILE), b"")
    try:
        front = parse_skill(text.decode(), folder=folder.name)
    except UnicodeDecodeError:
        raise SkillFolderInvalid(because="its SKILL.md is not UTF-8", try_this="save it as UTF-8") from None
    if front.bundle and not any(path == cli_name(front.name) and can_run for path, can_run, _ in files):
        raise SkillBundleIncomplete(cli_name(front.name))
    return Skill(
        front_matter=front,
        source=root.source,
        owner=root.owner,
        folder=folder,
        hash=_hash_files(files),
        content=_reviewable_content(files) if with_contents else "",
    )


def cli_name(skill: str) -> str:
    """Return the file name of a bundle's command line."""
    return f"{skill}-cli"


def _hash_files(files: Sequence[_File]) -> str:
    """Return one hash of all files.

    It covers names, lengths and executable bits, so different sets of files have different hashes.
    """
    whole = hashlib.sha256()
    for path, can_run, data in sorted(files):
        name = path.encode()
        whole.update(f"{len(name)} {can_run:d} {len(data)}\n".encode() + name + hashlib.sha256(data).digest())
    return whole.hexdigest()


def _reviewable_content(files: Sequence[_File]) -> str:
    """Return the text that a person reviews before approval.

    A file that cannot be shown appears by name and hash only.
    """
    shown: list[str] = []
    left = CONTENT_CHARS_MAX
    for path, can_run, data in sorted(files, key=lambda each: (each[0] != SKILL_FILE, each)):
        head = f"--- {path}{' (executable)' if can_run else ''}"
        text = _decode_text(data)
        if text is None or len(text) > left:
            shown.append(f"{head}, {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
        else:
            left -= len(text)
            shown.append(f"{head}\n{text}")
    return "\n".join(shown)


def _decode_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text.rstrip("\n") if is_storable(text) else None
