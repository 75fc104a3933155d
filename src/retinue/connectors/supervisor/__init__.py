"""Starts connectors, restarts them after failures, and reports their health."""
