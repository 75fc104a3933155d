"""Add session keys chosen by external agents, and webhooks that are called when an envelope is done."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "external_keys",
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_external_keys")),
        sqlite_with_rowid=False,
    )
    op.create_index("uq_external_keys_session", "external_keys", ["session"], unique=True)
    op.create_table(
        "webhooks",
        sa.Column("letter", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("letter", name=op.f("pk_webhooks")),
        sqlite_with_rowid=False,
    )
