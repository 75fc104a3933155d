"""Decisions about access: who may write, which sessions and agents are visible, which operations are allowed."""
