"""Drop the index of events by session, and add an index by run.

Updating the index by session cost about as much as storing the event. The index by run contains
only the events that a run's timeline needs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.drop_index("ix_news_session", table_name="news")
    went_on = sa.text("kind IN ('run.joined', 'run.parked', 'run.resumed')")
    op.create_index("ix_news_run", "news", ["run"], unique=False, sqlite_where=went_on, postgresql_where=went_on)
