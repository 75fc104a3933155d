"""Decisions about who may write, see and access what."""
