"""Agent definitions, instructions, skills and hooks."""
