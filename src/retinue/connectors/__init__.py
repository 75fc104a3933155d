"""Connectors: the code that connects the server to platforms such as Telegram, email and IRC."""
