"""Whether trusted content explains each argument of a tool call."""
