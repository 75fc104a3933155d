"""Decisions as pure functions: facts in, a decision with its reason out. Nothing in this package performs I/O."""
