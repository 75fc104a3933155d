"""Pure functions that decide: each takes facts, and returns a decision with its reason. No function performs I/O."""
