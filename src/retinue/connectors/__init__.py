"""Connectors: the code that connects platforms such as Telegram, email and IRC."""
