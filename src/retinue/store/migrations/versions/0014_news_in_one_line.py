"""News is read in its one order: an index by session cost every piece of it about as much as the piece itself."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.drop_index("ix_news_session", table_name="news")
