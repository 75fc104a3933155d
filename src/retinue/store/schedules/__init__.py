"""Schedules and their occurrences."""
