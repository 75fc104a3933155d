"""The path of an inbound message, from the connector up to the commit that stores it."""
