"""Sessions and their records."""
