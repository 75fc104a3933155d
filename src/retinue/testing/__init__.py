"""Parts for tests, shipped: for us and for plug-ins."""
