"""The schema migrations. `HEAD` is the newest revision: alembic is imported only when a store is older."""

HEAD = "0015"
