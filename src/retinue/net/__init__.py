"""Network code that several parts share."""
