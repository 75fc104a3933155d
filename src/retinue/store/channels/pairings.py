"""Store access requests (pairings) from unknown senders, and the senders that were admitted.

The number of waiting requests for each connector is limited, and old requests are deleted.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.access import Pairing, PairingState
from retinue.domain.times import from_ms
from retinue.store.core import tables as t
from retinue.store.core.tables import sql_literal

RETENTION_MS = 30 * 86_400_000  # how long decided or expired requests are stored

_b = sa.bindparam
_p, _a = t.pairings.c, t.admitted_senders.c
_is_waiting = _p.state == sql_literal("'waiting'")
_all = sa.select(t.pairings).order_by(_p.asked_ms.desc(), _p.id).limit(_b("limit"))
_get = sa.select(t.pairings).where(_p.id == _b("id"))
_by_code = sa.select(t.pairings).where(_is_waiting, _p.code == _b("code"), _p.expires_ms > _b("now"))
_waiting = sa.select(t.pairings).where(_is_waiting, _p.connector == _b("connector"), _p.sender == _b("sender"))
_count = sa.select(sa.func.count()).where(_is_waiting, _p.connector == _b("connector"))
_count_open = _count.where(_p.expires_ms > _b("now"))
_expire = t.pairings.update().where(_is_waiting, _p.expires_ms <= _b("now")).values(state=PairingState.EXPIRED.value)
_delete_old = t.pairings.delete().where(_p.state != sql_literal("'waiting'"), _p.expires_ms <= _b("before"))
_insert = t.pairings.insert()
_decide = (
    t.pairings.update()
    .where(_p.id == _b("the_id"), _is_waiting, _p.expires_ms > _b("now"))
    .values(state=_b("new_state"), decided_by=_b("who"), decided_ms=_b("now"))
)
_is_admitted = sa.select(sa.literal(1)).where(_a.connector == _b("connector"), _a.sender == _b("sender"))
_all_admitted = sa.select(t.admitted_senders).order_by(_a.connector, _a.sender)
_admit = t.admitted_senders.insert()
_revoke_admission = t.admitted_senders.delete().where(
    _a.connector == _b("the_instance"), _a.sender == _b("the_sender_id")
)
_delete_of_sender = t.pairings.delete().where(_p.platform == _b("the_service"), _p.sender == _b("the_sender_id"))
_other_platforms = sa.select(_p.connector).where(_p.platform != _b("the_service"))
_revoke_admissions_of_sender = t.admitted_senders.delete().where(
    _a.sender == _b("the_sender_id"), _a.connector.not_in(_other_platforms)
)


class AdmittedSender(Struct, frozen=True, kw_only=True):
    instance: str
    sender_id: str
    by: str
    at_ms: int


class PairingRequestResult(Struct, frozen=True, kw_only=True):
    """The result of an access request.

    If `is_new` is true, the caller sends the code to the sender and notifies the owner. `pairing`
    is None if too many requests are waiting.
    """

    pairing: Pairing | None
    is_new: bool = False


def _pairing_from_row(row: sa.Row[Any]) -> Pairing:
    return Pairing(
        id=row.id,
        connector=row.connector,
        platform=row.platform,
        sender_id=row.sender,
        name=row.name,
        code=row.code,
        state=PairingState(row.state),
        requested_at=from_ms(row.asked_ms),
        expires_at=from_ms(row.expires_ms),
        decided_by=row.decided_by,
        decided_at=from_ms(row.decided_ms) if row.decided_ms is not None else None,
    )


def list_latest(conn: sa.Connection, *, limit: int) -> list[Pairing]:
    return [_pairing_from_row(row) for row in conn.execute(_all, {"limit": limit})]


def get(conn: sa.Connection, id_: str) -> Pairing | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return _pairing_from_row(row) if row else None


def find_by_code(conn: sa.Connection, code: str, *, now_ms: int) -> Pairing | None:
    """Return the waiting request with this code.

    Returns None if there is no such request, or if two requests have the same code. In the latter
    case the owner must use the request's id.
    """
    rows = conn.execute(_by_code, {"code": code.upper(), "now": now_ms}).all()
    return _pairing_from_row(rows[0]) if len(rows) == 1 else None


def get_waiting(conn: sa.Connection, connector: str, sender_id: str, *, now_ms: int) -> Pairing | None:
    row = conn.execute(_waiting, {"connector": connector, "sender": sender_id}).one_or_none()
    return _pairing_from_row(row) if row is not None and row.expires_ms > now_ms else None


def is_full(conn: sa.Connection, connector: str, *, cap: int, now_ms: int) -> bool:
    """Whether a connector has reached the limit of waiting access requests.

    Check this before calling `request_access`, so that requests beyond the limit cause no commit.
    """
    return conn.execute(_count_open, {"connector": connector, "now": now_ms}).scalar_one() >= cap


def request_access(conn: sa.Connection, pairing: Pairing, *, cap: int, at_ms: int) -> PairingRequestResult:
    """Store an access request, unless the connector has too many waiting requests.

    If the sender already has a waiting request, returns that request, so its code stays the same.
    """
    conn.execute(_expire, {"now": at_ms})
    conn.execute(_delete_old, {"before": at_ms - RETENTION_MS})
    if (there := get_waiting(conn, pairing.connector, pairing.sender_id, now_ms=at_ms)) is not None:
        return PairingRequestResult(pairing=there)
    if conn.execute(_count, {"connector": pairing.connector}).scalar_one() >= cap:
        return PairingRequestResult(pairing=None)
    conn.execute(
        _insert,
        {
            "id": pairing.id,
            "connector": pairing.connector,
            "platform": pairing.platform,
            "sender": pairing.sender_id,
            "name": pairing.name,
            "code": pairing.code,
            "state": PairingState.WAITING.value,
            "asked_ms": at_ms,
            "expires_ms": at_ms + round((pairing.expires_at - pairing.requested_at).total_seconds() * 1000),
            "decided_by": "",
            "decided_ms": None,
        },
    )
    return PairingRequestResult(pairing=get(conn, pairing.id), is_new=True)


def decide(conn: sa.Connection, id_: str, state: PairingState, *, by: str, at_ms: int) -> Pairing | None:
    """Accept or refuse an access request. Returns None if the request was already decided or has expired."""
    values = {"the_id": id_, "new_state": state.value, "who": by, "now": at_ms}
    if not conn.execute(_decide, values).rowcount:
        return None
    pairing = get(conn, id_)
    if pairing is not None and state is PairingState.ACCEPTED:
        admit(conn, pairing.connector, pairing.sender_id, by=by, at_ms=at_ms)
    return pairing


def is_admitted(conn: sa.Connection, connector: str, sender_id: str) -> bool:
    return conn.execute(_is_admitted, {"connector": connector, "sender": sender_id}).scalar() is not None


def list_admitted(conn: sa.Connection) -> list[AdmittedSender]:
    return [
        AdmittedSender(instance=row.connector, sender_id=row.sender, by=row.admitted_by, at_ms=row.at_ms)
        for row in conn.execute(_all_admitted)
    ]


def admit(conn: sa.Connection, connector: str, sender_id: str, *, by: str, at_ms: int) -> None:
    if not is_admitted(conn, connector, sender_id):
        conn.execute(_admit, {"connector": connector, "sender": sender_id, "admitted_by": by, "at_ms": at_ms})


def revoke_admission(conn: sa.Connection, connector: str, sender_id: str) -> bool:
    """Revoke the admission of a sender. Returns False if the sender was not admitted."""
    return bool(conn.execute(_revoke_admission, {"the_instance": connector, "the_sender_id": sender_id}).rowcount)


def delete_of_sender(conn: sa.Connection, service: str, sender_id: str) -> None:
    """Delete all access requests and admissions of a sender on a platform.

    An admission does not store its platform, and the access request, which does, may have been
    deleted. The admissions of this sender id are therefore revoked on all connectors that are not
    known to belong to another platform.
    """
    values = {"the_service": service, "the_sender_id": sender_id}
    conn.execute(_revoke_admissions_of_sender, values)
    conn.execute(_delete_of_sender, values)
