"""The log of the crash test's clients.

A client writes to disk everything that it sends or receives, before it acts on it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec


class CrashLogEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """One entry of the log that the clients of the crash test write."""

    t: float  # the system's monotonic clock


class SentEntry(CrashLogEntry, frozen=True, kw_only=True, tag="sent"):
    """A log entry for an envelope that a client sends. It is written before the first attempt."""

    token: str
    key: str
    to: str


class AcknowledgedEntry(CrashLogEntry, frozen=True, kw_only=True, tag="acknowledged"):
    """A log entry for a receipt that a client got from the server."""

    token: str
    key: str
    envelope: str
    session: str | None
    duplicate: bool


class AnsweredEntry(CrashLogEntry, frozen=True, kw_only=True, tag="answered"):
    """A log entry for an answer that an event reported."""

    seq: int
    envelope: str
    text: str


class SettledEntry(CrashLogEntry, frozen=True, kw_only=True, tag="settled"):
    """A log entry for an outcome that the server reported."""

    envelope: str
    outcome: str


class DecidedEntry(CrashLogEntry, frozen=True, kw_only=True, tag="decided"):
    """A log entry for an approval that a client decided. It is written after the server confirmed the decision."""

    approval: str
    token: str
    allow: bool


class RetriedEntry(CrashLogEntry, frozen=True, kw_only=True, tag="retried"):
    """A log entry for a dead letter whose retry the server confirmed."""

    envelope: str


class RequestEntry(CrashLogEntry, frozen=True, kw_only=True, tag="brought"):
    """A log entry for a request that reached the external agent. A request that arrives twice has two entries."""

    envelope: str
    session: str
    text: str


class CallbackEntry(CrashLogEntry, frozen=True, kw_only=True, tag="said"):
    """A log entry for a callback of the external agent. It is written before the first attempt."""

    session: str
    message: str
    request: str
    text: str


class CallbackResultEntry(CrashLogEntry, frozen=True, kw_only=True, tag="heard"):
    """A log entry for the server's response to a callback."""

    session: str
    message: str
    envelope: str
    answers: str | None


class FinalAnswersEntry(CrashLogEntry, frozen=True, kw_only=True, tag="shown"):
    """A log entry with the answers that a session shows at the end, oldest first."""

    session: str
    answers: list[str]


class ComplaintEntry(CrashLogEntry, frozen=True, kw_only=True, tag="complaint"):
    """A log entry for something that a server must never do to a client."""

    text: str


AnyLogEntry = (
    SentEntry
    | AcknowledgedEntry
    | AnsweredEntry
    | SettledEntry
    | DecidedEntry
    | RetriedEntry
    | RequestEntry
    | CallbackEntry
    | CallbackResultEntry
    | FinalAnswersEntry
    | ComplaintEntry
)


class CrashLog:
    """Writes the log of the crash test's clients.

    Once `write` returns, the entry is on disk, with all entries before it. Entries that are written
    at the same time share one fsync.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._encode = msgspec.json.Encoder().encode
        self._waiting: list[bytes] = []
        self._turn = asyncio.Lock()
        self.entries: list[AnyLogEntry] = []

    async def write(self, entry: AnyLogEntry) -> None:
        self._waiting.append(self._encode(entry) + b"\n")
        async with self._turn:
            if self._waiting:  # otherwise an earlier task has written this entry, too
                lines, self._waiting = self._waiting, []
                await asyncio.to_thread(self._sync, b"".join(lines))
        self.entries.append(entry)

    def add(self, entry: AnyLogEntry) -> None:
        """Write an entry without waiting for the disk: the client has only observed something, and does nothing yet.

        Otherwise, a client on a slow disk could not read the events as fast as the server sends them.
        """
        os.write(self._fd, self._encode(entry) + b"\n")
        self.entries.append(entry)

    def _sync(self, lines: bytes) -> None:
        os.write(self._fd, lines)
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def read_log(path: Path) -> list[AnyLogEntry]:
    decode = msgspec.json.Decoder[AnyLogEntry](AnyLogEntry).decode
    return [decode(line) for line in path.read_bytes().splitlines()]
