"""Runs commands in sandboxes: bubblewrap, containers, or the host without isolation."""
