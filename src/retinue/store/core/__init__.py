"""Connections, transactions, the tables, and SQL that all queries share."""
