"""Decisions about limits: budgets, rate limits, back-off of credentials, and resets of contexts."""
