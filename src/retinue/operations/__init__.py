"""Each thing one can ask of the house, declared once."""
