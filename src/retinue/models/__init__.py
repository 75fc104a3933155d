"""Calls language models: one small protocol, implemented for each provider's API."""
