"""Store data about channels: bindings, deliveries, identities, pairings, and ambient and poison messages."""
