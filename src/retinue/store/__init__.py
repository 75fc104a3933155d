"""The database: every transaction is a plain function that takes a connection."""
