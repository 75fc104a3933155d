"""Add an index to list delegations, newest first."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_index("ix_delegations_created", "delegations", ["created_ms", "id"])
