"""Errors of starting an instance, restoring it, or reading it without a server. Each error code has one class."""

from __future__ import annotations

from pathlib import Path

from retinue.domain.errors import Invalid, NotFound, RetinueError, StoreError


class ServerAlreadyRunning(RetinueError):
    """Another process holds the lock of the data directory. `pid` is empty if it is unknown."""

    code = "server.already_running"

    def __init__(self, data_dir: Path, pid: str) -> None:
        super().__init__(
            f"a server is already running in {data_dir} (pid {pid or 'unknown'})",
            because="only one process can use a data directory",
            try_this="retinue chat, or retinue down; to restart it: retinue up --force",
        )


class ServerNotRunning(RetinueError):
    """The operation needs a running server. `data_dir` is None if its path is unknown."""

    code = "server.not_running"

    def __init__(self, data_dir: Path | None, *, because: str) -> None:
        place = f" in {data_dir}" if data_dir is not None else ""
        super().__init__(f"no server is running{place}", because=because, try_this="retinue up")


class SocketFolderExposed(RetinueError):
    """Other users can reach the folder for the Unix socket."""

    code = "server.socket_exposed"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"other users can reach {folder}",
            because="the Unix socket must be in a folder that only your user can reach",
            try_this="remove that folder, or set XDG_RUNTIME_DIR or a shorter RETINUE_HOME",
        )


class ListenPortTaken(RetinueError):
    """Another program is listening on the port."""

    code = "listen.port_taken"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"cannot listen on {host}, port {port}",
            because="another program is listening on this port",
            try_this="set another `port` under [server.listen] in retinue.toml, or `enabled = false` to disable TCP",
        )


class ListenFailed(RetinueError):
    """The operating system refused the listen address."""

    code = "listen.failed"

    def __init__(self, host: str, port: int, *, because: str) -> None:
        super().__init__(
            f"cannot listen on {host}, port {port}",
            because=because,
            try_this="set `host` and `port` under [server.listen] in retinue.toml, or `enabled = false` to disable TCP",
        )


class ListenAddressInvalid(Invalid):
    """`RETINUE_LISTEN` is not a listen address."""

    code = "listen.invalid"

    def __init__(self, value: str) -> None:
        super().__init__(
            f"invalid value for RETINUE_LISTEN: '{value}'",
            because="it must be HOST:PORT, or `off`",
            try_this="RETINUE_LISTEN=127.0.0.1:7717",
        )


class UnitTextInvalid(Invalid):
    """The path of the data directory cannot be written into a systemd unit."""

    code = "service.unit_invalid"

    def __init__(self) -> None:
        super().__init__(
            "cannot write a systemd unit for this data directory",
            because="its path has a line break or another control character",
            try_this="choose another RETINUE_HOME",
        )


class RestoreUnsupported(Invalid):
    """`retinue restore` does not support PostgreSQL. Use the tools of PostgreSQL instead."""

    code = "restore.postgres"

    def __init__(self) -> None:
        super().__init__(
            "`retinue restore` does not support PostgreSQL",
            because="PostgreSQL has its own restore tool, pg_restore",
            try_this="pg_restore --clean --if-exists --dbname=ADDRESS retinue.dump",
        )


class OfflineStoreUnsupported(RetinueError):
    """No server is running, and only a SQLite store can be read without a server."""

    code = "store.not_a_file"

    def __init__(self) -> None:
        super().__init__(
            "cannot read a PostgreSQL database while the server is stopped",
            because="without a running server, only a SQLite file can be read",
            try_this="retinue up, then try again",
        )


class StoreSchemaMismatch(StoreError):
    """The database has a schema revision that this version of retinue cannot read."""

    code = "store.schema_mismatch"

    def __init__(self, revision: str | None, *, expected: str) -> None:
        super().__init__(
            "the database belongs to another version of retinue",
            because=f"its schema is {revision}; this version reads {expected}",
            try_this="start the server once, which upgrades the database: retinue up",
        )


class TokenFileUnreadable(NotFound):
    """The file with the owner's token cannot be read."""

    code = "auth.token_file_unreadable"

    def __init__(self, path: Path, *, because: str) -> None:
        super().__init__(
            f"cannot read {path}",
            because=because,
            try_this="start the server once, which creates the file again: retinue up",
        )


class CrashPointOutsideTest(Invalid):
    """`RETINUE_TEST_CRASH` is set, but `RETINUE_TEST=1` is not."""

    code = "config.test_only"

    def __init__(self) -> None:
        super().__init__(
            "RETINUE_TEST_CRASH is set, but this is not a test",
            because="a crash point kills the server without warning",
            try_this="unset RETINUE_TEST_CRASH",
        )


class CrashPointInvalid(Invalid):
    """The value of `RETINUE_TEST_CRASH` is not a valid crash point."""

    code = "config.crash_point_invalid"

    def __init__(self, value: str) -> None:
        super().__init__(
            f"invalid value for RETINUE_TEST_CRASH: '{value}'",
            because="it must have the form POINT:N",
            try_this="use, for example, finish.after-commit:3",
        )
