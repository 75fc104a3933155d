"""Where commands run: confined as their rules say, or not at all."""
