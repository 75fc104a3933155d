"""The database of the server. Every transaction is a plain function that takes a connection as its first argument."""
