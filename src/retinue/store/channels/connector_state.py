"""The small key-value state of a connector: its read position, the senders it knows. The number of keys is limited."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.errors import Invalid
from retinue.domain.storable_text import is_storable
from retinue.store.core import tables as t

KEY_CHARS_MAX = 256
VALUE_CHARS_MAX = 64 * 1024
WORDS_MAX = 10_000  # per connector; the oldest is removed first

_b = sa.bindparam
_w = t.connector_words.c
_mine = sa.and_(_w.instance == _b("the_instance"), _w.key == _b("the_key"))
_find = sa.select(_w.value).where(_mine)
_insert = t.connector_words.insert()
_change = t.connector_words.update().where(_mine).values(value=_b("new_value"), at_ms=_b("now"))
_count = sa.select(sa.func.count()).select_from(t.connector_words).where(_w.instance == _b("the_instance"))
_oldest = sa.select(_w.key).where(_w.instance == _b("the_instance")).order_by(_w.at_ms, _w.key).limit(1)
_remove = t.connector_words.delete().where(_mine)
_remove_all = t.connector_words.delete().where(_w.instance == _b("the_instance"))


def get(conn: sa.Connection, instance: str, key: str) -> str | None:
    return conn.execute(_find, {"the_instance": instance, "the_key": key}).scalar()


def put(conn: sa.Connection, instance: str, key: str, value: str, *, at_ms: int) -> None:
    """Set a value. One that cannot be stored completely is rejected: half of an offset is another offset."""
    if not 0 < len(key) <= KEY_CHARS_MAX or len(value) > VALUE_CHARS_MAX or not is_storable(key + value):
        raise Invalid(
            f"the connector '{instance}' cannot keep this",
            because=f"a key has 1 to {KEY_CHARS_MAX} characters, a value at most {VALUE_CHARS_MAX:,}, and none is NUL",
            try_this="keep less under one key",
            code="connector.word-invalid",
        )
    mine = {"the_instance": instance, "the_key": key}
    if conn.execute(_change, {**mine, "new_value": value, "now": at_ms}).rowcount:
        return
    if conn.execute(_count, {"the_instance": instance}).scalar_one() >= WORDS_MAX:
        oldest = conn.execute(_oldest, {"the_instance": instance}).scalar_one()
        conn.execute(_remove, {"the_instance": instance, "the_key": oldest})
    conn.execute(_insert, {"instance": instance, "key": key, "value": value, "at_ms": at_ms})


def remove(conn: sa.Connection, instance: str, key: str) -> None:
    conn.execute(_remove, {"the_instance": instance, "the_key": key})


def forget(conn: sa.Connection, instance: str) -> int:
    """Remove all keys of a connector: another account may use its name, for which they would be wrong."""
    return conn.execute(_remove_all, {"the_instance": instance}).rowcount
