"""The path of an inbound message up to its commit."""
