"""The server's database: its tables, queries and transactions.

A transaction is a plain function whose first argument is a database connection.
"""
