"""Runners, which execute the turns of a run: the tool loop, CLI agents and external agents."""
