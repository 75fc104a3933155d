"""Formats a count together with its noun."""

from __future__ import annotations


def format_quantity(count: int, noun: str, *, plural: str = "") -> str:
    """Format a count with its noun, in the singular for 1: `1 run`, `2 runs`, `1,000 entries`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
