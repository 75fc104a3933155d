"""Add bindings, identities, pairings, poison messages, ambient messages, connector state and delivery parts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    _who_answers()
    _who_may_talk()
    _what_was_said()


def _text(name: str, length: int | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=length) if length else sa.Text(), nullable=False)


def _ms(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _who_answers() -> None:
    match = ("connector", "account", "peer_kind", "peer", "parent", "guild", "team")
    op.create_table(
        "bindings",
        _text("id", 32),
        _text("agent", 64),
        _text("also"),
        _text("connector", 64),
        _text("account", 64),
        _text("peer_kind", 8),
        _text("peer"),
        _text("parent"),
        _text("guild"),
        _text("team"),
        _text("made_by"),
        _ms("at_ms"),
        sa.ForeignKeyConstraint(["agent"], ["agents.name"], name=op.f("fk_bindings_agent")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bindings")),
        sa.UniqueConstraint(*match, name=op.f("uq_bindings_" + "_".join(match))),
    )
    op.create_index("ix_bindings_agent", "bindings", ["agent"], unique=False)
    op.create_table(
        "identities",
        _text("service", 64),
        _text("id"),
        _text("person", 64),
        _text("made_by"),
        _ms("at_ms"),
        sa.ForeignKeyConstraint(["person"], ["people.name"], name=op.f("fk_identities_person")),
        sa.PrimaryKeyConstraint("service", "id", name=op.f("pk_identities")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_identities_person", "identities", ["person"], unique=False)


def _who_may_talk() -> None:
    op.create_table(
        "pairings",
        _text("id", 32),
        _text("instance", 64),
        _text("service", 64),
        _text("speaker"),
        _text("name"),
        _text("code", 16),
        _text("state", 16),
        _ms("asked_ms"),
        _ms("expires_ms"),
        _text("decided_by"),
        _ms("decided_ms", nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'accepted', 'refused', 'expired')", name=op.f("ck_pairings_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pairings")),
    )
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "uq_pairings_waiting",
        "pairings",
        ["instance", "speaker"],
        unique=True,
        sqlite_where=waiting,
        postgresql_where=waiting,
    )
    op.create_index("ix_pairings_asked", "pairings", ["asked_ms", "id"], unique=False)
    op.create_table(
        "admitted",
        _text("instance", 64),
        _text("speaker"),
        _text("by"),
        _ms("at_ms"),
        sa.PrimaryKeyConstraint("instance", "speaker", name=op.f("pk_admitted")),
        sqlite_with_rowid=False,
    )


def _what_was_said() -> None:
    op.create_table(
        "set_aside",
        _text("id", 32),
        _text("instance", 64),
        _text("room"),
        _text("message_id"),
        _text("body"),
        _text("because"),
        sa.Column("tries", sa.Integer(), nullable=False),
        _text("state", 16),
        _ms("at_ms"),
        sa.CheckConstraint("state IN ('waiting', 'done', 'dropped')", name=op.f("ck_set_aside_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_set_aside")),
        sa.UniqueConstraint("instance", "room", "message_id", name=op.f("uq_set_aside_instance_room_message_id")),
    )
    op.create_index("ix_set_aside_at", "set_aside", ["at_ms", "id"], unique=False)
    op.create_table(
        "overheard",
        _text("instance", 64),
        _text("room"),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        _text("message_id"),
        _text("speaker"),
        _text("name"),
        _text("text"),
        _ms("at_ms"),
        sa.PrimaryKeyConstraint("instance", "room", "seq", name=op.f("pk_overheard")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "connector_words",
        _text("instance", 64),
        _text("key", 256),
        _text("value"),
        _ms("at_ms"),
        sa.PrimaryKeyConstraint("instance", "key", name=op.f("pk_connector_words")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "parts",
        _text("envelope", 32),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        _text("channel"),
        _text("receipt"),
        sa.Column("cut_by", sa.Text(), nullable=True),
        _ms("at_ms"),
        sa.PrimaryKeyConstraint("envelope", "part", name=op.f("pk_parts")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_parts_receipt", "parts", ["channel", "receipt"], unique=False)
