"""Agents and what belongs to them: credentials, grants, audit."""
