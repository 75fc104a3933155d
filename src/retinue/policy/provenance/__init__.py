"""Decides whether the values in a tool call come from trusted content, or need a person's approval."""
