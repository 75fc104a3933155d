"""The database. Every transaction is a plain function that takes a connection as its first argument."""
