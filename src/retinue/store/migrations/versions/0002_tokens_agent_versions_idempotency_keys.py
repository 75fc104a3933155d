"""Add tokens, invitations, agent versions, session sharing and deletion, idempotency keys and purged keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("hash", name=op.f("uq_tokens_hash")),
    )
    op.create_index("ix_tokens_principal", "tokens", ["principal"], unique=False)
    # The hash is as random as an id has to be.
    op.execute(
        "INSERT INTO tokens (id, kind, principal, hash, label, created_ms)"
        " SELECT substr(token_hash, 1, 32), 'token', 'person:' || name, token_hash, 'from before', created_ms"
        " FROM people WHERE token_hash IS NOT NULL"
    )
    with op.batch_alter_table("people") as people:
        people.drop_constraint("uq_people_token_hash", type_="unique")
        people.drop_column("token_hash")
        people.add_column(sa.Column("forgotten_ms", sa.BigInteger(), nullable=True))
    op.create_table(
        "answers",
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("operation", sa.String(length=64), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_answers")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_answers_at", "answers", ["at_ms"], unique=False)
    op.create_table(
        "agent_versions",
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent", "version", name=op.f("pk_agent_versions")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO agent_versions (agent, version, body, source, changed_by, at_ms)"
        " SELECT name, version, body, source, 'house', created_ms FROM agents"
    )
    with op.batch_alter_table("sessions", table_kwargs={"sqlite_with_rowid": False}) as sessions:
        sessions.add_column(sa.Column("folded", sa.Text(), nullable=True))
        sessions.add_column(sa.Column("deleted_ms", sa.BigInteger(), nullable=True))
        sessions.drop_constraint("uq_sessions_agent_origin_kind_origin_key", type_="unique")
    op.create_index(
        "uq_sessions_origin",
        "sessions",
        ["agent", "origin_kind", "origin_key"],
        unique=True,
        sqlite_where=sa.text("deleted_ms IS NULL"),
        postgresql_where=sa.text("deleted_ms IS NULL"),
    )
    op.create_index("uq_sessions_name", "sessions", ["agent", "folded"], unique=True)
    op.create_table(
        "shares",
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["people.name"], name=op.f("fk_shares_person")),
        sa.PrimaryKeyConstraint("session", "person", name=op.f("pk_shares")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_shares_person", "shares", ["person"], unique=False)
    op.create_table(
        "purged",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("dedupe_key", sa.Text(), nullable=False),
        sa.Column("envelope", sa.String(length=32), nullable=False),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("accepted_ms", sa.BigInteger(), nullable=False),
        sa.Column("purged_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("source", "dedupe_key", name=op.f("pk_purged")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_purged_envelope", "purged", ["envelope"], unique=False)
    op.create_index("ix_purged_at", "purged", ["purged_ms"], unique=False)
