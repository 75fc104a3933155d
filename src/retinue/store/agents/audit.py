"""Read, write and verify the audit log.

Each entry is stored in the same commit as the change that it describes. There is one chain of
entries for each session and one for the server. The hash of an entry covers the previous entry of
its chain. An anchor records the position and hash of the last entry of a chain, so that `verify`
detects a chain that was truncated later.

Entries are appended in an open `Transaction`, which serializes all writes, so no two entries of a
chain get the same position. Appending several entries at once takes one query for the last entry of
the chain and one insert.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.audit import (
    ANCHOR_MISMATCH,
    BECAUSE_CHARS_MAX,
    CHAIN_TRUNCATED,
    GENESIS_HASH,
    NAME_CHARS_MAX,
    SERVER_CHAIN,
    AuditAnchor,
    AuditChainChecker,
    AuditChainFlaw,
    AuditEntry,
    AuditKind,
    AuditLink,
    hash_anchors,
    hash_link,
)
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.storable_text import make_storable
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, in_visible_session, principal_parameters, visibility_scope
from retinue.store.core.transaction import Transaction

FLAWS_MAX = 100
ENTRIES_PER_BATCH = 2_000
POSITION_MAX = 2**62
ChainPosition = tuple[str, int]  # a chain, and a position in it
AuditPosition = tuple[int, str, int]  # the time, chain and position of an entry
FIRST_POSITION: ChainPosition = (SERVER_CHAIN, -POSITION_MAX)
AFTER_ALL_CHAINS = "g"  # sorts after every session id: ids are hex digits
_AGENT_CHARS_MAX = 64
_DECISION_CHARS_MAX = 16

_b = sa.bindparam
_a, _n = t.audit, t.audit_anchors
_head = sa.select(_a.c.position, _a.c.hash).where(_a.c.chain == _b("chain")).order_by(_a.c.position.desc()).limit(1)
_insert = _a.insert()
_insert_anchor = _n.insert()


# --- write ---


def append(tx: Transaction, chain: str, entries: Sequence[AuditEntry]) -> None:
    """Append entries to a chain in an open transaction. `chain` is a session's id, or `SERVER_CHAIN` for the server.

    When a session's chain begins, an entry for it is added to the server's chain, so that `verify`
    can detect the deletion of a complete chain.
    """
    if not entries:
        return
    conn = tx.conn
    head = conn.execute(_head, {"chain": chain}).first()
    position, before = (head.position, head.hash) if head is not None else (0, GENESIS_HASH)
    if head is None and chain != SERVER_CHAIN:
        append(tx, SERVER_CHAIN, (AuditEntry(kind=AuditKind.CHAIN_BEGUN, who="server", subject=chain),))
    rows: list[dict[str, Any]] = []
    at_ms = tx.at_ms
    for entry in entries:
        position += 1
        row: dict[str, Any] = {
            "chain": chain,
            "position": position,
            "at_ms": at_ms,
            "kind": entry.kind.value,
            "who": _truncate(entry.who, NAME_CHARS_MAX),
            "agent": _truncate(entry.agent, _AGENT_CHARS_MAX),
            "run": entry.run,
            "subject": _truncate(entry.subject, NAME_CHARS_MAX),
            "verdict": _truncate(entry.verdict, _DECISION_CHARS_MAX),
            "because": _truncate(entry.because, BECAUSE_CHARS_MAX),
            "content": entry.content,
        }
        before = row["hash"] = hash_link(before, row)
        rows.append(row)
    conn.execute(_insert, rows)


def append_in_transaction(
    conn: sa.Connection, entries: Sequence[AuditEntry], *, now_ms: int, chain: str = SERVER_CHAIN
) -> None:
    """Open a transaction, append entries to a chain in it, and close it.

    A caller that has already opened a `Transaction` must call `append` instead.
    """
    tx = Transaction(conn, now_ms)
    append(tx, chain, entries)
    tx.close()


def _truncate(text: str, chars_max: int) -> str:
    return text if text.isascii() and len(text) <= chars_max and "\0" not in text else make_storable(text)[:chars_max]


# --- anchors ---

_last_anchor = sa.select(sa.func.max(_n.c.at_ms))
_grown_chains = (
    sa.select(_a.c.chain, sa.func.max(_a.c.position).label("position"))
    .where(_a.c.at_ms >= _b("since"))
    .group_by(_a.c.chain)
)
_hash_by_position = sa.select(_a.c.hash).where(_a.c.chain == _b("chain"), _a.c.position == _b("position"))
_last_anchored_position = sa.select(sa.func.max(_n.c.position)).where(
    _n.c.chain == _b("chain"), _n.c.at_ms == _b("since")
)


def add_anchors(conn: sa.Connection, *, now_ms: int) -> AuditAnchor | None:
    """Store an anchor (position and hash of the last entry) for each chain that has grown since the last anchors.

    Returns the anchor of the server's chain, or None if no chain has new entries. That anchor also
    covers the other anchors. Store it outside the database, for example in the log, so that it can
    be passed to `verify` later.
    """
    tx = Transaction(conn, now_ms)
    since: int = conn.execute(_last_anchor).scalar() or 0
    moved = [
        AuditAnchor(tx.at_ms, row.chain, row.position, _hash_at(conn, row.chain, row.position))
        for row in conn.execute(_grown_chains, {"since": since}).all()
        if row.position != conn.execute(_last_anchored_position, {"chain": row.chain, "since": since}).scalar()
    ]
    if not moved or tx.at_ms <= since:
        return None
    others = [each for each in moved if each.chain != SERVER_CHAIN]
    entry = AuditEntry(kind=AuditKind.ANCHORED, who="server", subject=f"{len(others)}", content=hash_anchors(others))
    append(tx, SERVER_CHAIN, (entry,))
    head = conn.execute(_head, {"chain": SERVER_CHAIN}).one()
    own = AuditAnchor(tx.at_ms, SERVER_CHAIN, head.position, head.hash)
    conn.execute(_insert_anchor, [_anchor_row(each) for each in (*others, own)])
    tx.close()
    return own


def _hash_at(conn: sa.Connection, chain: str, position: int) -> str:
    return conn.execute(_hash_by_position, {"chain": chain, "position": position}).scalar() or ""


def _anchor_row(anchor: AuditAnchor) -> dict[str, Any]:
    return {"at_ms": anchor.at_ms, "chain": anchor.chain, "position": anchor.position, "hash": anchor.hash}


# --- verify ---

_COLUMNS = (
    _a.c.chain,
    _a.c.position,
    _a.c.at_ms,
    _a.c.kind,
    _a.c.who,
    _a.c.agent,
    _a.c.run,
    _a.c.subject,
    _a.c.verdict,
    _a.c.because,
    _a.c.content,
    _a.c.hash,
)
_select_all_chains = (
    sa.select(*_COLUMNS)
    .where(sa.tuple_(_a.c.chain, _a.c.position) > sa.tuple_(_b("after_chain"), _b("after_position")))
    .order_by(_a.c.chain, _a.c.position)
    .limit(_b("limit"))
)
_select_chain = (
    sa.select(*_COLUMNS)
    .where(_a.c.chain == _b("after_chain"), _a.c.position > _b("after_position"))
    .order_by(_a.c.position)
    .limit(_b("limit"))
)
_mismatched_anchors = (
    sa.select(_n.c.chain, _n.c.position, _a.c.hash)
    .outerjoin_from(_n, _a, sa.and_(_a.c.chain == _n.c.chain, _a.c.position == _n.c.position))
    .where(sa.or_(_a.c.hash.is_(None), _a.c.hash != _n.c.hash))
    .order_by(_n.c.chain, _n.c.position)
    .limit(FLAWS_MAX)
)
_anchors = (
    sa.select(_n.c.at_ms, _n.c.chain, _n.c.position, _n.c.hash)
    .where(
        sa.tuple_(_n.c.chain, _n.c.position) > sa.tuple_(_b("after_chain"), _b("after_position")),
        sa.tuple_(_n.c.chain, _n.c.position) <= sa.tuple_(_b("last_chain"), _b("last_position")),
    )
    .order_by(_n.c.at_ms, _n.c.chain)
)
_anchor_entries = (
    sa.select(_a.c.position, _a.c.at_ms, _a.c.content)
    .where(_a.c.chain == SERVER_CHAIN, _a.c.kind == AuditKind.ANCHORED.value)
    .order_by(_a.c.position)
)
_anchors_at = sa.select(_n.c.at_ms, _n.c.chain, _n.c.position, _n.c.hash).where(_n.c.at_ms == _b("at"))


class AuditVerification(Struct, frozen=True, kw_only=True):
    """The result of `verify`: the numbers of entries, chains and anchors, and up to 100 flaws."""

    lines: int
    chains: int
    anchors: int
    flaws: tuple[AuditChainFlaw, ...]

    @property
    def is_intact(self) -> bool:
        return not self.flaws


def verify(conn: sa.Connection, *, chain: str | None = None, outside: Sequence[AuditAnchor] = ()) -> AuditVerification:
    """Check the hashes and anchors of every chain, or only of the given one.

    `outside` contains anchors that were kept outside the database, for example in a log.
    """
    checker, flaws = AuditChainChecker(), _FlawList()
    for link in iterate_entries(conn, chain):
        flaws.add(checker.check_link(link))
    if chain is None:
        flaws.add(checker.finish())
    flaws.add(_anchor_flaws(conn, chain))
    flaws.add(_anchor_entry_flaws(conn) if chain in (None, SERVER_CHAIN) else iter(()))
    for each in outside:
        found = _hash_at(conn, each.chain, each.position)
        if found != each.hash:
            flaws.add(iter((AuditChainFlaw(each.chain, each.position, ANCHOR_MISMATCH if found else CHAIN_TRUNCATED),)))
    anchors = conn.execute(sa.select(sa.func.count()).select_from(_n)).scalar_one()
    return AuditVerification(
        lines=checker.link_count, chains=checker.chain_count, anchors=anchors, flaws=tuple(flaws.flaws)
    )


class _FlawList:
    def __init__(self) -> None:
        self.flaws: list[AuditChainFlaw] = []

    def add(self, flaws: Iterator[AuditChainFlaw]) -> None:
        for flaw in flaws:
            if len(self.flaws) < FLAWS_MAX and flaw not in self.flaws:
                self.flaws.append(flaw)


def _anchor_flaws(conn: sa.Connection, chain: str | None) -> Iterator[AuditChainFlaw]:
    for row in conn.execute(_mismatched_anchors).all():
        if chain in (None, row.chain):
            yield AuditChainFlaw(row.chain, row.position, CHAIN_TRUNCATED if row.hash is None else ANCHOR_MISMATCH)


def _anchor_entry_flaws(conn: sa.Connection) -> Iterator[AuditChainFlaw]:
    """Compare the stored anchors with the server's chain, and yield a flaw for each difference.

    Whenever anchors are stored, an entry with one hash of them all is added to the server's chain.
    """
    known: set[int] = set()
    for row in conn.execute(_anchor_entries).all():
        known.add(row.at_ms)
        found = [AuditAnchor(*each) for each in conn.execute(_anchors_at, {"at": row.at_ms}).all()]
        own = [each for each in found if each.chain == SERVER_CHAIN]
        others = [each for each in found if each.chain != SERVER_CHAIN]
        if hash_anchors(others) != row.content or [each.position for each in own] != [row.position]:
            yield AuditChainFlaw(SERVER_CHAIN, row.position, "the anchors stored with it have changed")
    for (at_ms,) in conn.execute(sa.select(_n.c.at_ms).distinct()).all():
        if at_ms not in known:
            yield AuditChainFlaw(SERVER_CHAIN, 0, f"no entry records the anchors of {at_ms}")


def iterate_entries(conn: sa.Connection, chain: str | None = None) -> Iterator[AuditLink]:
    """Yield the entries of one chain or of all chains, in order. They are read in batches to limit memory."""
    place: ChainPosition = (chain or SERVER_CHAIN, -POSITION_MAX)
    while found := list_after(conn, chain=chain, after=place, limit=ENTRIES_PER_BATCH):
        yield from found
        place = (found[-1].chain, found[-1].position)


def list_after(conn: sa.Connection, *, chain: str | None, after: ChainPosition, limit: int) -> list[AuditLink]:
    """Return the next entries after a position, of all chains or of the given one."""
    bounds = {"after_chain": after[0], "after_position": after[1], "limit": limit}
    return [AuditLink(*row) for row in conn.execute(_select_all_chains if chain is None else _select_chain, bounds)]


def list_anchors(
    conn: sa.Connection, *, after: ChainPosition = FIRST_POSITION, last: ChainPosition | None = None
) -> list[AuditAnchor]:
    """Return the anchors after the position `after`, up to and including `last` if it is given.

    A position is a chain and the number of an entry in it. Each entry has at most one anchor, so a
    limited range contains a limited number of anchors.
    """
    last_chain, last_position = last or (AFTER_ALL_CHAINS, POSITION_MAX)
    bounds = {"after_chain": after[0], "after_position": after[1]}
    rows = conn.execute(_anchors, {**bounds, "last_chain": last_chain, "last_position": last_position})
    return [AuditAnchor(*row) for row in rows]


# --- lists ---

_FILTERS: dict[str, sa.ColumnElement[bool]] = {
    "chain": _a.c.chain == _b("the_chain"),
    "kind": _a.c.kind == _b("the_kind"),
    "agent": _a.c.agent == _b("the_agent"),
    "who": _a.c.who == _b("the_who"),
    "since": _a.c.at_ms >= _b("the_since"),
}
_COMBINATIONS = [
    frozenset(some) for size in range(len(_FILTERS) + 1) for some in itertools.combinations(_FILTERS, size)
]
_latest_first = PerScope(
    lambda scope: {
        filtered: sa.select(*_COLUMNS)
        .where(
            in_visible_session(scope, _a.c.chain),
            sa.or_(
                _a.c.at_ms < _b("at"),
                sa.and_(_a.c.at_ms == _b("at"), _a.c.chain > _b("after_chain")),
                sa.and_(_a.c.at_ms == _b("at"), _a.c.chain == _b("after_chain"), _a.c.position < _b("before_position")),
            ),
            *(_FILTERS[name] for name in sorted(filtered)),
        )
        .order_by(_a.c.at_ms.desc(), _a.c.chain, _a.c.position.desc())
        .limit(_b("limit"))
        for filtered in _COMBINATIONS
    }
)


def list_entries(
    conn: sa.Connection,
    *,
    limit: int,
    before: AuditPosition | None = None,
    chain: str | None = None,
    kind: str = "",
    agent: str = "",
    who: str = "",
    since_ms: int | None = None,
    seen_by: Principal = SERVER_PRINCIPAL,
) -> list[AuditLink]:
    """List the audit entries of the chains that the caller can see, newest first.

    Only the owner sees the server's chain.
    """
    at_ms, after_chain, position = before or (POSITION_MAX, SERVER_CHAIN, 0)
    wanted = {"chain": chain, "kind": kind or None, "agent": agent or None, "who": who or None, "since": since_ms}
    given = {f"the_{name}": value for name, value in wanted.items() if value is not None}
    filtered = frozenset(name for name, value in wanted.items() if value is not None)
    bounds = {"at": at_ms, "after_chain": after_chain, "before_position": position, "limit": limit}
    rows = conn.execute(
        _latest_first[visibility_scope(seen_by)][filtered], {**bounds, **given, **principal_parameters(seen_by)}
    )
    return [AuditLink(*row) for row in rows]
