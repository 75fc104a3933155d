"""The base of the store: connections, transactions, table definitions and the SQL that all queries share."""
