"""Reads settings files into one tree: parses them, expands `${VAR}`, follows includes, converts
secrets to references, and records the position of each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.config.errors import SHOWN_LENGTH_MAX, FaultCollector, KeyPath, SettingPosition, format_key_path
from retinue.config.renamed_settings import (
    CONFLICT_CODE,
    RENAMED_CODE,
    RenamedSetting,
    find_platforms,
    list_connectors,
    list_old_names,
    rename_path,
    rename_settings,
)
from retinue.config.secret import SecretReference
from retinue.config.toml_positions import find_key_lines

FILE_BYTES_MAX = 1024 * 1024
FILES_MAX = 100
INCLUDE_DEPTH_MAX = 10
NESTING_MAX = 50

Table = dict[str, object]

_INCLUDE_MEANING = "it names other settings files to read"
_INCLUDE_EXAMPLE = 'include = ["people.toml", "conf.d/*.toml"]'

# Keys below these are names that people choose, so `[agents.token]` is an agent, not a secret.
NAMED_SECTIONS = frozenset(
    {"agents", "templates", "people", "bindings", "schedules", "providers", "mcp", "plugins", "connectors"}
)
NAMED_SUBSECTIONS = frozenset(
    {
        ("models", "entries"),
        ("sandbox", "secrets"),
        ("skills", "entries"),
        ("skills", "agents"),
        ("speech", "speakers"),
        ("speech", "listeners"),
        ("speech", "summarizers"),
    }
)
PERMISSION_POLICY_PATH = ("server", "permission_policy")
PROVENANCE_SECTION = "provenance"  # tables in its rules are keyed by field or choice: provenance.source[0].fields.token

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(
    r"(?:.*[_-])?(?:token|password|passwd|passphrase|secret|credential|credentials|api[_-]?key|private[_-]?key)",
    re.IGNORECASE,
)
_SECRET_HEADER = re.compile(r".*(?:authorization|cookie|token|secret|passw|credential|key).*", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^/@\s]*:)[^/@\s]*@")
_LINE = re.compile(r" ?\(at line (\d+), column \d+\)")


class ExpandedText(str):
    """A string value in which environment variables were expanded. `original` is the string as written in the file.

    Error messages show `original`, because the value of a variable may be a password.
    """

    original: str

    def __new__(cls, value: str, original: str) -> ExpandedText:
        made = super().__new__(cls, value)
        made.original = original
        return made


class FileAccess(Struct, frozen=True, kw_only=True):
    """Access to the file system: `read` returns a file's text, `glob` the files that match a pattern.

    Both may raise OSError.
    """

    read: Callable[[Path], str]
    glob: Callable[[Path, str], list[Path]]


class SettingsReader:
    """Reads a settings file and all files that it includes into one tree of values.

    Errors are added to `faults`, and invalid values are left out. A setting with an old name gets its new name in the
    tree. Unless `accept_old_names` is set, the old name is also an error. `renamed` lists the old names by file.
    """

    def __init__(
        self,
        disk: FileAccess,
        environment: Mapping[str, str],
        faults: FaultCollector,
        *,
        accept_old_names: bool = False,
    ) -> None:
        self.files: list[Path] = []
        self.renamed: dict[Path, tuple[RenamedSetting, ...]] = {}
        self.has_conflicts = False  # whether a file has a setting under both names
        self.platforms: dict[str, str] = {}  # the platform of each connector
        self._file_access = disk
        self._environment = environment
        self._faults = faults
        self._accept_old_names = accept_old_names
        self._unknown_platforms: set[str] = set()  # connectors whose platform was not known when they were read

    def read(self, file: Path, text: str) -> Table:
        tree = self._read(file, text, (file,))
        if self._unknown_platforms & self.platforms.keys():  # an included file names the platform, so read again
            self.files, self.renamed, self._unknown_platforms = [], {}, set()
            self._faults.positions = {}
            tree = self._read(file, text, (file,))
        return tree

    def _read(self, file: Path, text: str, chain: tuple[Path, ...]) -> Table:
        self.files.append(file)
        parsed = self._parse(file, text)
        if parsed is None:
            return {}
        lines = find_key_lines(text)
        here: dict[KeyPath, SettingPosition] = {(): SettingPosition(file)} | {
            path: SettingPosition(file, line) for path, line in lines.items()
        }
        below = self._faults.positions
        self._faults.positions = here  # While this file is read, errors refer to its lines.
        parsed = self._rename(parsed, file)
        here |= {rename_path(path, self.platforms): place for path, place in here.items()} if self.renamed else {}
        own = cast(Table, self._expand(parsed, (), file))
        self._check_version(own)
        merged: Table = {}
        places: dict[KeyPath, SettingPosition] = {}
        for path, included in self._parse_includes(own, file, chain):
            self._faults.positions = here
            tree = self._include(path, included, chain)
            merged = merge_tables(merged, tree)
            places |= self._faults.positions if tree else {}
        self._faults.positions = below | places | here
        return merge_tables(merged, own)

    def _parse(self, file: Path, text: str) -> Table | None:
        import tomllib  # not needed without a settings file

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            said = str(error)
            line = _LINE.search(said)
            self._faults.add_at(
                SettingPosition(file, int(line[1]) if line else None),
                "invalid TOML",
                because=_LINE.sub("", said),
                try_this='correct the line; strings need quotes, as in name = "value"',
            )
        except RecursionError:
            self._faults.add_at(
                SettingPosition(file),
                "the file is nested too deeply",
                because="no setting needs so many levels",
                try_this="look for an unclosed bracket",
            )
        return None

    def _rename(self, parsed: Table, file: Path) -> Table:
        """Return the content of a file with new names in place of old ones. Old names are recorded or reported."""
        self.platforms |= find_platforms(parsed)
        self._unknown_platforms |= list_connectors(parsed) - self.platforms.keys()
        found = rename_settings(parsed, self.platforms)
        for each in found.conflicts:
            self.has_conflicts = True
            self._faults.add_at(
                self._faults.position_of(each.path),
                f"`{each.old}` and `{each.new}` are both set",
                path=format_key_path(each.path),
                because=f"`{each.old}` is the old name of `{each.new}`",
                try_this=f"remove `{each.old}`",
                code=CONFLICT_CODE,
            )
        if found.renamed:
            self.renamed[file] = found.renamed
        for each in () if self._accept_old_names else list_old_names(found.renamed, parsed, self.platforms):
            self._faults.add_at(
                self._faults.position_of(each.path),
                f"`{each.old}` is now `{each.new}`",
                path=format_key_path(each.path),
                because="the setting has a new name in this version",
                try_this=f"write {each.new}, or rewrite the file: retinue doctor --fix",
                code=RENAMED_CODE,
            )
        return found.tree

    def _check_version(self, own: Table) -> None:
        version = own.pop("config_version", 2)
        if version != 2 or isinstance(version, bool):
            self._faults.add(
                ("config_version",),
                f"is {format_value(version)}",
                because="this version reads only config_version 2; other versions may have different settings",
                try_this="check the file against docs/reference/settings.md, then write config_version = 2",
            )

    # --- includes ---

    def _parse_includes(self, own: Table, file: Path, chain: tuple[Path, ...]) -> list[tuple[KeyPath, Path]]:
        patterns = own.pop("include", [])
        if isinstance(patterns, str):
            patterns = [patterns]
        if not isinstance(patterns, list):
            self._faults.add(
                ("include",),
                f"must be a list of file names, not {format_value(patterns)}",
                because=_INCLUDE_MEANING,
                try_this=_INCLUDE_EXAMPLE,
            )
            return []
        found: list[tuple[KeyPath, Path]] = []
        for index, pattern in enumerate(cast("list[object]", patterns)):
            path: KeyPath = ("include", index)
            if pattern is None:  # already reported
                continue
            if isinstance(pattern, str) and "**" in pattern:
                self._faults.add(
                    path,
                    "searches all folders",
                    because="that could be the entire disk, so ** is not allowed",
                    try_this=_INCLUDE_EXAMPLE,
                )
                continue
            if not isinstance(pattern, str) or not pattern or "\0" in pattern:
                self._faults.add(
                    path,
                    f"must be the name of a file, not {format_value(pattern)}",
                    because=_INCLUDE_MEANING,
                    try_this=_INCLUDE_EXAMPLE,
                )
            elif any(sign in pattern for sign in "*?["):
                found += [(path, each) for each in self._glob(path, file.parent, pattern)]
            else:
                found.append((path, file.parent / Path(pattern).expanduser()))
        return found

    def _glob(self, path: KeyPath, folder: Path, pattern: str) -> list[Path]:
        try:
            return self._file_access.glob(folder, pattern)
        except (OSError, ValueError, NotImplementedError) as error:
            self._faults.add(path, "is not a valid file name or pattern", because=str(error), try_this=_INCLUDE_EXAMPLE)
            return []

    def _include(self, path: KeyPath, file: Path, chain: tuple[Path, ...]) -> Table:
        file = _resolve_path(file)
        if file in chain:
            circle = " -> ".join(str(each) for each in (*chain[chain.index(file) :], file))
            self._faults.add(path, "is circular", because=circle, try_this="remove one of these includes")
        elif len(chain) > INCLUDE_DEPTH_MAX:
            self._faults.add(
                path,
                "is too deep",
                because=f"the limit is {INCLUDE_DEPTH_MAX} levels of includes",
                try_this="include the innermost files directly in this file",
            )
        elif len(self.files) >= FILES_MAX:
            self._faults.add(
                path,
                "exceeds the limit for files",
                because=f"the limit is {FILES_MAX} files",
                try_this="merge some files",
            )
        else:
            try:
                text = self._file_access.read(file)
            except (OSError, ValueError) as error:
                self._faults.add(
                    path,
                    f"names {file}, which cannot be read",
                    because=read_error_reason(error),
                    try_this="write a path relative to the file that includes it",
                )
            else:
                return self._read(file, text, (*chain, file))
        return {}

    # --- variables and secrets ---

    def _expand(self, value: object, path: KeyPath, file: Path) -> object:
        if len(path) > NESTING_MAX:
            self._faults.add(
                path[:3],
                "is nested too deeply",
                because=f"the limit is {NESTING_MAX} levels",
                try_this="look for an unclosed bracket",
            )
            return None
        match value:
            case str():
                return self._expand_text(value, path) if "${" in value else value
            case list():
                items = cast("list[object]", value)
                return [self._expand(item, (*path, index), file) for index, item in enumerate(items)]
            case dict():
                table = cast(Table, value)
                return {key: self._expand_entry(key, inner, (*path, key), file) for key, inner in table.items()}
            case _:
                return value

    def _expand_entry(self, key: str, value: object, path: KeyPath, file: Path) -> object:
        is_named = (
            (len(path) == 2 and path[0] in NAMED_SECTIONS)
            or (len(path) == 3 and path[:2] in NAMED_SUBSECTIONS)
            or (len(path) == 5 and path[0] == PROVENANCE_SECTION)
        )
        if (
            not is_named
            and path[:2] != PERMISSION_POLICY_PATH
            and (_SECRET_KEY.fullmatch(key) or _is_sent_secret(value, path))
        ):
            return self._parse_secret(value, path, file)
        return self._expand(value, path, file)

    def _parse_secret(self, value: object, path: KeyPath, file: Path) -> object:
        table = cast(Table, value) if isinstance(value, dict) else {}
        env, named_file = table.get("env"), table.get("file")
        if len(table) == 1 and isinstance(env, str) and _NAME.fullmatch(env):
            return SecretReference(env=env)
        if len(table) == 1 and isinstance(named_file, str) and named_file and "\0" not in named_file:
            filled = self._expand_text(named_file, (*path, "file"))
            return None if filled is None else SecretReference(file=file.parent / Path(filled).expanduser())
        self._faults.add(
            path,
            "is a secret in an unknown form" if table else "is a secret in plain text",
            because="this file is read, copied and backed up; keep secrets in the environment or in a separate file",
            try_this=f'write {path[-1]}_env = "NAME" or {path[-1]}_file = "PATH"'
            if path[0] == "connectors"
            else f'write {path[-1]} = {{ env = "NAME" }} or {path[-1]} = {{ file = "PATH" }}',
        )
        return None

    def _expand_text(self, text: str, path: KeyPath) -> str | None:
        """Expand the variables in a string. If a variable is missing or invalid, report that and return None."""
        before = self._faults.count

        def put(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = match[1]
            if not match[2] or not _NAME.fullmatch(name):
                self._faults.add(
                    path,
                    "has a ${ without a valid variable name",
                    because="a variable is written ${NAME}, with letters, digits and _ only",
                    try_this="write $${ for a literal ${",
                )
            elif value := self._environment.get(name):
                return value
            else:
                self._faults.add(
                    path,
                    f"needs the environment variable {name}",
                    because="it is not set for this process, or is empty",
                    try_this=f"set {name} where the server is started, or write $${{ for a literal ${{",
                )
            return ""

        filled = _VARIABLE.sub(put, text)
        if self._faults.count > before:
            return None
        return text if filled == text else ExpandedText(filled, text)


def _is_sent_secret(value: object, path: KeyPath) -> bool:
    """Whether a setting may contain a secret that is sent to a provider or MCP server.

    This is the case for an API key, and for a header whose name suggests a secret. A header is also treated as a secret
    if its value is the location of a secret or contains a variable.
    """
    match path:
        case ("providers", _, "key") | ("web", "brave_key"):
            return True
        case ("providers" | "mcp", _, "headers", str(header)):
            has_variable = isinstance(value, str) and "${" in value
            names_a_place = isinstance(value, dict) and "value" not in value
            return has_variable or names_a_place or bool(_SECRET_HEADER.fullmatch(header))
        case _:
            return False


def merge_tables(base: Table, over: Table) -> Table:
    """Merge two tables key by key, recursively. If both have a value for a key, the value of `over` wins."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = merge_tables(cast(Table, before), cast(Table, value))
        else:
            merged[key] = value
    return merged


def format_value(value: object) -> str:
    """Format a value for an error message: shortened, with variables as written, and without secrets."""
    match value:
        case bool():
            return str(value).lower()
        case ExpandedText():
            text = repr(value.original)
        case dict():
            return "a table"
        case list():
            return "a list"
        case SecretReference() | None:
            return "a secret"
        case str() | int() | float():
            text = repr(value)
        case _:
            text = str(value)
    text = _URL_PASSWORD.sub(r"\1...@", text)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 3] + "..."


def read_error_reason(error: OSError | ValueError) -> str:
    """Return a short reason why a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _resolve_path(file: Path) -> Path:
    """Return the path without `..` and symlinks, so that two paths to the same file are equal."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        return file
