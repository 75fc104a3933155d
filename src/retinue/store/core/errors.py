"""Errors from opening, migrating, locking, reading and writing the database, and from looking up objects by id."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from retinue.domain.errors import NotFound, StoreError

_REPORT = "report this as a bug"
_RESTORE = "stop the server, move the file and its -wal file elsewhere, and restore the latest backup: retinue restore"


# --- open ---


class StoreFilesConflict(StoreError):
    """The data directory contains two databases: one with the current name and one with the former name."""

    code = "store.files_conflict"

    def __init__(self, path: Path, former: Path) -> None:
        super().__init__(
            f"there are two databases: {path.name} and {former.name}",
            because=f"{former.name} is the former name of {path.name}, and {path.parent} contains both",
            try_this=f"move the one that you do not need, with its -wal file, out of {path.parent}, and start again",
        )


class FormerFileInUse(StoreError):
    """The database with the former name cannot be renamed, because another program is using it."""

    code = "store.former_file_in_use"

    def __init__(self, former: Path) -> None:
        super().__init__(
            f"{former.name} was not renamed and is unchanged",
            because="another program has it open, so its write-ahead log cannot be emptied",
            try_this=f"close the program that has {former} open, and start again",
        )


class StoreUrlInvalid(StoreError):
    """The URL of the database cannot be parsed."""

    code = "store.url_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid database URL",
            because="it is not the URL of a PostgreSQL database",
            try_this="write it as postgresql://USER@HOST/DATABASE",
        )


class PostgresDriverMissing(StoreError):
    """A Python package that PostgreSQL needs is not installed."""

    code = "store.driver_missing"

    def __init__(self, package: str) -> None:
        super().__init__(
            "this installation has no PostgreSQL support",
            because=f"the package {package} is not installed",
            try_this="pip install 'retinue[postgres]'",
        )


class DatabaseEncodingUnsupported(StoreError):
    """The PostgreSQL database has an encoding other than UTF-8."""

    code = "store.encoding"

    def __init__(self, encoding: str) -> None:
        super().__init__(
            "the encoding of the database is not supported",
            because=f"the encoding is {encoding}, which cannot store every character; it must be UTF8",
            try_this="create a new database with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )


class StoreCannotOpen(StoreError):
    """The database file cannot be opened."""

    code = "store.cannot_open"

    def __init__(self, *, because: str, path: Path | None = None) -> None:
        super().__init__(
            f"cannot open the database{f' at {path}' if path is not None else ''}",
            because=because,
            try_this="check that the folder of the file exists, and that the server can write to it",
        )


class StoreReadOnly(StoreError):
    """The database cannot be written to, because of file permissions, a read-only disk or a read-only transaction."""

    code = "store.read_only"

    def __init__(self, *, because: str, path: Path | None = None) -> None:
        super().__init__(
            f"cannot write to the database{f' at {path}' if path is not None else ''}",
            because=because,
            try_this="check that the server may write to RETINUE_HOME, and that its disk is not mounted read-only",
        )


class StoreDiskFull(StoreError):
    """The disk is full. Nothing was changed. `path` is set if the database could not be opened."""

    code = "store.disk_full"

    def __init__(self, *, because: str, path: Path | None = None) -> None:
        super().__init__(
            f"cannot write to the database{f' at {path}' if path is not None else ''}: the disk is full",
            because=because,
            try_this="free some disk space; if the server is running, it then continues by itself; otherwise, start it",
        )


class StoreDamaged(StoreError):
    """The database file is damaged."""

    code = "store.damaged"

    def __init__(self, *, because: str) -> None:
        super().__init__("the database file is damaged", because=because, try_this=_RESTORE)


class ForeignDatabase(StoreError):
    """The file is a database of another program."""

    code = "store.foreign_database"

    def __init__(self, path: Path, *, tables: Sequence[str]) -> None:
        super().__init__(
            f"{path} is not a retinue database",
            because=f"it has tables that are not from retinue: {', '.join(tables)}",
            try_this="choose another path for the database",
        )


class SchemaTooNew(StoreError):
    """A newer version of retinue has written this database."""

    code = "store.newer_schema"

    def __init__(self, revision: str, *, known: str) -> None:
        super().__init__(
            "this database was written by a newer version of retinue",
            because=f"its schema revision is {revision}, and this version supports revisions up to {known}",
            try_this="install the newer version again, or restore a backup from before the upgrade",
        )


class StoreUpgradeFailed(StoreError):
    """A migration failed. The database is unchanged."""

    code = "store.upgrade_failed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the database was not upgraded and is unchanged",
            because=because,
            try_this="keep using the previous version, and report this as a bug",
        )


class WalUnavailable(StoreError):
    """SQLite cannot use a write-ahead log for this file."""

    code = "store.wal_unavailable"

    def __init__(self, journal_mode: str) -> None:
        super().__init__(
            "the database file does not support a write-ahead log",
            because=f"SQLite uses the journal mode '{journal_mode}' here, which blocks readers during a write",
            try_this="move the database to a local disk: network disks lack the shared memory that the log needs",
        )


class DurableCommitsUnavailable(StoreError):
    """This build of SQLite ignores `PRAGMA synchronous`."""

    code = "store.sync_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "this build of SQLite does not support durable commits",
            because="PRAGMA synchronous = FULL had no effect",
            try_this="use a build of Python that includes another build of SQLite",
        )


# --- lock ---


class StoreLocked(StoreError):
    """Another server is using the PostgreSQL database. `holder` describes its connection."""

    code = "store.locked"

    def __init__(self, holder: str) -> None:
        super().__init__(
            "another server uses this database",
            because=f"it is locked by {holder}",
            try_this="stop that server, or set server.store to another database",
        )


class StoreTakenOver(StoreError):
    """This server lost its lock on the database, and another server has acquired the lock."""

    code = "store.taken_over"

    def __init__(self, holder: str) -> None:
        super().__init__(
            "another server has taken over this database, so this server stops",
            because=f"the connection that held the lock was lost, and the database is now locked by {holder}",
            try_this="stop one of the two servers, then start the other again",
        )


class StoreLockLost(StoreError):
    """The connection that holds the lock on the database broke repeatedly. Nothing was changed."""

    code = "store.lock_lost"

    def __init__(self) -> None:
        super().__init__(
            "nothing was changed: the lock on the database was lost",
            because="the connection that holds the lock broke repeatedly",
            try_this="check the connection to PostgreSQL; the server acquires the lock again by itself",
        )


class StoreBusy(StoreError):
    """Another program has locked the database file. SQLite reports that the database is locked."""

    code = "store.busy"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "another program has locked the database file",
            because=because,
            try_this="close other programs that have the file open for writing",
        )


# --- read and write ---


class StoreClosed(StoreError):
    """The database was closed because the server is stopping."""

    code = "store.closed"

    def __init__(self) -> None:
        super().__init__(
            "the server is stopping",
            because="it has closed its database",
            try_this="try again when the server is running again",
        )


class StoreUnreachable(StoreError):
    """PostgreSQL did not answer."""

    code = "store.unreachable"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the database did not answer",
            because=because,
            try_this="check that PostgreSQL is running and that its URL in retinue.toml is right",
        )


class StoreDiskFailed(StoreError):
    """The disk reported an error. Nothing was changed."""

    code = "store.disk_failed"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "nothing was changed: the disk failed",
            because=because,
            try_this="check the disk and its free space; the server continues by itself once the disk works",
        )


class ConstraintViolated(StoreError):
    """A change violates a constraint of the database. Nothing was changed."""

    code = "store.constraint_violated"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "nothing was changed: the change contradicts stored data",
            because=because,
            try_this="run `retinue ledger`; if it finds nothing, report this as a bug",
        )


class StatementRejected(StoreError):
    """The database rejected a statement. Nothing was changed."""

    code = "store.statement_rejected"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "nothing was changed: the database rejected a statement",
            because=because,
            try_this=_REPORT,
        )


class WriteInterrupted(StoreError):
    """A change failed with an unexpected error, so it is unknown whether the change was stored."""

    code = "store.write_interrupted"

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            "a change failed, and it is unknown whether it was stored",
            because=f"{type(error).__name__}: {error}",
            try_this="check whether the change was stored before you retry it, and report this as a bug",
        )


class CommitUnknown(StoreError):
    """The connection was lost during a commit, so it is unknown whether the change was stored."""

    code = "store.commit_unknown"

    def __init__(self, *, because: str) -> None:
        super().__init__(
            "the database connection was lost during a commit, and it is unknown whether the change was stored",
            because=because,
            try_this="retry with the same idempotency key, so that a change that was stored is not made twice",
        )


# --- find by id ---


class IdNotFound(NotFound):
    """No envelope, run, approval or session has this id, or the caller may not see it."""

    code = "id.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"nothing has the id {prefix}",
            because="no envelope, run, approval or session that you can see has an id that starts with these digits",
            try_this="copy the id from a list: retinue envelope recent, or retinue run list",
        )


class EnvelopeNotFound(NotFound):
    """No envelope has this id, or the caller may not see it."""

    code = "envelope.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"no envelope has the id {prefix}",
            because="no envelope that you can see has an id that starts with these digits",
            try_this="list the envelopes: retinue envelope recent",
        )


class EnvelopePurged(NotFound):
    """The envelope was purged after it was done. Only its outcome is left."""

    code = "envelope.purged"

    def __init__(self, id_: str, *, outcome: str, purged_on: date) -> None:
        super().__init__(
            f"envelope {id_} was purged",
            because=f"its outcome was {outcome}, and it was purged on {purged_on}",
            try_this="to read the envelope, use a backup from before that day",
        )


class RunNotFound(NotFound):
    """No run has this id, or the caller may not see it."""

    code = "run.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"no run has the id {prefix}",
            because="no run that you can see has an id that starts with these digits",
            try_this="list the runs: retinue run list",
        )


class ApprovalNotFound(NotFound):
    """No approval has this id, or the caller may not see it."""

    code = "approval.not_found"

    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"no approval has the id {prefix}",
            because="no approval that you can see has an id that starts with these digits",
            try_this="list the pending approvals: retinue approval list",
        )
