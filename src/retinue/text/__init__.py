"""Pure functions on text: splitting, redacting, parsing and wrapping it, and writing the texts of questions."""
