"""Secrets stay in the environment or in a file of the owner, and are read when they are needed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.domain.errors import Invalid

SECRET_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Says where a secret is, never its value: not in `repr`, `str` or a comparison."""

    env: str | None = None
    file: Path | None = None

    def __str__(self) -> str:
        return f"the secret in ${self.env}" if self.env else f"the secret in {self.file}"

    @property
    def reference(self) -> str:
        """`env:NAME` or `file:PATH`, to store the location as one text."""
        return f"env:{self.env}" if self.env else f"file:{self.file}"

    @staticmethod
    def referred(reference: str) -> Secret:
        """Parse such a text. It was validated on input by `check_secret_reference`."""
        kind, _, where = reference.partition(":")
        return Secret(env=where) if kind == "env" else Secret(file=Path(where).expanduser())

    def read(self, environment: Mapping[str, str]) -> str:
        """Return the current value of the secret, without a trailing newline."""
        return self._from_file(self.file) if self.file else self._from_environment(environment)

    def _from_environment(self, environment: Mapping[str, str]) -> str:
        if value := environment.get(self.env or ""):
            return value
        raise Invalid(
            f"the secret in the environment variable {self.env} is missing",
            because="the variable is not set for the process of the house, or is empty",
            try_this=f"set {self.env} where the house is started, or keep the secret in a file",
            code="config.secret-missing",
        )

    def _from_file(self, path: Path) -> str:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _missing(path, error.strerror or "it cannot be opened") from None
        try:
            found = os.fstat(descriptor)  # of the opened file, not of what the path may name a moment later
            if not stat.S_ISREG(found.st_mode):
                raise _missing(path, "it is not a file")
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o077:
                raise _exposed(path)
            content = os.read(descriptor, SECRET_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
        if len(content) > SECRET_BYTES_MAX:
            raise _missing(path, f"it has more than {SECRET_BYTES_MAX:,} bytes, which is no secret but something else")
        try:
            value = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise _missing(path, "it is not text") from None
        if not value:
            raise _missing(path, "it is empty")
        return value


def _missing(path: Path, because: str) -> Invalid:
    return Invalid(
        f"the secret file {path} cannot be used",
        because=because,
        try_this=f"write the secret, and nothing else, to {path}",
        code="config.secret-missing",
    )


def _exposed(path: Path) -> Invalid:
    return Invalid(
        f"the secret file {path} is not ours alone",
        because="it belongs to someone else, or others than its owner may read or change it",
        try_this=f"chmod 600 {path}",
        code="config.secret-exposed",
    )
