"""Bindings, deliveries, identities and pairings."""
