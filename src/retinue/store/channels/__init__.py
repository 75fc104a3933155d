"""Store what belongs to channels: bindings, deliveries, identities and pairings."""
