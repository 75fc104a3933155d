"""The initial schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# As it was: what the schema says today is for today's revision to bring about.
AGENT_RUNS_VIEW = """
CREATE VIEW agent_runs AS
WITH kept AS (SELECT * FROM runs)
SELECT id, agent AS agent_name, started_ms AS started_at, ended_ms AS completed_at, envelopes AS envelope_ids,
       final_text AS final_response, context_length,
       CASE WHEN status = 'parked' THEN 'running' ELSE status END AS status, error
FROM kept
"""


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("folded", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("removed_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_agents")),
        sa.UniqueConstraint("folded", name=op.f("uq_agents_folded")),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("asked_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index(
        "ix_approvals_open",
        "approvals",
        ["expires_ms"],
        unique=False,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_index("ix_approvals_run", "approvals", ["run"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("envelope", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("error_kind", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("closed_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("envelope", "attempt", name=op.f("pk_deliveries")),
    )
    op.create_index(
        "ix_deliveries_sending",
        "deliveries",
        ["envelope"],
        unique=False,
        sqlite_where=sa.text("state = 'sending'"),
        postgresql_where=sa.text("state = 'sending'"),
    )
    op.create_table(
        "envelopes",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("attachments", sa.Text(), nullable=True),
        sa.Column("context", sa.Text(), nullable=True),
        sa.Column("reply_to", sa.String(length=32), nullable=True),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("rank", sa.SmallInteger(), nullable=False),
        sa.Column("silent", sa.Boolean(), nullable=False),
        sa.Column("deliver_ms", sa.BigInteger(), nullable=True),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("due_ms", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("accepted_ms", sa.BigInteger(), nullable=False),
        sa.Column("claimed_ms", sa.BigInteger(), nullable=True),
        sa.Column("settled_ms", sa.BigInteger(), nullable=True),
        sa.Column("run", sa.String(length=32), nullable=True),
        sa.Column("steered_into", sa.String(length=32), nullable=True),
        sa.Column("retry_of", sa.String(length=32), nullable=True),
        sa.CheckConstraint("status IN ('pending', 'claimed', 'parked', 'done')", name=op.f("ck_envelopes_status")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_envelopes")),
        sa.UniqueConstraint("id", name=op.f("uq_envelopes_id")),
        sa.UniqueConstraint("source", "dedupe_key", name=op.f("uq_envelopes_source_dedupe_key")),
    )
    op.create_index(
        "ix_envelopes_due",
        "envelopes",
        ["due_ms"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_envelopes_expiring",
        "envelopes",
        ["expires_ms"],
        unique=False,
        sqlite_where=sa.text("status = 'pending' AND expires_ms IS NOT NULL"),
        postgresql_where=sa.text("status = 'pending' AND expires_ms IS NOT NULL"),
    )
    op.create_index(
        "ix_envelopes_held",
        "envelopes",
        ["run"],
        unique=False,
        sqlite_where=sa.text("status IN ('claimed', 'parked')"),
        postgresql_where=sa.text("status IN ('claimed', 'parked')"),
    )
    op.create_index(
        "ix_envelopes_lane",
        "envelopes",
        ["session", "rank", "due_ms", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_envelopes_outbox",
        "envelopes",
        ["recipient", "due_ms", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending' AND session IS NULL"),
        postgresql_where=sa.text("status = 'pending' AND session IS NULL"),
    )
    op.create_table(
        "house",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("news_seq", sa.BigInteger(), nullable=False),
        sa.Column("envelope_seq", sa.BigInteger(), nullable=False),
        sa.Column("latest_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_house")),
    )
    op.create_table(
        "money",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("reserved_microusd", sa.BigInteger(), nullable=False),
        sa.Column("settled_microusd", sa.BigInteger(), nullable=False),
        sa.Column("released_microusd", sa.BigInteger(), nullable=False),
        sa.Column("held_microusd", sa.BigInteger(), nullable=False),
        sa.Column("unknown", sa.Boolean(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", "turn", "attempt", name=op.f("pk_money")),
    )
    op.create_table(
        "news",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("envelope", sa.String(length=32), nullable=True),
        sa.Column("run", sa.String(length=32), nullable=True),
        sa.Column("record_seq", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_news")),
    )
    op.create_index("ix_news_session", "news", ["session", "seq"], unique=False)
    op.create_table(
        "outcomes",
        sa.Column("envelope", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("answer", sa.String(length=32), nullable=True),
        sa.Column("silent", sa.Boolean(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("envelope", name=op.f("pk_outcomes")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_outcomes_dead",
        "outcomes",
        ["at_ms"],
        unique=False,
        sqlite_where=sa.text("outcome IN ('dead', 'interrupted')"),
        postgresql_where=sa.text("outcome IN ('dead', 'interrupted')"),
    )
    op.create_table(
        "people",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("folded", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_people")),
        sa.UniqueConstraint("folded", name=op.f("uq_people_folded")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_people_token_hash")),
    )
    op.create_table(
        "records",
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=True),
        sa.Column("trust", sa.String(length=16), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session", "seq", name=op.f("pk_records")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tally",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("purged", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "source", name=op.f("pk_tally")),
    )
    op.create_table(
        "inbox",
        sa.Column("envelope", sa.String(length=32), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("read_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["person"], ["people.name"], name=op.f("fk_inbox_person")),
        sa.PrimaryKeyConstraint("envelope", name=op.f("pk_inbox")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_inbox_person", "inbox", ["person", "seq"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("origin_kind", sa.String(length=16), nullable=False),
        sa.Column("origin_key", sa.Text(), nullable=False),
        sa.Column("parent", sa.String(length=32), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("wakefulness", sa.String(length=8), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("record_seq", sa.BigInteger(), nullable=False),
        sa.Column("context_from", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("snippet", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("pinned_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["agent"], ["agents.name"], name=op.f("fk_sessions_agent")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint(
            "agent", "origin_kind", "origin_key", name=op.f("uq_sessions_agent_origin_kind_origin_key")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_sessions_active",
        "sessions",
        ["updated_ms"],
        unique=False,
        sqlite_where=sa.text("wakefulness = 'active'"),
        postgresql_where=sa.text("wakefulness = 'active'"),
    )
    op.create_index("ix_sessions_parent", "sessions", ["parent"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("envelopes", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("wake_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("final_text", sa.Text(), nullable=True),
        sa.Column("context_length", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name=op.f("fk_runs_session")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_runs_agent_started", "runs", ["agent", "started_ms"], unique=False)
    op.create_index(
        "ix_runs_wake",
        "runs",
        ["wake_ms"],
        unique=False,
        sqlite_where=sa.text("status = 'parked'"),
        postgresql_where=sa.text("status = 'parked'"),
    )
    op.create_index(
        "uq_runs_open",
        "runs",
        ["session"],
        unique=True,
        sqlite_where=sa.text("status IN ('running', 'parked')"),
        postgresql_where=sa.text("status IN ('running', 'parked')"),
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idx", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("call", sa.Text(), nullable=True),
        sa.Column("record_seq", sa.BigInteger(), nullable=True),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("closed_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_steps_run")),
        sa.PrimaryKeyConstraint("run", "turn", "idx", "hash", name=op.f("pk_steps")),
        sqlite_with_rowid=False,
    )
    op.execute(AGENT_RUNS_VIEW)
    op.execute("INSERT INTO house (id, news_seq, envelope_seq, latest_ms) VALUES (1, 0, 0, 0)")
