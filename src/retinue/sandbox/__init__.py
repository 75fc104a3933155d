"""Sandboxes for commands."""
