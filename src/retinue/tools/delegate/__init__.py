"""Tools for delegation, subagents and agent messages."""
