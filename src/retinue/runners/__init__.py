"""Runners, which take an agent's turns: the tool loop, CLI agents and external agents."""
