"""Retinue: a server for a team of AI agents that accounts for every message."""

__version__ = "0.1.0"
