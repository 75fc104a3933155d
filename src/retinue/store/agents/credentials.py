"""Store the credentials of model providers, and their cooldowns.

A credential contains the location of its key, never the key itself. After a failure, a credential
has a cooldown, during which it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from retinue.domain.credential import (
    FAILURE_FORGOTTEN_AFTER,
    Credential,
    CredentialCooldown,
    CredentialFailureRecord,
    CredentialKind,
)
from retinue.domain.model import ModelFailureKind
from retinue.domain.times import from_ms, to_ms
from retinue.store.core import tables as t

_FORGOTTEN_AFTER_MS = FAILURE_FORGOTTEN_AFTER // timedelta(milliseconds=1)

_b = sa.bindparam
_c, _d = t.credentials.c, t.cooldowns.c
_all = sa.select(t.credentials).order_by(_c.agent, _c.id)
_find = sa.select(t.credentials).where(_c.agent == _b("agent"), _c.id == _b("id"))
_insert = t.credentials.insert()
_is_credential = sa.and_(_c.agent == _b("the_agent"), _c.id == _b("the_id"))
_remove = t.credentials.delete().where(_is_credential)
_mark_used = t.credentials.update().where(_is_credential).values(used_ms=_b("now"))
_set_position = t.credentials.update().where(_is_credential).values(position=_b("place"))
_clear_order = (
    t.credentials.update()
    .where(_c.agent == _b("the_agent"), _c.provider == _b("the_provider"), _c.position.is_not(None))
    .values(position=None)
)

_list_cooldowns = (
    sa.select(t.cooldowns)
    .where(sa.or_(_d.until_ms > _b("now"), _d.failed_ms >= _b("remembered")))
    .order_by(_d.agent, _d.credential, _d.model)
)
_is_cooldown_of = sa.and_(_d.agent == _b("the_agent"), _d.credential == _b("the_id"))
_get_cooldown = sa.select(t.cooldowns).where(_is_cooldown_of, _d.model == _b("the_model"))
_insert_cooldown = t.cooldowns.insert()
_delete_cooldowns = t.cooldowns.delete().where(_is_cooldown_of)
_delete_model_cooldown = t.cooldowns.delete().where(_is_cooldown_of, _d.model == _b("the_model"))
_recover = t.cooldowns.delete().where(
    _is_cooldown_of, sa.or_(_d.model == "", _d.model == _b("the_model")), _d.failed_ms <= _b("asked")
)
_recover_all = t.cooldowns.delete().where(_is_cooldown_of, _d.failed_ms <= _b("asked"))


def _credential_from_row(row: sa.Row[Any]) -> Credential:
    return Credential(
        id=row.id,
        provider=row.provider,
        source=row.source,
        kind=CredentialKind(row.kind),
        agent=row.agent,
        region=row.region,
        position=row.position,
        used_at=from_ms(row.used_ms) if row.used_ms is not None else None,
    )


def _cooldown_from_row(row: sa.Row[Any]) -> CredentialCooldown:
    return CredentialCooldown(
        agent=row.agent,
        credential=row.credential,
        model=row.model,
        failure=ModelFailureKind(row.reason),
        errors=row.errors,
        until=from_ms(row.until_ms),
        failed_at=from_ms(row.failed_ms),
    )


def list_all(conn: sa.Connection) -> list[Credential]:
    """List the credentials of the instance and of all agents."""
    return [_credential_from_row(row) for row in conn.execute(_all)]


def find(conn: sa.Connection, agent: str, id_: str) -> Credential | None:
    row = conn.execute(_find, {"agent": agent, "id": id_}).one_or_none()
    return _credential_from_row(row) if row else None


def add(conn: sa.Connection, credential: Credential, *, at_ms: int) -> bool:
    """Insert a credential. If it already exists, returns False and changes nothing."""
    if find(conn, *credential.row_key) is not None:
        return False
    conn.execute(
        _insert,
        {
            "agent": credential.agent,
            "id": credential.id,
            "provider": credential.provider,
            "kind": credential.kind.value,
            "source": credential.source,
            "region": credential.region,
            "position": credential.position,
            "created_ms": at_ms,
            "used_ms": to_ms(credential.used_at) if credential.used_at else None,
        },
    )
    return True


def remove(conn: sa.Connection, agent: str, id_: str) -> bool:
    """Remove a credential and its cooldowns. Returns False if there was no such credential."""
    conn.execute(_delete_cooldowns, {"the_agent": agent, "the_id": id_})
    return conn.execute(_remove, {"the_agent": agent, "the_id": id_}).rowcount == 1


def set_order(conn: sa.Connection, agent: str, provider: str, order: Sequence[Credential], *, at_ms: int) -> None:
    """Set the order in which an agent uses its credentials for a provider.

    Credentials that are not in `order` come last. If `order` is empty, the default order applies:
    tokens before keys, and within each, the least recently used first.
    """
    conn.execute(_clear_order, {"the_agent": agent, "the_provider": provider})
    for place, credential in enumerate(order):
        add(conn, credential, at_ms=at_ms)  # a credential from the environment or the settings has no row yet
        conn.execute(_set_position, {"the_agent": agent, "the_id": credential.id, "place": place})


def mark_used(
    conn: sa.Connection, credential: Credential, *, at_ms: int, model: str | None = None, asked_ms: int | None = None
) -> None:
    """Record that a call with this credential succeeded, and clear its cooldowns.

    With `model`, only the cooldown for this model and the one for all models are cleared.
    `asked_ms` is when the call started. A cooldown is kept if its failure happened after that time.
    """
    add(conn, credential, at_ms=at_ms)
    whose = {"the_agent": credential.agent, "the_id": credential.id}
    conn.execute(_mark_used, {**whose, "now": at_ms})
    asked = {"asked": at_ms if asked_ms is None else asked_ms}
    if model is None:
        conn.execute(_recover_all, whose | asked)
    else:
        conn.execute(_recover, {**whose, **asked, "the_model": model})


def mark_failed(
    conn: sa.Connection,
    mark: CredentialFailureRecord,
    judge: Callable[[CredentialCooldown | None, CredentialFailureRecord], CredentialCooldown],
) -> CredentialCooldown:
    """Record that a call with this credential failed.

    `judge` computes the new cooldown from the stored one, which is None if there is none.
    """
    place = {"the_agent": mark.credential.agent, "the_id": mark.credential.id, "the_model": mark.model}
    row = conn.execute(_get_cooldown, place).one_or_none()
    cooling = judge(_cooldown_from_row(row) if row else None, mark)
    conn.execute(_delete_model_cooldown, place)
    conn.execute(
        _insert_cooldown,
        {
            "agent": cooling.agent,
            "credential": cooling.credential,
            "model": cooling.model,
            "reason": cooling.failure.value,
            "errors": cooling.errors,
            "until_ms": to_ms(cooling.until),
            "failed_ms": to_ms(cooling.failed_at),
        },
    )
    return cooling


def clear_cooldowns(conn: sa.Connection, agent: str, id_: str, *, model: str | None = None) -> int:
    """Clear the cooldown of a credential for one model, or all its cooldowns. Returns the number cleared."""
    whose = {"the_agent": agent, "the_id": id_}
    if model is None:
        return conn.execute(_delete_cooldowns, whose).rowcount
    return conn.execute(_delete_model_cooldown, {**whose, "the_model": model}).rowcount


def list_cooldowns(conn: sa.Connection, *, now_ms: int) -> list[CredentialCooldown]:
    """List the active cooldowns, and those that have ended but would still lengthen the next cooldown."""
    found = conn.execute(_list_cooldowns, {"now": now_ms, "remembered": now_ms - _FORGOTTEN_AFTER_MS})
    return [_cooldown_from_row(row) for row in found]
