"""The base of the store: database connections, transactions, table definitions and shared SQL conditions."""
