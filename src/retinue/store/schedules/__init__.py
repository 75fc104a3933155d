"""Store schedules and their occurrences."""
