"""Commands: begun, watched, left to run on, and told of when they end."""
