"""Pure functions that split, redact, parse and wrap text, and that format approval questions."""
