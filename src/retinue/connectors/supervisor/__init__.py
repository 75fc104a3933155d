"""Starts connectors, watches their health and keeps their state."""
