"""Budgets, rates, cooldowns and resets."""
