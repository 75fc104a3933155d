"""Store the state of each connector as small key-value pairs, such as its read position.

The number of keys for each connector is limited.
"""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.storable_text import is_storable
from retinue.store.channels.errors import ConnectorStateInvalid
from retinue.store.core import tables as t

KEY_CHARS_MAX = 256
VALUE_CHARS_MAX = 64 * 1024
KEYS_MAX = 10_000  # per connector; the oldest is removed first

_b = sa.bindparam
_w = t.connector_state.c
_has_key = sa.and_(_w.connector == _b("the_instance"), _w.key == _b("the_key"))
_find = sa.select(_w.value).where(_has_key)
_insert = t.connector_state.insert()
_change = t.connector_state.update().where(_has_key).values(value=_b("new_value"), at_ms=_b("now"))
_count = sa.select(sa.func.count()).select_from(t.connector_state).where(_w.connector == _b("the_instance"))
_oldest = sa.select(_w.key).where(_w.connector == _b("the_instance")).order_by(_w.at_ms, _w.key).limit(1)
_remove = t.connector_state.delete().where(_has_key)
_remove_all = t.connector_state.delete().where(_w.connector == _b("the_instance"))


def get_value(conn: sa.Connection, connector: str, key: str) -> str | None:
    return conn.execute(_find, {"the_instance": connector, "the_key": key}).scalar()


def set_value(conn: sa.Connection, connector: str, key: str, value: str, *, at_ms: int) -> None:
    """Set a value. Raises `ConnectorStateInvalid` if it is too long, because a truncated offset would be wrong."""
    if not 0 < len(key) <= KEY_CHARS_MAX or len(value) > VALUE_CHARS_MAX or not is_storable(key + value):
        raise ConnectorStateInvalid(connector, key_chars_max=KEY_CHARS_MAX, value_chars_max=VALUE_CHARS_MAX)
    mine = {"the_instance": connector, "the_key": key}
    if conn.execute(_change, {**mine, "new_value": value, "now": at_ms}).rowcount:
        return
    if conn.execute(_count, {"the_instance": connector}).scalar_one() >= KEYS_MAX:
        oldest = conn.execute(_oldest, {"the_instance": connector}).scalar_one()
        conn.execute(_remove, {"the_instance": connector, "the_key": oldest})
    conn.execute(_insert, {"connector": connector, "key": key, "value": value, "at_ms": at_ms})


def delete_value(conn: sa.Connection, connector: str, key: str) -> None:
    conn.execute(_remove, {"the_instance": connector, "the_key": key})


def delete_all(conn: sa.Connection, connector: str) -> int:
    """Delete all keys of a connector. They would be wrong for another account that later gets the connector's name."""
    return conn.execute(_remove_all, {"the_instance": connector}).rowcount
