"""The tools for delegation, subagents and agent messages."""
