"""Backup, purge and erasure: work across all tables."""
