"""Add details of model calls, daily sums, credentials with their cooldowns, and the model choice of a session."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

DAY_MS = 86_400_000


def upgrade() -> None:
    with op.batch_alter_table("sessions", table_kwargs={"sqlite_with_rowid": False}) as sessions:
        sessions.add_column(sa.Column("mind", sa.Text(), nullable=False, server_default="{}"))
        sessions.add_column(sa.Column("compactions", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("sessions", table_kwargs={"sqlite_with_rowid": False}) as sessions:
        sessions.alter_column("mind", server_default=None)
        sessions.alter_column("compactions", server_default=None)
    # Copied, not renamed: on PostgreSQL the constraints of a renamed table keep their names, which the new one needs.
    op.execute("CREATE TABLE money_before AS SELECT * FROM money")
    op.drop_table("money")
    _create_money()
    # What is not known of the calls made so far is empty. Their runs may have been purged since.
    op.execute(
        "INSERT INTO money (run, turn, idx, attempt, session, root, agent, person, provider, model, credential, day,"
        " reserved_microusd, settled_microusd, released_microusd, held_microusd, unknown, input_tokens, output_tokens,"
        " cache_read_tokens, cache_write_tokens, reasoning_tokens, estimated, at_ms)"
        " SELECT m.run, m.turn, 0, m.attempt, coalesce(r.session, ''), m.run, coalesce(r.agent, ''), '', '', '', '',"
        f" m.at_ms / {DAY_MS}, m.reserved_microusd, m.settled_microusd, m.released_microusd, m.held_microusd,"
        " m.unknown, 0, 0, 0, 0, 0, false, m.at_ms FROM money_before m LEFT JOIN runs r ON r.id = m.run"
    )
    op.drop_table("money_before")
    _create_spending()
    op.execute(
        "INSERT INTO spending (day, agent, person, provider, model, calls, settled_microusd, held_microusd,"
        " input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens)"
        " SELECT day, agent, '', '', '', count(*), sum(settled_microusd), sum(held_microusd), 0, 0, 0, 0, 0"
        " FROM money GROUP BY day, agent"
    )
    op.create_table(
        "credentials",
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("provider", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("agent", "id", name=op.f("pk_credentials")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cooldowns",
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("credential", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.Column("failed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent", "credential", "model", name=op.f("pk_cooldowns")),
        sqlite_with_rowid=False,
    )


def _create_money() -> None:
    op.create_table(
        "money",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("turn", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("idx", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("root", sa.String(length=32), nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("provider", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("credential", sa.String(length=128), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("reserved_microusd", sa.BigInteger(), nullable=False),
        sa.Column("settled_microusd", sa.BigInteger(), nullable=False),
        sa.Column("released_microusd", sa.BigInteger(), nullable=False),
        sa.Column("held_microusd", sa.BigInteger(), nullable=False),
        sa.Column("unknown", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.String(length=32), nullable=True),
        sa.Column("next_move", sa.String(length=32), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run", "turn", "idx", "attempt", name=op.f("pk_money")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_money_session", "money", ["session", "at_ms"], unique=False)
    op.create_index("ix_money_root", "money", ["root"], unique=False)
    op.create_index("ix_money_day", "money", ["day"], unique=False)


def _create_spending() -> None:
    op.create_table(
        "spending",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("agent", sa.String(length=64), nullable=False),
        sa.Column("person", sa.String(length=64), nullable=False),
        sa.Column("provider", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=256), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("settled_microusd", sa.BigInteger(), nullable=False),
        sa.Column("held_microusd", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "agent", "person", "provider", "model", name=op.f("pk_spending")),
        sqlite_with_rowid=False,
    )
