"""Store attachments on disk. The name of a file is the hash of its content.

A file is completely written before the database refers to it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.errors import StoreError
from retinue.domain.shared_errors import AttachmentNotFound, AttachmentTooLarge
from retinue.store.envelopes.errors import (
    AttachmentDiskFailed,
    AttachmentDiskFull,
    AttachmentHashInvalid,
    AttachmentNotPlainFile,
)

ATTACHMENT_BYTES_MAX = 64 * 1024 * 1024
MEDIA_TYPE_LENGTH_MAX = 127
READ_CHUNK_BYTES = 1024 * 1024
RECENT_S = 3600.0
RECENT_MAX = 10_000

_HASH = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_REST = re.compile(r"[0-9a-f]{62}")
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
_MEDIA_TYPE_UNKNOWN = "application/octet-stream"
_TEMP_PREFIX = ".temp-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The root itself may be a link: its location is the owner's choice.
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO in place of a file must be rejected, not waited for.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCKABLE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NFS locks only files opened for writing


class AttachmentFiles:
    """The attachment directory, which only its owner can read. A file has the path `root/ab/cdef...`.

    The methods block, so async code must call them in a thread. Nothing outside `root` is read,
    written or removed: file names are hashes, which senders cannot choose, and links below `root`
    are not followed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count()
        self._place_lock = threading.Lock()
        self._recent: dict[str, float] = {}  # hash -> time, for everything stored in the last hour, new or not

    def store(self, chunks: Iterable[bytes], *, name: str, media_type: str) -> Attachment:
        """Store a file. When this returns, the file survives a crash. After an error, no partial file is visible.

        If a file with the same content exists, it is kept. If that file is damaged, it is replaced.
        Errors raised by `chunks` are not translated.
        """
        shown = safe_file_name(name)
        with _closing(self._open_root()) as root, self._temp_file(root) as (temp, writing):
            hash_, size_bytes = _write_chunks(writing, chunks, name=shown)
            with _translate_errors("store an attachment"):
                os.fsync(writing)
                with self._place_lock:
                    _move_into_place(root, temp, hash_)
                    self._mark_recent(hash_)
        return Attachment(hash=hash_, name=shown, media_type=safe_media_type(media_type), size_bytes=size_bytes)

    def path(self, hash: str) -> Path:
        """Return the path for the file with this hash. The file may not exist."""
        shard, rest = _split_hash(hash)
        return self._root / shard / rest

    def open(self, hash: str) -> BinaryIO:
        """Open the file with this hash for reading. Raises an error if it is not a regular file.

        The content is not compared with the hash. To do that, call `verify`.
        """
        shard_name, rest = _split_hash(hash)
        with _translate_errors("read an attachment"):
            try:
                with _closing(os.open(self._root, _ROOT)) as root, _closing(_open_shard(root, shard_name)) as shard:
                    return os.fdopen(_open_plain(shard, rest), "rb")
            except FileNotFoundError:
                raise AttachmentNotFound(
                    hash, because="its file was never stored here, or was deleted because nothing referred to it"
                ) from None

    def verify(self, hash: str) -> bool:
        """Whether the file exists and its content matches the hash."""
        shard_name, rest = _split_hash(hash)
        try:
            with _closing(os.open(self._root, _ROOT)) as root, _closing(_open_shard(root, shard_name)) as shard:
                return _is_intact(shard, rest, hash)
        except OSError:
            return False

    def list_unwanted(self, *, keep: Callable[[str], bool], before: datetime | None = None) -> list[str]:
        """List the hashes of the files that `sweep` would remove, because `keep` returns False for them."""
        found: list[str] = []
        with suppress(FileNotFoundError), _closing(os.open(self._root, _ROOT)) as root:
            for name in filter(_SHARD.fullmatch, _list_names(root)):
                with suppress(OSError), _closing(_open_shard(root, name)) as shard:
                    found += [name + rest for rest in _list_unwanted(shard, name, keep, before)]
        return found

    def sweep(self, *, keep: Callable[[str], bool], before: datetime | None = None) -> int:
        """Remove the files for which `keep` returns False, and partial files left by a crash.

        Returns the number of removed files. A file that is being written is not removed. A complete
        file looks unused until a commit refers to it. Call this only while no envelopes are being
        accepted, or pass `before`: then files that are newer, or that were stored again in the last
        hour, are not removed.
        """
        removed = 0
        with _translate_errors("delete unused attachments"):
            try:
                root_fd = os.open(self._root, _ROOT)
            except FileNotFoundError:
                return removed
        with _closing(root_fd) as root:
            for name in _list_names(root):
                if name.startswith(_TEMP_PREFIX):
                    removed += _remove_leftover(root, name)
                elif _SHARD.fullmatch(name):
                    removed += self._sweep_shard(root, name, keep, before)
        return removed

    def _sweep_shard(self, root: int, shard_name: str, keep: Callable[[str], bool], before: datetime | None) -> int:
        removed = 0
        try:
            shard_fd = _open_shard(root, shard_name)
        except OSError:  # A link or a regular file is not one of our shards and not ours to remove.
            return removed
        with _closing(shard_fd) as shard:
            for rest in _list_unwanted(shard, shard_name, keep, before):
                # Check again under the lock: it may have been stored again in between.
                with self._place_lock, suppress(OSError):  # The next sweep removes a file that cannot be removed now.
                    if not self._is_recent(shard_name + rest) or before is None:
                        os.unlink(rest, dir_fd=shard)
                        removed += 1
        return removed

    def _mark_recent(self, hash_: str) -> None:
        now = time.monotonic()
        self._recent[hash_] = now
        if len(self._recent) > RECENT_MAX:
            self._recent = {each: at for each, at in self._recent.items() if now - at < RECENT_S}

    def _is_recent(self, hash_: str) -> bool:
        at = self._recent.get(hash_)
        return at is not None and time.monotonic() - at < RECENT_S

    def _open_root(self) -> int:
        with _translate_errors("store an attachment"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._root, _ROOT)

    @contextmanager
    def _temp_file(self, root: int) -> Generator[tuple[str, int]]:
        """Create a locked temporary file in the root directory. It is removed at the end unless it was renamed."""
        with _translate_errors("store an attachment"):
            name, writing = self._create_temp_file(root)
        try:
            yield name, writing
        finally:
            with suppress(OSError):  # Usually because it was renamed. Cleanup must not hide the original error.
                os.unlink(name, dir_fd=root)
            os.close(writing)

    def _create_temp_file(self, root: int) -> tuple[str, int]:
        while True:
            name = f"{_TEMP_PREFIX}{os.getpid()}-{next(self._numbers)}"
            try:
                writing = os.open(name, _NEW, mode=0o600, dir_fd=root)
            except FileExistsError:  # left by a crashed process with the same pid; a sweep removes it
                continue
            # The lock distinguishes a file that is being written from the leftover of a crash.
            fcntl.flock(writing, fcntl.LOCK_EX)
            if os.fstat(writing).st_nlink:
                return name, writing
            os.close(writing)  # A sweep removed it between open and lock.


def _write_chunks(writing: int, chunks: Iterable[bytes], *, name: str) -> tuple[str, int]:
    digest = hashlib.sha256()
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > ATTACHMENT_BYTES_MAX:
            raise AttachmentTooLarge(name, bytes_max=ATTACHMENT_BYTES_MAX)
        digest.update(chunk)
        with _translate_errors("store an attachment"):
            left = memoryview(chunk)
            while left:
                left = left[os.write(writing, left) :]
    return digest.hexdigest(), size_bytes


def _move_into_place(root: int, temp: str, hash_: str) -> None:
    shard_name, rest = _split_hash(hash_)
    with suppress(FileExistsError):
        os.mkdir(shard_name, mode=0o700, dir_fd=root)
    with _closing(_open_shard(root, shard_name)) as shard:
        if not _is_intact(shard, rest, hash_):
            os.rename(temp, rest, src_dir_fd=root, dst_dir_fd=shard)  # replaces a link, never follows it
        # Also if the file existed: the process that wrote it may have crashed before this.
        os.fsync(shard)
        os.fsync(root)


def _list_unwanted(shard: int, shard_name: str, keep: Callable[[str], bool], before: datetime | None) -> Generator[str]:
    for rest in _list_names(shard):
        if _REST.fullmatch(rest) and not keep(shard_name + rest) and _is_older_than(shard, rest, before):
            yield rest


def _is_older_than(shard: int, rest: str, before: datetime | None) -> bool:
    if before is None:
        return True
    try:
        return os.stat(rest, dir_fd=shard, follow_symlinks=False).st_mtime < before.timestamp()
    except OSError:
        return False


def _remove_leftover(root: int, name: str) -> int:
    try:
        with _closing(os.open(name, _LOCKABLE, dir_fd=root)) as leftover:
            fcntl.flock(leftover, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=root)
    except OSError:  # Its writer is alive, or has just finished.
        return 0
    return 1


def _list_names(directory: int) -> list[str]:
    with _translate_errors("delete unused attachments"):
        return os.listdir(directory)


def _is_intact(shard: int, rest: str, hash_: str) -> bool:
    try:
        with os.fdopen(_open_plain(shard, rest), "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(READ_CHUNK_BYTES):
                digest.update(chunk)
    except (OSError, StoreError):
        return False
    return digest.hexdigest() == hash_


def _open_shard(root: int, shard_name: str) -> int:
    return os.open(shard_name, _DIRECTORY, dir_fd=root)


def _open_plain(shard: int, rest: str) -> int:
    reading = os.open(rest, _READ, dir_fd=shard)
    if stat.S_ISREG(os.fstat(reading).st_mode):
        return reading
    os.close(reading)
    raise AttachmentNotPlainFile("read an attachment")


def _split_hash(hash_: str) -> tuple[str, str]:
    if not _HASH.fullmatch(hash_):
        raise AttachmentHashInvalid(hash_)
    return hash_[:2], hash_[2:]


def safe_media_type(media_type: str) -> str:
    """Return a media type as `type/subtype`, without parameters. An invalid one becomes `application/octet-stream`."""
    plain = media_type[: 2 * MEDIA_TYPE_LENGTH_MAX].partition(";")[0].strip().lower()
    return plain if len(plain) <= MEDIA_TYPE_LENGTH_MAX and _MEDIA_TYPE.fullmatch(plain) else _MEDIA_TYPE_UNKNOWN


@contextmanager
def _closing(descriptor: int) -> Generator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors(action: str) -> Generator[None]:
    """Translate operating system errors into `StoreError`. `action` is what failed, for the error message."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AttachmentDiskFull(action) from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
            raise AttachmentNotPlainFile(action) from error
        raise AttachmentDiskFailed(
            action, because=os.strerror(error.errno) if error.errno else "no reason was given"
        ) from error
