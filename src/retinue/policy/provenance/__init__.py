"""Decisions about tool arguments: whether trusted content explains where each value came from."""
