"""How far files can be believed. What was written from untrusted words is untrusted, and so is whatever reads it.

A file without a label is the house's own. There are three kinds of labels, all in one table by a key:

    /path/of/file       untrusted: until it is written anew, as a whole, from words that can be believed
                        private: written so, and not changed since (its ctime is still `at_ms`)
    /path/of/folder/    a command ran here that could have carried something in: whatever has changed since `at_ms`.
                        person: it ran for someone who may not change this path (a file as well, there or not)
    sha256:HASH         these bytes came from outside, wherever they lie

A ctime is what no program can set, so a file that was changed behind our back is told from one that was not. It comes
from another clock than ours and is coarse: `CTIME_SLACK_MS` stands between them, on the side of doubt. A clock that is
set back by more while a command runs hides what the command changes.

Paths are resolved by the caller. Finding the label of a file is one look by key.
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

CTIME_SLACK_MS = 2_000  # some file systems count in two seconds
LABELS_AT_ONCE_MAX = 500
LABEL_REST_MS = 3_600_000  # a label is made before its file is, so a young one without a file is not yet left over

_KEYS_AT_ONCE = 24
_CONTENT = "sha256:"

_b = sa.bindparam
_f = t.file_labels.c
_UNTRUSTED = t.word(f"'{Trust.UNTRUSTED}'")
_by_keys = sa.select(t.file_labels).where(_f.path.in_([_b(f"key{i}") for i in range(_KEYS_AT_ONCE)]))
# By range where paths are ordered by their bytes. Elsewhere an order may pass over signs such as `/`, so each label is
# looked at. Not LIKE: it has signs of its own.
_below_in_order = sa.select(t.file_labels).where(_f.path >= _b("folder"), _f.path < _b("beyond"))
_below_anyhow = sa.select(t.file_labels).where(sa.func.substr(_f.path, 1, _b("length")) == _b("folder"))
_any_untrusted = sa.select(_f.path).where(_f.trust == _UNTRUSTED).limit(1)
_page = sa.select(t.file_labels).where(_f.path > _b("after")).order_by(_f.path).limit(LABELS_AT_ONCE_MAX)
_insert = t.file_labels.insert()
_remove = t.file_labels.delete().where(_f.path == _b("the_path"))
_remove_unchanged = t.file_labels.delete().where(_f.path == _b("the_path"), _f.at_ms == _b("the_at"))
_doubted = sa.select(_f.path).where(_f.trust == t.word(f"'{Trust.PERSON}'"))
_remove_clean = t.file_labels.delete().where(_f.trust == t.word(f"'{Trust.PRIVATE}'"))


class Label(Struct, frozen=True):
    key: str
    trust: Trust
    at_ms: int


class Labels(Struct, frozen=True):
    """What was known, at one moment, about some files and the folders above them."""

    by_key: Mapping[str, Label]

    def trust(self, path: str, *, ctime_ms: int, content: str = "") -> Trust:
        """How far this file can be believed as it was when it had this ctime. `content` is the hash of its bytes."""
        own = self.by_key.get(path)
        if own is not None:
            if own.trust is Trust.UNTRUSTED:
                return Trust.UNTRUSTED
            if own.at_ms == ctime_ms:
                return Trust.PRIVATE
        if content and _CONTENT + content in self.by_key:
            return Trust.UNTRUSTED
        above = (self.by_key.get(key) for key in _folder_keys(path))
        if any(label is not None and ctime_ms >= label.at_ms - CTIME_SLACK_MS for label in above):
            return Trust.UNTRUSTED
        return Trust.PRIVATE


def ctime_ms(status: os.stat_result) -> int:
    return status.st_ctime_ns // 1_000_000


def around(conn: sa.Connection, path: str, *, content: str = "") -> Labels:
    """What is known about one file: its own label, those of the folders it lies in, that of its bytes."""
    keys = [path, *_folder_keys(path), *([_CONTENT + content] if content else [])]
    return Labels({label.key: label for label in _read(conn, keys)})


def below(conn: sa.Connection, folder: str) -> Labels:
    """What is known about everything in a folder."""
    prefix = folder.rstrip("/") + "/"
    if conn.dialect.name == "sqlite":
        rows = conn.execute(_below_in_order, {"folder": prefix, "beyond": prefix[:-1] + chr(ord("/") + 1)})
    else:
        rows = conn.execute(_below_anyhow, {"folder": prefix, "length": len(prefix)})
    return Labels({**around(conn, folder).by_key, **{row.path: _label(row) for row in rows}})


def label(conn: sa.Connection, path: str, *, ctime_ms: int, content: str = "") -> Trust:
    return around(conn, path, content=content).trust(path, ctime_ms=ctime_ms, content=content)


def mark_untrusted(conn: sa.Connection, paths: Iterable[str], *, at_ms: int, run: RunId | None) -> None:
    """Before they are written: should the house stop in between, it doubts a file too many, not one too few."""
    for path in paths:
        _put(conn, Label(path, Trust.UNTRUSTED, at_ms), run)


def is_needed(conn: sa.Connection, path: str) -> bool:
    """Whether a file that can be believed has to be told from others."""
    return bool(_read(conn, [path, f"{path}/"])) or conn.execute(_any_untrusted).first() is not None


def mark_clean(conn: sa.Connection, path: str, *, ctime_ms: int, run: RunId | None) -> None:
    """After it was written as a whole from words that can be believed. Only as long as it keeps this ctime.

    Where nothing is untrusted there is nothing to tell it from, and no label is kept.
    """
    conn.execute(_remove, {"the_path": path})
    if conn.execute(_any_untrusted).first() is not None or _read(conn, [f"{path}/"]):
        _put(conn, Label(path, Trust.PRIVATE, ctime_ms), run)


def mark_content(conn: sa.Connection, hashes: Iterable[str], *, at_ms: int, run: RunId | None = None) -> None:
    """Bytes that came from outside, by the hash that attachments are named by."""
    for hash_ in hashes:
        _put(conn, Label(_CONTENT + hash_, Trust.UNTRUSTED, at_ms), run)


def content_trust(conn: sa.Connection, hash_: str) -> Trust:
    return Trust.UNTRUSTED if _read(conn, [_CONTENT + hash_]) else Trust.PRIVATE


def taint_folder(conn: sa.Connection, path: str, at_ms: int, run: RunId | None) -> None:
    """Whatever in this folder has changed since is untrusted. The earliest moment stays: no later one undoes it."""
    key = path.rstrip("/") + "/"
    known = _read(conn, [key])
    _put(conn, Label(key, Trust.UNTRUSTED, min([at_ms, *(label.at_ms for label in known)])), run)


def doubt_changes(conn: sa.Connection, paths: Mapping[str, int | None], *, since_ms: int, run: RunId | None) -> None:
    """Whatever changes at these paths from now on is untrusted. Each has the ctime of what is there, None where nothing
    is. The paths alone say nothing of other files: a command that can reach them is not doubted for it."""
    for path, ctime in paths.items():
        at_ms = since_ms if ctime is None else ctime + 1 + CTIME_SLACK_MS  # as it is now, it stays trusted
        key = path.rstrip("/") + "/"
        known = _read(conn, [key])
        if not any(label.trust is Trust.UNTRUSTED or label.at_ms <= at_ms for label in known):
            _put(conn, Label(key, Trust.PERSON, at_ms), run)


def doubted(conn: sa.Connection) -> list[str]:
    """The paths of which changes are doubted because of whom a command worked for."""
    return [key.rstrip("/") for key in conn.execute(_doubted).scalars()]


def settle_changes(conn: sa.Connection, changed: Mapping[str, int | None]) -> None:
    """After the last command that could change these paths: drop the doubt where nothing was changed. `changed` has for
    each path the ctime of what is there now, None where nothing is."""
    for path, ctime in changed.items():
        for label in _read(conn, [f"{path}/"]):
            if label.trust is Trust.PERSON and (ctime is None or ctime < label.at_ms - CTIME_SLACK_MS):
                conn.execute(_remove, {"the_path": label.key})


def begin_command(
    conn: sa.Connection,
    *,
    readable: Sequence[str],
    writable: Sequence[str],
    untrusted: bool,
    at_ms: int,
    run: RunId | None,
) -> Trust:
    """Before a command begins: how far what it says can be believed. What it may write to is labelled accordingly.

    `untrusted`: the words that made it are, or it has a network. A command that can read something untrusted may also
    copy it or move it, and a file that was moved with its folder keeps its ctime. So whatever a command may write to is
    doubted since the earliest moment that anything it could reach was.
    """
    since = [at_ms] if untrusted else []
    if conn.execute(_any_untrusted).first() is None and not untrusted:
        return Trust.PRIVATE
    for folder in dict.fromkeys((*readable, *writable)):
        since += [each.at_ms for each in below(conn, folder).by_key.values() if each.trust is Trust.UNTRUSTED]
    if not since:
        return Trust.PRIVATE
    for folder in writable:
        taint_folder(conn, folder, min(since), run)
    return Trust.UNTRUSTED


def forget(conn: sa.Connection, labels: Iterable[Label]) -> int:
    """Remove labels, except where they have changed since they were looked at. Says how many went."""
    seen = [{"the_path": label.key, "the_at": label.at_ms} for label in labels]
    return sum(conn.execute(_remove_unchanged, each).rowcount for each in seen)


async def sweep(store: Store, *, now_ms: int, named: Callable[[str], bool]) -> int:
    """Remove the labels of files that are gone, and of bytes that `named` knows no more. Says how many."""
    removed = 0
    after = ""
    while page := await store.scan(partial(_read_page, after=after)):
        old = [label for label in page if label.at_ms < now_ms - LABEL_REST_MS]
        gone = await asyncio.to_thread(_left_over, old, named)
        if gone:
            removed += await store.write(partial(forget, labels=gone), point="purge")
        after = page[-1].key
    return removed + await store.write(_forget_needless, point="purge")


def _forget_needless(conn: sa.Connection) -> int:
    """Where nothing is untrusted, nothing has to be told from it."""
    if conn.execute(_any_untrusted).first() is not None:
        return 0
    return conn.execute(_remove_clean).rowcount


def _left_over(labels: Sequence[Label], named: Callable[[str], bool]) -> list[Label]:
    return [label for label in labels if _is_left_over(label, named)]


def _is_left_over(label: Label, named: Callable[[str], bool]) -> bool:
    if label.trust is Trust.PERSON:  # the command may still run, and make what is not there yet
        return False
    if label.key.startswith(_CONTENT):
        return not named(label.key.removeprefix(_CONTENT))
    try:
        os.lstat(label.key.rstrip("/") or "/")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # A disk that is not there just now says nothing about the files on it.
        return False
    return False


def _folder_keys(path: str) -> Iterator[str]:
    """The keys of every folder that a file lies in, and its own: a command may have been given a single file to write
    to."""
    yield "/"
    at = path.find("/", 1)
    while at > 0:
        yield path[: at + 1]
        at = path.find("/", at + 1)
    if path != "/":
        yield path + "/"


def _read(conn: sa.Connection, keys: Sequence[str]) -> list[Label]:
    found: list[Label] = []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[start : start + _KEYS_AT_ONCE]
        padded = [*some, *[some[0]] * (_KEYS_AT_ONCE - len(some))]
        found += [_label(row) for row in conn.execute(_by_keys, {f"key{i}": key for i, key in enumerate(padded)})]
    return found


def _read_page(conn: sa.Connection, *, after: str) -> list[Label]:
    return [_label(row) for row in conn.execute(_page, {"after": after})]


def _label(row: Any) -> Label:
    return Label(row.path, Trust(row.trust), row.at_ms)


def _put(conn: sa.Connection, label: Label, run: RunId | None) -> None:
    conn.execute(_remove, {"the_path": label.key})
    conn.execute(
        _insert,
        {
            "path": label.key,
            "trust": label.trust.value,
            "whole": label.key.endswith("/"),
            "run": run,
            "at_ms": label.at_ms,
        },
    )
