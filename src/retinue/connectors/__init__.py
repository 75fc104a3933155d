"""Doors to people outside the house."""
