"""Store when a session was archived, and how long after the end of its work a subagent's session is archived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    with op.batch_alter_table("sessions") as sessions:
        sessions.add_column(sa.Column("archived_ms", sa.BigInteger()))
    with op.batch_alter_table("delegations") as delegations:
        delegations.add_column(sa.Column("archive_after_ms", sa.BigInteger()))
    spawned = sa.text("kind = 'spawn'")
    op.create_index(
        "ix_delegations_spawned",
        "delegations",
        ["created_ms", "id"],
        sqlite_where=spawned,
        postgresql_where=spawned,
    )
