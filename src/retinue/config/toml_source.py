"""Reads files into one tree: parses them, expands `${VAR}`, finds secrets, follows includes and records positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from msgspec import Struct

from retinue.config.errors import SHOWN_LENGTH_MAX, Faults, KeyPath, Place
from retinue.config.secret import Secret
from retinue.config.toml_positions import lines_of

FILE_BYTES_MAX = 1024 * 1024
FILES_MAX = 100
INCLUDE_DEPTH_MAX = 10
NESTING_MAX = 50

Table = dict[str, object]

_INCLUDE = "it says which other files belong to this one"
_INCLUDE_SO = 'include = ["people.toml", "conf.d/*.toml"]'

# Keys below these are names that people choose, so `[agents.token]` is an agent, not a secret.
NAMED = frozenset(
    {"agents", "templates", "people", "bindings", "schedules", "providers", "mcp", "plugins", "connectors"}
)
NAMED_BELOW = frozenset(
    {
        ("models", "entries"),
        ("sandbox", "secrets"),
        ("skills", "entries"),
        ("skills", "agents"),
        ("speech", "speakers"),
        ("speech", "listeners"),
        ("speech", "summarisers"),
    }
)
POLICY = ("house", "permission_policy")
ORIGIN = "origin"  # tables in its rules are keyed by field or choice: origin.source[0].fields.token

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(
    r"(?:.*[_-])?(?:token|password|passwd|passphrase|secret|credential|credentials|api[_-]?key|private[_-]?key)",
    re.IGNORECASE,
)
_SECRET_HEADER = re.compile(r".*(?:authorization|cookie|token|secret|passw|credential|key).*", re.IGNORECASE)
_PASSWORD = re.compile(r"(://[^/@\s]*:)[^/@\s]*@")
_LINE = re.compile(r" ?\(at line (\d+), column \d+\)")


class Filled(str):
    """A text with an expanded variable. Errors show `original`, because the variable may hold a
    password."""

    written: str

    def __new__(cls, value: str, written: str) -> Filled:
        made = super().__new__(cls, value)
        made.written = written
        return made


class Disk(Struct, frozen=True, kw_only=True):
    """File access for a reader: the text of a file, and the files that match a pattern. Either may
    raise OSError."""

    read: Callable[[Path], str]
    fitting: Callable[[Path, str], list[Path]]


class Source:
    """Reads a settings file with all its includes. Errors are added to `faults`; the rest is the
    tree."""

    def __init__(self, disk: Disk, environment: Mapping[str, str], faults: Faults) -> None:
        self.files: list[Path] = []
        self._disk = disk
        self._environment = environment
        self._faults = faults

    def tree(self, file: Path, text: str) -> Table:
        return self._read(file, text, (file,))

    def _read(self, file: Path, text: str, chain: tuple[Path, ...]) -> Table:
        self.files.append(file)
        parsed = self._parse(file, text)
        if parsed is None:
            return {}
        lines = lines_of(text)
        here: dict[KeyPath, Place] = {(): Place(file)} | {path: Place(file, line) for path, line in lines.items()}
        below = self._faults.places
        self._faults.places = here  # While this file is read, errors refer to its lines.
        own = cast(Table, self._filled(parsed, (), file))
        self._check_version(own)
        merged: Table = {}
        places: dict[KeyPath, Place] = {}
        for path, included in self._included(own, file, chain):
            self._faults.places = here
            tree = self._include(path, included, chain)
            merged = merge(merged, tree)
            places |= self._faults.places if tree else {}
        self._faults.places = below | places | here
        return merge(merged, own)

    def _parse(self, file: Path, text: str) -> Table | None:
        import tomllib  # not needed without a settings file

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            said = str(error)
            line = _LINE.search(said)
            self._faults.add_at(
                Place(file, int(line[1]) if line else None),
                "this is not TOML",
                because=_LINE.sub("", said),
                try_this='correct the line; texts stand in quotes, as in name = "value"',
            )
        except RecursionError:
            self._faults.add_at(
                Place(file),
                "this is nested too deeply",
                because="no setting needs so many levels",
                try_this="look for brackets without end",
            )
        return None

    def _check_version(self, own: Table) -> None:
        version = own.pop("config_version", 2)
        if version != 2 or isinstance(version, bool):
            self._faults.add(
                ("config_version",),
                f"is {shown(version)}",
                because="this house reads version 2 alone; in another version the same words may mean other things",
                try_this="go through docs/reference/settings.md, then write config_version = 2",
            )

    # --- includes ---

    def _included(self, own: Table, file: Path, chain: tuple[Path, ...]) -> list[tuple[KeyPath, Path]]:
        patterns = own.pop("include", [])
        if isinstance(patterns, str):
            patterns = [patterns]
        if not isinstance(patterns, list):
            self._faults.add(
                ("include",),
                f"must be a list of file names, and is {shown(patterns)}",
                because=_INCLUDE,
                try_this=_INCLUDE_SO,
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
                    "looks through all folders",
                    because="that could be the whole disk, so ** is not read",
                    try_this=_INCLUDE_SO,
                )
                continue
            if not isinstance(pattern, str) or not pattern or "\0" in pattern:
                self._faults.add(
                    path, f"must be the name of a file, and is {shown(pattern)}", because=_INCLUDE, try_this=_INCLUDE_SO
                )
            elif any(sign in pattern for sign in "*?["):
                found += [(path, each) for each in self._fitting(path, file.parent, pattern)]
            else:
                found.append((path, file.parent / Path(pattern).expanduser()))
        return found

    def _fitting(self, path: KeyPath, folder: Path, pattern: str) -> list[Path]:
        try:
            return self._disk.fitting(folder, pattern)
        except (OSError, ValueError, NotImplementedError) as error:
            self._faults.add(path, "cannot be looked up", because=str(error), try_this=_INCLUDE_SO)
            return []

    def _include(self, path: KeyPath, file: Path, chain: tuple[Path, ...]) -> Table:
        file = _plain(file)
        if file in chain:
            circle = " -> ".join(str(each) for each in (*chain[chain.index(file) :], file))
            self._faults.add(path, "goes in a circle", because=circle, try_this="take one of these includes out")
        elif len(chain) > INCLUDE_DEPTH_MAX:
            self._faults.add(
                path,
                "goes too deep",
                because=f"files include each other {INCLUDE_DEPTH_MAX} deep at most",
                try_this="include the innermost ones from here",
            )
        elif len(self.files) >= FILES_MAX:
            self._faults.add(
                path,
                "is one file too many",
                because=f"{FILES_MAX} files are read at most",
                try_this="put some together",
            )
        else:
            try:
                text = self._disk.read(file)
            except (OSError, ValueError) as error:
                self._faults.add(
                    path,
                    f"names {file}, which cannot be read",
                    because=reason(error),
                    try_this="a name counts from the folder of the file that includes it",
                )
            else:
                return self._read(file, text, (*chain, file))
        return {}

    # --- variables and secrets ---

    def _filled(self, value: object, path: KeyPath, file: Path) -> object:
        if len(path) > NESTING_MAX:
            self._faults.add(
                path[:3],
                "is nested too deeply",
                because=f"{NESTING_MAX} levels are read at most, and no setting needs so many",
                try_this="look for a bracket that is not closed where it should be",
            )
            return None
        match value:
            case str():
                return self._fill(value, path) if "${" in value else value
            case list():
                items = cast("list[object]", value)
                return [self._filled(item, (*path, index), file) for index, item in enumerate(items)]
            case dict():
                table = cast(Table, value)
                return {key: self._entry(key, inner, (*path, key), file) for key, inner in table.items()}
            case _:
                return value

    def _entry(self, key: str, value: object, path: KeyPath, file: Path) -> object:
        is_named = (
            (len(path) == 2 and path[0] in NAMED)
            or (len(path) == 3 and path[:2] in NAMED_BELOW)
            or (len(path) == 5 and path[0] == ORIGIN)
        )
        if not is_named and path[:2] != POLICY and (_SECRET.fullmatch(key) or _is_sent_along(value, path)):
            return self._secret(value, path, file)
        return self._filled(value, path, file)

    def _secret(self, value: object, path: KeyPath, file: Path) -> object:
        table = cast(Table, value) if isinstance(value, dict) else {}
        env, named_file = table.get("env"), table.get("file")
        if len(table) == 1 and isinstance(env, str) and _NAME.fullmatch(env):
            return Secret(env=env)
        if len(table) == 1 and isinstance(named_file, str) and named_file and "\0" not in named_file:
            filled = self._fill(named_file, (*path, "file"))
            return None if filled is None else Secret(file=file.parent / Path(filled).expanduser())
        self._faults.add(
            path,
            "is a secret, and not said in a way we know" if table else "is a secret in plain text",
            because="this file is read, copied and backed up; secrets stay in the environment or in a file",
            try_this=f'{path[-1]}_env = "NAME" or {path[-1]}_file = "PATH"'
            if path[0] == "connectors"
            else f'{path[-1]} = {{ env = "NAME" }} or {path[-1]} = {{ file = "PATH" }}',
        )
        return None

    def _fill(self, text: str, path: KeyPath) -> str | None:
        """Expand the variables in a text. None if one is missing, which was reported."""
        before = self._faults.count

        def put(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name = match[1]
            if not match[2] or not _NAME.fullmatch(name):
                self._faults.add(
                    path,
                    "holds a ${ that names no variable",
                    because="it is written ${NAME}, with letters, digits and _ alone",
                    try_this="write $${ where ${ itself is meant",
                )
            elif value := self._environment.get(name):
                return value
            else:
                self._faults.add(
                    path,
                    f"needs the environment variable {name}",
                    because="it is not set for this process, or is empty",
                    try_this=f"set {name} where the house is started, or write $${{ if ${{ itself is meant",
                )
            return ""

        filled = _VARIABLE.sub(put, text)
        if self._faults.count > before:
            return None
        return text if filled == text else Filled(filled, text)


def _is_sent_along(value: object, path: KeyPath) -> bool:
    """Whether this is a provider's key, or a header of a provider or MCP server that may hold a
    secret.

    A header may if its name suggests so, if it names a location, or if it uses a variable.
    """
    match path:
        case ("providers", _, "key"):
            return True
        case ("providers" | "mcp", _, "headers", str(header)):
            has_variable = isinstance(value, str) and "${" in value
            names_a_place = isinstance(value, dict) and "value" not in value
            return has_variable or names_a_place or bool(_SECRET_HEADER.fullmatch(header))
        case _:
            return False


def merge(base: Table, over: Table) -> Table:
    """Merge tables key by key, recursively. For anything else the later value wins."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = merge(cast(Table, before), cast(Table, value))
        else:
            merged[key] = value
    return merged


def shown(value: object) -> str:
    """Format a value for errors: short, as written, and never a secret."""
    match value:
        case bool():
            return str(value).lower()
        case Filled():
            text = repr(value.written)
        case dict():
            return "a table"
        case list():
            return "a list"
        case Secret() | None:
            return "a secret"
        case str() | int() | float():
            text = repr(value)
        case _:
            text = str(value)
    text = _PASSWORD.sub(r"\1...@", text)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 3] + "..."


def reason(error: OSError | ValueError) -> str:
    """Return in a few words why a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _plain(file: Path) -> Path:
    """Return the path without `..` and symlinks, to recognize a file by any name."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        return file
