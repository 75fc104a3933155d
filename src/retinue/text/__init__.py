"""Pure functions on text: chunking, redaction, parsing, wrapping and the texts of questions."""
