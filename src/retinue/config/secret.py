"""References to secrets. The secret itself stays in the environment or in a file, and is read when it is needed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.config.errors import SecretFileExposed, SecretFileUnusable, SecretVariableMissing

SECRET_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReference:
    """The location of a secret. It never contains the value, so `repr`, `str` and comparisons do not reveal it."""

    env: str | None = None
    file: Path | None = None

    def __str__(self) -> str:
        return f"the secret in ${self.env}" if self.env else f"the secret in {self.file}"

    @property
    def as_text(self) -> str:
        """The location of the secret as a string that can be stored: `env:NAME` or `file:PATH`."""
        return f"env:{self.env}" if self.env else f"file:{self.file}"

    @staticmethod
    def from_text(text: str) -> SecretReference:
        """Parse `env:NAME` or `file:PATH`. The text must have passed `check_secret_reference`."""
        kind, _, where = text.partition(":")
        return SecretReference(env=where) if kind == "env" else SecretReference(file=Path(where).expanduser())

    def read(self, environment: Mapping[str, str]) -> str:
        """Return the current value of the secret, without a trailing newline."""
        return self._from_file(self.file) if self.file else self._from_environment(environment)

    def _from_environment(self, environment: Mapping[str, str]) -> str:
        if value := environment.get(self.env or ""):
            return value
        raise SecretVariableMissing(self.env or "")

    def _from_file(self, path: Path) -> str:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SecretFileUnusable(path, because=error.strerror or "it cannot be opened") from None
        try:
            found = os.fstat(descriptor)  # of the opened file, because the path may name another file by now
            if not stat.S_ISREG(found.st_mode):
                raise SecretFileUnusable(path, because="it is not a file")
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o077:
                raise SecretFileExposed(path)
            content = os.read(descriptor, SECRET_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
        if len(content) > SECRET_BYTES_MAX:
            raise SecretFileUnusable(path, because=f"it has more than {SECRET_BYTES_MAX:,} bytes")
        try:
            value = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise SecretFileUnusable(path, because="it is not text") from None
        if not value:
            raise SecretFileUnusable(path, because="it is empty")
        return value
