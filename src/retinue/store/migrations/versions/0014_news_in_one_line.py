"""News is read in its one order: an index by session cost every piece of it about as much as the piece itself. What a
run's story tells of it is found by the run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.drop_index("ix_news_session", table_name="news")
    went_on = sa.text("kind IN ('run.joined', 'run.parked', 'run.resumed')")
    op.create_index("ix_news_run", "news", ["run"], unique=False, sqlite_where=went_on, postgresql_where=went_on)
