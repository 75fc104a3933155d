"""Retinue: a house with a staff of AI agents, where every envelope is accounted for."""

__version__ = "0.1.0"
