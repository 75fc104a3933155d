"""Whose turn it is, and what was done."""
