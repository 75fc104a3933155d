"""Add notifications, questionnaires, preferences, and events that are addressed to one person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("news", sa.Column("person", sa.String(length=64), nullable=True))
    op.create_index("ix_runs_session_started", "runs", ["session", "started_ms"], unique=False)
    past = sa.text("state != 'open'")
    op.create_index(
        "ix_approvals_past", "approvals", ["asked_ms", "id"], unique=False, sqlite_where=past, postgresql_where=past
    )
    unread = sa.text("read_ms IS NULL")
    op.drop_index("ix_inbox_person", table_name="inbox")
    op.create_index(
        "ix_inbox_unread", "inbox", ["person", "seq"], unique=False, sqlite_where=unread, postgresql_where=unread
    )
    _create_notifications()
    _create_questionnaires()
    op.create_table(
        "preferences",
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("person", "key", name=op.f("pk_preferences")),
        sqlite_with_rowid=False,
    )


def _create_notifications() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("read_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
    )
    op.create_index("ix_notifications_person", "notifications", ["person", "at_ms", "id"], unique=False)
    unread = sa.text("read_ms IS NULL")
    op.create_index(
        "ix_notifications_unread",
        "notifications",
        ["person"],
        unique=False,
        sqlite_where=unread,
        postgresql_where=unread,
    )


def _create_questionnaires() -> None:
    op.create_table(
        "questionnaires",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("asked_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_by", sa.Text(), nullable=False),
        sa.Column("answers", sa.Text(), nullable=False),
        sa.Column("envelope", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_questionnaires")),
    )
    op.create_index("ix_questionnaires_person", "questionnaires", ["person", "asked_ms", "id"], unique=False)
    op.create_index("ix_questionnaires_session", "questionnaires", ["session"], unique=False)
