"""How the schema came to be. `HEAD` is its newest revision: alembic is imported only when a store is behind it."""

HEAD = "0014"
