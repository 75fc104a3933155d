"""Access requests of unknown senders, and the senders that were admitted.

Few wait at once, and old ones are deleted.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.access import Pairing, PairingState
from retinue.domain.times import from_ms
from retinue.store.core import tables as t
from retinue.store.core.tables import word

KEPT_MS = 30 * 86_400_000  # how long decided or expired requests are stored

_b = sa.bindparam
_p, _a = t.pairings.c, t.admitted.c
_waits = _p.state == word("'waiting'")
_all = sa.select(t.pairings).order_by(_p.asked_ms.desc(), _p.id).limit(_b("limit"))
_get = sa.select(t.pairings).where(_p.id == _b("id"))
_by_code = sa.select(t.pairings).where(_waits, _p.code == _b("code"), _p.expires_ms > _b("now"))
_waiting = sa.select(t.pairings).where(_waits, _p.instance == _b("instance"), _p.speaker == _b("speaker"))
_count = sa.select(sa.func.count()).where(_waits, _p.instance == _b("instance"))
_count_open = _count.where(_p.expires_ms > _b("now"))
_expire = t.pairings.update().where(_waits, _p.expires_ms <= _b("now")).values(state=PairingState.EXPIRED.value)
_old = t.pairings.delete().where(_p.state != word("'waiting'"), _p.expires_ms <= _b("before"))
_insert = t.pairings.insert()
_decide = (
    t.pairings.update()
    .where(_p.id == _b("the_id"), _waits, _p.expires_ms > _b("now"))
    .values(state=_b("new_state"), decided_by=_b("who"), decided_ms=_b("now"))
)
_is_in = sa.select(sa.literal(1)).where(_a.instance == _b("instance"), _a.speaker == _b("speaker"))
_everyone_in = sa.select(t.admitted).order_by(_a.instance, _a.speaker)
_admit = t.admitted.insert()
_dismiss = t.admitted.delete().where(_a.instance == _b("the_instance"), _a.speaker == _b("the_speaker"))
_forget_in = t.pairings.delete().where(_p.service == _b("the_service"), _p.speaker == _b("the_speaker"))
_instances_of = sa.select(_p.instance).where(_p.service == _b("service"), _p.speaker == _b("speaker")).distinct()


class Admitted(Struct, frozen=True, kw_only=True):
    instance: str
    speaker: str
    by: str
    at_ms: int


class Asked(Struct, frozen=True, kw_only=True):
    """The result of an access request. If it `is_new`, the sender gets the code and the owner is notified."""

    pairing: Pairing | None
    is_new: bool = False


def _pairing(row: sa.Row[Any]) -> Pairing:
    return Pairing(
        id=row.id,
        instance=row.instance,
        service=row.service,
        speaker=row.speaker,
        name=row.name,
        code=row.code,
        state=PairingState(row.state),
        asked_at=from_ms(row.asked_ms),
        expires_at=from_ms(row.expires_ms),
        decided_by=row.decided_by,
        decided_at=from_ms(row.decided_ms) if row.decided_ms is not None else None,
    )


def latest(conn: sa.Connection, *, limit: int) -> list[Pairing]:
    return [_pairing(row) for row in conn.execute(_all, {"limit": limit})]


def get(conn: sa.Connection, id_: str) -> Pairing | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return _pairing(row) if row else None


def by_code(conn: sa.Connection, code: str, *, now_ms: int) -> Pairing | None:
    """Return the waiting request with this code, or None if two have it: then the owner must use the id."""
    rows = conn.execute(_by_code, {"code": code.upper(), "now": now_ms}).all()
    return _pairing(rows[0]) if len(rows) == 1 else None


def waiting(conn: sa.Connection, instance: str, speaker: str, *, now_ms: int) -> Pairing | None:
    row = conn.execute(_waiting, {"instance": instance, "speaker": speaker}).one_or_none()
    return _pairing(row) if row is not None and row.expires_ms > now_ms else None


def is_full(conn: sa.Connection, instance: str, *, cap: int, now_ms: int) -> bool:
    """Whether the maximum number is waiting.

    Checked before writing: beyond the cap, an unknown sender costs no commit.
    """
    return conn.execute(_count_open, {"instance": instance, "now": now_ms}).scalar_one() >= cap


def ask(conn: sa.Connection, pairing: Pairing, *, cap: int, at_ms: int) -> Asked:
    """Store an access request. A waiting sender keeps the existing code, and beyond the cap nothing is stored."""
    conn.execute(_expire, {"now": at_ms})
    conn.execute(_old, {"before": at_ms - KEPT_MS})
    if (there := waiting(conn, pairing.instance, pairing.speaker, now_ms=at_ms)) is not None:
        return Asked(pairing=there)
    if conn.execute(_count, {"instance": pairing.instance}).scalar_one() >= cap:
        return Asked(pairing=None)
    conn.execute(
        _insert,
        {
            "id": pairing.id,
            "instance": pairing.instance,
            "service": pairing.service,
            "speaker": pairing.speaker,
            "name": pairing.name,
            "code": pairing.code,
            "state": PairingState.WAITING.value,
            "asked_ms": at_ms,
            "expires_ms": at_ms + round((pairing.expires_at - pairing.asked_at).total_seconds() * 1000),
            "decided_by": "",
            "decided_ms": None,
        },
    )
    return Asked(pairing=get(conn, pairing.id), is_new=True)


def decide(conn: sa.Connection, id_: str, state: PairingState, *, by: str, at_ms: int) -> Pairing | None:
    """Accept or refuse a request. Returns None if it is no longer waiting: already decided, or expired."""
    values = {"the_id": id_, "new_state": state.value, "who": by, "now": at_ms}
    if not conn.execute(_decide, values).rowcount:
        return None
    pairing = get(conn, id_)
    if pairing is not None and state is PairingState.ACCEPTED:
        admit(conn, pairing.instance, pairing.speaker, by=by, at_ms=at_ms)
    return pairing


def is_admitted(conn: sa.Connection, instance: str, speaker: str) -> bool:
    return conn.execute(_is_in, {"instance": instance, "speaker": speaker}).scalar() is not None


def admitted(conn: sa.Connection) -> list[Admitted]:
    return [
        Admitted(instance=row.instance, speaker=row.speaker, by=row.by, at_ms=row.at_ms)
        for row in conn.execute(_everyone_in)
    ]


def admit(conn: sa.Connection, instance: str, speaker: str, *, by: str, at_ms: int) -> None:
    if not is_admitted(conn, instance, speaker):
        conn.execute(_admit, {"instance": instance, "speaker": speaker, "by": by, "at_ms": at_ms})


def dismiss(conn: sa.Connection, instance: str, speaker: str) -> bool:
    """Revoke the admission of a sender. Returns whether there was one."""
    return bool(conn.execute(_dismiss, {"the_instance": instance, "the_speaker": speaker}).rowcount)


def forget(conn: sa.Connection, service: str, speaker: str) -> None:
    """Delete all requests and admissions of a sender."""
    for row in conn.execute(_instances_of, {"service": service, "speaker": speaker}).all():
        dismiss(conn, row.instance, speaker)
    conn.execute(_forget_in, {"the_service": service, "the_speaker": speaker})
