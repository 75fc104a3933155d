"""Decisions about whether trusted content explains each argument of a tool call."""
