"""Pure functions on text: chunking, redaction, parsing."""
