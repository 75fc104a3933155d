"""Connections, transactions, tables and what all queries share."""
