"""How an agent takes its turns."""
