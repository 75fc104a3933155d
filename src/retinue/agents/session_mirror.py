"""Mirrors sessions to files in a folder.

The database stays the source of truth: deleting the files loses nothing. Each session has a folder
named by its id. It contains the three files of the session and `SYSTEM.md`, the session's last
system prompt. The mirror follows the stored events. It saves its position in the file `.cursor` and
continues from there after a restart. If there is no `.cursor`, the mirror checks every session
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents import daycare_format
from retinue.agents.daycare_format import DESCRIPTOR_FILE, FILE_NAMES, HISTORY_FILE, STATE_FILE, DaycareFiles
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.store.core import events
from retinue.store.core.connection import Store
from retinue.store.sessions import instructions, sessions

log = logging.getLogger(__name__)

CURSOR_FILE = ".cursor"
SYSTEM_PROMPT_FILE = "SYSTEM.md"  # the last system prompt of the session
ROWS_PER_READ = 500
CACHED_SESSIONS_MAX = 10_000
RETRY_AFTER_S = 5.0

_ID = re.compile(r"[0-9a-f]{32}")


class _WrittenHistory(Struct, frozen=True):
    """The newest record in a session's history file, and the size of the file after that record was written."""

    record_seq: int
    size_bytes: int


class SessionMirror:
    """Writes committed records of sessions to files. A disk error is logged and retried, and never stops the server."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._cursor: int | None = None
        self._stored_cursor: int | None = None
        self._written: OrderedDict[SessionId, _WrittenHistory] = OrderedDict()
        self._failed: set[SessionId] = set()
        self._committed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Write everything that changed since the mirror last stopped, then follow the stored events."""
        self._cursor = self._stored_cursor = await asyncio.to_thread(self._read_cursor)
        self._store.on_commit(self._committed.set)
        await self.catch_up()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            await self.catch_up()

    async def catch_up(self) -> None:
        """Write everything that was committed before the call. A disk error is logged, and writing is retried later."""
        async with self._lock:
            try:
                await self._catch_up()
            except (OSError, RetinueError) as error:
                log.error(
                    "mirror failed, will retry", extra={"error": type(error).__name__, "because": str(error)[:200]}
                )

    async def _follow(self) -> None:
        while True:
            if not self._failed:
                await self._committed.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._committed.wait(), RETRY_AFTER_S)
            self._committed.clear()
            await self.catch_up()

    async def _catch_up(self) -> None:
        oldest, newest = await self._store.read(_event_range)
        cursor = self._cursor
        if cursor is None or not oldest - 1 <= cursor <= newest:
            await self._sync_all()
            cursor = newest
        for session in sorted(self._failed):
            await self._sync(session)
        while found := await self._store.scan(partial(events.list_after, cursor=cursor, limit=ROWS_PER_READ)):
            for session in dict.fromkeys(piece.session for piece in found if piece.session):
                await self._sync(session)
            cursor = found[-1].seq
        self._cursor = cursor
        # Failed sessions must be retried after a restart too, so the cursor on disk stays before them.
        if not self._failed and cursor != self._stored_cursor:
            await asyncio.to_thread(self._store_cursor, cursor)
            self._stored_cursor = cursor

    async def _sync_all(self) -> None:
        after = ""
        while ids := await self._store.scan(partial(sessions.list_all_ids, after=after, limit=ROWS_PER_READ)):
            for session in ids:
                await self._sync(session)
            after = ids[-1]

    async def _sync(self, session: SessionId) -> None:
        """Append the new records of one session. If another program has changed its files, write them all again."""
        try:
            known = self._written.get(session)
            if known is None or not await self._write_session(session, known):
                await self._write_session(session, None)
            self._failed.discard(session)
        except (OSError, RetinueError) as error:
            self._failed.add(session)
            log.error(
                "session not mirrored",
                extra={"session": session, "error": type(error).__name__, "because": str(error)[:200]},
            )

    async def _write_session(self, session: SessionId, written: _WrittenHistory | None) -> bool:
        first = written.record_seq + 1 if written else 1
        files, new_records = await self._store.scan(partial(_read_session, session=session, first_seq=first))
        if files is None or files.session.deleted_at is not None:
            self._written.pop(session, None)
            await asyncio.to_thread(self._remove_files, session)
            return True
        size = await asyncio.to_thread(self._write_files, session, files, new_records, written)
        if size is None:
            return False
        self._written[session] = _WrittenHistory(files.session.record_seq, size)
        self._written.move_to_end(session)
        if len(self._written) > CACHED_SESSIONS_MAX:
            self._written.popitem(last=False)
        return True

    # Disk access, in a thread. Every path is opened relative to an open folder, and no link is followed.

    def _write_files(
        self, session: SessionId, files: DaycareFiles, system_prompt: str | None, written: _WrittenHistory | None
    ) -> int | None:
        """Write a session's files and return the new size of the history file.

        Returns None if another program has changed the history file. It must then be written again
        from the start.
        """
        with self._open_root() as root, _open_folder(root, _validate_id(session)) as folder:
            history = files.history.encode()
            if written is None:
                _replace(folder, HISTORY_FILE, history)
                size = len(history)
            elif _append(folder, HISTORY_FILE, history, size_bytes=written.size_bytes):
                size = written.size_bytes + len(history)
            else:
                return None
            if written is None or not _is_file(folder, DESCRIPTOR_FILE):
                _replace(folder, DESCRIPTOR_FILE, files.descriptor.encode())
            _replace(folder, STATE_FILE, files.state.encode())
            if system_prompt is not None and not _has_content(folder, SYSTEM_PROMPT_FILE, system_prompt.encode()):
                _replace(folder, SYSTEM_PROMPT_FILE, system_prompt.encode())
            return size

    def _remove_files(self, session: SessionId) -> None:
        with self._open_root() as root:
            try:
                folder = os.open(_validate_id(session), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
            except OSError:
                return  # the folder never existed, or the mirror did not create it
            try:
                for name in (*FILE_NAMES, SYSTEM_PROMPT_FILE):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):  # it has other files, which are not ours to remove
                os.rmdir(session, dir_fd=root)

    @contextmanager
    def _open_root(self) -> Generator[int]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        root = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield root
        finally:
            os.close(root)

    def _read_cursor(self) -> int | None:
        try:
            with self._open_root() as root:
                file = os.open(CURSOR_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root)
                try:
                    return int(os.read(file, 32))
                finally:
                    os.close(file)
        except (OSError, ValueError):
            return None

    def _store_cursor(self, cursor: int) -> None:
        with self._open_root() as root:
            _replace(root, CURSOR_FILE, str(cursor).encode())


def _read_session(conn: sa.Connection, *, session: SessionId, first_seq: int) -> tuple[DaycareFiles | None, str | None]:
    return daycare_format.read_files(conn, id_=session, first_seq=first_seq), instructions.get_text(conn, session)


def _event_range(conn: sa.Connection) -> tuple[int, int]:
    return events.oldest_seq(conn) or 1, events.newest_seq(conn)


def _validate_id(session: str) -> str:
    """Return the id if it is a valid folder name. Raises `OSError` otherwise."""
    if not _ID.fullmatch(session):
        raise OSError(errno.EINVAL, "not a session's id", session[:64])
    return session


@contextmanager
def _open_folder(root: int, name: str) -> Generator[int]:
    """Open the folder with this name, and create it if needed. A link or a file with this name is removed first."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode=0o700, dir_fd=root)
    try:
        folder = os.open(name, flags, dir_fd=root)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        os.unlink(name, dir_fd=root)
        os.mkdir(name, mode=0o700, dir_fd=root)
        folder = os.open(name, flags, dir_fd=root)
    try:
        yield folder
    finally:
        os.close(folder)


def _is_file(folder: int, name: str) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _has_content(folder: int, name: str, content: bytes) -> bool:
    """Whether the file has exactly this content and need not be written."""
    if not _is_file(folder, name):
        return False
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        found = os.fstat(file)
        return found.st_size == len(content) and os.read(file, found.st_size) == content
    finally:
        os.close(file)


def _replace(folder: int, name: str, content: bytes) -> None:
    """Replace a file atomically. If the file is a link, the link is replaced and its target stays unchanged."""
    beside = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=folder)
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        _write_all(file, content)
    finally:
        os.close(file)
    os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _append(folder: int, name: str, content: bytes, *, size_bytes: int) -> bool:
    """Append data to a file.

    Returns False if another program has changed the file: it is not a regular file, has another size,
    or has a second hard link.
    """
    if not _is_file(folder, name):
        return False
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size != size_bytes:
            return False
        _write_all(file, content)
    finally:
        os.close(file)
    return True


def _write_all(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
