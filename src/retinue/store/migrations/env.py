"""Alembic's entry point: runs all migrations on the connection of the caller, in its transaction."""

from __future__ import annotations

from alembic import context

from retinue.store.core.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    transactional_ddl=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
