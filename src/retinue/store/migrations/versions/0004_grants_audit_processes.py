"""Add grants, the audit log, file trust, background commands and approved hashes; extend approvals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NEW = (
    ("needs", sa.Text(), "[]"),
    ("scope", sa.String(length=16), ""),
    ("asked_of", sa.Text(), "[]"),
    ("words", sa.Text(), ""),
    ("agent", sa.String(length=64), ""),
)


def upgrade() -> None:
    with op.batch_alter_table("approvals") as approvals:
        for name, kind, empty in _NEW:
            approvals.add_column(sa.Column(name, kind, nullable=False, server_default=empty))
        approvals.add_column(sa.Column("escalate_ms", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("approvals") as approvals:
        for name, _, _ in _NEW:
            approvals.alter_column(name, server_default=None)
    _create_grants()
    _create_audit()
    op.create_table(
        "file_labels",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("whole", sa.Boolean(), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_file_labels")),
    )
    _create_processes()
    op.create_table(
        "pins",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_pins")),
        sqlite_with_rowid=False,
    )
    _lighten_money()
    _lighten_sessions()


def _lighten_money() -> None:
    """Drop two indexes that every model call had to update.

    One is not used. The other is replaced by an index of child runs only.
    """
    op.drop_index("ix_money_session", "money")
    op.drop_index("ix_money_root", "money")
    below = sa.text("root != run")
    op.create_index("ix_money_root", "money", ["root"], unique=False, sqlite_where=below, postgresql_where=below)


def _lighten_sessions() -> None:
    """Index active sessions by id instead of update time, because every commit of a run changes the update time."""
    op.drop_index("ix_sessions_active", "sessions")
    active = sa.text("wakefulness = 'active'")
    op.create_index(
        "ix_sessions_active", "sessions", ["id"], unique=False, sqlite_where=active, postgresql_where=active
    )


def _create_grants() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("permission", sa.Text(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("approval", sa.String(length=32), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
    )
    good = sa.text("revoked_ms IS NULL")
    op.create_index(
        "ix_grants_good", "grants", ["agent", "session"], unique=False, sqlite_where=good, postgresql_where=good
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("chain", sa.String(length=32), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("content", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("chain", "position", name=op.f("pk_audit")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_audit_at", "audit", ["at_ms"], unique=False)
    op.create_table(
        "audit_anchors",
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("chain", sa.String(length=32), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("at_ms", "chain", name=op.f("pk_audit_anchors")),
        sqlite_with_rowid=False,
    )


def _create_processes() -> None:
    op.create_table(
        "processes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_processes")),
    )
    running = sa.text("state = 'running'")
    op.create_index(
        "ix_processes_running",
        "processes",
        ["session"],
        unique=False,
        sqlite_where=running,
        postgresql_where=running,
    )
