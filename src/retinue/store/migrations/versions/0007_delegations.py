"""Add delegations, and the lineage of runs that were started by another run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

# PostgreSQL has written down which columns `*` was: it is to be all of them.
AGENT_RUNS_VIEW = """
CREATE VIEW agent_runs AS
WITH kept AS (SELECT * FROM runs)
SELECT id, agent AS agent_name, started_ms AS started_at, ended_ms AS completed_at, envelopes AS envelope_ids,
       final_text AS final_response, context_length,
       CASE WHEN status = 'parked' THEN 'running' ELSE status END AS status, error
FROM kept
"""


def upgrade() -> None:
    op.execute("DROP VIEW agent_runs")
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("lineage", sa.Text()))
    op.execute(AGENT_RUNS_VIEW)
    op.create_table(
        "delegations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("call", sa.Text(), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("child", sa.String(length=32), nullable=True),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("above", sa.Text(), nullable=False),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("notify", sa.String(length=8), nullable=False),
        sa.Column("wait_ms", sa.BigInteger(), nullable=True),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("cleanup", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("result", sa.String(length=32), nullable=True),
        sa.Column("worked_by", sa.String(length=32), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("archive_ms", sa.BigInteger(), nullable=True),
        sa.Column("archived_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_delegations")),
        sqlite_with_rowid=False,
    )
    waiting, open_ = sa.text("wait_ms IS NOT NULL"), sa.text("state = 'open'")
    to_archive = sa.text("archive_ms IS NOT NULL AND archived_ms IS NULL")
    op.create_index("ix_delegations_session", "delegations", ["session", "created_ms"])
    op.create_index("ix_delegations_child", "delegations", ["child"])
    op.create_index("ix_delegations_result", "delegations", ["result"])
    for name, columns, where in (
        ("ix_delegations_waiting", ["run"], waiting),
        ("ix_delegations_open", ["session", "id"], open_),
        ("ix_delegations_archive", ["archive_ms"], to_archive),
    ):
        op.create_index(name, "delegations", columns, sqlite_where=where, postgresql_where=where)
