"""Envelopes in, sorted, out."""
