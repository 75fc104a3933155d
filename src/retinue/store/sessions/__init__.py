"""Store sessions and their records."""
