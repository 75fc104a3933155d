"""Runners: the code that takes an agent's turns."""
