"""Errors in settings files. Each error names the setting, the file and the line. All errors are reported together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from retinue.domain.errors import Conflict, Invalid, RetinueError

FAULTS_SHOWN_MAX = 20
FAULTS_KEPT_MAX = 200
KEY_PART_LENGTH_MAX = 100
SHOWN_LENGTH_MAX = 60

KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_key_path(path: KeyPath) -> str:
    """Format the path of a setting, such as `server.listen.port` or `include[0]`.

    A key with special characters is quoted: `server.permission_policy."agent.set"`.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            part = part if len(part) <= KEY_PART_LENGTH_MAX else part[:KEY_PART_LENGTH_MAX] + "..."
            quoted = part.replace("\\", "\\\\").replace('"', '\\"')
            name = part if _BARE_KEY.fullmatch(part) else f'"{quoted}"'
            text += f".{name}" if text else name
    return text


class SettingPosition(Struct, frozen=True):
    """Where a setting is: its file and line. An environment variable has no file, and some settings have no line."""

    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "the environment"
        return f"{self.file}, line {self.line}" if self.line else str(self.file)


class SettingFault(Struct, frozen=True, kw_only=True):
    """One error in the settings: its position, the sentence, the reason and the next step."""

    path: str
    sentence: str
    position: SettingPosition
    because: str = ""
    try_this: str = ""
    code: str = ""  # the error code; empty: the code of `InvalidSettings`

    def __str__(self) -> str:
        why = f": {self.because}" if self.because else ""
        then = f"; try: {self.try_this}" if self.try_this else ""
        return f"{self.sentence} ({self.position}){why}{then}"


class FaultCollector:
    """Collects errors while settings are parsed, so that all errors are reported at once."""

    def __init__(self) -> None:
        self.positions: dict[KeyPath, SettingPosition] = {}
        self.count = 0
        self._faults: dict[SettingFault, None] = {}

    def add(self, path: KeyPath, predicate: str, *, because: str = "", try_this: str = "", code: str = "") -> None:
        """Add an error about the setting at this path.

        The path is the subject of the error sentence, and `predicate` is the rest: "must be a whole number".
        """
        name = format_key_path(path)
        sentence = f"{name} {predicate}"
        self._add(
            SettingFault(
                path=name,
                sentence=sentence,
                position=self.position_of(path),
                because=because,
                try_this=try_this,
                code=code,
            )
        )

    def add_at(
        self,
        position: SettingPosition,
        sentence: str,
        *,
        path: str = "",
        because: str = "",
        try_this: str = "",
        code: str = "",
    ) -> None:
        """Add an error with its own sentence, for example about an unreadable file or an environment variable."""
        self._add(
            SettingFault(path=path, sentence=sentence, position=position, because=because, try_this=try_this, code=code)
        )

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of errors has been collected, so further errors are dropped."""
        return len(self._faults) >= FAULTS_KEPT_MAX

    def in_file_order(self) -> tuple[SettingFault, ...]:
        """Return the errors sorted by file and line."""
        return tuple(sorted(self._faults, key=lambda fault: (str(fault.position.file or ""), fault.position.line or 0)))

    def position_of(self, path: KeyPath) -> SettingPosition:
        """Return the position of the setting at a path, or of the nearest table that contains it."""
        for length in range(len(path), -1, -1):
            if found := self.positions.get(path[:length]):
                return found
        return SettingPosition()

    def _add(self, fault: SettingFault) -> None:
        self.count += 1
        if not self.is_full:
            self._faults.setdefault(fault)


class InvalidSettings(Invalid):
    """The settings are invalid. `faults` has one entry for each error."""

    code = "config.invalid"

    def __init__(self, faults: Sequence[SettingFault]) -> None:
        self.faults = tuple(faults)
        if len(faults) == 1:
            only = faults[0]
            super().__init__(f"{only.sentence} ({only.position})", because=only.because, try_this=only.try_this)
            self.code = only.code or self.code
        else:
            super().__init__(
                f"the settings have {_format_count(len(faults))} errors",
                because=_format_faults(self.faults),
                try_this="correct them; docs/reference/settings.md explains each setting",
            )

    def as_json(self) -> list[Mapping[str, str | int | None]]:
        """Return one JSON object per error, for programs."""
        return [
            {
                "path": fault.path,
                "sentence": fault.sentence,
                "file": str(fault.position.file) if fault.position.file else None,
                "line": fault.position.line,
                "because": fault.because,
                "try": fault.try_this,
                "code": fault.code or InvalidSettings.code,
            }
            for fault in self.faults
        ]


def _format_count(count: int) -> str:
    return f"{count} or more" if count >= FAULTS_KEPT_MAX else str(count)


def _format_faults(faults: tuple[SettingFault, ...]) -> str:
    lines = [f"\n  - {fault}" for fault in faults[:FAULTS_SHOWN_MAX]]
    if len(faults) > FAULTS_SHOWN_MAX:
        lines.append(f"\n  - and {len(faults) - FAULTS_SHOWN_MAX} more")
    return "".join(lines).lstrip(" ")


class EnvironmentPathInvalid(Invalid):
    """The value of an environment variable must be an absolute path, but is not."""

    code = "config.path_invalid"

    def __init__(self, variable: str, value: str, *, example: str) -> None:
        super().__init__(
            f"invalid value for {variable}: '{value}'",
            because="it must be an absolute path, or begin with ~",
            try_this=f"set it to a path such as {example}",
        )


class SettingsFileChanged(Conflict):
    """The settings file has changed since it was read; nothing was written."""

    code = "config.changed"

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(
            f"{file or 'the settings file'} has changed since you read it",
            because="another change was saved in the meantime; nothing was written",
            try_this="read the settings again, and repeat the change",
        )


class SettingsFileUnreadable(Invalid):
    """The settings file cannot be read."""

    code = "config.unreadable"

    def __init__(self, file: Path, *, because: str) -> None:
        super().__init__(
            f"cannot read {file}", because=because, try_this="make it a UTF-8 text file that the server can read"
        )


class SettingsFileUnchangeable(RetinueError):
    """The server cannot change the settings file, because the change would damage other parts of the file."""

    code = "config.unchangeable"

    def __init__(self) -> None:
        super().__init__(
            "cannot change the settings file",
            because="some of its tables are written in a form to which the server cannot add keys",
            try_this="make this change in an editor, then run: retinue config reload",
        )


class SettingRenamed(Invalid):
    """A request to change settings uses the old name of a renamed setting."""

    code = "config.renamed"

    def __init__(self, old: str, *, new: str) -> None:
        super().__init__(
            f"`{old}` is now `{new}`",
            because="the setting has a new name in this version; nothing was written",
            try_this=f"use {new}",
        )


class SettingInexpressible(Invalid):
    """A value cannot be written to the settings file, because TOML cannot express it."""

    code = "config.value_invalid"

    def __init__(self, path: str, *, because: str) -> None:
        super().__init__(
            f"cannot write {path} to the settings file",
            because=because,
            try_this="use a string, a number, true or false, a list or a table; use null only to remove a key",
        )


class SecretVariableMissing(Invalid):
    """The environment variable that contains a secret is not set."""

    code = "config.secret_missing"

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"the environment variable {variable}, which contains a secret, is not set",
            because="it is missing or empty in the environment of the server",
            try_this=f"set {variable} where the server is started, or keep the secret in a file",
        )


class SecretFileUnusable(Invalid):
    """The file that should contain a secret cannot be read, or its content cannot be a secret."""

    code = "config.secret_file_unusable"

    def __init__(self, path: Path, *, because: str) -> None:
        super().__init__(
            f"cannot use the secret file {path}",
            because=because,
            try_this=f"write the secret, and nothing else, to {path}",
        )


class SecretFileExposed(Invalid):
    """Other users can read or change the file that contains a secret."""

    code = "config.secret_exposed"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"other users can access the secret file {path}",
            because="it belongs to another user, or its mode allows other users to read or change it",
            try_this=f"chmod 600 {path}",
        )
