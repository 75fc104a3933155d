"""Store people, their tokens, preferences and notifications."""
