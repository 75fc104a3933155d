"""Pure decisions: facts in, a decision with its reason out. Nothing here performs I/O."""
