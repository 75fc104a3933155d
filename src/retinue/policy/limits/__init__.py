"""Decisions about limits: budgets, rate limits, cooldowns of credentials, and resets of contexts."""
