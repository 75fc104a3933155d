"""Shell commands: start them, watch them, keep them in the background, and report their end."""
