"""Add schedules and their occurrences, and the times when a session's context began and was last active."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("folded", sa.String(length=64), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("zone", sa.String(length=64), nullable=False),
        sa.Column("filed", sa.Boolean(), nullable=False),
        sa.Column("said", sa.String(length=64), nullable=True),
        sa.Column("said_ms", sa.BigInteger(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    named = sa.text("folded IS NOT NULL")
    op.create_index(
        "uq_schedules_folded", "schedules", ["folded"], unique=True, sqlite_where=named, postgresql_where=named
    )
    op.create_index("ix_schedules_owner", "schedules", ["owner", "kind"], unique=False)
    op.create_index("ix_schedules_recipient", "schedules", ["recipient", "kind"], unique=False)
    op.create_table(
        "schedule_slots",
        sa.Column("schedule", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("made_by", sa.String(length=8), nullable=False),
        sa.Column("slot_ms", sa.BigInteger(), nullable=False),
        sa.Column("clock_ms", sa.BigInteger(), nullable=True),
        sa.Column("until_ms", sa.BigInteger(), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("envelope", sa.String(length=32), nullable=True),
        sa.Column("begun_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_run_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["schedule"], ["schedules.id"], name=op.f("fk_schedule_slots_schedule")),
        sa.PrimaryKeyConstraint("schedule", "seq", name=op.f("pk_schedule_slots")),
        sqlite_with_rowid=False,
    )
    _index_slots()
    _date_contexts()


def _date_contexts() -> None:
    """Add the columns for the start of the context and the last activity, and fill them for existing sessions.

    The context started at the last marker record, and the last activity was the last update.
    """
    with op.batch_alter_table("sessions", table_kwargs={"sqlite_with_rowid": False}) as sessions:
        sessions.add_column(sa.Column("began_ms", sa.BigInteger(), nullable=False, server_default="0"))
        sessions.add_column(sa.Column("active_ms", sa.BigInteger(), nullable=False, server_default="0"))
        sessions.add_column(sa.Column("refresh", sa.Text()))
        sessions.add_column(sa.Column("chat_type", sa.String(length=8)))
    op.execute(
        "UPDATE sessions SET active_ms = updated_ms, began_ms = coalesce((SELECT max(r.at_ms) FROM records r"
        " WHERE r.session = sessions.id AND r.kind IN ('start', 'reset')), created_ms)"
    )
    with op.batch_alter_table("sessions", table_kwargs={"sqlite_with_rowid": False}) as sessions:
        sessions.alter_column("began_ms", server_default=None)
        sessions.alter_column("active_ms", server_default=None)


def _index_slots() -> None:
    for name, columns, unique, where in (
        ("uq_schedule_slots_open", ["schedule"], True, "state IN ('waiting', 'working') AND made_by = 'clock'"),
        (
            "uq_schedule_slots_once",
            ["schedule", "slot_ms"],
            True,
            "state IN ('working', 'ran', 'failed') AND made_by = 'clock'",
        ),
        ("uq_schedule_slots_envelope", ["envelope"], True, "state IN ('waiting', 'working')"),
        ("ix_schedule_slots_clock", ["clock_ms"], False, "state = 'waiting'"),
    ):
        condition = sa.text(where)
        op.create_index(
            name, "schedule_slots", columns, unique=unique, sqlite_where=condition, postgresql_where=condition
        )
