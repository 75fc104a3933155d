"""The schema migrations. `HEAD` is the newest revision. Alembic is imported only if a store has an older one."""

HEAD = "0015"
