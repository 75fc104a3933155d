"""Store which files are untrusted.

A file that was written from untrusted content is untrusted, and so is everything derived from it. A
file without a label has the trust level `private`. There are three kinds of labels, all in one
table and found by key:

    /path/of/file       untrusted: the file is untrusted until it is completely rewritten from trusted content
                        private: the file was completely rewritten; valid while its ctime equals `at_ms`
    /path/of/folder/    untrusted: a command that could have written untrusted content ran here, so everything
                        that has changed since `at_ms` is untrusted
                        person: a command ran for someone who may not change this path, so everything here that
                        has changed since `at_ms` is untrusted; the path may also be a file, or not exist
    sha256:HASH         untrusted: this content came from outside, whichever file contains it

Programs cannot set a ctime, so it reveals changes that were made without the server. But it is
coarse, and it comes from a different clock than the server's time. A change up to `CTIME_SLACK_MS`
before `at_ms` therefore also makes a file untrusted. If the clock is set back by more than that while
a command is running, changes by the command are not noticed.

Callers pass resolved paths.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.ids import RunId
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.connection import Store

CTIME_SLACK_MS = 2_000  # some file systems have a resolution of two seconds
LABELS_PER_BATCH_MAX = 500
LABEL_GRACE_MS = 3_600_000  # a label is stored before its file, so a recent one without a file is not yet obsolete

_KEYS_PER_QUERY = 24
_CONTENT_PREFIX = "sha256:"

_b = sa.bindparam
_f = t.file_trust.c
_UNTRUSTED = t.sql_literal(f"'{Trust.UNTRUSTED}'")
_by_keys = sa.select(t.file_trust).where(_f.path.in_([_b(f"key{i}") for i in range(_KEYS_PER_QUERY)]))
# A search by range, for databases that order strings by their bytes. Other collations may ignore characters such as
# `/`, so there each label is compared. LIKE is not used, because paths may contain its special characters.
_below_by_range = sa.select(t.file_trust).where(_f.path >= _b("folder"), _f.path < _b("beyond"))
_below_by_prefix = sa.select(t.file_trust).where(sa.func.substr(_f.path, 1, _b("length")) == _b("folder"))
_any_untrusted = sa.select(_f.path).where(_f.trust == _UNTRUSTED).limit(1)
_select_page = sa.select(t.file_trust).where(_f.path > _b("after")).order_by(_f.path).limit(LABELS_PER_BATCH_MAX)
_insert = t.file_trust.insert()
_remove = t.file_trust.delete().where(_f.path == _b("the_path"))
_remove_unchanged = t.file_trust.delete().where(_f.path == _b("the_path"), _f.at_ms == _b("the_at"))
_paths_with_distrusted_changes = sa.select(_f.path).where(_f.trust == t.sql_literal(f"'{Trust.PERSON}'"))
_remove_clean = t.file_trust.delete().where(_f.trust == t.sql_literal(f"'{Trust.PRIVATE}'"))


class FileLabel(Struct, frozen=True):
    key: str
    trust: Trust
    at_ms: int


class FileLabels(Struct, frozen=True):
    """A snapshot of the labels that apply to some files, including labels of the directories above them."""

    by_key: Mapping[str, FileLabel]

    def get_trust(self, path: str, *, ctime_ms: int, content: str = "") -> Trust:
        """Return the trust of the file at `path`, from its ctime and the hash of its content."""
        own = self.by_key.get(path)
        if own is not None:
            if own.trust is Trust.UNTRUSTED:
                return Trust.UNTRUSTED
            if own.at_ms == ctime_ms:
                return Trust.PRIVATE
        if content and _CONTENT_PREFIX + content in self.by_key:
            return Trust.UNTRUSTED
        above = (self.by_key.get(key) for key in _directory_keys(path))
        if any(label is not None and ctime_ms >= label.at_ms - CTIME_SLACK_MS for label in above):
            return Trust.UNTRUSTED
        return Trust.PRIVATE


def ctime_ms(status: os.stat_result) -> int:
    return status.st_ctime_ns // 1_000_000


def get_file_labels(conn: sa.Connection, path: str, *, content: str = "") -> FileLabels:
    """Return the labels that apply to a file: those of the file, of the directories above it, and of its content."""
    keys = [path, *_directory_keys(path), *([_CONTENT_PREFIX + content] if content else [])]
    return FileLabels({label.key: label for label in _read(conn, keys)})


def get_directory_labels(conn: sa.Connection, folder: str) -> FileLabels:
    """Return the labels that apply to the files in a directory."""
    prefix = folder.rstrip("/") + "/"
    if conn.dialect.name == "sqlite":
        rows = conn.execute(_below_by_range, {"folder": prefix, "beyond": prefix[:-1] + chr(ord("/") + 1)})
    else:
        rows = conn.execute(_below_by_prefix, {"folder": prefix, "length": len(prefix)})
    return FileLabels({**get_file_labels(conn, folder).by_key, **{row.path: _label_from_row(row) for row in rows}})


def get_trust(conn: sa.Connection, path: str, *, ctime_ms: int, content: str = "") -> Trust:
    return get_file_labels(conn, path, content=content).get_trust(path, ctime_ms=ctime_ms, content=content)


def mark_untrusted(conn: sa.Connection, paths: Iterable[str], *, at_ms: int, run: RunId | None) -> None:
    """Mark files as untrusted. Call this before the files are written.

    If the server crashes before they are written, a trusted file may be marked, but an untrusted
    file is never left unmarked.
    """
    for path in paths:
        _upsert(conn, FileLabel(path, Trust.UNTRUSTED, at_ms), run)


def is_needed(conn: sa.Connection, path: str) -> bool:
    """Whether a file that was written from trusted content needs a label.

    It does if the file already has a label, or if any file or content is untrusted.
    """
    return bool(_read(conn, [path, f"{path}/"])) or conn.execute(_any_untrusted).first() is not None


def mark_clean(conn: sa.Connection, path: str, *, ctime_ms: int, run: RunId | None) -> None:
    """Mark a file as trusted, because it was completely written from trusted content.

    The label is valid only while the file has this ctime. No label is stored if nothing is untrusted
    and `distrust_changes` has not labeled the file, because the file is trusted without a label then.
    """
    conn.execute(_remove, {"the_path": path})
    if conn.execute(_any_untrusted).first() is not None or _read(conn, [f"{path}/"]):
        _upsert(conn, FileLabel(path, Trust.PRIVATE, ctime_ms), run)


def mark_content(conn: sa.Connection, hashes: Iterable[str], *, at_ms: int, run: RunId | None = None) -> None:
    """Mark content from outside as untrusted, whichever file contains it. `hashes` are SHA-256, as for attachments."""
    for hash_ in hashes:
        _upsert(conn, FileLabel(_CONTENT_PREFIX + hash_, Trust.UNTRUSTED, at_ms), run)


def content_trust(conn: sa.Connection, hash_: str) -> Trust:
    return Trust.UNTRUSTED if _read(conn, [_CONTENT_PREFIX + hash_]) else Trust.PRIVATE


def distrust_directory(conn: sa.Connection, path: str, at_ms: int, run: RunId | None) -> None:
    """Mark everything in this directory that has changed since `at_ms` as untrusted.

    If the directory already has a label with an earlier time, the earlier time is kept.
    """
    key = path.rstrip("/") + "/"
    known = _read(conn, [key])
    _upsert(conn, FileLabel(key, Trust.UNTRUSTED, min([at_ms, *(label.at_ms for label in known)])), run)


def distrust_changes(conn: sa.Connection, paths: Mapping[str, int | None], *, since_ms: int, run: RunId | None) -> None:
    """Store labels that make files at or below the given paths untrusted if they change from now on.

    `paths` maps each path to the current ctime of its file, or to None if there is no file. Unlike
    other labels, the labels stored here do not affect commands: the output of a command that can
    read these files is not made untrusted.
    """
    for path, ctime in paths.items():
        at_ms = since_ms if ctime is None else ctime + 1 + CTIME_SLACK_MS  # its current state stays trusted
        key = path.rstrip("/") + "/"
        known = _read(conn, [key])
        if not any(label.trust is Trust.UNTRUSTED or label.at_ms <= at_ms for label in known):
            _upsert(conn, FileLabel(key, Trust.PERSON, at_ms), run)


def list_distrusted_changes(conn: sa.Connection) -> list[str]:
    """List the paths that `distrust_changes` marked because a command ran for a person who may not change them."""
    return [key.rstrip("/") for key in conn.execute(_paths_with_distrusted_changes).scalars()]


def clear_unchanged(conn: sa.Connection, changed: Mapping[str, int | None]) -> None:
    """Remove the labels of `distrust_changes` from paths that did not change.

    Call this after the last command that could change the paths. `changed` maps each path to the
    current ctime of its file, or to None if there is no file.
    """
    for path, ctime in changed.items():
        for label in _read(conn, [f"{path}/"]):
            if label.trust is Trust.PERSON and (ctime is None or ctime < label.at_ms - CTIME_SLACK_MS):
                conn.execute(_remove, {"the_path": label.key})


def label_command(
    conn: sa.Connection,
    *,
    readable: Sequence[str],
    writable: Sequence[str],
    untrusted: bool,
    at_ms: int,
    run: RunId | None,
) -> Trust:
    """Label what a command may write to, and return the trust of its output. Call this before the command starts.

    `untrusted` means that the command was made from untrusted content, or has network access. A
    command that can read untrusted files may also copy or move them, and a file that is moved with
    its directory keeps its ctime. The labels therefore apply to everything that has changed since
    the earliest time at which something readable became untrusted.
    """
    since = [at_ms] if untrusted else []
    if conn.execute(_any_untrusted).first() is None and not untrusted:
        return Trust.PRIVATE
    for folder in dict.fromkeys((*readable, *writable)):
        since += [
            each.at_ms for each in get_directory_labels(conn, folder).by_key.values() if each.trust is Trust.UNTRUSTED
        ]
    if not since:
        return Trust.PRIVATE
    for folder in writable:
        distrust_directory(conn, folder, min(since), run)
    return Trust.UNTRUSTED


def delete_labels(conn: sa.Connection, labels: Iterable[FileLabel]) -> int:
    """Delete these labels, except those that were changed after they were read. Returns the number deleted."""
    seen = [{"the_path": label.key, "the_at": label.at_ms} for label in labels]
    return sum(conn.execute(_remove_unchanged, each).rowcount for each in seen)


async def sweep(store: Store, *, now_ms: int, is_named: Callable[[str], bool]) -> int:
    """Delete the labels of deleted files, and of content for which `is_named` returns False.

    `is_named` returns whether anything still refers to the content with a given hash. Returns the
    number of deleted labels.
    """
    removed = 0
    after = ""
    while page := await store.scan(partial(_read_page, after=after)):
        old = [label for label in page if label.at_ms < now_ms - LABEL_GRACE_MS]
        gone = await asyncio.to_thread(_list_obsolete, old, is_named)
        if gone:
            removed += await store.write(partial(delete_labels, labels=gone), point="purge")
        after = page[-1].key
    return removed + await store.write(_delete_needless, point="purge")


def _delete_needless(conn: sa.Connection) -> int:
    """Delete the labels of trusted files if nothing is untrusted, because then they have no effect.

    Returns the number of deleted labels.
    """
    if conn.execute(_any_untrusted).first() is not None:
        return 0
    return conn.execute(_remove_clean).rowcount


def _list_obsolete(labels: Sequence[FileLabel], is_named: Callable[[str], bool]) -> list[FileLabel]:
    return [label for label in labels if _is_obsolete(label, is_named)]


def _is_obsolete(label: FileLabel, is_named: Callable[[str], bool]) -> bool:
    if label.trust is Trust.PERSON:  # the command may still be running and create the file
        return False
    if label.key.startswith(_CONTENT_PREFIX):
        return not is_named(label.key.removeprefix(_CONTENT_PREFIX))
    try:
        os.lstat(label.key.rstrip("/") or "/")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # A disk that is unavailable now says nothing about its files.
        return False
    return False


def _directory_keys(path: str) -> Iterator[str]:
    """Yield the key of each directory above a path, and the directory key of the path itself.

    The path itself may be a file: if a command may write to a single file, that file is labeled
    with a directory key.
    """
    yield "/"
    at = path.find("/", 1)
    while at > 0:
        yield path[: at + 1]
        at = path.find("/", at + 1)
    if path != "/":
        yield path + "/"


def _read(conn: sa.Connection, keys: Sequence[str]) -> list[FileLabel]:
    found: list[FileLabel] = []
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        some = keys[start : start + _KEYS_PER_QUERY]
        padded = [*some, *[some[0]] * (_KEYS_PER_QUERY - len(some))]
        found += [
            _label_from_row(row) for row in conn.execute(_by_keys, {f"key{i}": key for i, key in enumerate(padded)})
        ]
    return found


def _read_page(conn: sa.Connection, *, after: str) -> list[FileLabel]:
    return [_label_from_row(row) for row in conn.execute(_select_page, {"after": after})]


def _label_from_row(row: Any) -> FileLabel:
    return FileLabel(row.path, Trust(row.trust), row.at_ms)


def _upsert(conn: sa.Connection, label: FileLabel, run: RunId | None) -> None:
    conn.execute(_remove, {"the_path": label.key})
    conn.execute(
        _insert,
        {
            "path": label.key,
            "trust": label.trust.value,
            "is_directory": label.key.endswith("/"),
            "run": run,
            "at_ms": label.at_ms,
        },
    )
