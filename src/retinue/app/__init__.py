"""Builds, starts and stops all parts of the server. Only this package connects the parts to each other."""
